"""Both clients against scripted peers: what they share. The asyncio client is asked one call at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest

from qstate.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    FailureCode,
    Forbidden,
    Overloaded,
    QueryError,
    SerializationError,
    TooLarge,
    UnknownJob,
    UnknownKeyGroupLocation,
)
from qstate.protocol.messages import Failure, Get, Locate, Location, Values
from tests.runtime.client.peer import FINGERPRINT, STATE_ID, VALUE_STATE, Peer, Reply
from tests.runtime.client.real_job import MakeClient
from tests.runtime.client.test_views import ReversedText

#: The synchronous client, or the asyncio client that is asked as if it were synchronous.
Client = Any


def test_no_keys_give_nothing(client: Client) -> None:
    assert client.get_many("job", "state", []) == {}


def test_more_keys_than_a_request_may_hold_are_split(make: MakeClient, direct: bool | None) -> None:
    with Peer(max_keys=7) as peer, make(peer.address, direct=direct) as client:
        keys = [f"key-{number}" for number in range(100)]
        assert [view.value() for view in client.get_many("job", "state", keys).values()] == keys
        assert max(len(request.keys) for request in peer.requests if isinstance(request, Get)) <= 7


def test_jobs_states_and_ping(client: Client) -> None:
    assert client.jobs() == ["job"]
    (state,) = client.states("job")
    assert (state["name"], state["kind"]) == ("state", "value")
    assert 0 < client.ping() < 10


def test_a_state_is_located_anew_each_time(client: Client, peer: Peer) -> None:
    for _ in range(2):
        found = client.locate("job", "state")
        assert (found.state["name"], found.max_parallelism) == ("state", 128)
        assert [(one.key_groups.stop, one.address) for one in found.owners] == [(128, peer.address)]
    assert len([request for request in peer.requests if isinstance(request, Locate)]) == 2


def refusing(peer: Peer, code: int, **details: Any) -> Callable[[Any], Iterable[Reply]]:
    return lambda request: [Failure(request.id, code, details)] if isinstance(request, Get) else peer.honest(request)


@pytest.mark.parametrize("code", [code for code in FailureCode if code.retry.name == "FATAL"])
def test_a_fatal_failure_is_raised_as_its_class_with_its_details(client: Client, peer: Peer, code: FailureCode) -> None:
    peer.script = refusing(peer, code, fact=5)
    with pytest.raises(QueryError) as raised:
        client.get("job", "state", "JFK")
    assert raised.value.code is code
    assert raised.value.details["fact"] == 5
    assert len([request for request in peer.requests if isinstance(request, Get)]) == 1


def test_gets_in_a_row_have_the_epoch_and_the_missing_keys_of_their_own_answer(client: Client, peer: Peer) -> None:
    client.get("job", "state", "JFK")
    for epoch, missing in [(4, ""), (4, "b"), (5, "a"), (5, "abc"), (4, ""), (4, "c")]:

        def script(request: Any, epoch: int = epoch, missing: str = missing) -> Iterable[Reply]:
            if not isinstance(request, Get):
                return peer.honest(request)
            results = tuple(None if key in missing else msgpack.packb(key) for key in request.keys)
            return [Values(request.id, (epoch,) * len(results), results, FINGERPRINT)]

        peer.script = script
        for keys in (["a", "b", "c"], ["c", "a", "c"]):
            found = client.get_many("job", "state", keys)
            assert list(found) == list(dict.fromkeys(keys))
            found_values = {key: view and (view.value(), view.epoch) for key, view in found.items()}
            assert found_values == {key: None if key in missing else (key, epoch) for key in keys}


@pytest.mark.parametrize("code", [code for code in FailureCode if code.retry.name != "FATAL"])
def test_a_failure_that_may_pass_is_retried_without_the_caller_noticing(
    client: Client, peer: Peer, code: FailureCode
) -> None:
    failures = iter([code, code])

    def script(request: Any) -> Iterable[Reply]:
        again = next(failures, None) if isinstance(request, Get) else None
        return peer.honest(request) if again is None else [Failure(request.id, again, {})]

    peer.script = script
    assert client.get("job", "state", "JFK").value() == "JFK"


def test_a_failed_key_of_many_raises_its_own_error(client: Client, peer: Peer) -> None:
    def script(request: Any) -> Iterable[Reply]:
        if not isinstance(request, Get):
            return peer.honest(request)
        return [Values(request.id, (1, -1), (msgpack.packb("a"), int(FailureCode.TOO_LARGE)), FINGERPRINT)]

    peer.script = script
    with pytest.raises(TooLarge, match="'b'"):
        client.get_many("job", "state", ["a", "b"])
    found = client.get_many("job", "state", ["a", "b"], return_errors=True)
    assert found["a"].value() == "a" and isinstance(found["b"], TooLarge)


def test_errors_of_all_keys_are_returned_on_demand(client: Client, peer: Peer) -> None:
    peer.script = lambda request: (
        [Failure(request.id, FailureCode.FORBIDDEN, {})] if isinstance(request, Get) else peer.honest(request)
    )
    found = client.get_many("job", "state", ["a", "b"], return_errors=True)
    assert [type(error) for error in found.values()] == [Forbidden, Forbidden]
    assert client.get_many("job", "state", [], return_errors=True) == {}
    with pytest.raises(Forbidden):
        client.get_many("job", "state", ["a", "b"])


def test_an_unknown_job_is_raised_from_the_look_up(client: Client, peer: Peer) -> None:
    peer.script = lambda request: [Failure(request.id, FailureCode.UNKNOWN_JOB, {"job": "nobody"})]
    with pytest.raises(UnknownJob, match="nobody"):
        client.get("nobody", "state", "JFK")


def test_a_proxy_that_comes_back_within_the_deadline_is_found(make: MakeClient) -> None:
    with Peer() as first, make(first.address) as client:
        client.get("job", "state", "JFK")
        first.close()
        outcome = ThreadPoolExecutor(1)
        with outcome:
            answer = outcome.submit(client.get, "job", "state", "LGA")
            with Peer(port=first.address[1]):
                assert answer.result(10).value() == "LGA"


def test_a_peer_that_never_answers_is_deadline_exceeded(client: Client, peer: Peer) -> None:
    peer.script = lambda request: [] if isinstance(request, Get) else peer.honest(request)
    with pytest.raises(DeadlineExceeded):
        client.get("job", "state", "JFK", timeout_s=0.1)
    peer.script = peer.honest
    assert client.get("job", "state", "JFK").value() == "JFK"


def test_an_overloaded_peer_gets_no_request_during_its_pause(client: Client, peer: Peer) -> None:
    peer.script = refusing(peer, FailureCode.OVERLOADED, retry_after_ms=60_000)
    with pytest.raises(Overloaded):
        client.get("job", "state", "JFK")
    assert len([request for request in peer.requests if isinstance(request, Get)]) == 1


def test_an_unknown_serializer_is_an_error_that_names_the_remedy(make: MakeClient, peer: Peer) -> None:
    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Locate):
            return [peer.location(request, serializer="reversed-text")]
        return [Values(request.id, (1,), (b"cba",), FINGERPRINT)] if isinstance(request, Get) else peer.honest(request)

    peer.script = script
    with make(peer.address) as client, pytest.raises(SerializationError, match="serializers="):
        client.get("job", "state", "JFK")
    with make(peer.address, serializers=[ReversedText()]) as client:
        assert client.get("job", "state", "JFK").value() == "abc"


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_a_request_without_a_finite_timeout_is_refused(client: Client, timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        client.get("job", "state", "JFK", timeout_s=timeout_s)


def test_use_after_close_is_closed_error_and_close_is_idempotent(make: MakeClient, peer: Peer) -> None:
    with make(peer.address) as client:
        client.get("job", "state", "JFK")
        client.close()
        client.close()
        uses: list[Callable[[], Any]] = [
            lambda: client.get("job", "state", "JFK"),
            lambda: client.get("job", "another", "JFK"),
            lambda: client.get_many("job", "state", ["JFK"]),
            lambda: client.submit("job", "state", "JFK"),
            client.jobs,
            lambda: client.states("job"),
            client.ping,
        ]
        for use in uses:
            with pytest.raises(ClosedError):
                use()


def test_a_key_without_an_owner_fails_after_the_time_to_wait(make: MakeClient, direct: bool | None) -> None:
    """What looks for the owner: a client that asks owners only, or the proxy for the others."""
    with Peer() as peer:
        waits: list[Any] = []

        def script(request: Any) -> Iterable[Reply]:
            if isinstance(request, Get) and request.target != STATE_ID:
                waits.append(request.options.get("wait_ms"))
                codes = [int(FailureCode.UNKNOWN_KEY_GROUP_LOCATION)] * len(request.keys)
                return [Values(request.id, (-1,) * len(codes), tuple(codes), "")]
            return [Location(request.id, VALUE_STATE, 128, ())] if isinstance(request, Locate) else peer.honest(request)

        peer.script = script
        with make(peer.address, direct=direct, timeout_s=60.0) as client:
            for wait_s in (0, 0.05):
                with pytest.raises(UnknownKeyGroupLocation):
                    client.get("job", "state", "JFK", wait_s=wait_s)
            with pytest.raises(ConfigError, match="wait_s must be seconds, from zero"):
                client.get("job", "state", "JFK", wait_s=-1)
    assert set(waits) == (set() if direct else {0, 50})
