"""Servers that treat connections and their bytes wrongly: costs, shares, frames and streams. Each docstring says how.

Rules of this module: one class, one defect. What catches it is said in the test, not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.server.fixture import LIMITS, LIVE_EPOCH
from tests.defects.servers.meddler import Spoiler, pack
from tests.defects.servers.spoilers import is_end, seeded

# --- costs ------------------------------------------------------------------------------------------------------------


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


# --- shares -----------------------------------------------------------------------------------------------------------


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


# --- frames and streams -----------------------------------------------------------------------------------------------


@seeded
class AnswersOverTheLimit(Spoiler):
    """An answer that does not fit a frame is sent."""

    def from_server(self, fields: Sequence[Any], payload: bytes) -> list[bytes]:
        if fields[0] == Type.FAILURE and fields[2] == Code.TOO_LARGE and fields[1]:
            return [pack((Type.VALUES, fields[1], (LIVE_EPOCH,), (b"x" * (LIMITS.max_frame + 1),), "f"))]
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
