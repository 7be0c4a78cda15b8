"""The statistics of a job's processes as Prometheus metrics over HTTP.

Rules of this module: it wraps the optional package `prometheus_client`. It reads the counts at each scrape. It counts
nothing itself and knows nothing of requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from socket import SHUT_RD, socket
from socketserver import ThreadingMixIn
from types import ModuleType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from qstate.errors import FailureCode, InstallationError
from qstate.installation import DISTRIBUTION
from qstate.runtime.control.job_statistics import ProcessStatistics
from qstate.runtime.control.statistics import DURATION_BUCKETS_S, StatisticsSnapshot
from qstate.runtime.net.listener import host_and_port, listen

__all__ = ["MetricsServer"]

#: How long the server waits for a client that sends nothing, and for one of its threads when none is free.
REQUEST_TIMEOUT_S = 5.0
#: How many connections are served at a time, each on a thread of its own.
MOST_CONNECTIONS = 16
#: How long `close` may wait for the server's threads.
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
        registry = client.CollectorRegistry()
        registry.register(_Collector(job, read))
        app = client.make_wsgi_app(registry)
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
        """Stop serving and free the port, after the answers that are being sent. Idempotent."""
        self._server.end_requests()  # the server may be waiting for a free thread
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(CLOSE_TIMEOUT_S)


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""


class _HTTPServer(ThreadingMixIn, WSGIServer):
    """An HTTP server on the first free port of a list, without a look-up of the host's name.

    It serves each connection on a thread of its own, so that a silent client does not delay the others.
    """

    daemon_threads = True

    def __init__(self, bind: str, ports: str, app: Any) -> None:
        sock = listen(bind, ports, "metrics server")
        super().__init__(host_and_port(sock.getsockname()), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.server_name, self.server_port = host_and_port(sock.getsockname())
        self.setup_environ()
        self.set_app(app)
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._served: dict[socket, threading.Thread] = {}

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a new thread. Close it when there are too many of them, and all stay."""
        if not self._free.acquire(timeout=REQUEST_TIMEOUT_S):
            self.shutdown_request(request)
            return
        thread = threading.Thread(
            target=self.process_request_thread,
            args=(request, client_address),
            name="qstate-metrics-connection",
            daemon=True,
        )
        self._served[request] = thread
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._end(request)

    def end_requests(self) -> None:
        """Wait no longer for requests that have not arrived."""
        for request in tuple(self._served):
            with suppress(OSError):  # it is closed already
                request.shutdown(SHUT_RD)

    def server_close(self) -> None:
        super().server_close()
        self.end_requests()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread in tuple(self._served.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end(self, request: socket) -> None:
        del self._served[request]
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that sends no request, or leaves before its answer, ends only its own connection."""


class _Collector:
    """`prometheus_client` calls its `collect` once for each scrape."""

    def __init__(self, job: Callable[[], str], read: Callable[[], Iterable[ProcessStatistics]]) -> None:
        self._job = job
        self._read = read

    def collect(self) -> Iterator[Any]:
        return self._described(self._job(), list(self._read()))

    def describe(self) -> Iterator[Any]:
        """The metrics without counts. `prometheus_client` takes their names from it, for scrapes that name metrics."""
        return self._described("", [])

    def _described(self, job: str, processes: list[ProcessStatistics]) -> Iterator[Any]:
        metrics = import_module("prometheus_client.metrics_core")
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
