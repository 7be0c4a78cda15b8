"""A gateway in front of a real job, whose task managers are processes that are really killed; without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from qstate.runtime.serving.metrics import MetricsServer
from tests.gateway.event_stream import ServerSentEvent, stream
from tests.gateway.running_gateway import running_gateway
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, kill
from tests.runtime.job.test_checkpoints import KEYS, epoch_of_all
from tests.runtime.serving.raw_client import wait_until

PATH = f"/v1/jobs/{JOB}/states/totalAmount"
JobOf = Callable[..., RunningJob]


@pytest.fixture
def job_of(tmp_path: Path) -> Iterator[JobOf]:
    jobs: list[RunningJob] = []

    def make(**settings: Any) -> RunningJob:
        places = {"checkpoint_dir": str(tmp_path / "checkpoint"), "log_dir": str(tmp_path / "logs")}
        jobs.append(RunningJob(Totals(), **{**places, **settings}))
        return jobs[-1]

    yield make
    for job in jobs:
        job.stop()


def commit(job: RunningJob, epoch: int) -> None:
    epoch_of_all(job, epoch)
    job.manager.finalize(QUERY, epoch)


class Follower:
    """What streams have given, key by key and epoch by epoch; each epoch adds one to each key."""

    def __init__(self) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()
        self.complete = -1
        self.place = ""

    def take(self, event: ServerSentEvent) -> None:
        if event.name == "waiting":  # for the task manager that is gone
            return
        assert event.name in ("snapshot", "changes", "progress"), event
        for change in event.data.get("changes", ()):
            assert change["value"] == event.data["epoch"] + 1
            self.seen[change["key"], event.data["epoch"]] += 1
        self.complete = max(self.complete, event.data["complete"])
        self.place = event.id

    def follow(self, events: Iterator[ServerSentEvent], epoch: int) -> None:
        while self.complete < epoch:
            self.take(next(events))


def test_streams_go_on_through_losses_and_reconnections(job_of: JobOf) -> None:
    job = job_of(parallelism=2)
    for epoch in range(2):
        commit(job, epoch)
    with running_gateway(job.manager.wait_for_proxy(20.0)) as gateway:
        url = f"{gateway.url}{PATH}/changes"
        staying, returning = Follower(), Follower()
        with stream(url) as events:
            staying.follow(events, 1)
            while returning.complete < 1:  # it comes back after each event
                with stream(url, params={"after": returning.place} if returning.place else {"from_epoch": 0}) as again:
                    returning.take(next(again))
            kill(next(manager for manager in job.manager.task_managers() if manager.index == 1))
            for epoch in (2, 3):
                commit(job, epoch)
            staying.follow(events, 3)
            while returning.complete < 3:
                with stream(url, headers={"Last-Event-ID": returning.place}) as again:
                    returning.take(next(again))
    assert staying.seen == Counter({(key, epoch): 1 for key in KEYS for epoch in range(1, 4)})
    assert returning.seen == Counter({(key, epoch): 1 for key in KEYS for epoch in range(4)})


def test_a_place_whose_changes_are_gone_is_gone(job_of: JobOf) -> None:
    job = job_of(snapshot_interval=1, retained_snapshots=1)
    for epoch in range(5):
        commit(job, epoch)
        job.wait_for_snapshots()
    with running_gateway(job.manager.wait_for_proxy(20.0)) as gateway:
        answer = httpx.get(f"{gateway.url}{PATH}/changes?from_epoch=0", timeout=20)
        assert (answer.status_code, answer.json()["code"]) == (410, "COMPACTED")
        assert answer.json()["details"]["oldest_epoch"] > 0


def test_a_job_is_seen_whole(job_of: JobOf) -> None:
    job = job_of(parallelism=2)
    commit(job, 0)
    metrics = MetricsServer(lambda: JOB, lambda: job.manager.statistics().processes, bind="127.0.0.1", ports="0")
    address = "{}:{}".format(*metrics.address)
    with (
        closing(metrics),
        running_gateway(job.manager.wait_for_proxy(20.0), job_metrics=[address]) as gateway,
    ):
        with httpx.Client(base_url=gateway.url, timeout=20) as http:
            owners = http.get(PATH).json()["owners"]
            assert [(one["start"], one["stop"]) for one in owners] == [(0, 64), (64, 128)]
            assert http.get(f"{PATH}/count").json() == {"count": len(KEYS)}
            found: list[Any] = []
            cursor: str | None = ""
            while cursor is not None:
                page = http.get(f"{PATH}/entries", params={"limit": 7} | ({"cursor": cursor} if cursor else {})).json()
                found, cursor = found + page["entries"], page["cursor"]
            assert sorted(one["key"] for one in found) == sorted(KEYS)
            assert {one["value"] for one in found} == {1}
            results = http.post(f"{PATH}/values", json={"keys": KEYS, "isolation": "committed"}).json()["results"]
            assert [(one["key"], one["value"]) for one in results] == [(key, 1) for key in KEYS]
            wait_until(lambda: http.get(f"/v1/jobs/{JOB}").json()["figures"], "two readings of the metrics")
            figures = http.get(f"/v1/jobs/{JOB}").json()
        assert (figures["figures"]["epoch"], figures["figures"]["subtasks"]) == (0, 2)
        assert figures["figures"]["state_keys"] == len(KEYS)
        assert {one["endpoint"] for one in figures["serving"]} == {"server", "proxy"}
