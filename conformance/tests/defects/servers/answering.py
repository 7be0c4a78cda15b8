"""Servers that give wrong results, failure codes or descriptions. Each docstring says what such a server does wrong.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import LIVE_EPOCH
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import seeded

# --- answers ----------------------------------------------------------------------------------------------------------


@seeded
class WrongId(Spoiler):
    """Every fourth answer has the id of another request."""

    answers = 0

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[1]:
            self.answers += 1
        return [pack((fields[0], fields[1] + 1, *fields[2:]))] if fields[1] and not self.answers % 4 else [payload]


@seeded
class SwappedAnswers(Spoiler):
    """Of Gets in flight together, two get each other's answers."""

    reads_requests = True

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.in_flight: set[int] = set()
        self.held: Sequence[Any] | None = None

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET:
            self.in_flight.add(fields[1])
        return [payload]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        self.in_flight.discard(fields[1])
        if fields[0] != Type.VALUES:
            return [payload]
        if self.held is None and self.in_flight:
            self.held = fields
            return []
        if self.held is None:
            return [payload]
        held, self.held = self.held, None
        return [pack((Type.VALUES, held[1], *fields[2:])), pack((Type.VALUES, fields[1], *held[2:]))]


@seeded
class AnswersTwice(Spoiler):
    """Sends the answer to every seventh request twice."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload] * 2 if fields[1] and fields[1] % 7 == 0 else [payload]


@seeded
class DropsAnswers(Spoiler):
    """With more than twenty answers on one connection, one is lost."""

    answers = 0

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        self.answers += 1
        return [] if self.answers == 21 else [payload]


@seeded
class MissingKeyIsAFailure(Spoiler):
    """A key without a value is KEY_NOT_FOUND instead of nil."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.VALUES or None not in fields[3]:
            return [payload]
        results = [Code.KEY_NOT_FOUND.value if result is None else result for result in fields[3]]
        epochs = [-1 if result is None else epoch for epoch, result in zip(fields[2], fields[3], strict=True)]
        return [pack((*fields[:2], epochs, results))]


@seeded
class EmptyIsMissing(Spoiler):
    """A value of no bytes is answered as nil."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.VALUES or b"" not in fields[3]:
            return [payload]
        return [pack((*fields[:3], [result or None for result in fields[3]]))]


@seeded
class FailureWithAnEpoch(Spoiler):
    """A key's failure has the epoch of the other results."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.VALUES:
            return [payload]
        return [pack((*fields[:2], [LIVE_EPOCH] * len(fields[2]), fields[3]))]


@seeded
class EpochOfNothing(Spoiler):
    """Every result has the epoch -1, as if there had been none."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:2], [-1] * len(fields[2]), *fields[3:]))] if fields[0] == Type.VALUES else [payload]


@seeded
class OneResultForRepeatedKeys(Spoiler):
    """A key that is asked for twice in one Get has one result."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and isinstance(fields[-1], tuple):
            return [pack((*fields[:-1], list(dict.fromkeys(fields[-1]))))]
        return [payload]


@seeded
class ResultsInTheOrderOfKeyBytes(Spoiler):
    """Results come in the order in which the store has the keys."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and isinstance(fields[-1], tuple):
            return [pack((*fields[:-1], sorted(fields[-1], key=pack)))]
        return [payload]


@seeded
class NoNamespaces(Spoiler):
    """Every Get reads the void namespace."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:4], None, *fields[5:]))] if fields[0] == Type.GET and len(fields) == 7 else [payload]


@seeded
class NormalizesText(Spoiler):
    """Keys are looked up in Unicode's composed form."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.GET or not isinstance(fields[-1], tuple):
            return [payload]
        keys = [unicodedata.normalize("NFC", key) if isinstance(key, str) else key for key in fields[-1]]
        return [pack((*fields[:-1], keys))]


# --- codes ------------------------------------------------------------------------------------------------------------


class _Confuses(Spoiler):
    """Gives one failure code in place of another."""

    codes: tuple[int, int]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == self.codes[0]:
            return [pack((*fields[:2], self.codes[1], fields[3]))]
        if fields[0] == Type.VALUES and self.codes[0] in fields[3]:
            results = [self.codes[1] if result == self.codes[0] else result for result in fields[3]]
            return [pack((*fields[:3], results))]
        return [payload]


@seeded
class UnknownJobIsUnknownState(_Confuses):
    """UNKNOWN_STATE for a job that is not served."""

    codes = (Code.UNKNOWN_JOB, Code.UNKNOWN_STATE)


@seeded
class UnsupportedIsMalformed(_Confuses):
    """MALFORMED for types and options that it does not know."""

    codes = (Code.UNSUPPORTED, Code.MALFORMED)


@seeded
class WrongKeyTypeIsMalformed(_Confuses):
    """MALFORMED for invalid keys."""

    codes = (Code.WRONG_KEY_TYPE, Code.MALFORMED)


@seeded
class UnknownIdIsUnknownState(_Confuses):
    """A state server answers UNKNOWN_STATE to an id that it does not hold: clients do not look the state up again."""

    at_owners = True
    codes = (Code.UNKNOWN_STATE_ID, Code.UNKNOWN_STATE)


@seeded
class NotOwnedIsMissing(Spoiler):
    """A state server returns nil for a key whose group is at another owner."""

    at_owners = True

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.VALUES:
            return [payload]
        results = [None if result == Code.KEY_GROUP_NOT_OWNED else result for result in fields[3]]
        return [pack((*fields[:3], results))]


@seeded
class ServesNothingOnOverload(_Confuses):
    """INTERNAL, which is fatal, when it has too many requests."""

    codes = (Code.OVERLOADED, Code.INTERNAL)


# --- descriptions -----------------------------------------------------------------------------------------------------


@seeded
class OwnersInAnyOrder(Spoiler):
    """The owners of a Location are not sorted."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:4], fields[4][::-1]))] if fields[0] == Type.LOCATION else [payload]


@seeded
class GapsHaveAnOwner(Spoiler):
    """The owner before a gap is named for its key groups, which it does not hold."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.LOCATION or len(fields[4]) < 2:
            return [payload]
        owners = [list(owner) for owner in fields[4]]
        for owner, following in pairwise(owners):
            owner[1] = following[0]
        return [pack((*fields[:4], owners))]


@seeded
class DescribesByHalf(Spoiler):
    """Descriptions of states lack their capabilities."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.DESCRIPTION:
            return [payload]
        entries = [{name: value for name, value in entry.items() if name != "capabilities"} for entry in fields[2]]
        return [pack((*fields[:2], entries))]
