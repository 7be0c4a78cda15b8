"""The HTTP server of Prometheus metrics.

Rules of this module: it wraps the server side of the optional package `prometheus_client`, and bounds what a client can
cost: the number of connections, their time, the processor's time, and no body of a request. It does not know which
metrics there are.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import StringIO
from socket import SHUT_RD, socket
from socketserver import ThreadingMixIn
from types import ModuleType
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from qstate.host.line_limit import limited
from qstate.installation import optional_module
from qstate.runtime.control.job_statistics import ProcessStatistics
from qstate.runtime.net.listener import host_and_port, listen
from qstate.runtime.serving.metric_families import MetricCollector
from qstate.runtime.serving.sharing.request_quota import RequestQuota

__all__ = ["MetricsServer", "check_metrics"]

log = limited(logging.getLogger(__name__))

PATH = "/metrics"

#: How long the server waits for a client that sends nothing, and for one of its threads when none is free.
REQUEST_TIMEOUT_S = 5.0
#: How many connections are served at a time, each on a thread of its own.
MOST_CONNECTIONS = 16
#: How long a client may take to send its request, even if it sends a byte now and then.
MOST_REQUEST_S = 10.0
#: The share of a processor for all requests: the operator has the same interpreter. Who asks for more waits.
QUOTA = 0.1
#: How long `close` may wait for the server's threads.
CLOSE_TIMEOUT_S = 10.0
POLL_S = 0.1

_Application = Callable[[dict[str, Any], Any], list[bytes]]


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
        registry.register(MetricCollector(job, read))
        self._server = _HTTPServer(bind, ports, _restricted(client.make_wsgi_app(registry)))
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="qstate-metrics", daemon=True
        )
        self._thread.start()
        log.info("Started the metrics server @ %s:%d", *self.address)

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

    def setup(self) -> None:
        super().setup()
        self._errors = StringIO()

    def get_stderr(self) -> StringIO:
        """Where the traceback of a failure goes. A client can cause one with a header that the package cannot read."""
        return self._errors

    def handle(self) -> None:
        super().handle()
        if self._errors.tell():
            log.error("a scrape failed\n%s", self._errors.getvalue().rstrip())

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
        self._served: dict[socket, tuple[threading.Thread, float]] = {}
        self._quota = RequestQuota(QUOTA, time.monotonic)
        self._closing = threading.Event()

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
        self._served[request] = thread, time.monotonic() + MOST_REQUEST_S
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._end(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        host = str(client_address[0])
        try:
            self._closing.wait(min(self._quota.wait_s(host), REQUEST_TIMEOUT_S))
            super().process_request_thread(request, client_address)
        finally:
            self._quota.charge(host, time.thread_time())
            self._end(request)

    def service_actions(self) -> None:
        """The server calls it every `POLL_S` seconds."""
        self.end_requests(time.monotonic())

    def end_requests(self, due: float = math.inf) -> None:
        """Wait no longer for requests that should have arrived by `due` (`time.monotonic`), and have not."""
        for request, (_, until) in tuple(self._served.items()):
            if until <= due:
                with suppress(OSError):  # it is closed already
                    request.shutdown(SHUT_RD)

    def server_close(self) -> None:
        self._closing.set()
        super().server_close()
        self.end_requests()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        for thread, _ in tuple(self._served.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end(self, request: socket) -> None:
        del self._served[request]
        self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that sends no request, or leaves before its answer, ends only its own connection."""


def _restricted(metrics: _Application) -> _Application:
    """The application for GET of `PATH` only, without a body: it reads none, whatever a client sends."""

    def serve(request: dict[str, Any], start_response: Any) -> list[bytes]:
        if request["PATH_INFO"] != PATH:
            status = "404 Not Found"
        elif request["REQUEST_METHOD"] != "GET":
            status = "405 Method Not Allowed"
        elif request.get("CONTENT_LENGTH") not in (None, "", "0") or "HTTP_TRANSFER_ENCODING" in request:
            status = "413 Content Too Large"
        else:
            return metrics(request, start_response)
        start_response(status, [("Allow", "GET"), ("Content-Type", "text/plain")])
        return [f"{status}: GET {PATH}, without a body\n".encode()]

    return serve


def check_metrics() -> None:
    """Raise `InstallationError` when this installation cannot serve metrics."""
    _prometheus()


def _prometheus() -> ModuleType:
    return optional_module("prometheus_client", "metrics need", "prometheus-client", "metrics")
