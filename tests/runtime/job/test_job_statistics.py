"""Laws of the statistics of a running job: the counts of its task managers can be read and scraped."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from qstate.errors import FailureCode, JobError, UnknownState
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.runtime.control.job_statistics import ProcessStatistics, SubtaskStatistics
from qstate.standby import serve_checkpoint
from tests.runtime.job.functions import Totals, fail
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, kill, rows_batch, until

JobOf = Callable[..., RunningJob]


def process_of(job: RunningJob) -> ProcessStatistics:
    """The figures of the only task manager."""
    (found,) = job.manager.statistics().processes
    return found


def subtask_of(job: RunningJob) -> SubtaskStatistics:
    (found,) = job.manager.statistics().subtasks
    return found


def test_a_subtask_tells_what_it_has_processed_as_of_its_last_epoch(job_of: JobOf) -> None:
    job = job_of(Totals(fan_out=3))
    assert job.manager.statistics().subtasks == ()
    job.epoch(0, rows_batch(("a", 1), ("b", 2)))
    job.epoch(1, rows_batch(("a", 1)), rows_batch(("c", 1), ("a", 2)))
    found = subtask_of(job)
    assert (found.operator, found.subtask, found.epoch, found.epochs) == ("it", 0, 1, 2)
    assert (found.rows_in, found.rows_out) == (5, 15)
    assert (found.replayed, found.abandoned) == (0, 0)
    assert 0 < found.commit_s < found.epoch_s
    assert found.state.keys == {"total": 2}, "the second epoch is not committed yet"
    job.manager.finalize(QUERY, 1)
    until(lambda: subtask_of(job).state.keys == {"total": 3}, "the state of the committed epoch is counted")
    files = [file for file in job.epoch_log().iterdir() if file.is_file()]
    sealed = [file.stat().st_size for file in files if "writer" not in file.name]
    assert 0 < found.checkpoint_bytes <= sum(sealed) + 4096, "the results of the first epoch are removed"


def test_attempts_that_fail_and_epochs_that_are_repeated_are_counted(job_of: JobOf) -> None:
    job = job_of(Totals(mischief=fail))
    with pytest.raises(JobError):
        job.epoch(0, rows_batch(("mischief", 1)))
    assert subtask_of(job).abandoned == 1
    assert (subtask_of(job).epoch, subtask_of(job).rows_in) == (-1, 0)
    job.epoch(0, rows_batch(("a", 1)))
    job.epoch(0, rows_batch(("a", 1)))
    found = subtask_of(job)
    assert (found.epochs, found.replayed, found.rows_in) == (1, 1, 1)


def test_snapshots_and_their_time_are_told_also_after_a_restart(job_of: JobOf) -> None:
    job = job_of(Totals(), snapshot_interval=1)
    before = time.time()
    for epoch in range(2):
        job.epoch(epoch, rows_batch(("a", 1)))
    until(lambda: subtask_of(job).snapshot_epoch == 0, "the snapshot is ready")
    made = subtask_of(job).snapshot_at
    assert made is not None and before <= made <= time.time()
    lost = job.task_manager()
    assert process_of(job).restarts == 0
    kill(lost)
    job.successor_of(lost)
    until(lambda: bool(job.manager.statistics().subtasks), "the subtask is restored")
    found = subtask_of(job)
    assert process_of(job).restarts == 1
    assert (found.epoch, found.snapshot_epoch, found.rows_in) == (1, 0, 0)
    assert found.snapshot_at is not None and abs(found.snapshot_at - made) < 10
    assert found.state.keys == {"total": 1}


def test_the_statistics_of_a_job_are_frozen_and_can_be_read(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(*((f"k{number}", 1) for number in range(1234))))
    found = job.manager.statistics()
    with pytest.raises(FrozenInstanceError):
        found.processes = ()  # type: ignore[misc]
    lines = repr(found).splitlines()
    assert lines[0] == "job 'job': 1 task managers"
    assert any(re.search(r"operator 'it' subtask 0: epoch 0, 1,234 rows in, 1,234 rows out", line) for line in lines)
    assert found.proxies is not None and found.proxies.requests == 0


def test_gets_and_failures_are_counted_by_the_proxy_that_they_were_sent_to(job_of: JobOf) -> None:
    job = job_of(Totals())
    assert job.manager.statistics().processes == ()
    job.epoch(0, rows_batch(("a", 1), ("b", 2)))
    address = job.manager.wait_for_proxy(20.0)
    with QueryableStateClient(*address, direct=False) as one, QueryableStateClient(*address, direct=False) as other:
        assert one.get_many(JOB, "totalAmount", ["a", "b", "c"])["b"].get() == 2
        with pytest.raises(UnknownState):
            other.get(JOB, "no such state", "a")
    until(
        lambda: job.manager.statistics().processes[0].proxy.connections == 0,
        "the proxy notices that the clients have left",
    )
    (found,) = job.manager.statistics().processes
    assert found.reachable and found.name == "0"
    assert found.proxy is not None and found.server is not None
    assert (found.proxy.connections_accepted, found.proxy.keys) == (2, 3)
    assert found.proxy.failures == {FailureCode.UNKNOWN_STATE: 1}
    assert (found.server.connections_accepted, found.server.keys, found.server.successes) == (0, 3, 1)


def test_a_task_manager_that_does_not_answer_is_named_as_unreachable(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstate.runtime.job.job_manager.STATISTICS_TIMEOUT_S", 0.2)
    job = job_of(Totals(), lease_s=60.0)
    job.epoch(0, rows_batch(("a", 1)))
    process = job.task_manager().pid
    os.kill(process, signal.SIGSTOP)
    try:
        until(lambda: psutil.Process(process).status() == psutil.STATUS_STOPPED, "each of its threads has stopped")
        (found,) = job.manager.statistics().processes
    finally:
        os.kill(process, signal.SIGCONT)
    assert (found.name, found.reachable, found.server, found.proxy) == ("0", False, None, None)
    until(lambda: process_of(job).reachable, "the task manager answers again")


def test_a_job_without_statistics_reports_none(job_of: JobOf) -> None:
    job = job_of(Totals(), statistics=False)
    job.epoch(0, rows_batch(("a", 1)))
    (found,) = job.manager.statistics().processes
    assert (found.reachable, found.server, found.proxy) == (True, None, None)


def test_a_standby_has_metrics_of_its_own(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    job.manager.finalize("query-1", 0)
    with (
        serve_checkpoint(tmp_path / "checkpoint", proxy_ports="0", server_ports="0", metrics_ports="0") as standby,
        QueryableStateClient(*standby.address) as client,
    ):
        view = client.get(JOB, "totalAmount", "a", isolation="committed")
        assert view is not None and view.get() == 1
        host, port = standby.metrics_address or ("", 0)

        def counted() -> bool:  # the proxy counts a request after its answer
            with urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
                text = str(answer.read(), "utf-8")
            return f'qstate_keys_total{{endpoint="proxy",job="{JOB}",process="standby"}} 1.0' in text

        until(counted, "the standby counts the key")
