"""What threads may do at once with one poller."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from qstate.runtime.net.edge_poller import EdgePoller

PATIENCE_S = 10.0
THREADS, ROUNDS = 4, 4000


def test_threads_may_arm_one_socket_at_once() -> None:
    # A thread that still has an event of a closed connection arms the next one with the same number, while it opens.
    poller = EdgePoller()
    ours, theirs = socket.socketpair()
    together = Barrier(THREADS, timeout=PATIENCE_S)

    def arm() -> None:
        for _ in range(ROUNDS):
            together.wait()
            try:
                poller.arm(ours.fileno())
            except OSError:
                together.abort()
                raise
            if together.wait() == 0:
                poller.remove(ours.fileno())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # so that threads meet between two calls of the kernel
    with ours, theirs, ThreadPoolExecutor(THREADS) as threads:
        failures = [armed.exception() for armed in [threads.submit(arm) for _ in range(THREADS)]]
    sys.setswitchinterval(interval)
    poller.stop()
    poller.close()
    assert failures == [None] * THREADS
