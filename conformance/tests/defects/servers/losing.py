"""Seeded defects of servers when an owner dies or is silent, or a state changes its description.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import DYING, JOB, LIMITS, SILENT
from tests.defects.servers.meddler import Spoiler, frame, pack
from tests.defects.servers.spoilers import seeded

_LONG_MS = 3_000


class _KnowsGets(Spoiler):
    """Keeps the Gets in flight, by their ids."""

    reads_requests = True

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.gets: dict[int, tuple[Sequence[Any], bytes]] = {}

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and len(fields) == 7:
            self.gets[fields[1]] = fields, payload
        return [payload]

    def codes(self, fields: Sequence[Any]) -> set[Any]:
        if fields[0] == Type.FAILURE:
            return {fields[2]}
        return set(fields[3]) if fields[0] == Type.VALUES else set()


@seeded
class SendsAgainWhatKilledAnOwner(_KnowsGets):
    """Sends the Get that killed an owner to its next incarnation."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        get, sent = self.gets.pop(fields[1], (None, b""))
        if get is not None and get[3] == (JOB, DYING) and Code.UNAVAILABLE in self.codes(fields):
            assert self.link.server is not None
            self.link.server.write(frame(sent))
            return []
        return [payload]


@seeded
class NeverAnswersForSilentOwners(_KnowsGets):
    """A Get whose owner is silent for more than three seconds is forgotten."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        get, _ = self.gets.pop(fields[1], (None, b""))
        return [] if get is not None and get[3] == (JOB, SILENT) and get[2] > _LONG_MS else [payload]


@seeded
class LosesPlacesToSilentOwners(_KnowsGets):
    """A Get whose owner was silent for more than three seconds counts as in flight forever."""

    lost = 0

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and len(self.gets) + self.lost >= LIMITS.max_requests:
            self.link.to_client(pack((Type.FAILURE, fields[1], Code.OVERLOADED, {})))
            return []
        return super().from_client(fields, payload)

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        get, _ = self.gets.pop(fields[1], (None, b""))
        self.lost += get is not None and get[3] == (JOB, SILENT) and get[2] > _LONG_MS
        return [payload]


@seeded
class NothingCommittedIsNil(_KnowsGets):
    """A committed read before the first commit returns nil."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        get, _ = self.gets.pop(fields[1], (None, b""))
        if get is None or Code.NO_COMMITTED_EPOCH not in self.codes(fields):
            return [payload]
        return [pack((Type.VALUES, fields[1], (-1,) * len(get[6]), (None,) * len(get[6]), "f"))]


@seeded
class FailsWhereStalenessIsNotKnown(_KnowsGets):
    """Answers INTERNAL when a view does not know since when it lacks commits."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == Code.TOO_STALE and "staleness_ms" not in fields[3]:
            return [pack((*fields[:2], Code.INTERNAL, {}))]
        return [payload]


@seeded
class OneFingerprintForAll(Spoiler):
    """Every description and every value has the same fingerprint."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.LOCATION:
            return [pack((*fields[:2], {**fields[2], "fingerprint": "f"}, *fields[3:]))]
        if fields[0] == Type.DESCRIPTION:
            return [pack((*fields[:2], [{**entry, "fingerprint": "f"} for entry in fields[2]]))]
        return [pack((*fields[:4], "f"))] if fields[0] == Type.VALUES else [payload]


@seeded
class FingerprintOfTheFirstDescription(Spoiler):
    """Values have the fingerprint with which their state was described first over the connection."""

    first: str | None = None

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.LOCATION and self.first is None:
            self.first = fields[2]["fingerprint"]
        known = fields[0] == Type.VALUES and self.first is not None
        return [pack((*fields[:4], self.first))] if known else [payload]
