"""What a backend says about the size of its state, as of the newest final epoch."""

from __future__ import annotations

from qstate.backends import StateBackend
from qstate.backends.contract import StateSizes, Timer
from qstate.descriptors import MapStateDescriptor, TimerDescriptor, ValueStateDescriptor
from tests.backends.conftest import OpenBackend

TOTAL = ValueStateDescriptor("total", int)
ROUTES = MapStateDescriptor("routes", int, map_key_type=str)
TIMERS = TimerDescriptor("timers")


def final(backend: StateBackend, epoch: int) -> None:
    list(backend.commit(epoch))
    backend.finalize(epoch)


def test_the_heap_counts_the_keys_of_each_state_over_all_namespaces(open_backend: OpenBackend) -> None:
    heap = open_backend(name="heap")
    heap.begin(0)
    total, later, routes = heap.table(TOTAL), heap.table(TOTAL, 7), heap.table(ROUTES)
    total.put_many(["a", "b", "c"], [1, 2, 3])
    later.put("a", 4)
    routes.map_put("a", "x", 1)
    routes.map_put("a", "y", 2)
    assert heap.sizes().keys == {}, "no epoch is final yet"
    final(heap, 0)
    assert heap.sizes().keys == {"total": 4, "routes": 1}
    heap.begin(1)
    total.delete("a")
    total.put("b", 5)
    later.delete("a")
    final(heap, 1)
    assert heap.sizes().keys == {"total": 2, "routes": 1}
    heap.begin(2)
    total.put("z", 1)
    heap.rollback()
    assert heap.sizes().keys == {"total": 2, "routes": 1}


def test_a_restored_heap_counts_what_it_was_given(open_backend: OpenBackend) -> None:
    one, other = open_backend(name="heap"), open_backend(name="heap")
    one.begin(0)
    one.table(TOTAL).put_many(["a", "b"], [1, 2])
    changes = list(one.commit(0))
    other.table(TOTAL)
    other.restore(0, changes)
    assert other.sizes().keys == {"total": 2}


def test_the_heap_counts_its_timers(open_backend: OpenBackend) -> None:
    heap = open_backend(name="heap")
    assert heap.sizes() == StateSizes()
    queue = heap.timers(TIMERS)
    heap.begin(0)
    for time in (1, 2, 2, 3):
        queue.add(Timer(time, None, "a"))
    queue.take(1, 10)
    final(heap, 0)
    assert heap.sizes().timers == 2


def test_rocksdb_estimates_entries_and_bytes(open_backend: OpenBackend) -> None:
    rocksdb = open_backend(name="rocksdb")
    rocksdb.begin(0)
    rocksdb.table(ValueStateDescriptor("text", str)).put_many(
        [f"k{number}" for number in range(1000)], ["v" * 100] * 1000
    )
    final(rocksdb, 0)
    sizes = rocksdb.sizes()
    assert sizes.entries == 1000
    assert sizes.bytes is not None and 100_000 < sizes.bytes < 10_000_000
    assert (sizes.keys, sizes.timers) == ({}, None)


def test_a_backend_that_knows_nothing_says_nothing(backend: StateBackend, backend_name: str) -> None:
    if "rocksdb" not in backend_name and backend_name != "heap":
        assert backend.sizes() == StateSizes()
