"""The figures of jobs, from metrics that are really served."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from qstate.backends.contract import StateSizes
from qstate.gateway import figures
from qstate.runtime.control.job_statistics import ProcessStatistics, SubtaskStatistics
from qstate.runtime.serving.metrics import MetricsServer
from tests.gateway.running_gateway import running_gateway
from tests.project.served_job import serve
from tests.runtime.serving.raw_client import wait_until

MOMENT = 1_700_000_000.0
#: By the names of descriptors.
SIZES = StateSizes(keys={"value": 7, "map": 2}, timers=3)


class MovingJob:
    """A job whose two subtasks have processed 100 rows more at each reading."""

    def __init__(self) -> None:
        one = SubtaskStatistics(
            "query", 0, epoch=4, epochs=5, epoch_s=2.5, watermark_ms=int(MOMENT * 1000), state=SIZES
        )
        self._subtasks = (one, replace(one, subtask=1, epoch=5, snapshot_at=MOMENT, abandoned=1))
        self._readings = 0

    def read(self) -> list[ProcessStatistics]:
        self._readings += 1
        moved = tuple(replace(one, rows_in=100 * self._readings) for one in self._subtasks)
        return [
            ProcessStatistics("0", None, None, subtasks=moved, restarts=2),
            ProcessStatistics("1", None, None, reachable=False),
        ]


@contextmanager
def metrics_of(job: str) -> Iterator[str]:
    server = MetricsServer(lambda: job, MovingJob().read, bind="127.0.0.1", ports="0")
    try:
        yield "{}:{}".format(*server.address)
    finally:
        server.close()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(figures, "INTERVAL_S", 0.1)
    with (
        serve(tmp_path) as proxy,
        metrics_of("nyc") as address,
        metrics_of("of others") as other,
        running_gateway(proxy, job_metrics=[other, address, "127.0.0.1:1"]) as gateway,
    ):
        yield gateway.url


def test_a_job_has_its_figures_when_they_were_read_twice(url: str) -> None:
    wait_until(lambda: httpx.get(f"{url}/v1/jobs").json()["jobs"][0]["figures"], "two readings")
    found = httpx.get(f"{url}/v1/jobs/nyc").json()
    summary = found["figures"]
    expected = {"epoch": 4, "newest_epoch": 5, "subtasks": 2, "restarts": 2, "abandoned": 1, "silent": ["1"]}
    assert {name: summary[name] for name in expected} == expected
    assert (summary["state_keys"], summary["timers"], summary["watermark"]) == (18, 6, MOMENT)
    assert summary["rows_in_per_s"] > 0
    assert summary["lag_s"] == pytest.approx(time.time() - MOMENT, abs=30)
    assert summary["snapshot_age_s"] == pytest.approx(time.time() - MOMENT, abs=30)
    assert [(one["operator"], one["subtask"], one["epoch"]) for one in found["subtasks"]] == [
        ("query", 0, 4),
        ("query", 1, 5),
    ]


def test_states_have_the_number_of_their_keys(url: str) -> None:
    def keys() -> dict[str, int | None]:
        states = httpx.get(f"{url}/v1/jobs/nyc/states").json()["states"]
        return {state["name"]: state["keys"] for state in states}

    wait_until(lambda: keys()["visits"] == 4, "the figures")
    assert (keys()["lastTemperature"], keys()["byPlace"]) == (14, None)


def test_figures_of_jobs_that_a_caller_does_not_see_are_not_given(url: str) -> None:
    assert httpx.get(f"{url}/v1/jobs/of%20others").status_code == 404
