"""What the queues of timers free. The laws that every backend keeps are in the conformance suite."""

from __future__ import annotations

import gc
import tracemalloc

from qstate.backends import StateBackend
from qstate.backends.contract import Timer
from qstate.descriptors import TimerDescriptor


def test_timers_that_are_moved_before_they_are_due_take_no_more_memory_with_each_epoch(backend: StateBackend) -> None:
    """Each key has one timer, which each epoch replaces by a later one: a session that is kept alive."""
    queue = backend.timers(TimerDescriptor("sessions"))
    sizes = []
    tracemalloc.start()
    try:
        for epoch in range(40):
            backend.begin(epoch)
            for key in range(200):
                queue.remove(Timer(10**6 + epoch - 1, None, key))
                queue.add(Timer(10**6 + epoch, None, key))
            list(backend.commit(epoch))
            backend.finalize(epoch)
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert max(sizes[20:]) < max(sizes[:20]) + 100_000, sizes
    assert len(queue.take(10**7, 10**4)) == 200
