"""A gateway that really listens, in a thread of this process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from qstate.gateway.server import GatewayServer
from qstate.gateway.settings import GatewaySettings
from tests.runtime.serving.raw_client import wait_until

STATE = "/v1/jobs/nyc/states/lastTemperature"


class RunningGateway:
    """A gateway on a free port: `url`, and `server` with its parts."""

    def __init__(self, *proxies: tuple[str, int], **settings: Any) -> None:
        self.server = GatewayServer(GatewaySettings(proxies, **{"ports": "0", **settings}))
        self.host, self.port = self.server.address
        scheme = "https" if settings.get("tls") else "http"
        self.url = f"{scheme}://{self.host}:{self.port}"
        self._thread = threading.Thread(target=self.server.run, name="gateway")
        self._thread.start()
        wait_until(lambda: self.server.started or not self._thread.is_alive(), "the start of the gateway")

    def stop(self) -> None:
        """Stop as SIGTERM does."""
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def running_gateway(*proxies: tuple[str, int], **settings: Any) -> Iterator[RunningGateway]:
    """A gateway in front of these proxies, stopped at the end."""
    gateway = RunningGateway(*proxies, **settings)
    try:
        yield gateway
    finally:
        gateway.stop()
