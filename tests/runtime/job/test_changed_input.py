"""Laws of an epoch that Spark repeats: it must have the rows that it was sealed with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from qstate.checkpoint import EpochLog, LogIdentity
from qstate.checkpoint.log.chain import read_chain
from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import JobError
from qstate.keys import key_group, subtask_of
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import INPUT, JOB, QUERY, RunningJob, kill, many_rows, rows_batch, rows_of

JobOf = Callable[..., RunningJob]
ROWS = rows_batch(("a", 1), ("b", 2), ("a", 3))
RESULTS = [("a", 2), ("b", 3), ("a", 5)]


def sealed_epoch_1(job_of: JobOf, *, restarted: bool, **settings: Any) -> RunningJob:
    """A job with epoch 1 sealed, not known to be committed; the driver may have been restarted since."""
    job = job_of(Totals(), **settings)
    job.epoch(0, rows_batch(("a", 1), ("b", 1)))
    assert job.epoch(1, ROWS) == RESULTS
    if restarted:
        job.stop()
        job = job_of(Totals(), **settings)
    return job


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(
    "others",
    [
        [],
        [rows_batch(("a", 1), ("b", 2))],
        [rows_batch(("a", 1), ("b", 2), ("a", 4))],
        [ROWS, ROWS],
    ],
    ids=["none", "fewer", "as many", "twice"],
)
def test_sealed_epoch_that_comes_with_other_rows_is_refused_and_nothing_has_changed(
    job_of: JobOf, others: list[pa.RecordBatch], restarted: bool
) -> None:
    job = sealed_epoch_1(job_of, restarted=restarted)
    rows = sum(batch.num_rows for batch in others)
    with pytest.raises(
        JobError,
        match=r"operator 'it' subtask 0: epoch 1 was sealed with 3 rows \(digest [0-9a-f]{16}\), but comes with "
        rf"{rows} rows \(digest [0-9a-f]{{16}}\).*checkpointLocation.*checkpoint_dir.*uuid\(\).*allow_changed_input",
    ):
        job.epoch(1, *others)
    assert job.epoch(1, ROWS) == RESULTS
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 6)]


@pytest.mark.parametrize("restarted", [False, True])
def test_same_rows_in_another_order_and_other_batches_are_the_same(job_of: JobOf, restarted: bool) -> None:
    job = sealed_epoch_1(job_of, restarted=restarted)
    assert job.epoch(1, rows_batch(("a", 3)), rows_batch(), rows_batch(("b", 2), ("a", 1))) == RESULTS


def test_epoch_without_rows_has_a_digest(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch())
    assert job.epoch(0) == []
    with pytest.raises(JobError, match=r"sealed with 0 rows .* comes with 1 rows"):
        job.epoch(0, rows_batch(("a", 1)))


def test_unsealed_epoch_accepts_any_rows(job_of: JobOf) -> None:
    job = job_of(Totals())
    task: Any = job.task(0, [many_rows(20_000) for _ in range(10)])
    next(task)
    task.close()
    assert job.epoch(0, rows_batch(("k1", 1))) == [("k1", 1)]


def test_changed_input_that_is_allowed_is_dropped_with_a_warning(job_of: JobOf) -> None:
    job = sealed_epoch_1(job_of, restarted=True, allow_changed_input=True)
    assert job.epoch(1, rows_batch(("c", 7))) == RESULTS
    assert job.totals("a", "c") == {"a": 5, "c": None}
    assert "WARNING" in job.log_text() and "comes with 1 rows" in job.log_text()


def test_relay_repeats_the_digest_to_the_next_task_manager(job_of: JobOf) -> None:
    """A task manager that is lost after the session has begun, while the rows of a sealed epoch are repeated."""
    job = sealed_epoch_1(job_of, restarted=False)

    def rows_and_a_loss(last: pa.RecordBatch) -> Any:
        yield rows_batch(("a", 1), ("b", 2))
        kill(job.task_manager())
        yield last

    assert [row for batch in job.task(1, rows_and_a_loss(rows_batch(("a", 3)))) for row in rows_of(batch)] == RESULTS
    with pytest.raises(JobError, match=r"sealed with 3 rows .* comes with 3 rows"):
        list(job.task(1, rows_and_a_loss(rows_batch(("a", 4)))))
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 6)]


def test_epoch_without_a_stored_digest_is_replayed(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    job.stop()
    seal_without_digest(job, 1)
    assert job_of(Totals()).epoch(1, rows_batch(("z", 9))) == []


def seal_without_digest(job: RunningJob, epoch: int) -> None:
    """Seal an epoch like an older qstate, which stored no digests: with no changes and no results."""
    log = EpochLog.open(
        job.epoch_log(),
        LogIdentity(JOB, "it", 0, 1, job.config.max_parallelism),
        lambda chain: chain.states if chain else (),
    )
    log.seal(epoch, [])


def test_rows_with_other_columns_are_compared_by_their_number(job_of: JobOf) -> None:
    sealed_epoch_1(job_of, restarted=False).stop()
    job = job_of(Totals(), input_schema=pa.schema([*INPUT, ("note", pa.string())]))
    wider = [batch.append_column("note", pa.array(["x"] * batch.num_rows)) for batch in (ROWS, many_rows(4))]
    with pytest.raises(JobError, match=r"sealed with 3 rows .* comes with 4 rows"):
        job.epoch(1, wider[1])
    assert job.epoch(1, wider[0]) == RESULTS


# -- an epoch that Spark had committed ------------------------------------------------------------------------


def epoch_of_two(job: RunningJob, epoch: int, *rows: tuple[str, int]) -> list[tuple[str, int]]:
    """Run an epoch of a job with two subtasks. Returns their results."""
    found: list[tuple[str, int]] = []
    for subtask in range(2):
        of_subtask = [row for row in rows if subtask_of(key_group(row[0], 128), 2, 128) == subtask]
        found += job.epoch(epoch, rows_batch(*of_subtask), subtask=subtask)
    return sorted(found)


def committed_epoch_1(job_of: JobOf, **settings: Any) -> RunningJob:
    """A restarted job whose epoch 1 Spark is known to have committed."""
    job = sealed_epoch_1(job_of, restarted=False)
    job.manager.finalize(QUERY, 1)
    job.stop()
    return job_of(Totals(), **settings)


def test_committed_epoch_is_replayed_when_spark_has_lost_its_record_of_that(job_of: JobOf) -> None:
    job = committed_epoch_1(job_of)
    assert job.epoch(1, ROWS) == RESULTS
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 6)]
    assert job.totals("a", "b") == {"a": 6, "b": 3}


def test_committed_epoch_is_not_replayed_for_other_rows(job_of: JobOf) -> None:
    job = committed_epoch_1(job_of)
    with pytest.raises(JobError, match=r"sealed with 3 rows .* comes with 1 rows"):
        job.epoch(1, rows_batch(("a", 1)))
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 6)]


def test_committed_epoch_without_a_digest_is_refused(job_of: JobOf) -> None:
    job = sealed_epoch_1(job_of, restarted=False)
    job.stop()
    seal_without_digest(job, 2)
    job = job_of(Totals())
    job.epoch(2, ROWS)
    job.manager.finalize(QUERY, 2)
    job.stop()
    with pytest.raises(JobError, match="is newer: Spark had committed epoch 2 already, and an older qstate"):
        job_of(Totals()).epoch(2, ROWS)


def test_committed_epoch_whose_results_were_dropped_is_refused(job_of: JobOf) -> None:
    job = sealed_epoch_1(job_of, restarted=False)
    task: Any = job.task(2, [many_rows(20_000) for _ in range(10)])
    next(task)  # epoch 2 has begun, and is not sealed
    task.close()
    job.stop()
    job = job_of(Totals())
    with pytest.raises(JobError, match=r"is newer: Spark had committed epoch 1 .* not stored any more"):
        job.epoch(1, ROWS)
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 6)]


def test_committed_epoch_that_the_log_has_lost_is_refused(job_of: JobOf) -> None:
    job = sealed_epoch_1(job_of, restarted=False)
    job.manager.finalize(QUERY, 1)
    job.stop()
    newest = max(job.epoch_log().glob("*.log"))
    sound = newest.read_bytes()
    newest.write_bytes(sound[:-1])
    job = job_of(Totals())
    with pytest.raises(JobError, match=r"is newer: Spark had committed epoch 1 .* not stored"):
        job.epoch(1, ROWS)


def test_committed_epoch_of_another_parallelism_is_refused_and_nothing_has_begun(job_of: JobOf) -> None:
    job = committed_epoch_1(job_of, parallelism=2)
    with pytest.raises(JobError, match=r"is newer: Spark had committed epoch 1 .* another parallelism"):
        job.epoch(1, ROWS)
    assert epoch_of_two(job, 2, ("a", 1), ("b", 1)) == [("a", 6), ("b", 4)]


def test_refused_start_with_another_parallelism_leaves_the_earlier_one_usable(job_of: JobOf) -> None:
    committed_epoch_1(job_of).stop()
    for refused in (2, 3):
        job = job_of(Totals(), parallelism=refused)
        with pytest.raises(JobError, match=r"Spark had committed epoch 1 .* start the job with parallelism=1 until"):
            job.epoch(1, ROWS)
        job.stop()
    job = job_of(Totals())
    assert job.epoch(1, ROWS) == RESULTS
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 6)]


def test_epoch_older_than_the_state_is_refused(job_of: JobOf) -> None:
    job = sealed_epoch_1(job_of, restarted=True)
    with pytest.raises(JobError, match=r"epoch 0 is due, but its state .* is newer: epoch 1 is sealed already"):
        job.epoch(0, rows_batch(("a", 1), ("b", 1)))


# -- after a change of parallelism ----------------------------------------------------------------------------


def test_pending_epoch_is_processed_again_by_another_parallelism_whatever_its_rows(job_of: JobOf) -> None:
    """The state continues from the epoch before, so the rows that come now count."""
    sealed_epoch_1(job_of, restarted=False).stop()
    job = job_of(Totals(), parallelism=2)
    assert epoch_of_two(job, 1, ("a", 10), ("b", 20)) == [("a", 11), ("b", 21)]


def test_digest_is_in_the_log(job_of: JobOf) -> None:
    job = sealed_epoch_1(job_of, restarted=False)
    chain = read_chain(directory_of(job.epoch_log()))
    assert chain is not None
    found = chain.segments[-1].input
    assert isinstance(found, EpochInput) and found.rows == 3
