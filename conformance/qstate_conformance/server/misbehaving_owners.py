"""State servers of the fixture that do what no sound one does: one is silent, one dies under its requests.

Rules of this module: sockets and threads of its own, on ports that the system picks. It shakes hands with everybody,
keeps no state but what it was asked for, and judges nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Any

from qstate.keys import Key
from qstate.protocol.connection import BrokenConnection, Opened, ServerConnection
from qstate.protocol.messages import Get, Values
from qstate_conformance.server import fixture

__all__ = ["MisbehavingOwner", "dying_owner", "silent_owner"]

_RECEIVE_BYTES = 65_536
_JOIN_S = 5.0
#: What to send as the answer, none for silence. Raises `ConnectionError` to close the connection.
Behaviour = Callable[[Get], Values | None]


def silent_owner(bind: str) -> MisbehavingOwner:
    """An owner that never answers a Get."""
    return MisbehavingOwner(bind, lambda get: None)


def dying_owner(bind: str, fingerprint: str) -> MisbehavingOwner:
    """An owner that closes the connection at a Get with a key that it has not seen, and has nothing for the others.

    `fingerprint` is that of its state's description.
    """
    lock, seen = threading.Lock(), set[Key]()

    def die_once(get: Get) -> Values:
        with lock:
            unseen = set(get.keys) - seen
            seen.update(unseen)
        if unseen:
            raise ConnectionAbortedError
        return Values(get.id, (fixture.LIVE_EPOCH,) * len(get.keys), (None,) * len(get.keys), fingerprint)

    return MisbehavingOwner(bind, die_once)


class MisbehavingOwner:
    """Listens from the start until its `with` block ends."""

    def __init__(self, bind: str, behave: Behaviour) -> None:
        self._behave = behave
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._closing = False
        family, _, _, _, address = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM)[0]
        self._listener = socket.create_server(address[:2], family=family)
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._spawn(self._accept)

    def __enter__(self) -> MisbehavingOwner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._closing = True
            open_now = [self._listener, *self._sockets]
        for sock in open_now:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join(_JOIN_S)

    def _spawn(self, target: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name="misbehaving owner", daemon=True)
        self._threads = [known for known in self._threads if known.is_alive()] + [thread]
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
                    self._sockets.add(sock)
                self._spawn(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, BrokenConnection):
            self._converse(sock)
        with self._lock:
            self._sockets.discard(sock)

    def _converse(self, sock: socket.socket) -> None:
        connection = ServerConnection(server="misbehaving", max_frame=fixture.LIMITS.max_frame)
        while data := sock.recv(_RECEIVE_BYTES):
            for event in connection.receive(data):
                answer = self._behave(event) if isinstance(event, Get) else None
                if isinstance(event, Opened):
                    sock.sendall(event.reply)
                elif answer is not None:
                    sock.sendall(connection.send(answer))
