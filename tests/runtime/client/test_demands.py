"""Queries that demand an epoch or a bound of staleness: the requests of both clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import ConfigError
from qstate.protocol.messages import Get
from tests.runtime.client.peer import Peer

Calls = Callable[[AsyncQueryableStateClient], Awaitable[Any]]


def gets(peer: Peer) -> list[Get]:
    return [request for request in peer.requests if isinstance(request, Get)]


def asynchronously(peer: Peer, calls: Calls) -> Any:
    async def run() -> Any:
        async with await AsyncQueryableStateClient.connect(*peer.address, random=Random(3)) as client:
            return await calls(client)

    return asyncio.run(run())


def test_the_synchronous_client_sends_demands_and_only_when_asked_to(peer: Peer) -> None:
    with QueryableStateClient(*peer.address) as client:
        client.get("job", "state", "a")
        client.get("job", "state", "a", min_epoch=0)
        client.get("job", "state", "a", isolation="committed", min_epoch=5, max_staleness_s=1.5)
        client.get_many("job", "state", ["a", "b"], max_staleness_s=0)
        client.submit("job", "state", "a", min_epoch=9).result()
    assert [get.options for get in gets(peer)] == [
        {},
        {"min_epoch": 0},
        {"isolation": "committed", "min_epoch": 5, "max_staleness_ms": 1500},
        {"max_staleness_ms": 0},
        {"min_epoch": 9},
    ]


def test_only_gets_with_equal_demands_share_a_batch(peer: Peer) -> None:
    async def ask(client: AsyncQueryableStateClient) -> None:
        await client.get("job", "state", "first")
        demands: list[dict[str, Any]] = [{}, {"min_epoch": 1}, {"min_epoch": 2}, {"max_staleness_s": 1.0}]
        await asyncio.gather(
            *(client.get("job", "state", f"{key}", **demand) for key in range(3) for demand in demands)
        )
        await client.get_many("job", "state", ["a"], min_epoch=3)

    asynchronously(peer, ask)
    sent = gets(peer)[1:]
    assert [get.options for get in sent] == [
        {},
        {"min_epoch": 1},
        {"min_epoch": 2},
        {"max_staleness_ms": 1000},
        {"min_epoch": 3},
    ]
    assert [get.keys for get in sent] == [("0", "1", "2")] * 4 + [("a",)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_epoch": -1},
        {"min_epoch": 1.0},
        {"min_epoch": True},
        {"min_epoch": "7"},
        {"min_epoch": 1 << 63},
        {"max_staleness_s": -0.001},
        {"max_staleness_s": float("inf")},
        {"max_staleness_s": float("nan")},
    ],
    ids=repr,
)
def test_an_invalid_demand_is_refused_before_anything_is_sent(peer: Peer, wrong: dict[str, Any]) -> None:
    with QueryableStateClient(*peer.address) as client:
        for call in (client.get, client.submit):
            with pytest.raises(ConfigError, match=next(iter(wrong))):
                call("job", "state", "a", **wrong)
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            client.get_many("job", "state", ["a"], **wrong)

    async def ask(client: AsyncQueryableStateClient) -> list[Any]:
        one = client.get("job", "state", "a", **wrong)
        many = client.get_many("job", "state", ["a"], **wrong)
        return await asyncio.gather(one, many, return_exceptions=True)

    assert [type(found) for found in asynchronously(peer, ask)] == [ConfigError, ConfigError]
    assert gets(peer) == []
