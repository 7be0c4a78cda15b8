"""A gateway in front of states that are really served, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.gateway.running_gateway import RunningGateway, running_gateway
from tests.project.served_job import serve, serve_history
from tests.runtime.serving.feeds import History


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """In front of every kind of state, of the job nyc."""
    served = serve(tmp_path_factory.mktemp("served"), committed=True)
    with served as proxy, running_gateway(proxy, origins=["https://shop.example"]) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def http(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=20) as client:
        yield client


@pytest.fixture
def history(tmp_path: Path) -> Iterator[tuple[RunningGateway, History]]:
    """A gateway in front of a state whose changes the test commits."""
    with serve_history(tmp_path, job="nyc") as (proxy, history), running_gateway(proxy) as gateway:
        yield gateway, history
