"""A scripted peer, and both clients."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from qstate.client import QueryableStateClient
from tests.runtime.client.peer import Peer
from tests.runtime.client.real_job import Asked, MakeClient


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture(params=[None, False, True], ids=["reached", "proxy", "direct"])
def direct(request: pytest.FixtureRequest) -> bool | None:
    """Whom the client asks: see `QueryableStateClient`."""
    found: bool | None = request.param
    return found


@pytest.fixture(params=["sync", "asyncio"])
def make(request: pytest.FixtureRequest) -> MakeClient:
    """Makes the synchronous client, or the asyncio client that is asked one call at a time."""
    if request.param == "asyncio":
        return Asked
    return lambda address, **options: QueryableStateClient(*address, **options)


@pytest.fixture
def client(make: MakeClient, peer: Peer, direct: bool | None) -> Iterator[Any]:
    with make(peer.address, direct=direct, random=Random(3)) as client:
        yield client
