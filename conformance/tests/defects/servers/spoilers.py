"""The seeded defects of servers. Each docstring says what such a server does wrong.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import LIMITS, LIVE_EPOCH, TOKEN
from tests.defects.servers.meddler import Spoiler, pack

__all__ = ["SPOILERS"]

SPOILERS: list[type[Spoiler]] = []


def seeded(spoiler: type[Spoiler]) -> type[Spoiler]:
    SPOILERS.append(spoiler)
    return spoiler


def is_end(fields: Sequence[Any]) -> bool:
    """Whether this is a Failure about the connection."""
    return fields[0] == Type.FAILURE and fields[1] == 0


# --- answers -------------------------------------------------------------------------------------------------------


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
        return [pack((*fields[:2], [-1] * len(fields[2]), fields[3]))] if fields[0] == Type.VALUES else [payload]


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


# --- codes ---------------------------------------------------------------------------------------------------------


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


# --- options and fields --------------------------------------------------------------------------------------------


class _ChangesOptions(Spoiler):
    reads_requests = True

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return options

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and len(fields) == 7 and isinstance(fields[5], dict):
            return [pack((*fields[:5], self.changed(fields[5]), fields[6]))]
        return [payload]


@seeded
class IgnoresUnknownOptions(_ChangesOptions):
    """Options that it does not know are ignored."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {name: value for name, value in options.items() if name == "isolation"}


@seeded
class IgnoresUnknownIsolations(_ChangesOptions):
    """An isolation that it does not know is live."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {
            name: "live" if name == "isolation" and value not in ("live", "committed") else value
            for name, value in options.items()
        }


@seeded
class IgnoresMinEpoch(_ChangesOptions):
    """A demanded epoch always counts as reached."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {name: value for name, value in options.items() if name != "min_epoch"}


@seeded
class WantsALaterEpoch(_ChangesOptions):
    """An epoch equal to the demanded one counts as too early."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        more = 1 if options.get("min_epoch") == LIVE_EPOCH else 0
        return {name: value + more if name == "min_epoch" else value for name, value in options.items()}


@seeded
class RefusesTheStrictestBound(_ChangesOptions):
    """A bound of zero staleness is refused even for a current view."""

    def changed(self, options: dict[Any, Any]) -> dict[Any, Any]:
        return {name: -1 if name == "max_staleness_ms" and not value else value for name, value in options.items()}


@seeded
class TakesFloatsForIntegers(Spoiler):
    """A deadline may be a float or a boolean."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and len(fields) == 7 and isinstance(fields[2], float | bool):
            return [pack((*fields[:2], int(fields[2]), *fields[3:]))]
        return [payload]


@seeded
class ReadsTheShortestFormsAlone(Spoiler):
    """A message that is not in the shortest form of MessagePack is MALFORMED."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[1] == 0 or pack(fields) == payload:
            return [payload]
        self.link.to_client(pack((Type.FAILURE, fields[1], Code.MALFORMED, {})))
        return []


@seeded
class CountsBytesOfNames(Spoiler):
    """A name may have 255 bytes, not 255 characters."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        names = [name for name in fields[3:5] if isinstance(name, str)] if fields[0] == Type.LOCATE else []
        if all(len(name.encode()) <= 255 for name in names):
            return [payload]
        self.link.to_client(pack((Type.FAILURE, fields[1], Code.MALFORMED, {})))
        return []


@seeded
class DeadlineInSeconds(Spoiler):
    """A deadline counts as seconds instead of milliseconds."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET and isinstance(fields[2], int) and 0 < fields[2] < 1000:
            return [pack((*fields[:2], fields[2] * 1000, *fields[3:]))]
        return [payload]


# --- descriptions --------------------------------------------------------------------------------------------------


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


# --- handshake -----------------------------------------------------------------------------------------------------


class _ReadsHellos(Spoiler):
    reads_requests = True

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload]

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return self.hello(fields, payload) if fields[0] == Type.HELLO and len(fields) >= 5 else [payload]

    def refuse(self, code: int) -> list[bytes]:
        self.link.to_client(pack((Type.FAILURE, 0, code, {})))
        self.link.close()
        return []


@seeded
class AcceptsTheStartOfAToken(_ReadsHellos):
    """A prefix of the right token is accepted."""

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        token = fields[3]
        right = isinstance(token, bytes) and TOKEN.startswith(token[: len(TOKEN)]) and token
        return [pack((*fields[:3], TOKEN, *fields[4:]))] if right else [payload]


@seeded
class AcceptsNoToken(_ReadsHellos):
    """A client without a token is accepted."""

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:3], TOKEN, *fields[4:]))] if fields[3] is None else [payload]


@seeded
class RefusesLaterHellos(_ReadsHellos):
    """A Hello with elements that it does not know is MALFORMED."""

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload] if len(fields) == 5 else self.refuse(Code.MALFORMED)


@seeded
class ChoosesTheLowestVersion(_ReadsHellos):
    """It speaks the versions 1 and 2, and chooses 1 when the client speaks both."""

    version = 1

    def hello(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        versions = fields[2]
        if not isinstance(versions, tuple) or 1 in versions:
            return [payload]
        if 2 not in versions:
            self.link.to_client(pack((Type.FAILURE, 0, Code.VERSION_MISMATCH, {"versions": "1,2"})))
            self.link.close()
            return []
        self.version = 2
        return [pack((*fields[:2], (1,), *fields[3:]))]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:2], self.version, *fields[3:]))] if fields[0] == Type.WELCOME else [payload]


@seeded
class KeepsItsVersionsToItself(Spoiler):
    """VERSION_MISMATCH lacks the server's versions."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [pack((*fields[:3], {}))] if is_end(fields) and fields[2] == Code.VERSION_MISMATCH else [payload]


@seeded
class WaitsForHandshakesForEver(Spoiler):
    """A client that never sends a whole Hello keeps its place."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if is_end(fields) and fields[2] == Code.DEADLINE_EXCEEDED:
            self.link.client.transport.pause_reading()  # type: ignore[attr-defined]
            self.link.meddler.shared.setdefault("kept", []).append(self.link)
            return []
        return [payload]


@seeded
class RequestsBeforeTheHandshake(_ReadsHellos):
    """A request is answered although there was no Hello."""

    shaken = False

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.PING and not self.shaken:
            self.link.to_client(pack((Type.PONG, fields[1])))
            return []
        self.shaken = True
        return [payload]


# --- costs ---------------------------------------------------------------------------------------------------------


@seeded
class UnpacksWhatItIsSent(Spoiler):
    """Unpacks a payload before it checks the shape, and allocates memory for all that the payload announces."""

    reads_requests = True  # which unpacks each


@seeded
class MakesAnswersFirst(Spoiler):
    """Builds an answer before it checks whether the answer fits a frame."""

    reads_requests = True

    def __init__(self, link: Any) -> None:
        super().__init__(link)
        self.keys: dict[int, int] = {}

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.GET:
            self.keys[fields[1]] = len(fields[6])
        return [payload]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == Code.TOO_LARGE and fields[1] in self.keys:
            pack([b"w" * LIMITS.max_frame] * self.keys[fields[1]])
        return [payload]


# --- shares --------------------------------------------------------------------------------------------------------


@seeded
class OneConnectionTakesAll(Spoiler):
    """Reads one connection's requests until the total limit, and then refuses those of all."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] != Type.GET:
            return [payload]
        shared = self.link.meddler.shared
        if shared.setdefault("in flight", 0) >= LIMITS.max_requests:
            self.link.to_client(pack((Type.FAILURE, fields[1], Code.OVERLOADED, {})))
            return []
        shared["in flight"] += 1
        return [payload]

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] in (Type.VALUES, Type.FAILURE):
            self.link.meddler.shared["in flight"] -= 1
        return [payload]


class _WhenFull(Spoiler):
    """Base of the defects of a server whose places for connections are all taken."""

    shaken = False

    def opened(self) -> bool:
        links: list[Any] = self.link.meddler.shared.setdefault("links", [])
        links[:] = [link for link in links if link in self.link.meddler.links]
        return self.full(links) if len(links) >= LIMITS.max_connections else bool(links.append(self.link) or True)

    def full(self, links: list[Any]) -> bool:
        raise NotImplementedError

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        self.shaken = self.shaken or fields[0] == Type.WELCOME
        return [payload]


@seeded
class IdleConnectionsKeepTheirPlaces(_WhenFull):
    """A new connection is refused when all places are taken, even by idle connections."""

    def full(self, links: list[Any]) -> bool:
        self.link.to_client(pack((Type.FAILURE, 0, Code.OVERLOADED, {})))
        return False


@seeded
class BusyConnectionsLoseTheirPlaces(_WhenFull):
    """A new connection replaces the oldest, even one with requests in flight."""

    def full(self, links: list[Any]) -> bool:
        links.pop(0).close()
        return True


@seeded
class SilentConnectionsGoLast(_WhenFull):
    """A new connection replaces one with a handshake, although others have none."""

    def full(self, links: list[Any]) -> bool:
        given_up = next(link for link in links if link.spoiler.shaken)
        given_up.to_client(pack((Type.FAILURE, 0, Code.OVERLOADED, {})))
        given_up.close()
        return True


@seeded
class KeepsAllAnswers(Spoiler):
    """Answers for a client that never reads are kept without limit."""

    waits_for_clients = False


# --- frames and streams --------------------------------------------------------------------------------------------


@seeded
class AnswersOverTheLimit(Spoiler):
    """An answer that does not fit a frame is sent."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == Code.TOO_LARGE and fields[1]:
            return [pack((Type.VALUES, fields[1], (LIVE_EPOCH,), (b"x" * (LIMITS.max_frame + 1),)))]
        return [payload]


@seeded
class WaitsForTheWholePayload(Spoiler):
    """A frame over the limit is refused only after all of it was received."""

    reads_requests = True
    withheld = b""

    def bytes_without_frame(self, data: bytes) -> bytes:
        self.withheld += data
        length = int.from_bytes(self.withheld[:4], "big")
        return self.withheld if len(self.withheld) >= 4 + length else b""


@seeded
class TakesAReadForAFrame(Spoiler):
    """Expects each read to return whole frames, and drops the connection otherwise."""

    def bytes_from_client(self, data: bytes) -> bytes:
        rest = data
        while len(rest) >= 4 and len(rest) >= 4 + int.from_bytes(rest[:4], "big"):
            rest = rest[4 + int.from_bytes(rest[:4], "big") :]
        if rest and not (len(rest) >= 4 and int.from_bytes(rest[:4], "big") > LIMITS.max_frame):
            self.link.close()
        return data


@seeded
class TakesAReadForOneFrame(Spoiler):
    """Of several frames in one read, it handles the first only."""

    def bytes_from_client(self, data: bytes) -> bytes:
        length = int.from_bytes(data[:4], "big")
        return data[: 4 + length] if 0 < length <= LIMITS.max_frame else data


@seeded
class TalksAfterTheEnd(Spoiler):
    """After a Failure of id 0 it sends one more message."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [payload, pack((Type.PONG, 1))] if is_end(fields) else [payload]


@seeded
class SilentAtTheEnd(Spoiler):
    """A broken stream is closed without a Failure."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        return [] if is_end(fields) and fields[2] == Code.MALFORMED else [payload]


@seeded
class StopsListeningAfterGarbage(Spoiler):
    """A broken stream ends the listener."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if is_end(fields) and fields[2] == Code.MALFORMED:
            self.link.meddler.close_listeners()
        return [payload]


@seeded
class BrokenStreamEndsOthers(Spoiler):
    """A broken stream ends every connection."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if is_end(fields) and fields[2] == Code.MALFORMED:
            for other in self.link.meddler.links - {self.link}:
                other.close()
        return [payload]


@seeded
class LeaksPlaces(Spoiler):
    """A connection that broke keeps its place forever."""

    def opened(self) -> bool:
        if self.link.meddler.shared.get("lost", 0) < LIMITS.max_connections:
            return True
        self.link.to_client(pack((Type.FAILURE, 0, Code.OVERLOADED, {})))
        return False

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if is_end(fields) and fields[2] == Code.MALFORMED:
            self.link.meddler.shared["lost"] = self.link.meddler.shared.get("lost", 0) + 1
        return [payload]


@seeded
class BadRequestEndsTheConnection(Spoiler):
    """A MALFORMED request ends its connection, and with it the others in flight."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[1] and fields[2] == Code.MALFORMED:
            self.link.to_client(payload)
            self.link.close()
            return []
        return [payload]


@seeded
class HalfClosedForEver(Spoiler):
    """A connection whose client sends nothing more stays."""

    def client_ended(self) -> bool:
        return False


@seeded
class IdZeroIsARequest(Spoiler):
    """A Ping with the id 0 is answered with a Pong."""

    reads_requests = True

    def from_client(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.PING and fields[1] == 0:
            self.link.to_client(pack((Type.PONG, 0)))
            return []
        return [payload]
