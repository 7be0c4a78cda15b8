"""A listening socket on the first free port of a list, and a listener that accepts connections on a reactor.

Rules of this module: it hands sockets to its callback and knows nothing of the protocol on them.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
from collections.abc import Callable, Sequence
from typing import Any

from qstate.errors import ConfigError
from qstate.host.line_limit import limited
from qstate.host.ports import Ports, parse_ports
from qstate.runtime.net.reactor import Reactor

__all__ = ["Listener", "host_and_port", "listen"]

log = limited(logging.getLogger(__name__))

BACKLOG = 1024
#: The bound on accepts in one turn, and the pause after a turn that reached it: about 500 connections a second. What a
#: connection costs is not the accept alone, and more of them would delay the open ones. The kernel holds the others.
ACCEPTS_PER_TURN = 16
TURN_PAUSE_S = 0.032
#: Without a free file descriptor the pending connect stays ready: try again after a pause instead of at once.
PAUSE_S = 0.1

_TAKEN = {errno.EADDRINUSE, errno.EACCES}
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


def listen(bind: str, ports: Ports, what: str) -> socket.socket:
    """A socket that listens on the first free port. `what` names the listener in errors.

    Raises `ConfigError` when the ports are invalid, the address is not one of this host, or every port is taken.
    """
    candidates = parse_ports(ports)
    try:
        family, _, _, _, address = socket.getaddrinfo(bind, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as exc:
        raise ConfigError(f"the {what} cannot listen on {bind!r}: {exc}") from exc
    for port in (port for candidate in candidates for port in candidate):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address[0], port, *address[2:]))
            sock.listen(BACKLOG)
            return sock
        except OSError as exc:
            sock.close()
            if exc.errno not in _TAKEN:
                raise ConfigError(f"the {what} cannot listen on {bind}:{port}: {exc.strerror}") from exc
    raise ConfigError(
        f"no free port for the {what}: every port of {ports!r} on {bind} is taken or not permitted; "
        "free one, give a longer range, or 0 for any port"
    )


class Listener:
    """Accepts connections on a reactor and hands each socket to `accepted(sock, peer)` on its driving thread."""

    def __init__(
        self, reactor: Reactor, sock: socket.socket, accepted: Callable[[socket.socket, tuple[Any, ...]], None]
    ) -> None:
        self._reactor = reactor
        self._sock = sock
        self._accepted = accepted
        self._closed = False
        sock.setblocking(False)

    def open(self) -> None:
        """Start to accept. Any thread."""
        self._reactor.call_soon(self._open)

    def close(self) -> None:
        """Stop accepting and free the port. Any thread. Idempotent."""
        self._reactor.call_soon(self._close)

    def _open(self) -> None:
        self._reactor.on_stop.add(self._close)
        self._resume()

    def _resume(self) -> None:
        if not self._closed:
            self._reactor.watch(self._sock, selectors.EVENT_READ, self._ready)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._reactor.on_stop.discard(self._close)
            self._reactor.watch(self._sock, 0, self._ready)
            self._sock.close()

    def _ready(self, mask: int) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            if self._closed:
                return
            try:
                sock, peer = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as exc:
                if exc.errno not in _EXHAUSTED:
                    raise
                log.warning("cannot accept connections for the moment: %s", exc.strerror)
                self._pause(PAUSE_S)
                return
            self._accepted(sock, peer)
        self._pause(TURN_PAUSE_S)

    def _pause(self, seconds: float) -> None:
        if not self._closed:
            self._reactor.watch(self._sock, 0, self._ready)
            self._reactor.call_later(seconds, self._resume)


def host_and_port(address: Sequence[object]) -> tuple[str, int]:
    """The first two parts of a socket's address, whatever its family."""
    host, port = address[0], address[1]
    assert isinstance(host, str) and isinstance(port, int)
    return host, port
