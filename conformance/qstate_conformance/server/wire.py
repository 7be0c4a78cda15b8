"""A small client for laws: it sends any message, valid or not, and checks each answer against every rule it can see.

Rules of this module: sockets with time limits, frames, and which answer belongs to which request. What a message
must look like is `messages`; what is asked, and what the answer must be, are the laws'.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterable, Mapping
from itertools import pairwise
from types import TracebackType
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import Key
from qstate_conformance.server.messages import (
    Answer,
    Changes,
    Description,
    Failure,
    Location,
    Page,
    Part,
    Pong,
    ServerMessage,
    Values,
    Violation,
    Welcome,
    read_message,
)
from qstate_conformance.server.packing import pack
from qstate_conformance.server.patience import Patience
from qstate_conformance.server.streams import HANDSHAKE_MAX_FRAME
from qstate_conformance.subjects import ServerSubject

__all__ = ["DEADLINE_MS", "Ended", "Session", "Stream", "Target", "connect", "frame", "hello"]

#: A deadline that a healthy server meets by far.
DEADLINE_MS = 10_000
_RECEIVE_BYTES = 65_536
#: Ids from here on are chosen by laws that try large ones; `next_id` does not come so far.
_LARGE_ID = 1 << 31
_RESET = b"\1\0\0\0\0\0\0\0"

Target = tuple[str, str] | bytes
_ANSWERS: Mapping[int, type] = {
    Type.GET: Values,
    Type.GET_PART: Part,
    Type.SCAN: Page,
    Type.POLL: Changes,
    Type.LOCATE: Location,
    Type.DESCRIBE: Description,
    Type.PING: Pong,
}
_patience = Patience()


class Ended(Exception):
    """The server closed the connection."""


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    return len(payload).to_bytes(4, "big") + payload


def hello(versions: Iterable[int] = (1,), token: bytes | None = None, client: str = "conformance", *last: Any) -> bytes:
    """The frame that opens a connection; `last` are the elements that may be left out."""
    return frame(pack((Type.HELLO, 0, tuple(versions), token, client, *last)))


class Stream:
    """A connection without a handshake. Every wait is bounded; what is received must be sound frames."""

    def __init__(self, address: tuple[str, int], *, receive_buffer: int = 0) -> None:
        self.max_frame = HANDSHAKE_MAX_FRAME
        self._received = bytearray()
        self._over = False
        family, kind, number, _, resolved = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        self._sock = socket.socket(family, kind, number)
        try:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if receive_buffer:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
            self._sock.settimeout(_patience.limit_s)
            self._sock.connect(resolved)
        except OSError as exc:
            self._sock.close()
            raise Violation(f"P-BROKEN-3: no connection to {address}: {exc!r}") from exc

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, both ways."""
        self._sock.close()

    def reset(self) -> None:
        """End the connection as a client does whose machine died: with a reset."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._sock.close()

    def half_close(self) -> None:
        """Say that nothing more will be sent; answers can still be received."""
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:  # the server was faster
            return

    def send(self, data: bytes) -> None:
        """Send bytes. A server that has closed meanwhile is not an error: what it said will be read."""
        self._sock.settimeout(_patience.limit_s)
        try:
            self._sock.sendall(data)
        except TimeoutError as exc:
            _patience.was_lost()
            raise Violation("P-FRAME-3: the server stopped reading") from exc
        except OSError:
            return

    def send_in_pieces(self, data: bytes, borders: Iterable[int]) -> None:
        """Send bytes cut at these places, each piece on its own."""
        places = sorted({0, len(data), *(border for border in borders if 0 < border < len(data))})
        for start, stop in pairwise(places):
            self.send(data[start:stop])

    def flood(self, data: bytes, most: int, limit_s: float) -> int:
        """Send over and over without reading, until `most` bytes are out, or the server takes no more for a while."""
        sent, whole = 0, memoryview(data)
        self._sock.settimeout(limit_s)
        try:
            while sent < most:
                sent += self._sock.send(whole[sent % len(data) :])
        except OSError:
            return sent
        return sent

    def wait_for_end(self, limit_s: float) -> None:
        """Wait, without reading, until the connection has been closed from the other side, or for so long."""
        poller = select.poll()
        poller.register(self._sock, 0)  # the poller always reports an error or the end of both directions
        poller.poll(limit_s * 1000)

    def receive(self) -> ServerMessage:
        """The next message. Raises `Ended` when there is none, `Violation` when it breaks a rule or does not come."""
        return read_message(self.receive_payload())

    def receive_payload(self) -> bytes:
        """The next payload, whatever is in it."""
        until = time.monotonic() + _patience.limit_s
        while True:
            payload = self._cut()
            if payload is not None:
                return payload
            self._read(until)

    def receive_what_comes(self) -> list[ServerMessage]:
        """`receive_rest` where a Welcome may come first."""
        try:
            first = self.receive()
        except Ended:
            return []
        if isinstance(first, Welcome):
            self.max_frame = first.max_frame
        return [first, *self.receive_rest()]

    def receive_rest(self) -> list[ServerMessage]:
        """What the server still says until it closes, which it must do in time."""
        found: list[ServerMessage] = []
        while True:
            try:
                found.append(self.receive())
            except Ended:
                return found

    def receive_close_notice(self, *codes: int) -> Failure:
        """The Failure of id 0 with one of these codes, the end of the connection behind it, and nothing between."""
        try:
            found = self.receive()
        except Ended:
            raise Violation("P-BROKEN-1: the connection ended without a Failure of id 0") from None
        if not isinstance(found, Failure) or found.id or found.code not in codes:
            wanted = ", ".join(Code(code).name for code in codes)
            raise Violation(f"P-BROKEN-1: {found} instead of a Failure of id 0 with {wanted}")
        rest = self.receive_rest()
        if rest:
            raise Violation(f"P-CLOSE-3: {rest[0]} after a Failure of id 0")
        return found

    def is_silent(self, limit_s: float) -> bool:
        """Whether the server neither says anything nor closes for so long."""
        self._sock.settimeout(limit_s)
        try:
            data = self._sock.recv(_RECEIVE_BYTES)
        except TimeoutError:
            return True
        except OSError:
            return False
        self._received += data
        return False

    def read_away(self) -> int:
        """Read until the connection ends, wherever that is, and give how many bytes came. It must end in time."""
        came = len(self._received)
        until = time.monotonic() + _patience.limit_s
        try:
            while data := self._receive(until):
                came += len(data)
        except Ended:
            pass
        return came

    def _cut(self) -> bytes | None:
        if len(self._received) < 4:
            return None
        length = int.from_bytes(self._received[:4], "big")
        if length > self.max_frame:
            raise Violation(f"P-FRAME-2: the server sends a payload of {length} bytes, over {self.max_frame}")
        if len(self._received) < 4 + length:
            return None
        payload = bytes(self._received[4 : 4 + length])
        del self._received[: 4 + length]
        return payload

    def _read(self, until: float) -> None:
        data = self._receive(until)
        if data:
            self._received += data
            return
        if self._received:
            raise Violation(f"P-FRAME-1: the connection ended within a frame: {bytes(self._received[:64]).hex()}")
        raise Ended

    def _receive(self, until: float) -> bytes:
        """What comes next, nothing at the end. Raises `Ended` after that, or when the connection is reset."""
        if self._over:
            raise Ended
        try:
            self._sock.settimeout(max(until - time.monotonic(), 0.001))
            data = self._sock.recv(_RECEIVE_BYTES)
        except TimeoutError as exc:
            _patience.was_lost()
            raise Violation("P-REQ-2: the server neither answers nor closes") from exc
        except OSError as exc:
            self._over = True
            raise Ended from exc
        self._over = not data
        return data


class Session(Stream):
    """A connection with its handshake, which knows what is in flight: an answer to nothing is a violation."""

    def __init__(
        self,
        address: tuple[str, int],
        token: bytes | None,
        *,
        receive_buffer: int = 0,
        versions: Iterable[int] = (1,),
        max_frame: int | None = None,
    ) -> None:
        """`max_frame` is that of the Hello; without it, the Hello has none."""
        super().__init__(address, receive_buffer=receive_buffer)
        self._last_id = 0
        self._waiting: dict[int, tuple[type | None, int]] = {}
        self._answers: dict[int, Answer] = {}
        try:
            last = () if max_frame is None else ((), max_frame)
            self.welcome = self._shake_hands(hello(versions, token, "conformance", *last))
        except BaseException:
            self.close()
            raise
        self.max_frame = min(self.welcome.max_frame, max_frame or self.welcome.max_frame)

    def __enter__(self) -> Session:
        return self

    def _shake_hands(self, opening: bytes) -> Welcome:
        self.send(opening)
        found = self.receive()
        if isinstance(found, Failure) and found.id == 0 and found.code == Code.OVERLOADED:
            raise Ended
        if not isinstance(found, Welcome):
            raise Violation(f"P-HELLO-2: {found} instead of a Welcome")
        return found

    def next_id(self) -> int:
        """An id that was not used on this connection."""
        self._last_id += 1
        return self._last_id

    def ask(self, kind: int, *fields: Any, number: int | None = None) -> int:
        """Send a sound request; gives its id."""
        number = self.next_id() if number is None else number
        self.send(self.request(kind, number, *fields))
        return number

    def request(self, kind: int, number: int, *fields: Any) -> bytes:
        """The frame of a sound request, which is in flight from now on."""
        self.expect(number, _ANSWERS[kind], len(fields[-1]) if kind == Type.GET else 0)
        return frame(pack((int(kind), number, *fields)))

    def expect(self, number: int, answer: type | None, size: int = 0) -> None:
        """A request of that id is in flight; `answer` is what it may have besides a Failure."""
        self._waiting[number] = (answer, size)
        if number < _LARGE_ID:
            self._last_id = max(self._last_id, number)

    def answer(self, number: int) -> Answer:
        """The answer to a request. Those to others are kept for them."""
        while number not in self._answers:
            try:
                found = self.receive()
            except Ended:
                raise Violation(f"P-REQ-2: the connection ended before the answer to {number}") from None
            self._take(found)
        return self._answers.pop(number)

    def end(self) -> None:
        """Half-close, and see that the answers that are due come, and nothing else, until the server closes."""
        self.half_close()
        for found in self.receive_rest():
            if not (isinstance(found, Failure) and found.id == 0):
                self._take(found)
        if self._waiting:
            raise Violation(f"P-CLOSE-5: the connection ended without answers to {sorted(self._waiting)}")

    def _take(self, found: ServerMessage) -> None:
        if isinstance(found, Welcome):
            raise Violation(f"P-HELLO-2: a second {found}")
        if found.id not in self._waiting:
            raise Violation(f"P-REQ-2: {found} for no request in flight")
        kind, size = self._waiting.pop(found.id)
        if not isinstance(found, Failure):
            if kind is None or not isinstance(found, kind):
                raise Violation(f"P-REQ-2: {found} for a request that takes {kind and kind.__name__}")
            if isinstance(found, Values) and len(found.results) != size:
                raise Violation(f"P-GET-1: {len(found.results)} results for {size} keys")
        self._answers[found.id] = found

    # The requests, each with its answer.

    def exchange(self, kind: int, *fields: Any) -> Answer:
        """A request and its answer."""
        return self.answer(self.ask(kind, *fields))

    def get(
        self,
        target: Target,
        *keys: Key,
        namespace: Key | None = None,
        options: Mapping[str, Any] | None = None,
        deadline_ms: int = DEADLINE_MS,
    ) -> Values | Failure:
        """A Get and its answer."""
        found = self.exchange(Type.GET, deadline_ms, target, namespace, options or {}, keys)
        assert isinstance(found, Values | Failure)
        return found

    def locate(self, job: str, state: str, deadline_ms: int = DEADLINE_MS) -> Location | Failure:
        """A Locate and its answer."""
        found = self.exchange(Type.LOCATE, deadline_ms, job, state)
        assert isinstance(found, Location | Failure)
        return found

    def describe(
        self, job: str | None, deadline_ms: int = DEADLINE_MS, *, after: str | None = None
    ) -> Description | Failure:
        """A Describe and its answer; with `after`, of a page."""
        found = self.exchange(Type.DESCRIBE, deadline_ms, job, *(() if after is None else ({"?after": after},)))
        assert isinstance(found, Description | Failure)
        return found

    def ping(self) -> None:
        """A Ping, which must be answered with Pong."""
        found = self.exchange(Type.PING)
        if not isinstance(found, Pong):
            raise Violation(f"P-PING-1: {found} for a Ping")

    def refused(self, payload: bytes, number: int) -> int:
        """Send a payload that is unsound but has this id, and give the code of its Failure."""
        self.expect(number, None)
        self.send(frame(payload))
        found = self.answer(number)
        assert isinstance(found, Failure)
        return found.code


def connect(
    subject: ServerSubject,
    address: tuple[str, int] | None = None,
    *,
    receive_buffer: int = 0,
    max_frame: int | None = None,
) -> Session:
    """A session with the proxy, or with the state server at this address.

    A server notices that earlier connections are gone only after a while; until then it may be full (P-HELLO-7).
    """
    until = time.monotonic() + _patience.limit_s
    while True:
        try:
            where = address or (subject.host, subject.port)
            return Session(where, subject.token, receive_buffer=receive_buffer, max_frame=max_frame)
        except Ended:
            if time.monotonic() > until:
                _patience.was_lost()
                raise Violation("P-BROKEN-3: the server has no room for a connection, though all are closed") from None
            time.sleep(0.01)
