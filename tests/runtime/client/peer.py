"""A peer with scripted answers on a real socket: a proxy, a state server, or a hostile peer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgpack

from qstate.protocol.connection import Answer, BadRequest, BrokenConnection, Opened, ServerConnection
from qstate.protocol.messages import Describe, Description, Get, Locate, Location, Ping, Pong, Values

#: A script answers a request with messages to encode, raw bytes, nothing, or CLOSE.
CLOSE = object()
Reply = Answer | bytes | object
Script = Callable[[Any], Iterable[Reply]]

STATE_ID = bytes(16)
#: Of the description below.
FINGERPRINT = "f"
VALUE_STATE: Mapping[str, Any] = {
    "name": "state",
    "kind": "value",
    "serializer": "msgpack",
    "serializer_version": 1,
    "fingerprint": FINGERPRINT,
    "key_types": ["string"],
    "namespace_types": None,
    "value_type": "str",
    "capabilities": [],
}


class Peer:
    """Listens on a port of its own and serves each connection on a thread; `close` ends all of them.

    Without a script it is an honest proxy and state server in one for a state whose value is the key's text.
    `script(request)` decides instead, when given; `requests` has every request, `connections` counts connections.
    """

    def __init__(
        self,
        script: Script | None = None,
        *,
        port: int = 0,
        state: Mapping[str, Any] = VALUE_STATE,
        **connection: Any,
    ) -> None:
        self.script: Script = script or self.honest
        #: The description of its state.
        self.state = state
        self.requests: list[Any] = []
        self.connections = 0
        self._connection = connection
        self._listener = socket.create_server(("127.0.0.1", port))
        self._sockets: list[socket.socket] = []
        self._wires: list[ServerConnection] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._closing = False
        #: Valid after `close`: a request that arrived just before is still answered with it.
        self.address: tuple[str, int] = self._listener.getsockname()
        self._spawn(self._accept)

    def honest(self, request: Any) -> Iterable[Reply]:
        if isinstance(request, Get):
            epoch = max(1, request.options.get("min_epoch", 1))
            values = tuple(msgpack.packb(key) for key in request.keys)
            yield Values(request.id, (epoch,) * len(values), values, self.state["fingerprint"])
        elif isinstance(request, Locate):
            yield self.location(request)
        elif isinstance(request, Describe):
            entries = ({"job": "job"},) if request.job is None else (self.state,)
            yield Description(request.id, entries)
        elif isinstance(request, Ping):
            yield Pong(request.id)

    def location(self, request: Locate, **state: Any) -> Location:
        """A location with this peer as the owner of everything."""
        owner = (0, 128, *self.address, STATE_ID)
        return Location(request.id, {**self.state, **state}, 128, (owner,))

    def drop_connections(self) -> None:
        """Close every connection, like a peer that dies."""
        with self._lock:
            dropped, self._sockets = self._sockets, []
        for sock in dropped:
            _shut(sock)

    def await_gone(self, timeout_s: float = 5.0) -> None:
        """Wait until every connection that was dropped is closed for good, so that its end has been sent."""
        for thread in self._threads[1:]:
            thread.join(timeout_s)

    def send_to(self, number: int, answer: Answer) -> None:
        """Send over a connection, by its number, an answer that the script left out."""
        self._sockets[number].sendall(self._wires[number].send(answer))

    def close(self) -> None:
        with self._lock:
            self._closing = True
        _shut(self._listener)
        self.drop_connections()
        for thread in list(self._threads):
            thread.join(5)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="scripted peer", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with self._listener:
            while True:
                try:
                    sock, _ = self._listener.accept()
                except OSError:
                    return
                with self._lock:
                    if self._closing:
                        sock.close()
                        return
                    self.connections += 1
                    self._sockets.append(sock)
                self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock:
            try:
                self._converse(sock)
            except OSError:
                return

    def _converse(self, sock: socket.socket) -> None:
        wire = ServerConnection(**self._connection)
        self._wires.append(wire)
        while data := sock.recv(65536):
            try:
                events = wire.receive(data)
            except BrokenConnection as exc:
                sock.sendall(exc.close_notice)
                return
            for event in events:
                if isinstance(event, Opened):
                    sock.sendall(event.reply)
                    continue
                assert not isinstance(event, BadRequest), event
                self.requests.append(event)
                for reply in self.script(event):
                    if reply is CLOSE:
                        return
                    sock.sendall(reply if isinstance(reply, bytes) else wire.send(reply))  # type: ignore[arg-type]


class RawPeer:
    """Accepts one connection after another and calls `behave` with its socket."""

    def __init__(self, behave: Callable[[socket.socket], None]) -> None:
        self._behave = behave
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._current: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name="raw peer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                self._current, _ = self._listener.accept()
            except OSError:
                return
            with self._current as sock:
                try:
                    self._behave(sock)
                except OSError:
                    continue

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        _shut(self._listener)
        self._listener.close()
        if self._current is not None:
            _shut(self._current)
        self._thread.join(5)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
