"""Operator state of a job with real task managers: it survives, is rolled back, and is split and merged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint.log.operator_state import LARGEST_OPERATOR_STATE
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.checkpoint.sources.verification import verify
from qstate.descriptors import ListStateDescriptor, ReducingStateDescriptor
from qstate.errors import JobError
from qstate.operators.functions import KeyedProcessFunction
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.running_job import QUERY, RunningJob, kill, rows_batch

JobOf = Callable[..., RunningJob]

SHOW = rows_batch(("show", 0))


class Positions(KeyedProcessFunction):
    """Notes every amount in a split list and, as a list of one, in a union list; "show" gives both."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(ReducingStateDescriptor("total", int, reduce_function=add))
        self.noted = context.get_operator_list_state(ListStateDescriptor("noted", int))
        self.common = context.get_union_list_state(ListStateDescriptor("common", list[int]))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        if row.key == "show":
            yield from (("noted", amount) for amount in self.noted.get())
            yield from (("common", sum(amounts)) for amounts in self.common.get())
        elif row.key == "in place":
            self.common.get()[0].append(row.amount)
        elif row.key == "large":
            self.common.add([0] * row.amount)
        elif row.key == "fail":
            raise ValueError("as the test wants")
        else:
            self.noted.add(row.amount)
            self.common.add([row.amount])


def note(job: RunningJob, epoch: int, *amounts: int, subtask: int = 0, query: str = QUERY) -> None:
    job.epoch(epoch, rows_batch(*(("note", amount) for amount in amounts)), subtask=subtask, query=query)


def shown(job: RunningJob, epoch: int, subtask: int = 0, query: str = QUERY) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"noted": [], "common": []}
    for name, amount in job.epoch(epoch, SHOW, subtask=subtask, query=query):
        found[name].append(amount)
    return found


def of_all(job: RunningJob, epoch: int, query: str = QUERY) -> list[dict[str, list[int]]]:
    return [shown(job, epoch, subtask, query) for subtask in range(job.config.parallelism)]


BACKENDS = pytest.mark.parametrize("backend", EITHER_BACKEND)


@BACKENDS
def test_it_survives_a_killed_task_manager_and_a_restart(job_of: JobOf, backend: str) -> None:
    job = job_of(Positions(), backend=backend, snapshot_interval=2, retained_snapshots=1)
    for epoch in range(4):
        note(job, epoch, epoch)
        job.wait_for_snapshots()
    job.epoch(4, rows_batch(("in place", 10)))
    kill(job.task_manager())
    assert shown(job, 5) == {"noted": [0, 1, 2, 3], "common": [10, 1, 2, 3]}
    job.stop()
    job = job_of(Positions(), backend=backend)
    assert shown(job, 6) == {"noted": [0, 1, 2, 3], "common": [10, 1, 2, 3]}
    assert {found.damage for found in verify(str(job.manager.checkpoint_dir))} == {None}


@BACKENDS
def test_abandoned_epoch_leaves_nothing_in_it(job_of: JobOf, backend: str) -> None:
    job = job_of(Positions(), backend=backend)
    note(job, 0, 1, 2)
    with pytest.raises(JobError, match="as the test wants"):
        job.epoch(1, rows_batch(("note", 3), ("in place", 10), ("fail", 0)))
    assert shown(job, 1) == {"noted": [1, 2], "common": [1, 2]}


def test_at_least_once_it_keeps_what_a_failed_attempt_added(job_of: JobOf) -> None:
    job = job_of(Positions(), exactly_once=False)
    note(job, 0, 1)
    with pytest.raises(JobError, match="as the test wants"):
        job.epoch(1, rows_batch(("note", 2), ("fail", 0)))
    assert shown(job, 1)["noted"] == [1, 2]


def test_too_much_of_it_fails_only_the_epoch(job_of: JobOf) -> None:
    job = job_of(Positions())
    note(job, 0, 1)
    with pytest.raises(JobError, match=r"subtask 0: its operator state has .* in 'common'; a subtask may have 16,7"):
        job.epoch(1, rows_batch(("large", LARGEST_OPERATOR_STATE)))
    assert shown(job, 1) == {"noted": [1], "common": [1]}


@BACKENDS
def test_parallelism_changes_and_every_element_has_one_owner(job_of: JobOf, backend: str) -> None:
    """2 -> 3 -> 1: split lists are split again, and every subtask has all union lists."""
    job = job_of(Positions(), parallelism=2, backend=backend)
    note(job, 0, 1, 2, 3, subtask=0)
    note(job, 0, 4, subtask=1)
    note(job, 1, 99, subtask=1)  # not committed: the others never sealed it
    job.stop()
    job = job_of(Positions(), parallelism=3, backend=backend)
    everything = {"common": [1, 2, 3, 4]}
    assert shown(job, 1, subtask=2) == {"noted": [4], **everything}
    job.stop()
    job = job_of(Positions(), parallelism=3, backend=backend)
    assert of_all(job, 1)[:2] == [{"noted": [1, 2], **everything}, {"noted": [3], **everything}]
    job.stop()
    job = job_of(Positions(), parallelism=1, backend=backend)
    assert shown(job, 2) == {"noted": [1, 2, 3, 4], "common": [1, 2, 3, 4] * 3}


def test_subtasks_that_never_began_in_a_layout_pass_their_elements_on(job_of: JobOf) -> None:
    job = job_of(Positions(), parallelism=2)
    note(job, 0, 1, 2, 3, subtask=0)
    note(job, 0, 4, 5, subtask=1)
    job.stop()
    job = job_of(Positions(), parallelism=4)
    note(job, 1, subtask=1)  # no other subtask begins in this layout
    job.stop()
    job = job_of(Positions(), parallelism=3)
    assert [found["noted"] for found in of_all(job, 1)] == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize(("one", "other"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_savepoint_carries_it_to_another_backend_and_parallelism(
    job_of: JobOf, tmp_path: Path, one: str, other: str
) -> None:
    job = job_of(Positions(), parallelism=2, backend=one)
    note(job, 0, 1, 2, subtask=0)
    note(job, 0, 3, subtask=1)
    job.manager.finalize(QUERY, 0)
    write_savepoint(open_source(str(job.manager.checkpoint_dir)), tmp_path / "savepoint")
    job.stop()
    for parallelism, noted in ((2, [[1, 2], [3]]), (3, [[1], [2], [3]])):
        job = job_of(
            Positions(),
            parallelism=parallelism,
            backend=other,
            checkpoint_dir=str(tmp_path / f"by {parallelism}"),
            restore_from=str(tmp_path / "savepoint"),
        )
        found = of_all(job, 0, query="new")
        assert [one["noted"] for one in found] == noted
        assert [one["common"] for one in found] == [[1, 2, 3]] * parallelism
        job.stop()


class Keyed(KeyedProcessFunction):
    """Asks for the keyed state only."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(ReducingStateDescriptor("total", int, reduce_function=add))

    def process_element(self, row: Any, context: Any) -> None:
        self.total.add(row.amount)


class Other(Positions):
    """Asks for the split list as a union list."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(ReducingStateDescriptor("total", int, reduce_function=add))
        self.noted = context.get_union_list_state(ListStateDescriptor("noted", int))
        self.common = context.get_union_list_state(ListStateDescriptor("common", list[int]))


def test_undeclared_state_is_refused_unless_that_is_allowed(job_of: JobOf) -> None:
    note(job := job_of(Positions()), 0, 1)
    job.stop()
    job = job_of(Keyed())
    with pytest.raises(JobError, match=r"operator state 'noted' .* get_operator_list_state\(\).*allow_non_restored"):
        note(job, 1)
    job.stop()
    job = job_of(Other())
    with pytest.raises(JobError, match=r"by get_operator_list_state\(\) and is asked for with get_union_list"):
        note(job, 1)
    job.stop()
    note(job := job_of(Keyed(), allow_non_restored_state=True), 1)
    job.stop()
    assert shown(job_of(Positions()), 2) == {"noted": [], "common": []}


class AsFloats(Positions):
    """Declares the noted amounts as floats."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(ReducingStateDescriptor("total", int, reduce_function=add))
        self.noted = context.get_operator_list_state(ListStateDescriptor("noted", float))
        self.common = context.get_union_list_state(ListStateDescriptor("common", list[int]))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        assert all(type(amount) is float for amount in self.noted.get())
        yield from (("noted", int(amount)) for amount in self.noted.get())


class AsText(Positions):
    """Declares the noted amounts as text."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(ReducingStateDescriptor("total", int, reduce_function=add))
        self.noted = context.get_operator_list_state(ListStateDescriptor("noted", str))


def test_elements_are_converted_as_keyed_state_is(job_of: JobOf) -> None:
    note(job := job_of(Positions(), parallelism=2), 0, 1, 2)
    note(job, 0, 3, subtask=1)
    job.stop()
    job = job_of(AsText(), parallelism=2)
    with pytest.raises(JobError, match="state 'noted' cannot be used as it was stored"):
        note(job, 1)
    job.stop()
    job = job_of(AsFloats(), parallelism=2)
    assert [found["noted"] for found in of_all(job, 1)] == [[1, 2], [3]]
    job.stop()
    job = job_of(AsFloats(), parallelism=1)
    assert shown(job, 2)["noted"] == [1, 2, 3]
    job.stop()
    with pytest.raises(JobError, match=r"Stored: .*float.*Wanted: .*int"):
        note(job_of(Positions()), 3)
