"""Laws of the sweep: what it removes, within what bound, and what becomes of it when an epoch fails."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qstate.backends import StateBackend, open_backend
from qstate.backends.expiry import stored_form
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, StateTtl, ValueStateDescriptor
from qstate.keys import Namespace
from qstate.operators.expiry.expiry_sweep import ExpiringState, ExpirySweep, WriteCount
from tests.operators.running import SUBTASK, empty_heap
from tests.runtime.job.running_job import until

TTL = StateTtl(timedelta(milliseconds=100))
VALUE = ValueStateDescriptor("value", str, ttl=TTL)
LIST = ListStateDescriptor("list", int, ttl=TTL)
MAP = MapStateDescriptor("map", int, map_key_type=int, ttl=TTL)
FOREVER = ValueStateDescriptor("forever", int)
NOW = 1_700_000_000_000


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateBackend]:
    settings = {"key_groups": SUBTASK.key_groups, "max_parallelism": SUBTASK.max_parallelism, "directory": tmp_path}
    with open_backend(request.param, **settings) as found:
        yield found


def sweep_of(
    backend: StateBackend, most: int, *descriptors: StateDescriptor, writes: WriteCount | None = None
) -> ExpirySweep:
    states = {one.name: expiring(backend, one) for one in descriptors}
    return ExpirySweep(backend, SUBTASK.key_groups, states, most=most, writes=writes or WriteCount())


def expiring(backend: StateBackend, descriptor: StateDescriptor) -> ExpiringState:
    tables = partial(backend.table, stored_form(descriptor))
    return ExpiringState(descriptor.name, descriptor.kind, TTL.duration_ms, tables)


def table(backend: StateBackend, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
    return backend.table(stored_form(descriptor), namespace)


def fill(backend: StateBackend, count: int, after_ms: int) -> None:
    pairs = [(NOW + after_ms, f"{number}") for number in range(count)]
    table(backend, VALUE).put_many(list(range(count)), pairs)


def left(backend: StateBackend, *names: str) -> int:
    return sum(1 for change in backend.entries(SUBTASK.key_groups) if change.state in (names or (VALUE.name,)))


def run_epochs(backend: StateBackend, sweep: ExpirySweep, epochs: range, after_ms: int) -> Iterator[int]:
    """How many entries are left after each epoch."""
    for epoch in epochs:
        backend.begin(epoch)
        sweep.run(NOW + after_ms)
        list(backend.commit(epoch))
        yield left(backend)


def test_what_has_expired_is_gone_after_so_many_epochs_as_a_walk_takes(backend: StateBackend) -> None:
    backend.begin(0)
    fill(backend, 100, 0)
    list(backend.commit(0))
    sweep = sweep_of(backend, 30, VALUE)
    assert list(run_epochs(backend, sweep, range(1, 4), 99)) == [100] * 3, "nothing has expired"
    assert list(run_epochs(backend, sweep, range(4, 9), 100)) == [70, 40, 10, 0, 0], "the next walk begins"


def test_what_is_current_stays(backend: StateBackend) -> None:
    backend.begin(0)
    fill(backend, 50, 0)
    backend.table(FOREVER).put(1, 1)
    fill(backend, 10, 60)
    table(backend, VALUE, "w").put("k", (NOW, "in a namespace"))
    list(backend.commit(0))
    assert list(run_epochs(backend, sweep_of(backend, 1000, VALUE), range(1, 3), 100)) == [10, 10]
    assert table(backend, VALUE).get(3) == (NOW + 60, "3")
    assert left(backend, FOREVER.name) == 1


def test_what_the_function_has_just_written_stays(backend: StateBackend) -> None:
    backend.begin(0)
    fill(backend, 5, 0)
    table(backend, LIST).list_add("k", [(NOW, 1)])
    table(backend, MAP).map_put("k", 1, (NOW, 1))
    list(backend.commit(0))
    backend.begin(1)
    fill(backend, 2, 100)
    table(backend, LIST).list_add("k", [(NOW + 100, 2)])
    table(backend, MAP).map_put("k", 1, (NOW + 100, 2))
    sweep_of(backend, 1000, VALUE, LIST, MAP).run(NOW + 100)
    list(backend.commit(1))
    assert left(backend) == 2
    assert table(backend, LIST).get("k") == [(NOW + 100, 2)]
    assert table(backend, MAP).get("k") == {1: (NOW + 100, 2)}


def test_a_large_map_is_swept_entry_by_entry(backend: StateBackend) -> None:
    backend.begin(0)
    table(backend, MAP).put("k", {number: (NOW, number) for number in range(100)})
    list(backend.commit(0))
    sweep = sweep_of(backend, 30, MAP)
    for epoch, expected in enumerate([70, 40, 10, 0], start=1):
        list(run_epochs(backend, sweep, range(epoch, epoch + 1), 100))
        assert left(backend, MAP.name) == expected


def test_an_epoch_that_fails_takes_back_what_was_removed_and_the_next_removes_it_again(backend: StateBackend) -> None:
    backend.begin(0)
    fill(backend, 100, 0)
    list(backend.commit(0))
    sweep = sweep_of(backend, 30, VALUE)
    removed = set[int]()
    for _ in range(3):
        backend.begin(1)
        sweep.run(NOW + 100)
        gone = {key for key in range(100) if table(backend, VALUE).get(key) is None}
        assert len(gone) == 30 and removed in (set(), gone), "not the next ones"
        removed = gone
        backend.rollback()
        sweep.discard()
        assert left(backend) == 100
    assert list(run_epochs(backend, sweep, range(1, 5), 100)) == [70, 40, 10, 0]


def test_no_entries_are_visited_when_the_setting_is_zero(backend: StateBackend) -> None:
    backend.begin(0)
    fill(backend, 10, 0)
    list(backend.commit(0))
    assert list(run_epochs(backend, sweep_of(backend, 0, VALUE), range(1, 3), 100)) == [10, 10]


def test_a_write_pays_for_more_visits(backend: StateBackend) -> None:
    backend.begin(0)
    fill(backend, 100, 0)
    list(backend.commit(0))
    writes = WriteCount()
    sweep = sweep_of(backend, 10, VALUE, writes=writes)
    for epoch, (written, expected) in enumerate([(0, 90), (20, 40), (0, 30)], start=1):
        writes.count += written
        assert list(run_epochs(backend, sweep, range(epoch, epoch + 1), 100)) == [expected]


def test_in_a_steady_job_no_more_has_expired_than_is_current(backend: StateBackend) -> None:
    """Each epoch writes 100 new keys, which count for three epochs; the sweep visits but one entry without writes."""
    writes = WriteCount()
    sweep = sweep_of(backend, 1, VALUE, writes=writes)
    for epoch in range(30):
        backend.begin(epoch)
        table(backend, VALUE).put_many(list(range(100 * epoch, 100 * epoch + 100)), [(NOW + 40 * epoch, "new")] * 100)
        writes.count += 100
        sweep.run(NOW + 40 * epoch)
        list(backend.commit(epoch))
        assert left(backend) <= 2 * 300 + 200, epoch


def test_memory_falls_when_nine_tenths_have_expired() -> None:
    count = 20_000
    with empty_heap() as heap:
        heap.begin(0)
        before = traced()
        table(heap, VALUE).put_many(
            list(range(count)), [(NOW + (60 if number % 10 == 0 else 0), f"{number:0100}") for number in range(count)]
        )
        list(heap.commit(0))
        heap.finalize(0)
        full = traced() - before
        list(run_epochs(heap, sweep_of(heap, count // 4, VALUE), range(1, 7), 100))
        heap.begin(7)
        assert left(heap) == count // 10
        assert traced() - before < full / 3


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.fixture(autouse=True)
def memory_is_traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def test_disk_falls_when_nine_tenths_have_expired(tmp_path: Path) -> None:
    count, random = 60_000, Random(1)
    settings = {"key_groups": SUBTASK.key_groups, "max_parallelism": SUBTASK.max_parallelism, "directory": tmp_path}
    with open_backend("rocksdb", **settings, options={"write_buffer_mib": 1}) as rocksdb:
        for epoch in range(6):
            rocksdb.begin(epoch)
            keys = range(10_000 * epoch, 10_000 * epoch + 10_000)
            times = [NOW + (60 if number % 10 == 0 else 0) for number in keys]
            table(rocksdb, VALUE).put_many(list(keys), [(time, random.randbytes(50).hex()) for time in times])
            list(rocksdb.commit(epoch))
        full = disk(tmp_path)
        list(run_epochs(rocksdb, sweep_of(rocksdb, 15_000, VALUE), range(6, 11), 100))
        rocksdb.begin(11)
        assert left(rocksdb) == count // 10
        until(lambda: disk(tmp_path) < full / 2, "RocksDB compacts its files")


def disk(directory: Path) -> int:
    sizes = []
    for file in directory.rglob("*.sst"):
        with suppress(FileNotFoundError):  # compacted meanwhile
            sizes.append(file.stat().st_size)
    return sum(sizes)
