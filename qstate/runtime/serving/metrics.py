"""The statistics of a job's processes as Prometheus metrics over HTTP.

Rules of this module: it wraps the optional package `prometheus_client`. It reads the counts at each scrape. It counts
nothing itself and knows nothing of requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from qstate.errors import FailureCode, InstallationError
from qstate.installation import DISTRIBUTION
from qstate.runtime.control.statistics import DURATION_BUCKETS_S, ProcessStatistics, StatisticsSnapshot
from qstate.runtime.net.listener import host_and_port, listen

__all__ = ["MetricsServer"]

#: How long one request may take to arrive. The server answers one after another, so a slow client delays the others.
REQUEST_TIMEOUT_S = 5.0
#: How long `close` may wait for the server's thread.
CLOSE_TIMEOUT_S = 10.0
POLL_S = 0.1

_LABELS = ("job", "process", "endpoint")


class MetricsServer:
    """Answers `GET /metrics` with the counts that `read` returns, on the first free port. Close it.

    `job` returns the name that labels every metric. Raises `InstallationError` without the package
    `prometheus_client`, and `ConfigError` when no port is free.
    """

    def __init__(
        self, job: Callable[[], str], read: Callable[[], Iterable[ProcessStatistics]], *, bind: str, ports: str
    ) -> None:
        client = _prometheus()
        app = client.make_wsgi_app(_Collector(job, read))
        self._server = _HTTPServer(bind, ports, app)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="qstate-metrics", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that it listens on."""
        return host_and_port(self._server.server_address)

    def close(self) -> None:
        """Stop serving and free the port. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(CLOSE_TIMEOUT_S)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _HTTPServer(WSGIServer):
    """An HTTP server on the first free port of a list, without a look-up of the host's name."""

    def __init__(self, bind: str, ports: str, app: Any) -> None:
        sock = listen(bind, ports, "metrics server")
        super().__init__(host_and_port(sock.getsockname()), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.server_name, self.server_port = host_and_port(sock.getsockname())
        self.setup_environ()
        self.set_app(app)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that sends no request, or leaves before its answer, ends only its own connection."""


class _Collector:
    """`prometheus_client` calls its `collect` once for each scrape."""

    def __init__(self, job: Callable[[], str], read: Callable[[], Iterable[ProcessStatistics]]) -> None:
        self._job = job
        self._read = read

    def collect(self) -> Iterator[Any]:
        metrics = import_module("prometheus_client.metrics_core")
        job, processes = self._job(), list(self._read())
        up = metrics.GaugeMetricFamily("qstate_up", "1 when the process answered", labels=("job", "process"))
        for process in processes:
            up.add_metric((job, process.name), float(process.reachable))
        yield up
        yield from _families(metrics, list(_endpoints(job, processes)))


def _endpoints(
    job: str, processes: Iterable[ProcessStatistics]
) -> Iterator[tuple[tuple[str, str, str], StatisticsSnapshot]]:
    for process in processes:
        for endpoint, counts in (("server", process.server), ("proxy", process.proxy)):
            if counts is not None:
                yield (job, process.name, endpoint), counts


def _families(metrics: Any, counted: list[tuple[tuple[str, str, str], StatisticsSnapshot]]) -> Iterator[Any]:
    connections = metrics.GaugeMetricFamily("qstate_connections", "open connections", labels=_LABELS)
    accepted = metrics.CounterMetricFamily("qstate_accepted_connections", "connections accepted", labels=_LABELS)
    requests = metrics.CounterMetricFamily("qstate_requests", "requests received", labels=_LABELS)
    keys = metrics.CounterMetricFamily("qstate_keys", "keys asked for", labels=_LABELS)
    failures = metrics.CounterMetricFamily(
        "qstate_failures", "requests and connections refused, by failure code", labels=(*_LABELS, "code")
    )
    durations = metrics.HistogramMetricFamily("qstate_request_seconds", "from receipt to answer", labels=_LABELS)
    for labels, counts in counted:
        connections.add_metric(labels, counts.connections)
        accepted.add_metric(labels, counts.connections_accepted)
        requests.add_metric(labels, counts.requests)
        keys.add_metric(labels, counts.keys)
        for code, count in sorted(counts.failures.items()):
            failures.add_metric((*labels, _code_name(code)), count)
        durations.add_metric(labels, buckets=_buckets(counts), sum_value=counts.duration_s)
    yield from (connections, accepted, requests, keys, failures, durations)


def _buckets(counts: StatisticsSnapshot) -> list[tuple[str, int]]:
    """Cumulative counts by upper bound, as Prometheus has them."""
    buckets: list[tuple[str, int]] = []
    total = 0
    for bound, count in zip((*map(str, DURATION_BUCKETS_S), "+Inf"), counts.durations, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _code_name(code: int) -> str:
    try:
        return FailureCode(code).name.lower()
    except ValueError:
        return str(code)


def _prometheus() -> ModuleType:
    try:
        return import_module("prometheus_client")
    except ImportError as exc:
        raise InstallationError(
            f"metrics need the package prometheus-client: pip install '{DISTRIBUTION}[metrics]'"
        ) from exc
