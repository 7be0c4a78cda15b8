"""Readers of the same changes share one subscription, and miss nothing whatever they do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qstate.client import AsyncQueryableStateClient
from qstate.errors import Overloaded
from qstate.gateway import feeds as feeds_module
from qstate.gateway.feeds import Feeds, Reader, Selection
from qstate.gateway.settings import GatewaySettings
from qstate.gateway.upstream import Upstream
from tests.project.served_job import serve_history
from tests.runtime.serving.feeds import History, put

Served = tuple[tuple[str, int], History]
TIMEOUT_S = 20.0
KEY = Selection(None, "nyc", "lastTemperature", ("JFK",), None, (None,))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[tuple[str, int], History]]:
    with serve_history(tmp_path, job="nyc") as found:
        yield found


@asynccontextmanager
async def feeds_of(proxy: tuple[str, int]) -> AsyncIterator[Feeds]:
    upstream = Upstream(GatewaySettings([proxy]))
    feeds = Feeds(upstream)
    try:
        yield feeds
    finally:
        await feeds.close()
        await upstream.close()


async def values(reader: Reader, count: int) -> list[Any]:
    """The values of so many changes, and the place after the last."""
    found: list[Any] = []
    while len(found) < count:
        event = await asyncio.wait_for(reader.next(), TIMEOUT_S)
        assert event.error is None, event.error
        if event.message:
            found += [change["value"] for change in json.loads(event.message)["data"].get("changes", ())]
    return [*found, event.place]


def test_equal_readers_share_one_subscription(served: Served) -> None:
    async def scenario() -> None:
        async with feeds_of(served[0]) as feeds:
            readers = [feeds.reader(KEY, None) for _ in range(10)]
            assert [(await values(reader, 3))[:3] for reader in readers] == [[71.06, 72.0, 73.0]] * 10
            assert len(feeds) == 1
            other = feeds.reader(Selection(None, "nyc", "lastTemperature", ("LGA",), None, (None,)), None)
            assert len(feeds) == 2
            for reader in (*readers, other, other):
                reader.leave()
            assert len(feeds) == 0

    asyncio.run(scenario())


def test_readers_of_namespaces_that_python_takes_for_equal_share_nothing(served: Served) -> None:
    async def scenario() -> None:
        async with feeds_of(served[0]) as feeds:
            spaces = (1, True, Decimal("1.0"), Decimal("1.00"))
            readers = [feeds.reader(replace(KEY, namespaces=(space,)), None) for space in spaces]
            assert len(feeds) == 4
            for reader in readers:
                reader.leave()

    asyncio.run(scenario())


def test_a_reader_that_comes_back_misses_nothing_and_sees_nothing_twice(
    served: Served,
) -> None:
    proxy, history = served

    async def scenario() -> None:
        async with feeds_of(proxy) as feeds:
            staying, going = feeds.reader(KEY, None), feeds.reader(KEY, None)
            await values(staying, 3)
            *_, place = await values(going, 2)
            going.leave()
            back = feeds.reader(KEY, place)
            assert len(feeds) == 1
            history.commit(3, put("JFK", 74.0, state="value"))
            assert (await values(back, 2))[:2] == [73.0, 74.0]
            assert (await values(staying, 1))[:1] == [74.0]

    asyncio.run(scenario())


def test_a_reader_with_an_old_place_catches_up_and_then_shares(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, history = served
    monkeypatch.setattr(feeds_module, "MOST_EVENTS", feeds_module.AHEAD)

    async def scenario() -> None:
        async with feeds_of(proxy) as feeds:
            shared = feeds.reader(KEY, None)
            *_, place = await values(shared, 1)
            for epoch in range(3, 10):
                history.commit(epoch, put("JFK", 70.0 + epoch, state="value"))
            await values(shared, 9)
            late = feeds.reader(KEY, place)
            assert len(feeds) == 2
            assert (await values(late, 9))[:9] == [72.0, 73.0, *(70.0 + epoch for epoch in range(3, 10))]
            assert len(feeds) == 1
            history.commit(10, put("JFK", 80.0, state="value"))
            assert (await values(late, 1))[0] == (await values(shared, 1))[0] == 80.0

    asyncio.run(scenario())


def test_a_slow_reader_delays_no_other_and_is_told_to_come_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, history = served
    monkeypatch.setattr(feeds_module, "MOST_EVENTS", 4)

    async def scenario() -> None:
        async with feeds_of(proxy) as feeds:
            fast, slow = feeds.reader(KEY, None), feeds.reader(KEY, None)
            *_, place = await values(slow, 1)
            for epoch in range(3, 30):
                history.commit(epoch, put("JFK", 70.0 + epoch, state="value"))
            await values(fast, 30)
            with pytest.raises(Overloaded, match="too slow"):
                await slow.next()
            slow.leave()
            back = feeds.reader(KEY, place)
            assert (await values(back, 29))[:2] == [72.0, 73.0]

    asyncio.run(scenario())


def test_a_reader_that_is_alone_is_never_too_slow(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy, history = served
    monkeypatch.setattr(feeds_module, "MOST_EVENTS", feeds_module.AHEAD)
    for epoch in range(3, 60):
        history.commit(epoch, put("JFK", 70.0 + epoch, state="value"))

    async def scenario() -> None:
        async with feeds_of(proxy) as feeds:
            reader = feeds.reader(KEY, None)
            assert len(await values(reader, 60)) == 61

    asyncio.run(scenario())


def test_subscriptions_are_bounded(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_module, "MOST_FEEDS", 1)

    async def scenario() -> None:
        async with feeds_of(served[0]) as feeds:
            feeds.reader(KEY, None)
            feeds.reader(KEY, None)
            with pytest.raises(Overloaded):
                feeds.reader(Selection(None, "nyc", "lastTemperature", ("LGA",), None, (None,)), None)

    asyncio.run(scenario())


def test_an_end_of_the_gateway_is_an_event(served: Served) -> None:
    async def scenario() -> None:
        async with feeds_of(served[0]) as feeds:
            reader = feeds.reader(KEY, None)
            await values(reader, 3)
            await feeds.close()
            event = await reader.next()
            assert event.last
            assert event.error is None
            assert event.sse == b"retry: 2000\n\n"
            with pytest.raises(Overloaded):
                feeds.reader(KEY, None)

    asyncio.run(scenario())


def test_the_client_finds_the_owners_of_a_state(served: Served) -> None:
    async def scenario() -> None:
        async with await AsyncQueryableStateClient.connect(*served[0]) as client:
            found = await client.locate("nyc", "lastTemperature")
            assert (found.max_parallelism, found.state["name"], len(found.owners)) == (128, "lastTemperature", 1)

    asyncio.run(scenario())
