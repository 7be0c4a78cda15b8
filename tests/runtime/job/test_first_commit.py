"""Answers to `committed` queries before the first commit: wait, unless the job was restored from a commit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.errors import NoCommittedEpoch
from qstate.runtime.client.sync_client import QueryableStateClient
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, Background, RunningJob, kill, rows_batch

JobOf = Callable[..., RunningJob]


def committed(job: RunningJob, key: str = "a", timeout_s: float = 30.0, **options: Any) -> tuple[int | None, int]:
    """The total of a key and its epoch, None and -1 for no value."""
    with QueryableStateClient(*job.manager.wait_for_proxy(30.0), timeout_s=timeout_s) as client:
        view = client.get(JOB, "totalAmount", key, isolation="committed", **options)
        return (None, -1) if view is None else (view.get(), view.epoch)


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_committed_query_before_the_first_commit_waits_for_it(job_of: JobOf, backend: str) -> None:
    job = job_of(Totals(), backend=backend)
    job.epoch(0, rows_batch(("a", 1)))
    assert job.totals("a") == {"a": 1}
    for key in ("a", "missing"):
        with pytest.raises(NoCommittedEpoch, match="no epoch has been committed yet"):
            committed(job, key, wait_s=0.1)
    with pytest.raises(NoCommittedEpoch):
        committed(job, wait_s=0.1, min_epoch=0)
    waiting = Background(lambda: committed(job))
    job.manager.finalize(QUERY, 0)
    assert waiting.result() == (1, 0)
    assert committed(job, "missing") == (None, -1)


def test_epoch_that_was_found_sealed_is_not_committed(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    lost = job.task_manager()
    kill(lost)
    job.successor_of(lost)
    assert job.totals("a") == {"a": 1}, "its successor serves what it has found"
    with pytest.raises(NoCommittedEpoch):
        committed(job, wait_s=0.1)
    job.epoch(1, rows_batch(("a", 1)))
    assert committed(job) == (1, 0), "that Spark asked for epoch 1 proves epoch 0"


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_restored_state_is_committed(job_of: JobOf, tmp_path: Path, backend: str) -> None:
    job = job_of(Totals(), backend=backend)
    job.epoch(0, rows_batch(("a", 5)))
    job.manager.finalize(QUERY, 0)
    job.stop()
    savepoint = tmp_path / "savepoint"
    write_savepoint(open_source(str(tmp_path / "checkpoint")), savepoint)
    again = job_of(Totals(), backend=backend, checkpoint_dir=str(tmp_path / "again"), restore_from=str(savepoint))
    again.epoch(0, rows_batch(("a", 1)), query="another query")
    assert committed(again) == (5, -1)
    assert committed(again, "missing") == (None, -1)
    again.manager.finalize("another query", 0)
    assert committed(again, min_epoch=0) == (6, 0)
