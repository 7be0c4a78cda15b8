"""The server that a client under test talks to: good, bad or worse, as a law says.

Rules of this module: sockets and threads of its own, on ports of the loopback interface that the system picks. It is
proxy and state server in one. What it answers is bytes that a law builds; it judges nothing, it keeps what came and
which rules that broke. Everything it waits for is bounded, and `close` leaves no thread behind.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from qstate_conformance.client import frames
from qstate_conformance.client.frames import CANCEL, DESCRIBE, GET, HELLO, LOCATE, PING, SCAN
from qstate_conformance.client.requests import Limits, Request, faults_of, read_payload
from qstate_conformance.packing import pack

__all__ = ["CLOSE", "HANG_UP", "JOB", "STATE", "Connection", "Peer", "Reply", "state_map"]

JOB, STATE = "job", "state"
STATE_ID = bytes(range(16))
#: A reply that closes the connection; and one that resets it.
CLOSE, HANG_UP = object(), object()
Reply = bytes | object
#: How long a client may leave the peer's bytes unread before the peer gives its connection up.
SEND_TIMEOUT_S = 5.0
#: More than any payload that a law has a client send.
LARGEST_READ = 64 * 1024 * 1024


def state_map(name: Any = STATE, kind: Any = "value", serializer: Any = "msgpack", **more: Any) -> dict[str, Any]:
    """The description of a state whose keys are text."""
    described: dict[str, Any] = {"name": name, "kind": kind, "serializer": serializer, "serializer_version": 1}
    types = {"key_types": ["string"], "namespace_types": None, "value_type": "any"}
    return {**described, **types, "capabilities": ["committed_reads"], "fingerprint": frames.FINGERPRINT, **more}


class Connection:
    """One connection of the client, as the peer sees it."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number = number
        #: The Hello, once it has come.
        self.hello: Request | None = None
        #: When the client closed, or None while it has not. (The peer's own end does not count.)
        self.left_at: float | None = None
        self.in_flight: dict[int, Request] = {}
        #: The connection as `ssl` sees it, once its handshake is complete.
        self.tls: ssl.SSLSocket | None = None
        #: Whether this side ended it.
        self.ended = False
        self._sock = sock
        self._buffer = bytearray()

    def secure(self, tls: ssl.SSLContext) -> ssl.SSLSocket:
        """Make the handshake of TLS. Raises `OSError` when the client refuses it."""
        self._sock.settimeout(SEND_TIMEOUT_S)
        secured = tls.wrap_socket(self._sock, server_side=True)
        secured.settimeout(None)
        self._sock, self.tls = secured, secured
        return secured

    def send(self, data: bytes) -> None:
        """Send bytes; a client that has gone is no error. Any thread may call it."""
        with contextlib.suppress(OSError):
            self._sock.sendall(data)

    def answer(self, request: Request, data: bytes) -> None:
        """Send the answer to a request: its id may be used again."""
        self.in_flight.pop(request.id, None)
        self.send(data)

    def close(self) -> None:
        """End the connection from this side."""
        self.ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """End it with a reset, as a process that dies may."""
        self.ended = True
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        self._sock.close()

    def read(self) -> bytes | None:
        """The next payload of the client; None when it has closed."""
        header = self._take(4)
        length = int.from_bytes(header, "big") if header else 0
        # No law makes a client send such a length: this is no frame, and what follows cannot be read.
        return None if header is None or length > LARGEST_READ else self._take(length)

    def drain(self) -> None:
        """Read and keep nothing until the client closes."""
        while self._receive():
            self._buffer.clear()

    def _take(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            if not self._receive():
                return None
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def _receive(self) -> bool:
        try:
            data = self._sock.recv(65536)
        except OSError:
            return False
        self._buffer += data
        return bool(data)


class Peer:
    """A server for one law, closed by its `with` block.

    Without more it is an honest proxy and state server for the job `job`, whose state `state` holds each key's own
    text. `answer(request)` gives the replies to a request instead, `greet(connection)` those to a Hello. A law may also
    answer from its own thread, with `Connection.answer`, what `answer` left unanswered. With `tls` it takes TLS
    connections only.
    """

    def __init__(
        self,
        answer: Callable[[Request], Iterable[Reply]] | None = None,
        *,
        greet: Callable[[Connection], Iterable[Reply]] | None = None,
        states: Iterable[dict[str, Any]] | None = None,
        max_frame: int = frames.MAX_FRAME,
        max_keys: int = frames.MAX_KEYS,
        host: str = "127.0.0.1",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.answer = answer or self.honest
        self.greet = greet or (lambda connection: [frames.welcome(max_frame=max_frame, max_keys=max_keys)])
        self.states = {state["name"]: state for state in (states or [state_map()])}
        self.requests: list[Request] = []
        self.connections: list[Connection] = []
        #: Every rule that the client broke, in the words of `faults_of`.
        self.faults: list[str] = []
        self._limits = Limits(max_frame, max_keys)
        self._changed = threading.Condition()
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._tls = tls
        self._listener = socket.create_server((host, 0))
        #: Told also while the peer closes: a request that came just before is still answered with it.
        self.address: tuple[str, int] = self._listener.getsockname()
        self._spawn(self._accept)

    @property
    def gets(self) -> list[Request]:
        """The received Gets, in their order."""
        return self.of_type(GET)

    def of_type(self, kind: int) -> list[Request]:
        """The received requests of one type, in their order."""
        return [request for request in list(self.requests) if request.type == kind]

    def owner(self, start: int = 0, stop: int = 128, state_id: bytes = STATE_ID) -> tuple[Any, ...]:
        """This peer as an owner in a Location."""
        return (start, stop, *self.address, state_id)

    def honest(self, request: Request) -> Iterable[Reply]:
        """What an honest server answers."""
        if request.type == GET:
            epoch = max(1, request.options.get("min_epoch", 1))
            results = [pack(key) for key in request.keys]
            return [frames.values(request.id, results, epoch, fingerprint=self._fingerprint(request.target))]
        if request.type == SCAN:
            # A state with a value for whatever key is asked for has no keys to list.
            place = (
                (request.groups[0], request.after) if request.options.get("limit") == 0 else (request.groups[1], None)
            )
            return [frames.page(request.id, {}, *place, fingerprint=self._fingerprint(request.target))]
        return self.explain(request)

    def _fingerprint(self, target: Any) -> str:
        """That of the state that is asked for; of its only state, if by a state id."""
        described = self.states.get(target[1]) if not isinstance(target, bytes) else None
        return str((described or next(iter(self.states.values())))["fingerprint"])

    def explain(self, request: Request) -> Iterable[Reply]:
        """The honest answer to all but a Get and a Scan."""
        if request.type == PING:
            return [frames.pong(request.id)]
        if request.type == LOCATE:
            state = self.states.get(request.elements[4])
            if state is None:
                return [frames.failure(request.id, frames.CODES["UNKNOWN_STATE"])]
            return [frames.location(request.id, state, [self.owner()])]
        if request.type == DESCRIBE:
            entries = [{"job": JOB}] if request.elements[3] is None else list(self.states.values())
            return [frames.description(request.id, entries)]
        return []

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until the received messages meet the condition. Returns whether they did in time."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def connection_of(self, request: Request) -> Connection:
        """The connection that a request came on."""
        return self.connections[request.connection]

    def close(self) -> None:
        """End every connection and wait for the threads. Idempotent."""
        with self._changed:
            self._closing = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self.connections):
            connection.close()
        for thread in list(self._threads):
            thread.join(SEND_TIMEOUT_S)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="conformance peer", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A client that does not read must not hold up the law; one that says nothing may.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(SEND_TIMEOUT_S))
            with self._changed:
                if self._closing:
                    sock.close()
                    return
                connection = Connection(len(self.connections), sock)
                self.connections.append(connection)
                self._changed.notify_all()
            self._spawn(self._serve, connection, sock)

    def _serve(self, connection: Connection, sock: socket.socket) -> None:
        if self._tls is not None:
            try:
                sock = connection.secure(self._tls)
            except OSError:
                sock.close()
                with self._changed:
                    connection.left_at = time.monotonic()
                    self._changed.notify_all()
                return
        with sock:
            self._converse(connection)
            connection.drain()
            with self._changed:
                if not connection.ended:
                    connection.left_at = time.monotonic()
                self._changed.notify_all()

    def _converse(self, connection: Connection) -> None:
        payload = connection.read()
        if payload is None:
            return
        hello = self._received(connection, payload, None)
        if hello is None:
            return
        if hello.type != HELLO:
            self.faults.append(f"P-HELLO-1: the first message is {hello!r}")
        if not all(self._act(connection, reply) for reply in self.greet(connection)):
            return
        while (payload := connection.read()) is not None:
            request = self._received(connection, payload, self._limits)
            if request is None:
                return
            for reply in self._replies(request) if request.type != CANCEL else ():
                if isinstance(reply, bytes):
                    connection.in_flight.pop(request.id, None)
                if not self._act(connection, reply):
                    return

    def _replies(self, request: Request) -> Iterable[Reply]:
        """The protocol, not the law, decides the answer to a faulty request."""
        if not faults_of(request, self._limits):
            return self.answer(request)
        return [frames.failure(request.id, frames.CODES["MALFORMED"])]

    def _act(self, connection: Connection, reply: Reply) -> bool:
        if reply is CLOSE:
            connection.close()
        elif reply is HANG_UP:
            connection.hang_up()
        else:
            assert isinstance(reply, bytes)
            connection.send(reply)
            return True
        return False

    def _received(self, connection: Connection, payload: bytes, limits: Limits | None) -> Request | None:
        elements = read_payload(payload)
        with self._changed:
            if elements is None:
                self.faults.append(f"P-MSG-1: the payload {payload[:80].hex()} is not one array of a type and an id")
                self._changed.notify_all()
                return None
            request = Request(time.monotonic(), connection.number, payload, elements)
            self.faults += faults_of(request, limits)
            if request.type == HELLO:
                if connection.hello is not None:
                    self.faults.append("P-HELLO-1: there was a second Hello")
                connection.hello = request
            elif request.type == CANCEL:
                self.faults.append("P-CANCEL-3: Cancel came, which no Welcome of this peer announces")
            else:
                if request.id in connection.in_flight:
                    self.faults.append(f"P-REQ-1: the id {request.id} is used again before its answer has come")
                connection.in_flight[request.id] = request
                self.requests.append(request)
            self._changed.notify_all()
            return request


def _timeval(seconds: float) -> bytes:
    return struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
