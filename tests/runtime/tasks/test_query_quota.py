"""The quota of queries: it protects an operator that has epochs, and lets nobody wait when that has none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

from qstate.client import QueryableStateClient
from qstate.runtime.serving.sharing.request_quota import IDLE_S
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, RunningJob, rows_batch, until

#: More than enough to be over the quota.
GETS = 800


def test_queries_wait_for_the_quota_only_when_the_job_has_epochs(job_of: Callable[..., RunningJob]) -> None:
    job = job_of(Totals(), query_quota=0.01)
    job.epoch(0, rows_batch(("a", 1)))
    with QueryableStateClient(*job.manager.wait_for_proxy(30.0), timeout_s=60.0) as client:

        def ask() -> None:
            client.get(JOB, "totalAmount", "a")

        def slowed() -> bool:
            ask()
            return throttled_s(job) > before_s

        clock = time.monotonic() + IDLE_S
        until(lambda: time.monotonic() > clock, "being idle")
        before_s = throttled_s(job)
        for _ in range(GETS):
            ask()
        assert throttled_s(job) == before_s

        def rows() -> Iterator[pa.RecordBatch]:
            yield rows_batch(("a", 2))
            until(slowed, "being slowed")

        assert [row for batch in job.task(1, rows()) for row in batch.to_pylist()]


def throttled_s(job: RunningJob) -> float:
    (process,) = job.manager.statistics().processes
    assert process.server is not None and process.proxy is not None
    return process.server.throttled_s + process.proxy.throttled_s
