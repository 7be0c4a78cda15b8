"""How stale a running job's committed view may be: an epoch that is sealed may be committed, and is not shown yet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.errors import DeadlineExceeded, TooStale
from qstate.runtime.client.sync_client import QueryableStateClient
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.functions import Hold, Totals
from tests.runtime.job.running_job import JOB, QUERY, Background, RunningJob, kill, rows_batch, until

JobOf = Callable[..., RunningJob]


def committed(job: RunningJob, max_staleness_s: float | None, timeout_s: float = 20.0) -> tuple[int, int]:
    with QueryableStateClient(*job.manager.wait_for_proxy(20.0), timeout_s=timeout_s) as client:
        view = client.get(JOB, "totalAmount", "a", isolation="committed", max_staleness_s=max_staleness_s)
        return view.get(), view.epoch


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_committed_view_is_behind_from_the_seal_until_the_epoch_is_final(
    job_of: JobOf, tmp_path: Path, backend: str
) -> None:
    hold = Hold(tmp_path)
    job = job_of(Totals(hold), backend=backend)
    for epoch in range(2):
        job.epoch(epoch, rows_batch(("a", 1)))
    with pytest.raises((TooStale, DeadlineExceeded)):
        committed(job, 0.0, timeout_s=0.5)
    assert committed(job, 3600.0) == (1, 0)
    job.manager.finalize(QUERY, 1)
    assert committed(job, 0.0) == (2, 1)
    job.epoch(2, rows_batch(("a", 1)))
    with pytest.raises((TooStale, DeadlineExceeded)):
        committed(job, 0.0, timeout_s=0.5)
    running = Background(lambda: job.epoch(3, rows_batch(("mischief", 1))))
    until(hold.reached.exists, "the next epoch runs")
    assert committed(job, 0.0) == (3, 2), "that Spark asks for the next epoch proves this one"
    hold.go.touch()
    running.result()


def test_epoch_that_was_found_sealed_may_have_been_committed_at_any_time(job_of: JobOf) -> None:
    job = job_of(Totals())
    for epoch in range(2):
        job.epoch(epoch, rows_batch(("a", 1)))
    lost = job.task_manager()
    kill(lost)
    job.successor_of(lost)
    assert committed(job, None) == (1, 0)
    for max_staleness_s in (3600.0, 1e15):
        with pytest.raises((TooStale, DeadlineExceeded)):
            committed(job, max_staleness_s, timeout_s=0.5)
    job.manager.finalize(QUERY, 1)
    assert committed(job, 0.0) == (2, 1)
