"""Seeded defects of servers that take similar ids, tokens, names and keys for equal.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import COMMITTED_EPOCH, JOB, LIVE_EPOCH, STATES, TOKEN
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import seeded

_NAMES = {name.casefold(): name for name in (JOB, *(state.name for state in STATES))}


class _ChangesGets(Spoiler):
    """Passes Gets on with another target or other keys."""

    reads_requests = True

    def target(self, target: Any) -> Any:
        return target

    def key(self, key: Any, target: Any) -> Any:
        return key

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.GET or len(fields) != 7 or not isinstance(fields[6], tuple):
            return [payload]
        target = self.target(fields[3])
        keys = tuple(self.key(key, target) for key in fields[6])
        # What is as it was is passed on as it came, unsound or not in the shortest form.
        same = (target, keys) == (fields[3], fields[6])
        return [payload] if same else [pack((*fields[:3], target, *fields[4:6], keys))]


@seeded
class ComparesTheFirstHalfOfIds(_ChangesGets):
    """A state server compares only the first eight bytes of a state id."""

    at_owners = True

    def target(self, target: Any) -> Any:
        held = self.link.meddler.shared.get("ids", set())
        same = [found for found in held if isinstance(target, bytes) and len(target) == 16 and found[:8] == target[:8]]
        return same[0] if same and target not in held else target


@seeded
class ComparesTokensWithoutCase(Spoiler):
    """The server ignores case in tokens."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        token = fields[3] if fields[0] == Type.HELLO and len(fields) >= 5 else None
        if not isinstance(token, bytes) or token.lower() != TOKEN.lower():
            return [payload]
        return [pack((*fields[:3], TOKEN, *fields[4:]))]


@seeded
class TakesNamesWithoutCase(_ChangesGets):
    """The server ignores case in names of jobs and states."""

    def target(self, target: Any) -> Any:
        named = isinstance(target, tuple) and all(isinstance(name, str) for name in target)
        return tuple(_NAMES.get(name.casefold(), name) for name in target) if named else target


@seeded
class TakesKeysWithoutCase(_ChangesGets):
    """The server ignores case in text keys."""

    def key(self, key: Any, target: Any) -> Any:
        state = next((state for state in STATES if target == (JOB, state.name)), None)
        held = [entry.key for entry in state.entries] if state is not None else []
        if not isinstance(key, str) or key in held:
            return key
        return next((found for found in held if isinstance(found, str) and found.casefold() == key.casefold()), key)


@seeded
class CommittedIsLive(Spoiler):
    """Committed reads show what was not committed yet, under the number of the committed epoch."""

    reads_requests = True

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.committed: set[int] = set()

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.GET or len(fields) != 7 or fields[5] != {"isolation": "committed"}:
            return [payload]
        self.committed.add(fields[1])
        return [pack((*fields[:5], {}, fields[6]))]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[1] not in self.committed or fields[0] != Type.VALUES:
            return [payload]
        self.committed.discard(fields[1])
        epochs = [COMMITTED_EPOCH if epoch == LIVE_EPOCH else epoch for epoch in fields[2]]
        return [pack((*fields[:2], epochs, fields[3]))]


@seeded
class TakesAHelloForTheEnd(Spoiler):
    """A Hello or Welcome with an id, in the middle of the connection, ends it."""

    reads_requests = True
    shaken = False

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if self.shaken and fields[0] in (Type.HELLO, Type.WELCOME) and fields[1]:
            self.link.to_client(pack((Type.FAILURE, 0, Code.MALFORMED, {})))
            self.link.close()
            return []
        self.shaken = True
        return [payload]
