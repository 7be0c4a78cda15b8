"""Servers that give the wrong changes. Each docstring says what such a server does wrong.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import OLDEST_EPOCH
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import seeded

#: Where the fields of Poll and Changes are.
NAMESPACES, KEYS, FROM_EPOCH, POSITION, WAIT_MS = 4, 5, 9, 10, 11
NEXT_EPOCH, AFTER, COMMITTED, RUNS = 4, 5, 6, 7


class _SpoilsChanges(Spoiler):
    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack(self.spoiled([*fields]))] if fields[0] == Type.CHANGES else [payload]

    def spoiled(self, fields: list[Any]) -> list[Any]:
        raise NotImplementedError


class _SpoilsPolls(Spoiler):
    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack(self.spoiled([*fields]))] if fields[0] == Type.POLL else [payload]

    def spoiled(self, fields: list[Any]) -> list[Any]:
        raise NotImplementedError


@seeded
class LosesTheLastRun(_SpoilsChanges):
    """The last run of an answer with several is missing."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return [*fields[:RUNS], fields[RUNS][:-1] if len(fields[RUNS]) > 1 else fields[RUNS]]


@seeded
class RepeatsChanges(_SpoilsChanges):
    """The first run of an answer comes twice."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return [*fields[:RUNS], [*fields[RUNS][:1], *fields[RUNS]]]


@seeded
class NewestFirst(_SpoilsChanges):
    """The runs of an answer begin with the newest epoch."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return [*fields[:RUNS], fields[RUNS][::-1]]


@seeded
class DeletionsAreEmpty(_SpoilsChanges):
    """A deletion is a value of no bytes."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        runs = [[run[0], 1, *run[2:5], [b""] * len(run[3])] if run[1] == 2 else run for run in fields[RUNS]]
        return [*fields[:RUNS], runs]


@seeded
class ShowsMoreThanIsCommitted(_SpoilsChanges):
    """The epoch after the committed ones is among the changes."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        if not fields[RUNS] or fields[AFTER]:
            return fields
        epoch = fields[NEXT_EPOCH]
        more = [epoch, 1, None, ["JFK"], None, [b"\xc0"]]
        return [*fields[:NEXT_EPOCH], epoch + 1, *fields[AFTER:RUNS], [*fields[RUNS], more]]


@seeded
class ForgetsThePosition(_SpoilsPolls):
    """Every Poll begins with its epoch."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[POSITION] = b"" if len(fields[POSITION]) == 6 else fields[POSITION]
        return fields


@seeded
class ForgetsTheKeys(_SpoilsPolls):
    """Gives the changes of all keys."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[KEYS] = [key for key in fields[KEYS] if key == 7]
        return fields


@seeded
class SkipsWhatIsCompacted(_SpoilsPolls):
    """Begins with the oldest stored epoch when an earlier one is asked for."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        fields[FROM_EPOCH] = max(fields[FROM_EPOCH], OLDEST_EPOCH)
        return fields


@seeded
class SaysThatItHasEverything(_SpoilsChanges):
    """Changes do not say that commits may be missing."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return fields[: RUNS + 1]


@seeded
class KeepsTheOldestToItself(Spoiler):
    """COMPACTED has no details."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == Code.COMPACTED:
            return [pack((*fields[:3], {}))]
        return [payload]


@seeded
class MarksNoProgress(_SpoilsChanges):
    """An answer without changes leads back to the place of the Poll."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        if not fields[RUNS]:
            fields[NEXT_EPOCH] = OLDEST_EPOCH
        return fields


@seeded
class WritesKeysAsText(_SpoilsChanges):
    """The dates, decimals and timestamps in keys of changes are text."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return [*fields[:RUNS], [[*run[:3], _as_text(run[3]), *run[4:]] for run in fields[RUNS]]]


@seeded
class WritesNamespacesAsText(_SpoilsChanges):
    """The dates, decimals and timestamps in namespaces of changes are text."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return [*fields[:RUNS], [[*run[:2], _as_text(run[2]), *run[3:]] for run in fields[RUNS]]]


@seeded
class WritesMapKeysAsText(_SpoilsChanges):
    """The dates, decimals and timestamps in map keys of changes are text."""

    def spoiled(self, fields: list[Any]) -> list[Any]:
        return [*fields[:RUNS], [[*run[:4], _as_text(run[4]), run[5]] for run in fields[RUNS]]]


def _as_text(key: Any) -> Any:
    """A key, or an array of keys, with text in place of the extension types."""
    if isinstance(key, tuple):
        return [_as_text(column) for column in key]
    if isinstance(key, msgpack.ExtType):
        return key.data.decode()
    return key.to_datetime().isoformat() if isinstance(key, msgpack.Timestamp) else key
