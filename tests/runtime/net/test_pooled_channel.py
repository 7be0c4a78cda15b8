"""Laws of channels that a pool reads: large messages do not delay small ones, and a channel says what it costs."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from qstate.runtime.net.channel import RECEIVE_BYTES
from qstate.runtime.net.pooled_channel import PooledChannel
from qstate.runtime.net.reactor import Reactor
from qstate.runtime.net.reading_pool import ReadingPool

PATIENCE_S = 10.0
WORK_S = 0.05


class Peer:
    """One end of a connection; `channel` is the other. Adds its name and the size of each read to a log."""

    def __init__(self, name: str, reads: Reads) -> None:
        self.name = name
        self.reads = reads
        ours, self.sock = socket.socketpair()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * RECEIVE_BYTES)
        self.is_bulky = self.is_stopped = self.works = False
        #: Whom to send a byte when this one is read.
        self.alerts: Peer | None = None
        self.charged_s = 0.0
        self.channel = PooledChannel(
            reads.reactor,
            ours,
            pool=reads.pool,
            meter=self,
            on_data=self._on_data,
            on_room=lambda: None,
            on_end=lambda: self.channel.close(),
            on_close=lambda reason: reads.closed.release(),
            max_unsent_bytes=4 * RECEIVE_BYTES,
            patience_s=PATIENCE_S,
        )
        reads.reactor.call_soon(self.channel.open)

    def may_read(self) -> bool:
        return not self.is_stopped

    def charge(self, seconds: float) -> None:
        self.charged_s += seconds

    def _on_data(self, data: bytes) -> None:
        self.channel.bulky = self.is_bulky
        self.reads.log.append((self.name, len(data)))
        if self.alerts is not None:
            self.alerts.sock.sendall(b"x")
        until = time.thread_time() + WORK_S * self.works
        while time.thread_time() < until:
            """Work."""
        self.reads.count.release()
        self.reads.gate.wait(PATIENCE_S)


class Reads:
    """A pool of one thread, what it has read, and a gate at which each read ends."""

    def __init__(self) -> None:
        self.reactor = Reactor("test-reactor")
        self.pool = ReadingPool(1, 0, "test-pool", pending=deque[None]().__len__, execute=lambda: None)
        self.log: list[tuple[str, int]] = []
        self.count, self.closed = threading.Semaphore(0), threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.peers: list[Peer] = []
        self.reactor.start()
        self.pool.start()

    def peer(self, name: str) -> Peer:
        self.peers.append(Peer(name, self))
        return self.peers[-1]

    def wait_for(self, count: int) -> None:
        """Wait for so many further reads."""
        for _ in range(count):
            assert self.count.acquire(timeout=PATIENCE_S)

    def close(self) -> None:
        self.gate.set()
        for peer in self.peers:
            peer.channel.close()
            assert self.closed.acquire(timeout=PATIENCE_S)
            peer.sock.close()
        self.reactor.stop()
        assert self.reactor.join(PATIENCE_S) and self.pool.stop(PATIENCE_S)


@pytest.fixture
def reads() -> Iterator[Reads]:
    with ExitStack() as stack:
        found = Reads()
        stack.callback(found.close)
        yield found


def test_small_message_does_not_wait_for_all_large_ones(reads: Reads) -> None:
    large, small, first = [reads.peer("large") for _ in range(8)], reads.peer("small"), reads.peer("first")
    for peer in large:
        peer.is_bulky = True
        peer.sock.sendall(b"x")  # shows that what comes is large
    reads.wait_for(len(large))
    reads.log.clear()
    reads.gate.clear()
    first.sock.sendall(b"x")
    reads.wait_for(1)
    for peer in large:
        peer.alerts = small
        peer.sock.sendall(bytes(2 * RECEIVE_BYTES))
    small.sock.sendall(b"x")
    reads.gate.set()
    while sum(size for name, size in reads.log if name == "small") < 1 + 2 * len(large):
        reads.wait_for(1)
    names = "".join(name[0] for name, _ in reads.log)
    assert names.startswith("fs")
    # A small message that comes during a read waits for that and for the next one.
    assert max(map(len, names[2:].split("s"))) == 2
    assert {size for name, size in reads.log if name == "large"} == {RECEIVE_BYTES}


def test_channel_that_is_bulky_no_more_is_read_like_the_others(reads: Reads) -> None:
    peer = reads.peer("large")
    peer.is_bulky = True
    peer.sock.sendall(b"x")
    reads.wait_for(1)
    peer.is_bulky = False
    for _ in range(3):
        peer.sock.sendall(b"x")
        reads.wait_for(1)
    assert not peer.channel.bulky
    assert reads.log == [("large", 1)] * 4


def test_channel_is_not_read_while_its_meter_says_so(reads: Reads) -> None:
    stopped, other = reads.peer("stopped"), reads.peer("other")
    stopped.is_stopped = True
    stopped.sock.sendall(b"x")
    other.sock.sendall(b"x")
    reads.wait_for(1)
    other.sock.sendall(b"x")
    reads.wait_for(1)
    stopped.is_stopped = False
    stopped.channel.read_later()
    reads.wait_for(2)  # first it gets no bytes
    assert [name for name, size in reads.log if size] == ["other", "other", "stopped"]


def test_channel_tells_its_meter_the_time_of_its_reads(reads: Reads) -> None:
    busy, other = reads.peer("busy"), reads.peer("other")
    busy.works = True
    busy.sock.sendall(b"x")
    reads.wait_for(1)
    other.sock.sendall(b"x")  # read by the same thread, so the one before is charged
    reads.wait_for(1)
    assert WORK_S <= busy.charged_s < 10 * WORK_S
    assert other.charged_s < WORK_S
