"""Laws of `qstate.runtime.job.arrivals`: an event wakes those that wait for its index, and nobody else."""

from __future__ import annotations

import threading

from qstate.runtime.job.arrivals import Arrivals

PATIENCE_S = 30.0
MANY = 50


class Waiters:
    """Threads that wait, each for its own index, and note when they were woken."""

    def __init__(self, count: int) -> None:
        lock = threading.RLock()
        self.condition = threading.Condition(lock)
        self.arrivals = Arrivals(lock)
        self.waiting: set[int] = set()
        self.woken: list[int] = []
        self.threads = [threading.Thread(target=self.wait, args=(index,)) for index in range(count)]
        for thread in self.threads:
            thread.start()
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.waiting) == count, PATIENCE_S)

    def wait(self, index: int) -> None:
        with self.condition:
            self.waiting.add(index)
            self.condition.notify_all()
            assert self.arrivals.wait(index, PATIENCE_S)
            self.woken.append(index)
            self.condition.notify_all()

    def woken_after(self, events: int) -> list[int]:
        """Who was woken, once that many were."""
        with self.condition:
            assert self.condition.wait_for(lambda: len(self.woken) >= events, PATIENCE_S)
            return sorted(self.woken)


def test_an_event_wakes_those_of_its_index_only() -> None:
    waiters = Waiters(MANY)
    for number, index in enumerate((7, 3, 12), start=1):
        with waiters.condition:
            waiters.arrivals.notify(index)
        assert len(waiters.woken_after(number)) == number
    assert waiters.woken_after(3) == [3, 7, 12]
    with waiters.condition:
        waiters.arrivals.notify_all()
    assert waiters.woken_after(MANY) == list(range(MANY))
    for thread in waiters.threads:
        thread.join(PATIENCE_S)


def test_without_an_event_the_wait_ends_in_time() -> None:
    lock = threading.RLock()
    with lock:
        arrivals = Arrivals(lock)
        assert not arrivals.wait(1, 0.01)
        arrivals.notify(2)
        assert not arrivals.wait(1, 0.01)
