"""The live page beside the demo: a gateway on a thread of its own.

Rules of this module: it runs a gateway for as long as a context lasts. It does not know what the demo's job does.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from qstate.gateway.server import GatewayServer
from qstate.gateway.settings import GatewaySettings

__all__ = ["live_page"]

#: How long the gateway may take to end its streams.
STOP_TIMEOUT_S = 20.0


@contextmanager
def live_page(proxy: tuple[str, int], metrics: tuple[str, int] | None, ports: str) -> Iterator[str]:
    """The URL of the live page of what this proxy serves, on loopback. Raises `ConfigError` when no port is free."""
    figures = [] if metrics is None else [":".join(map(str, metrics))]
    server = GatewayServer(GatewaySettings([proxy], job_metrics=figures, ports=ports))
    thread = threading.Thread(target=server.run, name="qstate-demo-page", daemon=True)
    thread.start()
    try:
        yield "http://{}:{}/".format(*server.address)
    finally:
        server.should_exit = True
        thread.join(STOP_TIMEOUT_S)
