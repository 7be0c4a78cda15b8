"""The bytes that a socket has not taken yet.

Rules of this module: it keeps bytes in order and counts them. It knows no connection and no lock.

Small pieces are joined, so that each byte costs little more than itself. Large ones stay as they are: to copy ten
megabytes takes milliseconds, in which Python runs nothing else.
"""

from __future__ import annotations

import socket
from collections import deque

__all__ = ["Unsent"]

#: Pieces up to this size are joined.
SMALL_BYTES = 64 * 1024
#: The most that one call of the system takes.
SEND_BYTES = 256 * 1024


class Unsent:
    """A queue of bytes. `size` is how many there are, `held` how many are in memory until the first piece is sent."""

    __slots__ = ("_pieces", "_sent", "held", "size")

    def __init__(self) -> None:
        self._pieces: deque[bytes | bytearray] = deque()
        #: How many bytes of the first piece are sent.
        self._sent = 0
        self.size = self.held = 0

    def add(self, data: bytes, start: int = 0) -> None:
        """Add the bytes from `start` on."""
        size = len(data) - start
        self.size += size
        self.held += size
        last = self._pieces[-1] if self._pieces else None
        if size > SMALL_BYTES:
            if last is None:
                self._sent = start
                self.held += start
            elif start:
                data = data[start:]
            self._pieces.append(data)
        elif isinstance(last, bytearray) and len(last) <= SMALL_BYTES:
            last += memoryview(data)[start:]
        else:
            self._pieces.append(bytearray(memoryview(data)[start:]))

    def send(self, sock: socket.socket) -> None:
        """Have the socket take some. Raises what the socket raises."""
        piece = self._pieces[0]
        with memoryview(piece) as view:
            sent = sock.send(view[self._sent : self._sent + SEND_BYTES])
        self._sent += sent
        self.size -= sent
        if self._sent == len(piece):
            self._pieces.popleft()
            self.held -= self._sent
            self._sent = 0

    def clear(self) -> None:
        """Drop all."""
        self._pieces.clear()
        self.size = self.held = self._sent = 0
