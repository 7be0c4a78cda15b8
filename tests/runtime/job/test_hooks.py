"""Life-cycle hooks and attributes of functions in a job with real task managers: as exact as state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.descriptors import ListStateDescriptor, ReducingStateDescriptor
from qstate.errors import JobError
from qstate.operators.checkpointed import CheckpointedFunction, CheckpointListener, ListCheckpointed
from qstate.operators.functions import KeyedProcessFunction
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.running_job import QUERY, RunningJob, kill, rows_batch, until

JobOf = Callable[..., RunningJob]

SHOW = rows_batch(("show", 0))


class Sum(KeyedProcessFunction, ListCheckpointed):
    """Sums amounts in an attribute that is a list of one number; "show" gives it, "fail" fails."""

    def __init__(self) -> None:
        self.sum = 0
        self.parts = 0

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        if row.key == "fail":
            raise ValueError("as the test wants")
        if row.key == "show":
            yield from (("sum", self.sum), ("parts", self.parts))
        self.sum += row.amount

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        assert timestamp > 1_700_000_000_000
        return [self.sum]

    def restore_state(self, state: list[int]) -> None:
        self.sum, self.parts = sum(state), len(state)


class Buffered(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
    """Buffers amounts in an attribute and stores them as elements of a split list; counts them in keyed state, too."""

    def __init__(self) -> None:
        self.buffered: list[int] = []
        self.restored = False
        self.final = -1

    def initialize_state(self, context: Any) -> None:
        total = ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        self.total = context.keyed_state_store.get_reducing_state(total)
        self.stored = context.operator_state_store.get_list_state(ListStateDescriptor("amounts", int))
        self.restored = context.is_restored
        self.buffered = self.stored.get()

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        if row.key == "fail":
            raise ValueError("as the test wants")
        if row.key == "show":
            yield "restored", int(self.restored)
            yield "final", self.final
            yield from (("buffered", amount) for amount in self.buffered)
        else:
            self.buffered.append(row.amount)
            self.total.add(row.amount)

    def snapshot_state(self, context: Any) -> None:
        self.stored.update(self.buffered)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.final = checkpoint_id


def note(job: RunningJob, epoch: int, *amounts: int, subtask: int = 0, query: str = QUERY) -> None:
    job.epoch(epoch, rows_batch(*(("a", amount) for amount in amounts)), subtask=subtask, query=query)


def fail(job: RunningJob, epoch: int, *amounts: int) -> None:
    with pytest.raises(JobError, match="as the test wants"):
        job.epoch(epoch, rows_batch(*(("a", amount) for amount in amounts), ("fail", 0)))


def shown(job: RunningJob, epoch: int, subtask: int = 0, query: str = QUERY) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, amount in job.epoch(epoch, SHOW, subtask=subtask, query=query):
        found.setdefault(name, []).append(amount)
    return found


def buffered(job: RunningJob, epoch: int, query: str = QUERY) -> list[list[int]]:
    return [shown(job, epoch, subtask, query).get("buffered", []) for subtask in range(job.config.parallelism)]


BACKENDS = pytest.mark.parametrize("backend", EITHER_BACKEND)


@BACKENDS
def test_attributes_survive_a_killed_task_manager_and_a_restart(job_of: JobOf, backend: str) -> None:
    job = job_of(Buffered(), backend=backend, snapshot_interval=2, retained_snapshots=1)
    for epoch in range(4):
        note(job, epoch, epoch)
        job.wait_for_snapshots()
    kill(job.task_manager())
    found = shown(job, 4)
    assert (found["restored"], found["buffered"]) == ([1], [0, 1, 2, 3])
    job.stop()
    job = job_of(Buffered(), backend=backend)
    found = shown(job, 5)
    assert (found["restored"], found["buffered"]) == ([1], [0, 1, 2, 3])
    assert job.totals("a") == {"a": 6}


@BACKENDS
def test_failed_epochs_leave_nothing_in_attributes(job_of: JobOf, backend: str) -> None:
    job = job_of(Buffered(), backend=backend)
    fail(job, 0, 5)
    fail(job, 0, 6)
    assert (found := shown(job, 0)) == {"restored": [0], "final": [-1]}, found
    note(job, 1, 1, 2)
    process = job.task_manager().pid
    fail(job, 2, 3)
    fail(job, 2, 3)
    found = shown(job, 2)
    assert (found["restored"], found["buffered"]) == ([1], [1, 2])
    note(job, 3, 4)
    assert job.totals("a") == {"a": 7}
    assert job.task_manager().pid == process


def test_counter_in_an_attribute_is_the_sum_of_the_sealed_rows(job_of: JobOf) -> None:
    job = job_of(Sum())
    note(job, 0, 1, 2)
    fail(job, 1, 10)
    note(job, 1, 4)
    fail(job, 2, 20)
    assert shown(job, 2) == {"sum": [7], "parts": [1]}


class Plain(Sum):
    """Keeps nothing of its attributes but their values in the pickle."""

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return []

    def restore_state(self, state: list[int]) -> None:
        return


def test_attributes_that_no_hook_stores_are_those_of_the_pickle_after_a_failure(job_of: JobOf) -> None:
    job = job_of(Plain())
    note(job, 0, 1, 2)
    assert shown(job, 1)["sum"] == [3]
    fail(job, 2, 10)
    assert shown(job, 2)["sum"] == [0]


def test_at_least_once_attributes_stay_as_state_does(job_of: JobOf) -> None:
    job = job_of(Buffered(), exactly_once=False)
    note(job, 0, 1)
    fail(job, 1, 2)
    assert shown(job, 1)["buffered"] == [1, 2]
    note(job, 2)
    assert job.totals("a") == {"a": 3}


def test_replayed_epoch_is_in_the_attributes_once(job_of: JobOf) -> None:
    """Spark has not committed the epoch sealed last when the driver is restarted, and gives it again."""
    job = job_of(Buffered())
    note(job, 0, 1)
    results = job.epoch(1, rows_batch(("a", 2), ("show", 0)))
    job.stop()
    job = job_of(Buffered())
    assert job.epoch(1, rows_batch(("a", 2), ("show", 0))) == results
    assert job.epoch(1, rows_batch(("a", 2), ("show", 0))) == results
    fail(job, 2, 3)
    found = shown(job, 2)
    assert (found["restored"], found["buffered"]) == ([1], [1, 2])


def test_parallelism_changes_and_every_element_has_one_owner(job_of: JobOf) -> None:
    """2 -> 5 -> 1."""
    job = job_of(Buffered(), parallelism=2)
    note(job, 0, 1, 2, 3, subtask=0)
    note(job, 0, 4, subtask=1)
    job.stop()
    job = job_of(Buffered(), parallelism=5)
    assert buffered(job, 1) == [[1], [2], [3], [4], []]
    assert shown(job, 2, 4)["restored"] == [1]
    job.stop()
    job = job_of(Buffered(), parallelism=1)
    assert buffered(job, 2) == [[1, 2, 3, 4]]


def test_list_of_snapshot_state_is_split_and_merged(job_of: JobOf) -> None:
    job = job_of(Sum(), parallelism=2)
    note(job, 0, 1, 2, subtask=0)
    note(job, 0, 4, subtask=1)
    job.stop()
    job = job_of(Sum(), parallelism=5)
    sums = [shown(job, 1, subtask) for subtask in range(5)]
    assert [found["sum"] for found in sums] == [[3], [4], [0], [0], [0]]
    assert [found["parts"] for found in sums] == [[1], [1], [0], [0], [0]]
    job.stop()
    job = job_of(Sum(), parallelism=1)
    assert shown(job, 2) == {"sum": [7], "parts": [5]}


@pytest.mark.parametrize(("one", "other"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_savepoint_carries_attributes_to_another_backend_and_parallelism(
    job_of: JobOf, tmp_path: Path, one: str, other: str
) -> None:
    job = job_of(Buffered(), parallelism=2, backend=one)
    note(job, 0, 1, 2, subtask=0)
    note(job, 0, 3, subtask=1)
    job.manager.finalize(QUERY, 0)
    write_savepoint(open_source(str(job.manager.checkpoint_dir)), tmp_path / "savepoint")
    job.stop()
    job = job_of(
        Buffered(),
        parallelism=3,
        backend=other,
        checkpoint_dir=str(tmp_path / "restored"),
        restore_from=str(tmp_path / "savepoint"),
    )
    assert buffered(job, 0, query="new") == [[1], [2], [3]]
    assert shown(job, 1, 2, query="new")["restored"] == [1]


def test_function_is_told_which_epoch_is_final(job_of: JobOf) -> None:
    job = job_of(Buffered())
    assert shown(job, 0)["final"] == [-1]
    assert shown(job, 1)["final"] == [0], "the next epoch proves it"
    job.manager.finalize(QUERY, 1)
    fail(job, 2)
    assert shown(job, 2)["final"] == [-1], "the new copy has not been told"
    assert shown(job, 3)["final"] == [2]


class Tells(Buffered):
    """Writes the final epochs into a file."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        with Path(self.file).open("a") as file:
            file.write(f"{checkpoint_id}\n")


def test_notification_comes_with_the_commit_and_once(job_of: JobOf, tmp_path: Path) -> None:
    told = tmp_path / "told"
    job = job_of(Tells(str(told)))
    note(job, 0, 1)
    assert not told.exists()
    job.manager.finalize(QUERY, 0)
    until(told.exists, "the function is told")
    note(job, 1, 1)
    note(job, 2, 1)
    assert told.read_text().split() == ["0", "1"]
    job.stop()
    job = job_of(Tells(str(told)))
    note(job, 2, 1)  # replayed: it was not final
    note(job, 3, 1)
    assert told.read_text().split() == ["0", "1", "2"]


class FailsToOpen(Buffered):
    """Cannot be opened while a file exists."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = file

    def initialize_state(self, context: Any) -> None:
        super().initialize_state(context)
        if Path(self.file).exists():
            raise ValueError("cannot be initialized")


def test_copy_that_cannot_be_opened_fails_the_next_attempt_only(job_of: JobOf, tmp_path: Path) -> None:
    file = tmp_path / "broken"
    job = job_of(FailsToOpen(str(file)))
    note(job, 0, 1)
    file.touch()
    fail(job, 1, 2)
    assert job.totals("a") == {"a": 1}
    for _ in range(2):
        with pytest.raises(JobError, match=r"function FailsToOpen, initialize_state\(\): ValueError: cannot be init"):
            note(job, 1, 2)
    file.unlink()
    note(job, 1, 2)
    assert shown(job, 2)["buffered"] == [1, 2]


class Keyed(KeyedProcessFunction):
    """Stores no list."""

    def process_element(self, row: Any, context: Any) -> None:
        return


def test_list_of_a_function_that_has_no_hook_any_more_is_refused_unless_that_is_allowed(job_of: JobOf) -> None:
    note(job := job_of(Sum()), 0, 1)
    job.stop()
    job = job_of(Keyed())
    with pytest.raises(JobError, match=r"the list of a snapshot_state\(\) is stored, .* allow_non_restored_state=True"):
        note(job, 1)
    job.stop()
    note(job_of(Keyed(), allow_non_restored_state=True), 1)
