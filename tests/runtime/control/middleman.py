"""A process on the path of a connection: reads, changes, repeats, adds and drops what the two ends send."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

__all__ = ["ATTACKS", "Attack", "Middleman", "Relay"]

#: What goes on in the place of a piece of data.
Attack = Callable[[bytes], bytes]


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


#: Attacks that need no knowledge. Each is told the data that one end has just sent.
ATTACKS: dict[str, Attack] = {
    "flips a bit": _flipped,
    "repeats": lambda data: data + data,
    "adds": lambda data: bytes(64) + data,
    "drops": lambda data: b"",
}


class Relay:
    """Connections to `port` go on to `behind`. `carry` passes on what one end of a connection sends to the other."""

    def __init__(self, behind: tuple[str, int] | None = None) -> None:
        self.behind = behind
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for sock in (self._listener, *self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        for thread in self._threads:
            thread.join(10)

    def carry(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        """Until the source ends. `direction` is `forward` for what clients send, else `backward`."""
        raise NotImplementedError

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                assert self.behind is not None
                far = socket.create_connection(self.behind)
                self._sockets += [near, far]
                for pair in ((near, far, "forward"), (far, near, "backward")):
                    self._threads.append(threading.Thread(target=self.carry, args=pair))
                    self._threads[-1].start()


class Middleman(Relay):
    """A relay with an attack for each direction, if there is any.

    Each attack strikes once: one piece of data of one connection, of at most so many bytes.
    """

    def __init__(self, behind: tuple[str, int], *, piece_bytes: int = 1 << 20) -> None:
        self._piece_bytes = piece_bytes
        self.forward: Attack | None = None
        self.backward: Attack | None = None
        self.struck = threading.Event()
        self.seen = bytearray()
        super().__init__(behind)

    def carry(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(self._piece_bytes):
                self.seen += data
                attack = getattr(self, direction)
                if attack is not None:
                    setattr(self, direction, None)
                    data = attack(data)
                    self.struck.set()
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
