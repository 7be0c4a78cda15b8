"""Seeded defects of servers that show late: with many requests in flight, in a large answer, after a long run, at the
end of a connection.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Type
from qstate_conformance.server.fixture import LIMITS
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import seeded


class _Counts(Spoiler):
    """Knows how many Gets are in flight on its connection."""

    reads_requests = True

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.in_flight: set[int] = set()

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and len(fields) == 7:
            self.in_flight.add(fields[1])
            return self.get(fields, payload)
        return [payload]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        passed = self.answer(fields, payload)
        self.in_flight.discard(fields[1])
        return passed

    def get(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload]

    def answer(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload]


@seeded
class ForgetsDeadlinesUnderLoad(_Counts):
    """With more than sixteen requests in flight on a connection, each has four seconds more."""

    def get(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if len(self.in_flight) <= 16 or type(fields[2]) is not int or fields[2] > 1000:
            return [payload]
        return [pack((*fields[:2], fields[2] + 4000, *fields[3:]))]


@seeded
class SwapsAnswersAtTheLimit(_Counts):
    """With half as many requests in flight on a connection as may be on all, two get each other's answers."""

    full = False
    held: Sequence[Any] | None = None

    def get(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        self.full = self.full or len(self.in_flight) == LIMITS.max_requests // 2
        return [payload]

    def answer(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if not self.full or fields[0] != Type.VALUES:
            return [payload]
        if self.held is None:
            self.held = fields if len(self.in_flight) > 1 else None
            return [] if self.held else [payload]
        held, self.held, self.full = self.held, None, False
        return [pack((Type.VALUES, held[1], *fields[2:])), pack((Type.VALUES, fields[1], *held[2:]))]


@seeded
class MixesUpResultsLateInALargeGet(Spoiler):
    """In an answer of ten thousand results, two in the middle have each other's place."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.VALUES or len(fields[3]) < LIMITS.max_keys:
            return [payload]
        results = list(fields[3])
        middle = len(results) // 2
        other = next(place for place in range(middle, len(results)) if results[place] != results[middle])
        results[middle], results[other] = results[other], results[middle]
        return [pack((*fields[:3], results))]


@seeded
class StopsAfterTenThousandRequests(Spoiler):
    """A connection answers ten thousand requests, and not one more."""

    answers = 0

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        self.answers += 1
        return [payload] if self.answers <= 10_000 else []


@seeded
class LosesAnswersAtHalfClose(Spoiler):
    """When the client sends nothing more, the connection ends, whatever is still to be answered."""

    def client_ended(self) -> bool:
        self.link.close()
        return False


@seeded
class WaitsForTheGone(_Counts):
    """A connection whose client has ended its half stays until the last deadline, for days if need be."""

    longest_ms = 0

    def get(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        self.longest_ms = max(self.longest_ms, fields[2] if type(fields[2]) is int else 0)
        return [payload]

    def client_ended(self) -> bool:
        return self.longest_ms < 60_000


@seeded
class AnswersARepeatedPingOnce(Spoiler):
    """Of two Pings with the same id, the second is passed over, although the first has its answer."""

    reads_requests = True

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.seen: set[int] = set()

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.PING or len(fields) != 2 or not fields[1]:
            return [payload]
        again = fields[1] in self.seen
        self.seen.add(fields[1])
        return [] if again else [payload]
