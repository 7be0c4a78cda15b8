"""Laws of committed epochs: the next epoch proves a commit, and the loss of a task manager does not undo that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from qstate.runtime.client.sync_client import QueryableStateClient
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, Background, RunningJob, kill, rows_batch, until

JobOf = Callable[..., RunningJob]


def committed(job: RunningJob) -> tuple[int, int]:
    """The epoch that is shown as committed, and the total of "a" as of then."""
    with QueryableStateClient(*job.manager.wait_for_proxy(20.0), timeout_s=20.0) as client:
        view = client.get(JOB, "totalAmount", "a", isolation="committed")
        return view.epoch, view.get()


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_an_epoch_that_the_next_one_proved_committed_stays_so_when_a_task_manager_is_lost(
    backend: str, job_of: JobOf
) -> None:
    """Spark's report of a committed epoch may come late; by then the next one runs, and readers have seen it."""
    job = job_of(Totals(), backend=backend)
    job.epoch(0, rows_batch(("a", 1)))
    job.epoch(1, rows_batch(("a", 10)))
    go_on = threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        yield rows_batch(("a", 100))
        assert go_on.wait(60)

    running = Background(lambda: list(job.task(2, rows())))
    try:
        until(lambda: committed(job) == (1, 11), "epoch 1 shows as committed")
        lost = job.task_manager()
        kill(lost)
        job.successor_of(lost)
        assert committed(job) == (1, 11)
    finally:
        go_on.set()
    running.result()
