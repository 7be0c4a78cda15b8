"""Laws of the request statistics."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from qstate.errors import ConfigError, FailureCode
from qstate.runtime.control.statistics import (
    DURATION_BUCKETS_S,
    DisabledStatistics,
    InMemoryStatistics,
    ProcessStatistics,
    RequestStatistics,
)
from qstate.runtime.serving.metrics import MetricsServer, _Handler

SERVER = 'job="alerts",process="0",endpoint="server"'


@pytest.fixture
def metrics() -> Iterator[MetricsServer]:
    """The metrics of a task manager that has answered requests, and of one that cannot be reached."""
    statistics = InMemoryStatistics()
    reported(statistics)
    found = [ProcessStatistics("0", statistics.snapshot(), None), ProcessStatistics("1", None, None, reachable=False)]
    server = MetricsServer(lambda: "alerts", lambda: found, bind="127.0.0.1", ports="0")
    yield server
    server.close()


def scraped(server: MetricsServer) -> str:
    host, port = server.address
    with urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def sorted_labels(sample: str) -> str:
    """A sample with its labels in alphabetical order."""
    return re.sub(r"\{(.*)\}", lambda found: "{" + ",".join(sorted(found[1].split(","))) + "}", sample)


def reported(statistics: RequestStatistics) -> None:
    statistics.report_active_connection()
    statistics.report_active_connection()
    statistics.report_inactive_connection()
    for keys in (1, 100, 0):
        statistics.report_request(keys)
    statistics.report_successful_request(0.0002)
    statistics.report_successful_request(0.00025)
    statistics.report_successful_request(60.0)
    statistics.report_failed_request(FailureCode.OVERLOADED)
    statistics.report_failed_request(99)


def test_everything_reported_is_counted() -> None:
    statistics = InMemoryStatistics()
    reported(statistics)
    found = statistics.snapshot()
    assert (found.connections, found.connections_accepted) == (1, 2)
    assert (found.requests, found.keys, found.successes) == (3, 101, 3)
    assert found.failures == {FailureCode.OVERLOADED: 1, 99: 1}
    assert sum(found.durations) == 3 and len(found.durations) == len(DURATION_BUCKETS_S) + 1


def test_counts_of_two_endpoints_add_up() -> None:
    one, other = InMemoryStatistics(), InMemoryStatistics()
    reported(one)
    reported(other)
    other.report_failed_request(FailureCode.MALFORMED)
    total = one.snapshot() + other.snapshot()
    assert (total.connections, total.connections_accepted, total.requests, total.keys) == (2, 4, 6, 202)
    assert (total.successes, sum(total.durations)) == (6, 6)
    assert total.failures == {FailureCode.OVERLOADED: 2, 99: 2, FailureCode.MALFORMED: 1}


def test_metrics_have_every_count_and_cumulative_buckets(metrics: MetricsServer) -> None:
    answer = scraped(metrics)
    for sample in (
        'qstate_up{job="alerts",process="0"} 1.0',
        'qstate_up{job="alerts",process="1"} 0.0',
        "# TYPE qstate_connections gauge",
        f"qstate_connections{{{SERVER}}} 1.0",
        f"qstate_accepted_connections_total{{{SERVER}}} 2.0",
        f"qstate_requests_total{{{SERVER}}} 3.0",
        f"qstate_keys_total{{{SERVER}}} 101.0",
        f'qstate_failures_total{{code="overloaded",{SERVER}}} 1.0',
        f'qstate_failures_total{{code="99",{SERVER}}} 1.0',
        "# TYPE qstate_request_seconds histogram",
        f'qstate_request_seconds_bucket{{{SERVER},le="0.0001"}} 0.0',
        f'qstate_request_seconds_bucket{{{SERVER},le="0.00025"}} 2.0',
        f'qstate_request_seconds_bucket{{{SERVER},le="5.0"}} 2.0',
        f'qstate_request_seconds_bucket{{{SERVER},le="+Inf"}} 3.0',
        f"qstate_request_seconds_count{{{SERVER}}} 3.0",
    ):
        assert sorted_labels(sample) in {sorted_labels(line) for line in answer.splitlines()}, sample


def test_metrics_are_served_while_a_peer_says_nothing(metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Handler, "timeout", 0.2)
    with socket.create_connection(metrics.address), socket.create_connection(metrics.address) as rude:
        rude.sendall(b"\x00" * 70_000)
        assert "qstate_up" in scraped(metrics)


def test_metrics_take_the_first_free_port_and_give_it_back(metrics: MetricsServer) -> None:
    taken = metrics.address[1]
    with pytest.raises(ConfigError, match=f"no free port for the metrics server.*'{taken}'"):
        MetricsServer(lambda: "alerts", list, bind="127.0.0.1", ports=str(taken))
    metrics.close()
    metrics.close()
    MetricsServer(lambda: "alerts", list, bind="127.0.0.1", ports=str(taken)).close()


def test_disabled_statistics_take_every_report() -> None:
    reported(DisabledStatistics())
