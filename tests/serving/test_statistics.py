"""Laws of the request statistics."""

from __future__ import annotations

from qstate.errors import FailureCode
from qstate.runtime.statistics import DURATION_BUCKETS_S, DisabledStatistics, InMemoryStatistics, RequestStatistics


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


def test_prometheus_text_has_every_metric_and_cumulative_buckets() -> None:
    statistics = InMemoryStatistics()
    reported(statistics)
    lines = statistics.prometheus("qstate_server").splitlines()
    for line in (
        "# TYPE qstate_server_connections gauge",
        "qstate_server_connections 1",
        "qstate_server_connections_total 2",
        "qstate_server_requests_total 3",
        "qstate_server_keys_total 101",
        'qstate_server_failures_total{code="overloaded"} 1',
        'qstate_server_failures_total{code="99"} 1',
        "# TYPE qstate_server_request_seconds histogram",
        'qstate_server_request_seconds_bucket{le="0.0001"} 0',
        'qstate_server_request_seconds_bucket{le="0.00025"} 2',
        'qstate_server_request_seconds_bucket{le="5.0"} 2',
        'qstate_server_request_seconds_bucket{le="+Inf"} 3',
        "qstate_server_request_seconds_count 3",
    ):
        assert line in lines
    names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(set(names)) == len(names)


def test_disabled_statistics_take_every_report() -> None:
    reported(DisabledStatistics())
