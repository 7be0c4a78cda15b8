"""Clients that harm a server if they can: each attack is a process of its own, until its standard input ends.

Rules of this module: it speaks the protocol, well or badly, and never helps the server: it does not wait for it, and
does not leave when it is told to, unless the attack needs a new connection. It measures nothing.

    python -m benchmarks.hostile_clients ATTACK COUNT JOB SMALL LARGE PORT [PORT ...]

SMALL and LARGE are the states with the small and the large values, perhaps the same. It prints a line with the number
of its connections when the attack has begun.
"""

from __future__ import annotations

import random
import resource
import select
import selectors
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import cycle
from typing import NamedTuple

from benchmarks.hostile_server import TOKEN, large_key, small_key
from qstate.protocol.codec import encode, frame
from qstate.protocol.connection import ClientConnection
from qstate.protocol.messages import Get

__all__ = ["ATTACKS"]

HOST = "127.0.0.1"
#: Where the attackers come from: clients of one address share its part of a quota.
SOURCE = ("127.0.0.2", 0)
#: Descriptors that a process needs beside its connections.
SPARE = 64
#: Of a frame that never ends: below the largest one of a server's defaults.
HALF_FRAME_BYTES = 15 << 20
MOST_KEYS = 10_000
DEADLINE_MS = 60_000


def _connection(port: int) -> socket.socket:
    return socket.create_connection((HOST, port), timeout=30, source_address=SOURCE)


def connected(port: int) -> socket.socket:
    """A connection, with a handshake done."""
    sock, wire = _connection(port), ClientConnection(token=TOKEN)
    sock.sendall(wire.start())
    while wire.welcome is None:
        data = sock.recv(4096)
        if not data:
            raise ConnectionError("no Welcome")
        wire.receive(data)
    return sock


class Names(NamedTuple):
    """What to ask for."""

    job: str
    small: str
    large: str

    def get(self, number: int, state: str, *keys: str) -> bytes:
        """The frame of a get."""
        return frame(encode(Get(number, DEADLINE_MS, (self.job, state), None, {}, keys)))


def _opened(count: int, ports: Iterator[int], open_one: Callable[[int], socket.socket]) -> list[socket.socket]:
    """As many connections as the system and the server let this process have."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: list[socket.socket] = []
    for _ in range(min(count, hard - SPARE)):
        with suppress(OSError):
            found.append(open_one(next(ports)))
    return found


def _stopped(timeout_s: float) -> bool:
    """Whether the input has ended, after at most so long."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def _begun(count: int) -> None:
    print(count, flush=True)


def idle(count: int, ports: Iterator[int], names: Names) -> None:
    """Connections that do nothing: half of them have not even said Hello."""

    def open_one(port: int) -> socket.socket:
        return connected(port) if random.random() < 0.5 else _connection(port)

    held = _opened(count, ports, open_one)
    _begun(len(held))
    sys.stdin.read()


def slow_writers(count: int, ports: Iterator[int], names: Names) -> None:
    """Connections that send one byte now and then: of a Hello, or of a get."""
    held = _opened(count, ports, connected)
    request = cycle(names.get(1, names.small, small_key(1)))
    _begun(len(held))
    while not _stopped(0.1):
        byte = bytes((next(request),))
        for sock in held:
            with suppress(OSError):
                sock.send(byte)


def half_frames(count: int, ports: Iterator[int], names: Names) -> None:
    """Connections that begin a large frame and never end it."""
    held = _opened(count, ports, connected)
    _begun(len(held))
    data = memoryview(struct.pack(">I", HALF_FRAME_BYTES) + bytes(HALF_FRAME_BYTES))
    _write(dict.fromkeys(held, data))
    while not _stopped(0.2):
        """The frames stay half."""


def never_reads(count: int, ports: Iterator[int], names: Names) -> None:
    """Connections that ask for large values and read nothing."""
    held = _opened(count, ports, connected)
    _begun(len(held))
    data = b"".join(names.get(number, names.large, large_key(number)) for number in range(1, 100))
    _write({sock: memoryview(data) for sock in held})
    while not _stopped(0.2):
        """The answers stay unread."""


def _write(rest: dict[socket.socket, memoryview]) -> None:
    """Write as the sockets take it, until all is written or the input has ended."""
    with selectors.DefaultSelector() as selector:
        for sock in rest:
            sock.setblocking(False)
            selector.register(sock, selectors.EVENT_WRITE, sock)
        while rest and not _stopped(0):
            for key, _ in selector.select(0.2):
                sock = key.data
                try:
                    # One byte is kept back: a frame that is whole would be refused.
                    sent = sock.send(rest[sock][: min(256 * 1024, max(1, len(rest[sock]) - 1))])
                except BlockingIOError:
                    continue
                except OSError:
                    sent = len(rest[sock])
                rest[sock] = rest[sock][sent:]
                if len(rest[sock]) <= 1:
                    del rest[sock]
                    selector.unregister(sock)


def pipelines(count: int, ports: Iterator[int], names: Names) -> None:
    """One connection with as many gets as it can write, which it reads as it likes; again and again."""
    sock = connected(next(ports))
    sock.setblocking(False)
    data = memoryview(b"".join(names.get(number, names.small, small_key(number)) for number in range(1, count)))
    _begun(1)
    rest = data
    while not _stopped(0):
        readable, writable, _ = select.select([sock], [sock], [], 0.2)
        if readable and not sock.recv(1 << 20):
            return
        if writable:
            with suppress(BlockingIOError):
                rest = rest[sock.send(rest) :] or data


def large_gets(count: int, ports: Iterator[int], names: Names) -> None:
    """Connections that ask for the most keys at a time, of large values and of small ones, and read the answers."""
    held = _opened(count, ports, connected)
    _begun(len(held))
    requests = cycle(
        (
            names.get(1, names.large, *(large_key(number) for number in range(MOST_KEYS))),
            names.get(1, names.small, *(small_key(number) for number in range(MOST_KEYS))),
        )
    )
    waiting: dict[socket.socket, int] = {}
    for sock in held:
        sock.sendall(next(requests))
    while not _stopped(0):
        for sock in select.select(held, [], [], 0.2)[0]:
            size = waiting.get(sock, 0)
            data = sock.recv(1 << 20)
            if not data:
                return
            if not size:
                size = int.from_bytes(data[:4], "big") + 4
            size -= len(data)
            waiting[sock] = size
            if size <= 0:
                waiting[sock] = 0
                sock.settimeout(None)
                sock.sendall(next(requests))


def handshakes(count: int, ports: Iterator[int], names: Names) -> None:
    """New connections, as fast as it goes, each with one of the worst first frames."""
    room = 65_000
    worst = cycle(
        (
            b"\xff\xff\xff\xff",
            struct.pack(">I", room) + b"\x95\0\0" + (b"\xdd\0\0\xbb\x80" * (room // 5)),
            struct.pack(">I", room) + b"\x91" * room,
            struct.pack(">I", room) + b"\x95\0\0\xdd" + struct.pack(">I", room - 8) + b"\x90" * (room - 8),
            b"GET / HTTP/1.1\r\n\r\n",
            struct.pack(">I", 24) + b"\x97\0\0\x91\1",
        )
    )
    held: list[socket.socket] = []
    _begun(count)
    while not _stopped(0):
        with suppress(OSError):
            sock = _connection(next(ports))
            sock.setblocking(False)
            sock.send(next(worst))
            held.append(sock)
        if len(held) > count:
            held.pop(0).close()


ATTACKS: dict[str, Callable[[int, Iterator[int], Names], None]] = {
    attack.__name__: attack
    for attack in (idle, slow_writers, half_frames, never_reads, pipelines, large_gets, handshakes)
}


if __name__ == "__main__":
    ATTACKS[sys.argv[1]](int(sys.argv[2]), cycle(map(int, sys.argv[6:])), Names(*sys.argv[3:6]))
