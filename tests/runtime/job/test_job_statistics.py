"""Laws of the statistics of a running job: the counts of its task managers can be read and scraped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import psutil
import pytest

from qstate.errors import FailureCode, UnknownState
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.standby import serve_checkpoint
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, RunningJob, rows_batch, until

JobOf = Callable[..., RunningJob]


def test_gets_and_failures_are_counted_by_the_proxy_that_they_were_sent_to(job_of: JobOf) -> None:
    job = job_of(Totals())
    assert job.manager.statistics() == []
    job.epoch(0, rows_batch(("a", 1), ("b", 2)))
    address = job.manager.wait_for_proxy(20.0)
    with QueryableStateClient(*address, direct=False) as one, QueryableStateClient(*address, direct=False) as other:
        assert one.get_many(JOB, "totalAmount", ["a", "b", "c"])["b"].get() == 2
        with pytest.raises(UnknownState):
            other.get(JOB, "no such state", "a")
    until(lambda: job.manager.statistics()[0].proxy.connections == 0, "the proxy notices that the clients have left")
    (found,) = job.manager.statistics()
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
        (found,) = job.manager.statistics()
    finally:
        os.kill(process, signal.SIGCONT)
    assert (found.name, found.reachable, found.server, found.proxy) == ("0", False, None, None)
    until(lambda: job.manager.statistics()[0].reachable, "the task manager answers again")


def test_a_job_without_statistics_reports_none(job_of: JobOf) -> None:
    job = job_of(Totals(), statistics=False)
    job.epoch(0, rows_batch(("a", 1)))
    (found,) = job.manager.statistics()
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
        with urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
            text = str(answer.read(), "utf-8")
    assert f'qstate_keys_total{{endpoint="proxy",job="{JOB}",process="standby"}} 1.0' in text
