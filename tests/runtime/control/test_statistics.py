"""Laws of the request statistics."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.request import urlopen

import pytest

from qstate.errors import ConfigError, FailureCode
from qstate.host.line_limit import MOST_LINES, count_again
from qstate.runtime.control.job_statistics import ProcessStatistics
from qstate.runtime.control.statistics import (
    DURATION_BUCKETS_S,
    DisabledStatistics,
    InMemoryStatistics,
    RequestStatistics,
)
from qstate.runtime.serving.metrics import MOST_CONNECTIONS, MetricsServer, _Handler
from qstate.runtime.serving.sharing.request_quota import BURST_S

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


def scraped(server: MetricsServer, query: str = "") -> str:
    host, port = server.address
    with urlopen(f"http://{host}:{port}/metrics{query}", timeout=10) as answer:
        return str(answer.read(), "utf-8")


def all_of(client: socket.socket) -> bytes:
    """What the server sends until it closes the connection."""
    with client.makefile("rb") as answer:
        return answer.read()


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
    statistics.report_throttled(0.5)
    statistics.report_throttled(0.25)


def test_everything_reported_is_counted() -> None:
    statistics = InMemoryStatistics()
    reported(statistics)
    found = statistics.snapshot()
    assert (found.connections, found.connections_accepted) == (1, 2)
    assert (found.requests, found.keys, found.successes) == (3, 101, 3)
    assert found.failures == {FailureCode.OVERLOADED: 1, 99: 1}
    assert found.throttled_s == 0.75
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
    assert total.throttled_s == 1.5


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
        f"qstate_throttled_seconds_total{{{SERVER}}} 0.75",
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


def test_metrics_are_served_beside_a_silent_connection(metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait for its request longer than the test waits for an answer."""
    monkeypatch.setattr(_Handler, "timeout", 60.0)
    with socket.create_connection(metrics.address), socket.create_connection(metrics.address) as rude:
        rude.sendall(b"\x00" * 70_000)
        assert "qstate_up" in scraped(metrics)


def test_the_connections_to_the_metrics_are_bounded(metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qstate.runtime.serving.metrics.REQUEST_TIMEOUT_S", 0.2)
    monkeypatch.setattr(_Handler, "timeout", 60.0)
    before = threading.active_count()
    with ExitStack() as stack:
        silent = [
            stack.enter_context(socket.create_connection(metrics.address, timeout=10))
            for _ in range(MOST_CONNECTIONS + 1)
        ]
        assert silent[-1].recv(1) == b"", "there is no thread for it"
        assert threading.active_count() <= before + MOST_CONNECTIONS
        monkeypatch.setattr("qstate.runtime.serving.metrics.REQUEST_TIMEOUT_S", 60.0)
        silent[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert silent[0].makefile("rb").read().startswith(b"HTTP/1.0 200 OK")
        assert "qstate_up" in scraped(metrics)


def test_a_client_has_a_time_for_its_request_however_slowly_it_sends(
    metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qstate.runtime.serving.metrics.MOST_REQUEST_S", 0.2)
    monkeypatch.setattr(_Handler, "timeout", 60.0)
    with socket.create_connection(metrics.address, timeout=10) as slow:
        slow.sendall(b"GET /metrics HTTP/1.0\r\nX: ")
        assert all_of(slow), "the rest of the request was not waited for"


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("GET /other HTTP/1.0", "404"),
        ("POST /metrics HTTP/1.0\r\nContent-Length: 0", "405"),
        ("DELETE /metrics HTTP/1.0", "405"),
        ("GET /metrics HTTP/1.0\r\nContent-Length: 1000000000", "413"),
        ("GET /metrics HTTP/1.0\r\nTransfer-Encoding: chunked", "413"),
        ("nonsense", "400"),
    ],
)
def test_only_get_without_a_body_is_answered(metrics: MetricsServer, request_text: str, status: str) -> None:
    with socket.create_connection(metrics.address, timeout=10) as client:
        client.sendall(f"{request_text}\r\n\r\n".encode())
        answer = all_of(client)
    # What is no request may be answered without a status line: then the page has the code.
    assert status.encode() in answer and b"qstate_up" not in answer


def test_closing_the_metrics_does_not_wait_for_silent_connections(
    metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Handler, "timeout", 60.0)
    before = threading.active_count()
    with socket.create_connection(metrics.address, timeout=10) as silent:
        assert "qstate_up" in scraped(metrics)
        metrics.close()
        assert silent.recv(1) == b""
        assert threading.active_count() < before


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("name[]=qstate_up", {"qstate_up"}),
        ("name[]=qstate_up&name[]=qstate_keys_total", {"qstate_up", "qstate_keys_total"}),
        ("name[]=qstate_request_seconds_sum", {"qstate_request_seconds_sum"}),
        ("name[]=x", set()),
    ],
)
def test_a_scrape_may_name_the_metrics_it_wants(metrics: MetricsServer, query: str, expected: set[str]) -> None:
    samples = [line for line in scraped(metrics, f"?{query}").splitlines() if not line.startswith("#")]
    assert {re.split("[{ ]", sample)[0] for sample in samples} == expected
    assert set(samples) <= set(scraped(metrics, "?other=1").splitlines())


def test_metrics_take_the_first_free_port_and_give_it_back(metrics: MetricsServer) -> None:
    taken = metrics.address[1]
    with pytest.raises(ConfigError, match=f"no free port for the metrics server.*'{taken}'"):
        MetricsServer(lambda: "alerts", list, bind="127.0.0.1", ports=str(taken))
    metrics.close()
    metrics.close()
    MetricsServer(lambda: "alerts", list, bind="127.0.0.1", ports=str(taken)).close()


def test_disabled_statistics_take_every_report() -> None:
    reported(DisabledStatistics())


def test_requests_that_fail_fill_no_log(
    metrics: MetricsServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(metrics._server._quota, "_share", 0.0)
    count_again()
    for _ in range(2 * MOST_LINES):
        with socket.create_connection(metrics.address, timeout=10) as client:
            client.sendall(b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=x.y\r\n\r\n")
            assert b"500" in all_of(client)
    assert "qstate_up" in scraped(metrics)
    assert capfd.readouterr().err == ""
    assert len(caplog.records) == MOST_LINES and "Traceback" in caplog.text


def test_requests_for_metrics_take_a_tenth_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody of the host may ask, and the operator has the same interpreter."""
    monkeypatch.setattr("qstate.runtime.serving.metrics.QUOTA", 0.25)
    scrapes, cost_s = 6, 0.03

    def read() -> list[ProcessStatistics]:
        until = time.thread_time() + cost_s
        while time.thread_time() < until:
            pass
        return []

    server = MetricsServer(lambda: "alerts", read, bind="127.0.0.1", ports="0")
    try:
        began = time.monotonic()
        for _ in range(scrapes):
            scraped(server)
        took_s = time.monotonic() - began
    finally:
        server.close()
    # The last one is not paid yet, and what an address may owe is not paid at all.
    assert took_s >= ((scrapes - 1) * cost_s - BURST_S) / 0.25
