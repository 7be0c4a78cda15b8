"""Laws of states with a time-to-live from a job to those who read its state: queries, standbys, dumps, other programs.

A time-to-live of an hour does not end during a test, and one of a millisecond has ended before a test can ask. So no
test waits: a program with another time-to-live continues with the state.
"""

from __future__ import annotations

import io
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import pytest

from qstate.checkpoint import open_source, read_entries, verify, write_savepoint
from qstate.checkpoint.sources.entries import read_changes, stored_operator
from qstate.client import QueryableStateClient
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtl,
    ValueStateDescriptor,
)
from qstate.operators.functions import KeyedProcessFunction
from qstate.standby import Standby
from qstate.values.ttl import time_of
from tests.either_backend import EITHER_BACKEND
from tests.functions import Mean, add
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, rows_batch
from tests.runtime.standby.asked import reached

JobOf = Callable[..., RunningJob]
StandbyOf = Callable[..., Standby]

HOUR, MOMENT = timedelta(hours=1), timedelta(milliseconds=1)
BACKENDS = pytest.mark.parametrize("backend", EITHER_BACKEND)


def mean(ttl: StateTtl | None) -> AggregatingStateDescriptor:
    return AggregatingStateDescriptor("mean", list, aggregate_function=Mean(), ttl=ttl).queryable("mean")


class EveryKind(KeyedProcessFunction):
    """Keeps each amount in a state of every kind; yields how many amounts of the key it sees."""

    def __init__(self, duration: timedelta | None) -> None:
        self.ttl = None if duration is None else StateTtl(duration)

    def open(self, context: Any) -> None:
        ttl = self.ttl
        self.last = context.get_state(ValueStateDescriptor("last", int, ttl=ttl).queryable("last"))
        self.list = context.get_list_state(ListStateDescriptor("list", int, ttl=ttl).queryable("list"))
        self.map = context.get_map_state(MapStateDescriptor("map", int, ttl=ttl).queryable("map"))
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add, ttl=ttl).queryable("total")
        )
        self.mean = context.get_aggregating_state(mean(ttl))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.last.update(row.amount)
        self.list.add(row.amount)
        self.map.put(str(row.amount), row.amount)
        self.total.add(row.amount)
        self.mean.add(float(row.amount))
        assert self.total.get() == sum(self.list.get()) == sum(self.map.values())
        yield row.key, len(self.list.get())


FIVE = {"last": 5, "list": [1, 5], "map": {"1": 1, "5": 5}, "total": 6, "mean": 3.0}
NOTHING = dict.fromkeys(FIVE)


def epoch(job: RunningJob, number: int, *rows: tuple[str, int]) -> list[tuple[str, int]]:
    """Run an epoch, and say as Spark does that it is committed."""
    found = job.epoch(number, rows_batch(*rows))
    job.manager.finalize(QUERY, number)
    return found


def asked(address: tuple[str, int], *isolations: str, at_least: int = 0) -> list[dict[str, Any]]:
    """What a client finds for key "a" in every state."""
    found = []
    with QueryableStateClient(*address, timeout_s=20.0) as client:
        for isolation in isolations:
            views = {
                name: client.get(JOB, name, "a", isolation=isolation, min_epoch=at_least)  # type: ignore[arg-type]
                for name in FIVE
            }
            found.append({name: None if view is None else view.contents() for name, view in views.items()})
    return found


def dumped(root: Path) -> dict[str, Any]:
    """What offline reading finds for key "a", in the form of `asked`, but for the accumulator of the mean."""
    return of_key_a((one.state, one.key, one.map_key, one.value) for one in read_entries(open_source(str(root)), "it"))


def printed(root: Path) -> dict[str, Any]:
    """What the command prints as MessagePack, in the form of `dumped`."""
    command = [sys.executable, "-m", "qstate.cli.main", "checkpoint", "dump", str(root), "--format", "msgpack"]
    answer = subprocess.run(command, capture_output=True, timeout=60, check=True)
    found = msgpack.Unpacker(io.BytesIO(answer.stdout), strict_map_key=False)
    entries = (one for one in found if "key" in one)  # not the operator state, in which the time is kept
    return of_key_a((one["state"], one["key"], one.get("map_key"), one["value"]) for one in entries)


def of_key_a(entries: Iterable[tuple[str, Any, Any, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for state, key, map_key, value in entries:
        if key == "a" and map_key is None:
            found[state] = value
        elif key == "a":
            found.setdefault(state, {})[map_key] = value
    return found


def stored_times(root: Path) -> list[int]:
    """The times of the stored values that are no lists."""
    source = open_source(str(root))
    changes = read_changes(source, stored_operator(source, "it"))
    return [time_of(change.data) for change in changes if change.state != "list"]


@BACKENDS
def test_nobody_sees_what_has_expired(job_of: JobOf, standby_of: StandbyOf, tmp_path: Path, backend: str) -> None:
    root, descriptors = tmp_path / "checkpoint", [mean(StateTtl(HOUR))]
    job = job_of(EveryKind(HOUR), backend=backend)
    assert epoch(job, 0, ("a", 1)) == [("a", 1)]
    standby = standby_of(descriptors=descriptors, backend=backend)
    assert epoch(job, 1, ("a", 5)) == [("a", 2)]
    reached(standby, 1)
    assert standby.status().fills == 1, "it has followed the job"
    assert asked(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=1) == [FIVE, FIVE]
    assert asked(standby.address, "committed") == [FIVE]
    assert dumped(root) == printed(root) == {**FIVE, "mean": [6.0, 2]}
    job.stop()
    job = job_of(EveryKind(MOMENT), backend=backend, ttl_sweep_entries=0)
    epoch(job, 2, ("b", 1))
    assert asked(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=1) == [NOTHING, NOTHING]
    reached(standby, 2)
    assert asked(standby.address, "committed") == [NOTHING]
    assert dumped(root) == printed(root) == {}
    assert len(stored_times(root)) > 0, "still stored"
    assert [found.damage for found in verify(str(root)) if found.damage] == [], "the times are no damage"
    assert epoch(job, 3, ("a", 7)) == [("a", 1)]


@BACKENDS
def test_a_sweep_removes_what_has_expired(job_of: JobOf, tmp_path: Path, backend: str) -> None:
    root = tmp_path / "checkpoint"
    job = job_of(EveryKind(HOUR), backend=backend)
    epoch(job, 0, *((f"key {number}", number) for number in range(20)))
    job.stop()
    job = job_of(EveryKind(MOMENT), backend=backend, ttl_sweep_entries=30)
    assert len(stored_times(root)) == 80
    for number in range(1, 5):  # of a hundred entries with the lists
        epoch(job, number)
    assert len(stored_times(root)) == 0
    assert asked(job.manager.wait_for_proxy(20.0), "live") == [NOTHING]


@BACKENDS
def test_a_ttl_may_be_added_to_stored_state_and_removed_again(job_of: JobOf, tmp_path: Path, backend: str) -> None:
    root = tmp_path / "checkpoint"
    job = job_of(EveryKind(None), backend=backend)
    epoch(job, 0, ("a", 1))
    epoch(job, 1, ("a", 5))
    epoch(job, 2, ("b", 2))
    job.stop()
    before = time.time_ns() // 1_000_000
    job = job_of(EveryKind(HOUR), backend=backend)
    epoch(job, 3, ("b", 3))
    assert asked(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=2) == [FIVE, FIVE]
    epoch(job, 4, ("b", 4))
    assert dumped(root) == {**FIVE, "mean": [6.0, 2]}
    assert min(stored_times(root)) >= before, "old values count as written when the state was opened"
    savepoint = write_savepoint(open_source(str(root)), tmp_path / "savepoint")
    assert {entry.key for entry in read_entries(savepoint, "it")} == {"a", "b"}
    job.stop()
    job = job_of(EveryKind(None), backend=backend)
    assert epoch(job, 5, ("b", 5)) == [("b", 4)]
    assert asked(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=4) == [FIVE, FIVE]
    assert epoch(job, 6, ("a", 9)) == [("a", 3)]


@pytest.mark.parametrize(("backend", "snapshots"), [("heap", 0), ("heap", 1), ("rocksdb", 1)])
def test_what_has_expired_does_not_come_back_without_the_ttl(
    job_of: JobOf, tmp_path: Path, backend: str, snapshots: int
) -> None:
    job = job_of(EveryKind(MOMENT), backend=backend, ttl_sweep_entries=0, snapshot_interval=snapshots)
    for number in range(3):
        epoch(job, number, ("a", number), ("b", number))
        job.wait_for_snapshots()
    job.stop()
    job = job_of(EveryKind(None), backend=backend)
    assert epoch(job, 3, ("b", 7)) == [("b", 1)]
    assert asked(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=2) == [NOTHING, NOTHING]
    assert dumped(tmp_path / "checkpoint") == {}


@BACKENDS
def test_an_epoch_that_was_not_committed_keeps_its_times(job_of: JobOf, tmp_path: Path, backend: str) -> None:
    job = job_of(EveryKind(HOUR), backend=backend)
    epoch(job, 0, ("a", 1))
    assert job.epoch(1, rows_batch(("a", 5))) == [("a", 2)]
    before = stored_times(tmp_path / "checkpoint")
    job.stop()
    job = job_of(EveryKind(HOUR), backend=backend)
    assert epoch(job, 1, ("a", 5)) == [("a", 2)], "the stored results"
    assert asked(job.manager.wait_for_proxy(20.0), "live", "committed", at_least=1) == [FIVE, FIVE]
    assert epoch(job, 2, ("b", 1)) == [("b", 1)]
    assert min(stored_times(tmp_path / "checkpoint")) == min(before)
