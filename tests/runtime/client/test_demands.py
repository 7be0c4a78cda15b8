"""Queries that demand an epoch or a bound of staleness: the requests of both clients, and their deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from random import Random
from typing import Any

import msgpack
import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import ConfigError, EpochNotReached, FailureCode, QueryError, TooStale, Unavailable
from qstate.protocol import Failure, Get, Values
from tests.runtime.client.peer import FINGERPRINT, Peer, Reply

Calls = Callable[[AsyncQueryableStateClient], Awaitable[Any]]


def gets(peer: Peer) -> list[Get]:
    return [request for request in peer.requests if isinstance(request, Get)]


def answering_epoch(peer: Peer, refusals: int, code: FailureCode = FailureCode.EPOCH_NOT_REACHED) -> None:
    """Have the peer refuse the first gets, and then answer each with epoch 7."""

    def script(request: Any) -> Iterable[Reply]:
        if not isinstance(request, Get):
            yield from peer.honest(request)
        elif len(gets(peer)) <= refusals:
            yield Failure(request.id, code, {"epoch": 6, "min_epoch": 7})
        else:
            yield Values(
                request.id, (7,) * len(request.keys), tuple(msgpack.packb(key) for key in request.keys), FINGERPRINT
            )

    peer.script = script


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


def test_a_demand_that_is_not_met_yet_is_asked_for_again_as_it_was(peer: Peer) -> None:
    answering_epoch(peer, refusals=2)
    with QueryableStateClient(*peer.address, random=Random(3)) as client:
        view = client.get("job", "state", "a", isolation="committed", min_epoch=7)
    assert (view.value(), view.epoch) == ("a", 7)
    assert [get.options for get in gets(peer)] == [{"isolation": "committed", "min_epoch": 7}] * 3


def test_the_asyncio_client_asks_again_too(peer: Peer) -> None:
    answering_epoch(peer, refusals=2)
    view = asynchronously(peer, lambda client: client.get("job", "state", "a", min_epoch=7))
    assert (view.value(), view.epoch) == ("a", 7)
    assert len(gets(peer)) == 3


@pytest.mark.parametrize(
    ("code", "error"),
    [(FailureCode.EPOCH_NOT_REACHED, EpochNotReached), (FailureCode.TOO_STALE, TooStale)],
)
def test_a_demand_that_is_never_met_fails_at_the_deadline(
    peer: Peer, code: FailureCode, error: type[QueryError]
) -> None:
    answering_epoch(peer, refusals=1_000_000, code=code)
    with QueryableStateClient(*peer.address, random=Random(3)) as client:
        with pytest.raises(error) as caught:
            client.get("job", "state", "a", min_epoch=7, timeout_s=1.0)
        tries = len(gets(peer))
        assert 2 <= tries < 50
        client.ping()
        assert len(gets(peer)) == tries
    assert caught.value.details == {"epoch": 6, "min_epoch": 7}


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


@pytest.mark.parametrize("results", [(b"\x01",), (None,), (b"\x01", None), (int(FailureCode.RESTORING), b"\x01")])
@pytest.mark.parametrize("isolation", ["live", "committed"])
def test_an_answer_of_an_earlier_epoch_than_demanded_is_never_returned(
    peer: Peer, results: tuple[Any, ...], isolation: str
) -> None:
    peer.script = lambda request: (
        [Values(request.id, tuple(-1 if type(result) is int else 6 for result in results), results, FINGERPRINT)]
        if isinstance(request, Get)
        else peer.honest(request)
    )
    keys = [f"{number}" for number in range(len(results))]
    with QueryableStateClient(*peer.address) as client, pytest.raises(Unavailable, match="of epoch 6"):
        client.get_many("job", "state", keys, isolation=isolation, min_epoch=7)
    with pytest.raises(Unavailable, match="of epoch 6"):
        asynchronously(peer, lambda client: client.get_many("job", "state", keys, isolation=isolation, min_epoch=7))
    assert len(gets(peer)) == 2
