"""Laws of one task's session: rows in, results out, and errors with their reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstate.errors import JobError
from tests.runtime.job.functions import Totals, exit_quietly, fail
from tests.runtime.job.running_job import RunningJob, many_rows, rows_batch

JobOf = Callable[..., RunningJob]
#: Far more than the buffers of a socket hold, in pieces.
LARGE = [many_rows(20_000) for _ in range(40)]


def test_rows_come_back_and_their_state_is_queryable(job_of: JobOf) -> None:
    job = job_of(Totals())
    assert job.epoch(0, rows_batch(("a", 1), ("b", 2)), rows_batch(("a", 3))) == [("a", 1), ("b", 2), ("a", 4)]
    assert job.epoch(1) == []
    assert job.epoch(2, rows_batch(("a", 5))) == [("a", 9)]
    assert job.totals("a", "b", "c") == {"a": 9, "b": 2, "c": None}


def test_a_large_epoch_evaluated_twice_gives_the_same_rows_and_counts_once(job_of: JobOf) -> None:
    job = job_of(Totals(), replay_buffer_bytes=0)
    first = job.epoch(0, *LARGE)
    assert job.epoch(0, *LARGE) == first
    assert job.totals("k1") == {"k1": 8000}


def test_the_functions_error_arrives_although_input_was_not_read(job_of: JobOf) -> None:
    job = job_of(Totals(fail), replay_buffer_bytes=0)
    with pytest.raises(JobError, match="operator 'it', function Totals, key 'mischief': ValueError: as the test wants"):
        job.epoch(0, rows_batch(("mischief", 1)), *LARGE)
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]


def test_a_function_that_exits_the_interpreter_fails_its_epoch_only(job_of: JobOf) -> None:
    job = job_of(Totals(exit_quietly))
    job.epoch(0, rows_batch(("a", 1)))
    before = job.task_manager()
    with pytest.raises(JobError, match="operator 'it' failed: SystemExit: 3"):
        job.epoch(1, rows_batch(("a", 1), ("mischief", 1)))
    assert job.totals("a") == {"a": 1}
    assert job.task_manager() == before


def test_a_hundredfold_output_flows_while_the_input_still_comes(job_of: JobOf) -> None:
    job = job_of(Totals(fan_out=100))
    emitted = sum(batch.num_rows for batch in job.task(0, (many_rows(2_000) for _ in range(10))))
    assert emitted == 2_000_000


def test_a_task_closed_early_gives_its_epoch_up_and_the_next_attempt_works(job_of: JobOf) -> None:
    job = job_of(Totals())
    task: Any = job.task(0, LARGE)
    next(task)
    task.close()
    assert job.epoch(0, rows_batch(("k1", 1))) == [("k1", 1)]
