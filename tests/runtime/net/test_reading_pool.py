"""The threads of a pool: a busy one does not delay connections that another one can read."""

from __future__ import annotations

import socket
import threading
from collections import deque

from qstate.runtime.net.reading_pool import ReadingPool

PATIENCE_S = 5.0


class Held:
    """A connection whose read waits for the test. `entered` counts the reads that have begun."""

    def __init__(self, entered: threading.Semaphore, gate: threading.Event) -> None:
        self._entered = entered
        self._gate = gate
        self.ours, self.theirs = socket.socketpair()

    def read_ready(self, ended: bool) -> None:
        self._entered.release()
        self._gate.wait(2 * PATIENCE_S)  # longer than the test waits for the other connection


def test_connections_that_become_readable_together_are_read_by_different_threads() -> None:
    pool = ReadingPool(1, 1, "test-pool", pending=deque[None]().__len__, execute=lambda: None)
    entered, gate = threading.Semaphore(0), threading.Event()
    connections = [Held(entered, gate) for _ in range(2)]
    for held in connections:
        held.theirs.send(b"x")
        pool.add(held.ours.fileno(), held)
    pool.start()
    try:
        assert entered.acquire(timeout=PATIENCE_S)
        assert entered.acquire(timeout=PATIENCE_S), "the second connection waits for the first"
    finally:
        gate.set()
        for held in connections:
            pool.remove(held.ours.fileno())
        assert pool.stop(3 * PATIENCE_S)
        for held in connections:
            held.ours.close()
            held.theirs.close()
