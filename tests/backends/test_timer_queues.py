"""What the queues of timers free. The laws that every backend keeps are in the conformance suite."""

from __future__ import annotations

import gc
import tracemalloc
from collections import Counter
from itertools import groupby

from qstate.backends import StateBackend
from qstate.backends.contract import ChangeOp, Timer
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


def test_the_changes_of_timers_that_are_moved_are_in_one_run_for_each_operation_and_namespace(
    backend: StateBackend,
) -> None:
    """The epoch log stores a run by its columns; runs of one change each took twice the room and the time."""
    queue = backend.timers(TimerDescriptor("windows"))
    backend.begin(0)
    for key in range(200):
        queue.add(Timer(key % 2, key % 2, key))
    list(backend.commit(0))
    backend.begin(1)
    for key in range(200):
        queue.remove(Timer(key % 2, key % 2, key))
        queue.add(Timer(key % 2 + 2, key % 2 + 2, key))
    changes = list(backend.commit(1))
    runs = Counter(op for (op, _), _ in groupby(changes, lambda change: (change.op, change.namespace)))
    assert len(changes) == 400
    assert runs == {ChangeOp.MAP_PUT: 2, ChangeOp.MAP_REMOVE: 2}
