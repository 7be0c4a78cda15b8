"""The asyncio client against scripted peers: results, failures, and cleanup."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from decimal import Decimal
from itertools import filterfalse
from random import Random
from typing import Any

import msgpack
import pytest

from qstate.client import AsyncQueryableStateClient
from qstate.errors import (
    ClosedError,
    ConfigError,
    FailureCode,
    QueryError,
    Unauthenticated,
    Unavailable,
    UnknownJob,
    WrongKeyType,
)
from qstate.keys import key_group
from qstate.protocol.messages import Failure, Get, Locate, Values
from qstate.runtime.client.batching import FIRST_BATCH_KEYS
from tests.runtime.client.peer import FINGERPRINT, STATE_ID, Peer, Reply

Scenario = Callable[[AsyncQueryableStateClient], Awaitable[None]]


@pytest.fixture
def run(peer: Peer, direct: bool | None) -> Callable[[Scenario], None]:
    """Runs a scenario with a connected client, in debug mode, and checks that no task is left."""

    async def main(scenario: Scenario) -> None:
        async with await AsyncQueryableStateClient.connect(*peer.address, direct=direct, random=Random(3)) as client:
            await scenario(client)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    return lambda scenario: asyncio.run(main(scenario), debug=True)


def gets(peer: Peer) -> list[Get]:
    return [request for request in peer.requests if isinstance(request, Get)]


def test_namespaces_that_are_equal_in_python_are_asked_for_in_requests_of_their_own(
    run: Callable[[Scenario], None], peer: Peer
) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        await client.get("job", "state", "warm")
        await asyncio.gather(*(client.get("job", "state", "JFK", space) for space in (1, True, Decimal(1), 1)))

    run(scenario)
    assert [(repr(get.namespace), len(get.keys)) for get in gets(peer)[1:]] == [
        ("1", 2),
        ("True", 1),
        ("Decimal('1')", 1),
    ]


def test_a_get_gives_a_view(run: Callable[[Scenario], None], peer: Peer, direct: bool | None) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        view = await client.get("job", "state", "JFK", ("window", 1), "committed")
        assert (view.value(), view.epoch, view.isolation) == ("JFK", 1, "committed")

    run(scenario)
    (get,) = gets(peer)
    assert get.target == (("job", "state") if direct is False else STATE_ID)
    assert (get.namespace, get.options, get.keys) == (("window", 1), {"isolation": "committed"}, ("JFK",))


def test_gets_of_one_loop_turn_become_one_request_or_two(run: Callable[[Scenario], None], peer: Peer) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        await client.get("job", "state", "warm")
        for count in (FIRST_BATCH_KEYS - 1, 200, 50):
            views = await asyncio.gather(*(client.get("job", "state", f"key-{number}") for number in range(count)))
            assert [view.value() for view in views] == [f"key-{number}" for number in range(count)]

    run(scenario)
    early = FIRST_BATCH_KEYS
    assert [len(get.keys) for get in gets(peer)] == [1, early - 1, early, 200 - early, early, 50 - early]


@pytest.fixture
def halves(peer: Peer) -> Iterator[tuple[Peer, Peer]]:
    """Two servers, of the lower and of the upper key groups; the first is the proxy, too."""
    with Peer() as other:
        owners = ((0, 64, *peer.address, STATE_ID), (64, 128, *other.address, STATE_ID))
        peer.script = lambda request: (
            [peer.location(request)._replace(owners=owners)] if isinstance(request, Locate) else peer.honest(request)
        )
        yield peer, other


def is_upper(key: str) -> bool:
    return key_group(key, 128) >= 64


async def gets_of_halves(lower: Peer, scenario: Scenario) -> None:
    async with await AsyncQueryableStateClient.connect(*lower.address, direct=True, random=Random(3)) as client:
        await client.get("job", "state", next(filterfalse(is_upper, map(str, range(128)))))
        await scenario(client)


def test_gets_of_one_loop_turn_are_one_batch_where_several_servers_share_the_keys(halves: tuple[Peer, Peer]) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        views = await asyncio.gather(*(client.get("job", "state", f"key-{number}") for number in range(200)))
        assert [view.value() for view in views] == [f"key-{number}" for number in range(200)]

    asyncio.run(gets_of_halves(halves[0], scenario))
    sizes = sorted(len(get.keys) for peer in halves for get in gets(peer))
    assert sizes[0] == 1
    assert len(sizes) == 3
    assert sum(sizes) == 201


def test_gets_of_one_loop_turn_do_not_wait_for_another_server(halves: tuple[Peer, Peer]) -> None:
    lower, upper = halves
    answered = threading.Event()

    def late(request: Any) -> Iterable[Reply]:
        if isinstance(request, Get):
            answered.wait(10)
        return lower.honest(request)

    async def scenario(client: AsyncQueryableStateClient) -> None:
        futures = {key: client.submit("job", "state", key) for key in (f"key-{number}" for number in range(100))}
        for key, future in futures.items():
            if not is_upper(key):
                assert (await future).value() == key
        assert not any(future.done() for key, future in futures.items() if is_upper(key))
        answered.set()
        for key, future in futures.items():
            assert (await future).value() == key

    upper.script = late
    asyncio.run(gets_of_halves(lower, scenario))


def test_gets_that_a_server_does_not_own_any_more_are_sent_to_the_one_that_does(halves: tuple[Peer, Peer]) -> None:
    lower, upper = halves

    def disown(request: Any) -> Iterable[Reply]:
        if not isinstance(request, Get):
            return lower.honest(request)
        lower.script = lower.honest  # whose location has this peer as the owner of everything
        codes = (int(FailureCode.KEY_GROUP_NOT_OWNED),) * (len(request.keys) - 1)
        return [Values(request.id, (-1,) * len(codes) + (1,), (*codes, msgpack.packb(request.keys[-1])), FINGERPRINT)]

    async def scenario(client: AsyncQueryableStateClient) -> None:
        futures = {key: client.submit("job", "state", key) for key in (f"key-{number}" for number in range(100))}
        for key, future in futures.items():
            assert (await future).value() == key

    upper.script = disown
    asyncio.run(gets_of_halves(lower, scenario))
    (refused,) = gets(upper)
    assert all(map(is_upper, refused.keys))
    assert gets(lower)[-1].keys == refused.keys[:-1]


def test_gets_of_key_groups_without_a_server_wait_alone(peer: Peer) -> None:
    located = 0

    def script(request: Any) -> Iterable[Reply]:
        nonlocal located
        if not isinstance(request, Locate):
            return peer.honest(request)
        located += 1
        owners = ((0, 64 if located < 3 else 128, *peer.address, STATE_ID),)
        return [peer.location(request)._replace(owners=owners)]

    async def scenario(client: AsyncQueryableStateClient) -> None:
        futures = {key: client.submit("job", "state", key) for key in (f"key-{number}" for number in range(100))}
        done = []
        for key, future in futures.items():
            future.add_done_callback(lambda _, key=key: done.append(key))
        for key, future in futures.items():
            assert (await future).value() == key
        await asyncio.sleep(0)
        assert list(map(is_upper, done)) == sorted(map(is_upper, done))

    peer.script = script
    asyncio.run(gets_of_halves(peer, scenario))
    assert located == 3


def test_more_gets_in_one_loop_turn_than_a_request_may_hold_are_split() -> None:
    async def scenario(peer: Peer) -> None:
        async with await AsyncQueryableStateClient.connect(*peer.address) as client:
            await client.get("job", "state", "warm")
            views = await asyncio.gather(*(client.get("job", "state", f"key-{number}") for number in range(200)))
            assert [view.value() for view in views] == [f"key-{number}" for number in range(200)]

    with Peer(max_keys=FIRST_BATCH_KEYS + 1) as peer:
        asyncio.run(scenario(peer))
        assert max(len(get.keys) for get in gets(peer)) <= FIRST_BATCH_KEYS + 1


def test_only_gets_with_the_same_arguments_share_a_batch(run: Callable[[Scenario], None], peer: Peer) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        await client.get("job", "state", "warm")
        await asyncio.gather(
            client.get("job", "state", "a"),
            client.get("job", "state", "b", "namespace"),
            client.get("job", "state", "c", isolation="committed"),
            client.get("job", "state", "d", timeout_s=3),
            client.get("job", "state", "e"),
        )

    run(scenario)
    assert sorted(get.keys for get in gets(peer)) == [("a", "e"), ("b",), ("c",), ("d",), ("warm",)]


def test_the_first_gets_share_one_look_up(run: Callable[[Scenario], None], peer: Peer) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        await asyncio.gather(*(client.get("job", "state", f"key-{number}") for number in range(20)))

    run(scenario)
    assert len([request for request in peer.requests if isinstance(request, Locate)]) == 1
    assert len(gets(peer)) == 1


@pytest.mark.parametrize("key", [1.5, None, True, 7, "\ud800", 2**63, b"bytes", ("a", "b"), [1]])
def test_a_bad_key_does_not_fail_the_other_gets_of_its_batch(
    run: Callable[[Scenario], None], peer: Peer, key: Any
) -> None:
    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Get) and not all(isinstance(key, str) for key in request.keys):
            return [Failure(request.id, FailureCode.WRONG_KEY_TYPE, {})]
        return peer.honest(request)

    peer.script = script

    async def scenario(client: AsyncQueryableStateClient) -> None:
        good, bad, other = await asyncio.gather(
            client.get("job", "state", "good"),
            client.get("job", "state", key),
            client.get("job", "state", "other"),
            return_exceptions=True,
        )
        assert isinstance(bad, WrongKeyType)
        assert (good.value(), other.value()) == ("good", "other")  # type: ignore[union-attr]

    run(scenario)


def test_a_failed_key_does_not_fail_the_other_gets_of_its_batch(run: Callable[[Scenario], None], peer: Peer) -> None:
    def script(request: Any) -> Iterable[Reply]:
        if not isinstance(request, Get):
            return peer.honest(request)
        results = [int(FailureCode.INTERNAL) if key == "bad" else msgpack.packb(key) for key in request.keys]
        epochs = [-1 if key == "bad" else 1 for key in request.keys]
        return [Values(request.id, tuple(epochs), tuple(results), FINGERPRINT)]

    peer.script = script

    async def scenario(client: AsyncQueryableStateClient) -> None:
        good, bad = await asyncio.gather(
            client.get("job", "state", "good"), client.get("job", "state", "bad"), return_exceptions=True
        )
        assert good.value() == "good"  # type: ignore[union-attr]
        assert isinstance(bad, QueryError)
        assert bad.code is FailureCode.INTERNAL

    run(scenario)


def test_gets_refused_together_each_get_an_error_of_their_own(run: Callable[[Scenario], None], peer: Peer) -> None:
    peer.script = lambda request: (
        [Failure(request.id, FailureCode.FORBIDDEN, {"fact": 1})] if isinstance(request, Get) else peer.honest(request)
    )

    async def scenario(client: AsyncQueryableStateClient) -> None:
        one, other = await asyncio.gather(
            client.get("job", "state", "a"), client.get("job", "state", "b"), return_exceptions=True
        )
        assert isinstance(one, QueryError)
        assert isinstance(other, QueryError)
        assert one is not other
        assert one.code is other.code is FailureCode.FORBIDDEN
        assert one.details == other.details == {"fact": 1}

    run(scenario)


def test_submitted_gets_need_no_task_each(run: Callable[[Scenario], None], peer: Peer) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        # First the state is not in the cache, then it is.
        assert (await client.submit("job", "state", "first", ("window", 1), "committed")).value() == "first"
        futures = [client.submit("job", "state", f"key-{number}") for number in range(100)]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert not any(future.done() for future in futures)
        assert [(await future).value() for future in futures] == [f"key-{number}" for number in range(100)]

    run(scenario)
    assert [len(get.keys) for get in gets(peer)] == [1, FIRST_BATCH_KEYS, 100 - FIRST_BATCH_KEYS]


@pytest.mark.parametrize("known", [True, False])
def test_the_future_of_a_submitted_get_has_its_result_or_error(
    run: Callable[[Scenario], None], peer: Peer, known: bool
) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        if known:
            await client.get("job", "state", "warm")
        asked: list[tuple[Any, Any]] = [("good", None), (1.5, None), ("other", None), ("good", 1.5)]
        futures = [client.submit("job", "state", key, namespace) for key, namespace in asked]
        cancelled = client.submit("job", "state", "nobody waits")
        cancelled.cancel()
        good, key_refused, other, namespace_refused = await asyncio.gather(*futures, return_exceptions=True)
        assert (good.value(), other.value()) == ("good", "other")  # type: ignore[union-attr]
        assert isinstance(key_refused, WrongKeyType)
        assert isinstance(namespace_refused, WrongKeyType)
        assert cancelled.cancelled()

    run(scenario)


def test_arguments_that_cannot_be_sent_are_refused_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        for options in ({"timeout_s": 0}, {"min_epoch": -1}, {"max_staleness_s": float("nan")}):
            with pytest.raises(ConfigError):
                client.submit("job", "state", "JFK", **options)
        await client.close()
        with pytest.raises(ClosedError):
            client.submit("job", "state", "JFK")

    run(scenario)


def test_cancelling_one_waiter_does_not_affect_the_others(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        for _ in range(3):  # the first round also cancels the task that looks the state up
            tasks = [asyncio.create_task(client.get("job", "state", f"key-{number}")) for number in range(10)]
            await asyncio.sleep(0)
            tasks[0].cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(found[0], asyncio.CancelledError)
            assert [view.value() for view in found[1:]] == [f"key-{n}" for n in range(1, 10)]  # type: ignore[union-attr]

    run(scenario)


def test_256_tasks_share_one_connection_and_never_mix_up_answers(run: Callable[[Scenario], None], peer: Peer) -> None:
    async def ask(client: AsyncQueryableStateClient, task: int) -> None:
        for number in range(20):
            key = f"{task}-{number}"
            assert (await client.get("job", "state", key)).value() == key
            if number % 5 == 0:
                many = await client.get_many("job", "state", [key, f"{key}-other"])
                assert [view.value() for view in many.values()] == [key, f"{key}-other"]

    async def scenario(client: AsyncQueryableStateClient) -> None:
        await asyncio.gather(*(ask(client, task) for task in range(256)))

    run(scenario)
    assert peer.connections == 1


def test_an_unknown_job_is_raised_from_every_get(run: Callable[[Scenario], None], peer: Peer) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        peer.script = lambda request: [Failure(request.id, FailureCode.UNKNOWN_JOB, {"job": "nobody"})]
        found = await asyncio.gather(*(client.get("nobody", "state", key) for key in "abc"), return_exceptions=True)
        assert [type(error) for error in found] == [UnknownJob] * 3

    run(scenario)


def test_a_failed_connect_raises_the_reason() -> None:
    async def main() -> None:
        with pytest.raises(Unauthenticated):
            await AsyncQueryableStateClient.connect(*guarded.address, token="guess")
        with pytest.raises(Unavailable):
            await AsyncQueryableStateClient.connect(*gone, timeout_s=1.0)
        with pytest.raises(ConfigError):
            await AsyncQueryableStateClient.connect(*gone, timeout_s=0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with Peer(accepts=lambda token: token == b"secret") as guarded:
        with Peer() as closed:
            gone = closed.address
        asyncio.run(main(), debug=True)


def test_close_wakes_all_waiters_with_closed_error(peer: Peer) -> None:
    async def main() -> None:
        client = await AsyncQueryableStateClient.connect(*peer.address)
        await client.get("job", "state", "JFK")
        peer.script = lambda request: []
        waiting = [asyncio.create_task(client.get("job", "state", f"key-{number}")) for number in range(5)]
        waiting += [asyncio.create_task(client.ping()) for _ in range(5)]
        await asyncio.sleep(0)
        await client.close()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [ClosedError] * 10

    asyncio.run(main(), debug=True)


def test_close_just_after_a_look_up_was_answered_wakes_every_waiter(peer: Peer) -> None:
    async def main() -> None:
        client = await AsyncQueryableStateClient.connect(*peer.address)
        waiting = asyncio.create_task(client.get("job", "state", "JFK"))
        while not client._learning:
            await asyncio.sleep(0)
        closing: list[asyncio.Task[None]] = []
        (look_up,) = client._learning.values()
        look_up.waiters.append(lambda: closing.append(asyncio.create_task(client.close())))
        with pytest.raises(ClosedError):
            await asyncio.wait_for(waiting, 10)
        await closing[0]

    asyncio.run(main(), debug=True)


def test_close_ends_while_a_get_of_the_same_turn_makes_a_connection(halves: tuple[Peer, Peer]) -> None:
    async def scenario(client: AsyncQueryableStateClient) -> None:
        future = client.submit("job", "state", next(filter(is_upper, map(str, range(128)))))
        await asyncio.wait_for(client.close(), 10)
        with pytest.raises(ClosedError):
            await future

    asyncio.run(gets_of_halves(halves[0], scenario))
