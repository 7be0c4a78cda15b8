"""Checkpoints of a job with real task managers: taken over by another parallelism, backend or program."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import Change
from qstate.checkpoint.sources.entries import read_entries
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import Savepoint, write_savepoint
from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import CheckpointError, ConfigError, JobError
from qstate.keys import KeyGroupRange, key_group, subtask_of
from qstate.runtime.client.sync_client import QueryableStateClient
from tests.checkpoint.book_reader import final_epoch, read_checkpoint
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.functions import Once, Totals, fail
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, rows_batch

JobOf = Callable[..., RunningJob]
KEYS = [f"key {number}" for number in range(40)]


def epoch_of_all(
    job: RunningJob, epoch: int, amount: int = 1, query: str = QUERY, operator: str = "it"
) -> dict[str, int]:
    """Run one epoch with a row for every key, each at its subtask. Returns the results."""
    parallelism = job.config.parallelism
    emitted: dict[str, int] = {}
    for subtask in range(parallelism):
        rows = [(key, amount) for key in KEYS if subtask_of(key_group(key, 128), parallelism, 128) == subtask]
        emitted.update(job.epoch(epoch, rows_batch(*rows), subtask=subtask, query=query, operator=operator))
    return emitted


def all_are(total: int) -> dict[str, int | None]:
    return dict.fromkeys(KEYS, total)


def dump(location: Path | str, operator: str = "it", upto: int = 1 << 40) -> list[Change]:
    return list(open_source(str(location)).state(operator, KeyGroupRange(0, 128), upto))


def test_parallelism_changes_both_ways_and_the_state_moves(job_of: JobOf) -> None:
    total, dumps = 0, []
    for epoch, parallelism in enumerate([2, 5, 5, 1, 2]):
        job = job_of(Totals(), parallelism=parallelism)
        total += epoch + 1
        assert epoch_of_all(job, epoch, epoch + 1) == all_are(total)
        assert job.totals(*KEYS) == all_are(total)
        job.manager.finalize(QUERY, epoch)
        job.stop()
        found = dump(job.manager.checkpoint_dir)
        dumps.append([change.key for change in found])
        by_the_book = read_checkpoint(job.manager.checkpoint_dir, "it", final_epoch(job.manager.checkpoint_dir, "it"))
        assert {place[2]: data for place, data in by_the_book.items()} == {change.key: change.data for change in found}
    assert len(dumps[0]) == len(KEYS)
    assert all(keys == dumps[0] for keys in dumps), "the order is that of the key groups, whatever the parallelism"


def test_query_that_is_older_than_the_state_is_refused(job_of: JobOf) -> None:
    job = job_of(Totals())
    for epoch in range(4):
        epoch_of_all(job, epoch)
    job.stop()
    job = job_of(Totals())
    with pytest.raises(JobError, match=r"epoch 1 is due, but its state .* is newer"):
        epoch_of_all(job, 1)
    assert epoch_of_all(job, 3) == all_are(4)


def test_rescale_continues_at_sparks_epoch_and_not_at_that_of_the_fastest_subtask(job_of: JobOf) -> None:
    job = job_of(Totals(), parallelism=2)
    epoch_of_all(job, 0)
    job.epoch(1, rows_batch(), subtask=0)  # sealed by one subtask only; Spark gives it again
    job.stop()
    job = job_of(Totals(), parallelism=3)
    assert epoch_of_all(job, 1) == all_are(2)
    job.stop()
    job = job_of(Totals(), parallelism=1)
    with pytest.raises(JobError, match="epoch 3 follows epoch 1"):
        epoch_of_all(job, 3)
    job.stop()
    assert epoch_of_all(job_of(Totals(), parallelism=1), 2) == all_are(3)


def test_snapshots_replace_the_epochs_before_them_and_nothing_is_lost(job_of: JobOf) -> None:
    job = job_of(Totals(), snapshot_interval=2, retained_snapshots=1)
    for epoch in range(9):
        epoch_of_all(job, epoch)
        job.wait_for_snapshots()
    names = sorted(path.name for path in job.epoch_log().iterdir())
    assert len([name for name in names if name.endswith(".snapshot")]) == 1
    assert len([name for name in names if name.endswith(".log")]) <= 4
    job.stop()
    job = job_of(Totals())
    assert epoch_of_all(job, 9) == all_are(10)


@pytest.mark.parametrize(("one", "other"), [("heap", "rocksdb"), ("rocksdb", "heap")])
def test_another_backend_takes_the_state_over(job_of: JobOf, one: str, other: str) -> None:
    epoch_of_all(job := job_of(Totals(), backend=one), 0)
    job.stop()
    assert epoch_of_all(job_of(Totals(), backend=other), 1) == all_are(2)


def test_savepoint_carries_state_across_backends_and_parallelism(job_of: JobOf, tmp_path: Path) -> None:
    """heap, 2 subtasks -> rocksdb, 5 -> heap, 1: the same state, byte for byte."""
    checkpoint: Path | None = None
    dumps = []
    for number, (backend, parallelism) in enumerate([("heap", 2), ("rocksdb", 5), ("heap", 1)]):
        settings: dict[str, Any] = {"backend": backend, "parallelism": parallelism}
        if number:
            settings.update(checkpoint_dir=str(tmp_path / f"of {number}"), restore_from=str(tmp_path / f"{number - 1}"))
        job = job_of(Totals(), **settings)
        # The epochs of a new query begin with 0; the last one only brings the state back.
        epoch_of_all(job, 0, amount=5 if number == 0 else 0, query=f"query {number}")
        job.manager.finalize(f"query {number}", 0)
        checkpoint = job.manager.checkpoint_dir
        savepoint = write_savepoint(open_source(str(checkpoint)), tmp_path / f"{number}")
        assert savepoint.entries("it") == len(KEYS)
        assert job.totals(*KEYS) == all_are(5)
        job.stop()
        dumps.append(dump(tmp_path / f"{number}"))
    assert dumps[0] == dumps[1] == dumps[2]
    bodies = {(tmp_path / f"{number}" / "0001.savepoint").read_bytes()[200:-400] for number in range(3)}
    assert len(bodies) == 1


def test_job_that_continues_its_query_from_a_savepoint_continues_its_epochs(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals())
    for epoch in range(2):
        epoch_of_all(job, epoch)
    job.manager.finalize(QUERY, 1)
    write_savepoint(open_source(str(job.manager.checkpoint_dir)), tmp_path / "savepoint")
    epoch_of_all(job, 2)
    job.stop()
    again = job_of(Totals(), checkpoint_dir=str(tmp_path / "again"), restore_from=str(tmp_path / "savepoint"))
    with pytest.raises(CheckpointError, match=r"epoch 1 .* continues after epoch 0"):
        epoch_of_all(again, 1)
    assert epoch_of_all(again, 2) == all_are(3)


def test_checkpoint_of_a_stopped_job_can_be_restored_like_a_savepoint(job_of: JobOf, tmp_path: Path) -> None:
    epoch_of_all(job := job_of(Totals(), parallelism=2), 0)
    job.manager.finalize(QUERY, 0)
    job.stop()
    settings: Any = {"checkpoint_dir": str(tmp_path / "new"), "restore_from": str(job.manager.checkpoint_dir)}
    again = job_of(Totals(), **settings)
    assert epoch_of_all(again, 0, query="new") == all_are(2)
    (restored,) = again.manager.restored()
    assert (restored.operator, restored.subtask, restored.epoch) == ("it", 0, -1)
    assert restored.source.endswith("000000000000.snapshot")
    again.stop()
    assert epoch_of_all(job_of(Totals(), **settings), 1, query="new") == all_are(3), "restore_from may stay set"


def test_restore_from_needs_an_empty_directory_and_something_to_restore(job_of: JobOf, tmp_path: Path) -> None:
    epoch_of_all(job := job_of(Totals()), 0)
    job.stop()
    with pytest.raises(ConfigError, match="restore_from needs an empty checkpoint_dir"):
        job_of(Totals(), restore_from=str(tmp_path / "elsewhere"))
    with pytest.raises(CheckpointError, match="neither a savepoint"):
        job_of(Totals(), checkpoint_dir=str(tmp_path / "new"), restore_from=str(tmp_path / "elsewhere"))


class Renamed(Totals):
    """Asks for its state under another name."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(ReducingStateDescriptor("sum", int, reduce_function=add))


class AsFloat(Totals):
    """Declares its totals as floats."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", float, reduce_function=add).queryable("totalAmount")
        )

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        assert type(self.total.get()) is float
        self.total.add(float(row.amount))
        yield row.key, int(self.total.get())


class AsText(Totals):
    """Declares its totals as text."""

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", str).queryable("totalAmount"))


def test_undeclared_state_is_refused_unless_that_is_allowed(job_of: JobOf) -> None:
    epoch_of_all(job := job_of(Totals()), 0)
    job.stop()
    job = job_of(Renamed())
    with pytest.raises(JobError, match=r"stored state 'total'.*allow_non_restored_state=True"):
        epoch_of_all(job, 1)
    job.stop()
    job = job_of(Renamed(), allow_non_restored_state=True)
    assert epoch_of_all(job, 1) == all_are(1)
    job.stop()
    assert {change.state for change in dump(job.manager.checkpoint_dir)} == {"sum"}
    assert epoch_of_all(job_of(Renamed()), 2) == all_are(2)


def test_state_of_a_removed_operator_is_refused_unless_that_is_allowed(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.add_operator("other", Renamed())
    epoch_of_all(job, 0)
    job.epoch(0, rows_batch(("a", 1)), operator="other")
    job.stop()
    job = job_of(Totals())
    with pytest.raises(JobError, match="state of operator 'other', which the job does not have"):
        epoch_of_all(job, 1)
    job.stop()
    assert epoch_of_all(job_of(Totals(), allow_non_restored_state=True), 1) == all_are(2)


def test_widened_state_is_converted_once_and_stays_so(job_of: JobOf) -> None:
    epoch_of_all(job := job_of(Totals()), 0)
    job.stop()
    job = job_of(AsFloat())
    assert epoch_of_all(job, 1) == all_are(2)
    job.stop()
    job = job_of(AsFloat(), snapshot_interval=1)
    assert epoch_of_all(job, 2) == all_are(3)
    assert epoch_of_all(job, 3) == all_are(4)
    job.wait_for_snapshots()
    job.stop()
    with pytest.raises(
        JobError, match=r"state 'total' cannot be used as it was stored.*Stored: .*float.*Wanted: .*int"
    ):
        epoch_of_all(job_of(Totals()), 4)


class Anything(Totals):
    """Stores values of another type than declared, as was possible before types were enforced."""

    def open(self, context: Any) -> None:
        context._checks.of = lambda descriptor: descriptor
        self.total = context.get_state(ValueStateDescriptor("total", int).queryable("totalAmount"))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.total.update("sloppy")
        yield row.key, 1


class AnythingAsFloat(Anything):
    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", float).queryable("totalAmount"))


def test_value_that_cannot_be_converted_leaves_the_state_to_the_old_program(job_of: JobOf) -> None:
    epoch_of_all(job := job_of(Anything()), 0)
    job.stop()
    job = job_of(AnythingAsFloat())
    with pytest.raises(JobError, match="the stored value cannot be converted"):
        epoch_of_all(job, 1)
    job.stop()
    assert epoch_of_all(job_of(Anything()), 1) == all_are(1)


def test_incompatible_state_is_refused_before_any_row_and_the_old_program_still_runs(job_of: JobOf) -> None:
    epoch_of_all(job := job_of(Totals()), 0)
    job.stop()
    job = job_of(AsText())
    with pytest.raises(JobError, match="its kind was reducing and is value"):
        epoch_of_all(job, 1)
    job.stop()
    assert epoch_of_all(job_of(Totals()), 1) == all_are(2)


def committed(job: RunningJob, key: str) -> tuple[int | None, int]:
    with QueryableStateClient(*job.manager.wait_for_proxy(20.0)) as client:
        view = client.get_many(JOB, "totalAmount", [key], isolation="committed")[key]
        return (None, -1) if view is None else (view.get(), view.epoch)


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_epoch_that_spark_has_not_committed_does_not_show_as_committed_after_a_restart(
    job_of: JobOf, backend: str
) -> None:
    job = job_of(Totals(), backend=backend)
    for epoch in range(2):
        epoch_of_all(job, epoch)
    assert committed(job, KEYS[0]) == (1, 0)
    job.stop()
    job = job_of(Totals(), backend=backend)
    assert epoch_of_all(job, 1) == all_are(2), "the stored results"
    assert committed(job, KEYS[0]) == (1, 0)
    job.manager.finalize(QUERY, 1)
    epoch_of_all(job, 2)
    assert committed(job, KEYS[0]) == (2, 1)


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_epoch_that_spark_has_not_committed_does_not_show_though_the_schema_has_changed(
    job_of: JobOf, backend: str
) -> None:
    job = job_of(Totals(), backend=backend)
    for epoch in range(2):
        epoch_of_all(job, epoch)
    job.stop()
    job = job_of(AsFloat(), backend=backend)
    assert epoch_of_all(job, 1) == all_are(2), "the stored results"
    assert committed(job, KEYS[0]) == (1, 0)
    assert not list(job.epoch_log().glob("*.snapshot")), "the old program can still continue from here"
    job.stop()
    job = job_of(AsFloat(), backend=backend, snapshot_interval=1)
    assert epoch_of_all(job, 1) == all_are(2)
    assert epoch_of_all(job, 2) == all_are(3)
    assert committed(job, KEYS[0]) == (2, 1)
    job.wait_for_snapshots()
    assert epoch_of_all(job, 3) == all_are(4)
    job.wait_for_snapshots()
    assert len(list(job.epoch_log().glob("*.snapshot"))) == 2, "the converted state, and a snapshot on it"
    job.manager.finalize(QUERY, 3)
    assert len(list(read_entries(open_source(str(job.manager.checkpoint_dir)), "it"))) == len(KEYS)
    job.stop()
    assert epoch_of_all(job_of(AsFloat(), backend=backend), 4) == all_are(5)


def fail_once(tmp_path: Path) -> Totals:
    return Totals(Once(tmp_path / "flag", fail))


@pytest.mark.parametrize("backend", EITHER_BACKEND)
@pytest.mark.parametrize(("exactly_once", "total"), [(True, 1), (False, 2)])
def test_rows_of_a_failed_attempt_count_again_only_at_least_once(
    job_of: JobOf, tmp_path: Path, backend: str, exactly_once: bool, total: int
) -> None:
    job = job_of(fail_once(tmp_path), backend=backend, exactly_once=exactly_once)
    batch = rows_batch(("a", 1), ("mischief", 1))
    with pytest.raises(JobError, match="as the test wants"):
        job.epoch(0, batch)
    assert job.epoch(0, batch) == [("a", total), ("mischief", total)]
    assert job.epoch(1, rows_batch(("a", 1))) == [("a", total + 1)]


def test_savepoint_has_all_operators_of_a_query_as_of_one_epoch(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals())
    job.add_operator("other", Renamed())
    for epoch in range(2):
        job.epoch(epoch, rows_batch(("a", 1)))
        job.epoch(epoch, rows_batch(("a", 1)), operator="other")
    job.epoch(2, rows_batch(("a", 1)))  # one of them is ahead, and so proves epoch 1 committed for both
    (job.manager.checkpoint_dir / "final.json").unlink()
    stored = open_source(str(job.manager.checkpoint_dir)).operators()
    assert [(found.epoch, found.sealed) for found in (stored["it"], stored["other"])] == [(1, 2), (1, 1)]


def test_unfinished_savepoint_is_not_a_savepoint(job_of: JobOf, tmp_path: Path) -> None:
    epoch_of_all(job := job_of(Totals()), 0)
    source = open_source(str(job.manager.checkpoint_dir))
    with pytest.raises(CheckpointError, match="no committed state yet"):
        write_savepoint(source, tmp_path / "savepoint")
    job.manager.finalize(QUERY, 0)
    write_savepoint(source, tmp_path / "savepoint")
    with pytest.raises(CheckpointError, match="is not empty"):
        write_savepoint(source, tmp_path / "savepoint")
    (tmp_path / "savepoint" / "savepoint.json").unlink()
    assert Savepoint.read(tmp_path / "savepoint") is None
