"""One connection of the wire protocol that costs its process as little as possible, so that the server is measured.

Rules of this module: a blocking socket and frames. It checks nothing that it receives but its length.
"""

from __future__ import annotations

import socket
from struct import Struct
from types import TracebackType

from qstate.protocol.codec import encode
from qstate.protocol.connection import ClientConnection
from qstate.protocol.messages import Get

__all__ = ["RawConnection"]

_LENGTH = Struct(">I")
TIMEOUT_S = 60.0


class RawConnection:
    """A connection whose handshake is done. Use it as a context manager."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._socket.sendall(ClientConnection(client="benchmark").start())
        self.receive()

    def send(self, request: Get) -> None:
        """Send a request."""
        payload = encode(request)
        self._socket.sendall(_LENGTH.pack(len(payload)) + payload)

    def receive(self) -> bytes:
        """The payload of the next frame."""
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        while len(self._data) < size:
            more = self._socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the server has closed the connection")
            self._data += more
        found, self._data = self._data[:size], self._data[size:]
        return found

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
