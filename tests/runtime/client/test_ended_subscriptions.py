"""Subscriptions that end: servers make no answer for them any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import FailureCode
from qstate.runtime.control.statistics import InMemoryStatistics
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.raw_client import wait_until

NAMES = ("job", "lastTemp")


class Served:
    """A state server with one committed epoch, and a proxy."""

    def __init__(self, directory: Path) -> None:
        history = History(directory)
        history.commit(0, put("JFK", 1))
        registry = StateRegistry()
        (instance,) = history.instances()
        self.statistics = InMemoryStatistics()
        self.server = StateServer(registry, statistics=self.statistics)
        self.server.start()
        self.proxy = ClientProxy()
        self.proxy.start()
        here = owner(instance, self.server.address, registry.register(instance))
        self.proxy.set_location_oracle(NAMES[0], TableOracle(**{NAMES[1]: table(instance, here)}))

    @property
    def waiting(self) -> int:
        """The polls that wait at the server."""
        return sum(map(len, self.server._polls._waiting.values()))

    @property
    def cancelled(self) -> int:
        return self.statistics.snapshot().failures.get(FailureCode.CANCELLED, 0)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path / "checkpoint")
    yield found
    found.proxy.shutdown(2.0)
    found.server.shutdown(2.0)


@pytest.mark.parametrize("direct", [True, False])
def test_closing_a_subscription_cancels_its_poll(served: Served, direct: bool) -> None:
    with QueryableStateClient(*served.proxy.address, direct=direct) as client:
        with client.subscribe(*NAMES, from_epoch=0) as changes:
            assert [change.key for change in next(changes)] == ["JFK"]
            assert changes.next_batch(0.01) is None
            wait_until(lambda: served.waiting == 1, "a poll that waits")
        wait_until(lambda: (served.waiting, served.cancelled) == (0, 1), "cancelling it")
        changes.close()
        again = client.subscribe(*NAMES, from_epoch=0)
        assert [change.key for change in next(again)] == ["JFK"]


def test_a_cancelled_task_leaves_no_poll_of_its_subscription(served: Served) -> None:
    async def follow(client: AsyncQueryableStateClient) -> None:
        async for _ in client.subscribe(*NAMES, from_epoch=0):
            """Each batch."""

    async def run() -> None:
        async with await AsyncQueryableStateClient.connect(*served.proxy.address) as client:
            task = asyncio.ensure_future(follow(client))
            await asyncio.to_thread(wait_until, lambda: served.waiting == 1, "a poll that waits")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            del task
            await asyncio.to_thread(wait_until, lambda: (served.waiting, served.cancelled) == (0, 1), "cancelling it")

    asyncio.run(run())


def test_a_subscription_says_that_an_owner_is_away_although_another_one_answers(tmp_path: Path) -> None:
    history, registry = History(tmp_path / "checkpoint", parallelism=2), StateRegistry()
    history.commit(0, put("JFK", 1), put("LGA", 2), put("EWR", 3))
    statistics = [InMemoryStatistics(), InMemoryStatistics()]
    servers = [StateServer(registry, statistics=one) for one in statistics]
    proxy, owners = ClientProxy(), []
    for server, instance in zip(servers, history.instances((0, 1)), strict=True):
        server.start()
        owners.append(owner(instance, server.address, registry.register(instance)))
    proxy.start()
    proxy.set_location_oracle(NAMES[0], TableOracle(**{NAMES[1]: table(history.instances()[0], *owners)}))

    def answers() -> int:
        return statistics[0].snapshot().successes

    try:
        with (
            QueryableStateClient(*proxy.address) as client,
            client.subscribe(*NAMES, from_epoch=0, progress_s=0.05) as changes,
        ):
            assert next(changes) and changes.failure is None
            servers[1].shutdown(2.0)
            wait_until(lambda: changes.next_batch(0.05) is None and changes.failure is not None, "missing the owner")
            before = answers()
            wait_until(
                lambda: changes.next_batch(0.05) is None and answers() > before + 3, "answers of the other owner"
            )
            assert changes.failure is not None
    finally:
        proxy.shutdown(2.0)
        for server in servers:
            server.shutdown(2.0)
