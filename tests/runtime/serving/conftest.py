"""Fixtures of the serving tests: servers and proxies on free ports. Each test must close all its sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qstate.host.line_limit import count_again
from qstate.runtime.control.statistics import RequestStatistics
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.raw_client import wait_until

ServerFactory = Callable[..., StateServer]
ProxyFactory = Callable[..., ClientProxy]


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    """Fail a test that leaves a socket open."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        yield
        return
    before = _open_sockets(descriptors)
    yield
    # A thread that outlives its server's shutdown closes its sockets when it ends.
    wait_until(lambda: not _open_sockets(descriptors) - before, "closing every socket that the test opened")


def _open_sockets(descriptors: Path) -> set[str]:
    found = set()
    for entry in descriptors.iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the descriptor of the iteration itself
            continue
        if target.startswith(("socket:", "anon_inode:[eventpoll]")):
            found.add(f"{entry.name} {target}")
    return found


@pytest.fixture
def registry() -> StateRegistry:
    return StateRegistry()


@pytest.fixture
def start_server(registry: StateRegistry) -> Iterator[ServerFactory]:
    servers: list[StateServer] = []

    def start(statistics: RequestStatistics | None = None, **options: object) -> StateServer:
        server = StateServer(registry, EndpointOptions(**options), statistics)  # type: ignore[arg-type]
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.shutdown(2.0)


@pytest.fixture
def start_proxy() -> Iterator[ProxyFactory]:
    proxies: list[ClientProxy] = []

    def start(local: StateServer | None = None, **options: object) -> ClientProxy:
        proxy = ClientProxy(EndpointOptions(**options), local=local)  # type: ignore[arg-type]
        proxies.append(proxy)
        proxy.start()
        return proxy

    yield start
    for proxy in proxies:
        proxy.shutdown(2.0)


@pytest.fixture(autouse=True)
def lines_of_other_tests_do_not_count() -> None:
    """A test's log lines must not be withheld because earlier tests logged the same lines."""
    count_again()
