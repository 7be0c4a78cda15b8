"""The synchronous client against scripted peers: results, failures, and cleanup."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import pytest

from qstate.client import QueryableStateClient
from qstate.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    FailureCode,
    Overloaded,
    QueryError,
    SerializationError,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownJob,
    UnknownKeyGroupLocation,
    WrongKeyType,
)
from qstate.protocol import Failure, Get, Locate, Location, Ping, Values
from tests.runtime.client.peer import CLOSE, STATE_ID, VALUE_STATE, Peer, Reply
from tests.runtime.client.test_views import ReversedText

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture(params=["proxy", "direct"])
def direct(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "direct")


@pytest.fixture
def client(peer: Peer, direct: bool) -> Iterator[QueryableStateClient]:
    with QueryableStateClient(*peer.address, direct=direct, random=Random(3)) as client:
        yield client


def test_a_get_gives_a_view(client: QueryableStateClient) -> None:
    view = client.get("job", "state", "JFK")
    assert (view.value(), view.epoch, view.isolation) == ("JFK", 1, "live")


def test_the_target_is_the_name_at_a_proxy_and_the_id_at_a_state_server(
    client: QueryableStateClient, peer: Peer, direct: bool
) -> None:
    client.get("job", "state", "JFK", ("window", 1), "committed")
    locate, get = peer.requests
    assert isinstance(locate, Locate)
    assert get.target == (STATE_ID if direct else ("job", "state"))
    assert (get.namespace, get.options, get.keys) == (("window", 1), {"isolation": "committed"}, ("JFK",))
    assert 9_000 < get.deadline_ms < 10_000


def test_the_location_is_looked_up_once(client: QueryableStateClient, peer: Peer) -> None:
    for _ in range(3):
        client.get("job", "state", "JFK")
    assert [type(request) for request in peer.requests] == [Locate, Get, Get, Get]


def test_a_key_without_a_value_is_none(client: QueryableStateClient, peer: Peer) -> None:
    peer.script = lambda request: (
        [Values(request.id, (4,), (None,))] if isinstance(request, Get) else peer.honest(request)
    )
    assert client.get("job", "state", "JFK") is None


def test_many_keys_come_back_by_key(client: QueryableStateClient) -> None:
    keys = [f"key-{number}" for number in range(500)]
    found = client.get_many("job", "state", iter(keys))
    assert list(found) == keys
    assert all(view.value() == key for key, view in found.items())


def test_gets_in_a_row_have_the_epoch_and_the_missing_keys_of_their_own_answer(
    client: QueryableStateClient, peer: Peer
) -> None:
    client.get("job", "state", "JFK")
    for epoch, missing in [(4, ""), (4, "b"), (5, "a"), (5, "abc"), (4, ""), (4, "c")]:

        def script(request: Any, epoch: int = epoch, missing: str = missing) -> Iterable[Reply]:
            if not isinstance(request, Get):
                return peer.honest(request)
            results = tuple(None if key in missing else msgpack.packb(key) for key in request.keys)
            return [Values(request.id, (epoch,) * len(results), results)]

        peer.script = script
        for keys in (["a", "b", "c"], ["c", "a", "c"]):
            found = client.get_many("job", "state", keys)
            assert list(found) == list(dict.fromkeys(keys))
            found_values = {key: view and (view.value(), view.epoch) for key, view in found.items()}
            assert found_values == {key: None if key in missing else (key, epoch) for key in keys}


def test_no_keys_give_nothing(client: QueryableStateClient) -> None:
    assert client.get_many("job", "state", []) == {}


def test_more_keys_than_a_request_may_hold_are_split(direct: bool) -> None:
    with Peer(max_keys=7) as peer, QueryableStateClient(*peer.address, direct=direct) as client:
        keys = [f"key-{number}" for number in range(100)]
        assert [view.value() for view in client.get_many("job", "state", keys).values()] == keys
        assert max(len(request.keys) for request in peer.requests if isinstance(request, Get)) <= 7


def test_jobs_states_and_ping(client: QueryableStateClient) -> None:
    assert client.jobs() == ["job"]
    (state,) = client.states("job")
    assert (state["name"], state["kind"]) == ("state", "value")
    assert 0 < client.ping() < 10


def test_futures_may_be_read_in_any_order(client: QueryableStateClient) -> None:
    futures = [client.submit("job", "state", f"key-{number}") for number in range(50)]
    assert [future.result().value() for future in reversed(futures)] == [f"key-{n}" for n in reversed(range(50))]
    assert all(future.done() for future in futures)


def test_a_future_can_be_asked_without_waiting(client: QueryableStateClient) -> None:
    future = client.submit("job", "state", "JFK")
    poll_until(future.done)
    assert future.result(0).value() == "JFK"


def test_answers_in_reverse_order_reach_their_own_requests(peer: Peer) -> None:
    kept: list[Any] = []

    def script(request: Any) -> Iterable[Reply]:
        if not isinstance(request, Get):
            return peer.honest(request)
        kept.append(request)
        if len(kept) < 20:
            return []
        return [reply for get in reversed(kept) for reply in peer.honest(get)]

    peer.script = script
    with QueryableStateClient(*peer.address) as client:
        futures = [client.submit("job", "state", f"key-{number}") for number in range(20)]
        assert [future.result().value() for future in futures] == [f"key-{number}" for number in range(20)]


def test_a_wait_that_times_out_leaves_the_request_in_progress(peer: Peer) -> None:
    release = threading.Event()

    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Get):
            release.wait(10)
        return peer.honest(request)

    peer.script = script
    with QueryableStateClient(*peer.address) as client:
        future = client.submit("job", "state", "JFK")
        with pytest.raises(TimeoutError, match="continues"):
            future.result(0.01)
        release.set()
        assert future.result(10).value() == "JFK"


def refusing(peer: Peer, code: int, **details: Any) -> Callable[[Any], Iterable[Reply]]:
    return lambda request: [Failure(request.id, code, details)] if isinstance(request, Get) else peer.honest(request)


@pytest.mark.parametrize("code", [code for code in FailureCode if code.retry.name == "FATAL"])
def test_a_fatal_failure_is_raised_as_its_class_with_its_details(
    client: QueryableStateClient, peer: Peer, code: FailureCode
) -> None:
    peer.script = refusing(peer, code, fact=5)
    with pytest.raises(QueryError) as raised:
        client.get("job", "state", "JFK")
    assert raised.value.code is code
    assert raised.value.details["fact"] == 5
    assert len([request for request in peer.requests if isinstance(request, Get)]) == 1


@pytest.mark.parametrize("code", [code for code in FailureCode if code.retry.name != "FATAL"])
def test_a_failure_that_may_pass_is_retried_without_the_caller_noticing(
    client: QueryableStateClient, peer: Peer, code: FailureCode
) -> None:
    failures = iter([code, code])

    def script(request: Any) -> Iterable[Reply]:
        again = next(failures, None) if isinstance(request, Get) else None
        return peer.honest(request) if again is None else [Failure(request.id, again, {})]

    peer.script = script
    assert client.get("job", "state", "JFK").value() == "JFK"


def test_a_failed_key_of_many_raises_its_own_error(client: QueryableStateClient, peer: Peer) -> None:
    def script(request: Any) -> Iterable[Reply]:
        if not isinstance(request, Get):
            return peer.honest(request)
        return [Values(request.id, (1, -1), (msgpack.packb("a"), int(FailureCode.TOO_LARGE)))]

    peer.script = script
    with pytest.raises(TooLarge, match="'b'"):
        client.get_many("job", "state", ["a", "b"])


def test_an_unknown_job_is_raised_from_the_look_up(client: QueryableStateClient, peer: Peer) -> None:
    peer.script = lambda request: [Failure(request.id, FailureCode.UNKNOWN_JOB, {"job": "nobody"})]
    with pytest.raises(UnknownJob, match="nobody"):
        client.get("nobody", "state", "JFK")


def test_a_gap_in_the_owners_is_waited_for_and_then_named(peer: Peer) -> None:
    peer.script = lambda request: (
        [Location(request.id, VALUE_STATE, 128, ())] if isinstance(request, Locate) else peer.honest(request)
    )
    with QueryableStateClient(*peer.address, direct=True) as client:
        with pytest.raises(UnknownKeyGroupLocation):
            client.get("job", "state", "JFK", timeout_s=0.3)
        assert len(peer.requests) > 1
        peer.script = peer.honest
        assert client.get("job", "state", "JFK").value() == "JFK"


def test_a_state_that_moved_is_found_at_its_new_owner() -> None:
    with Peer() as proxy, Peer() as old, Peer() as new:
        place = old
        proxy.script = lambda request: [place.location(request)]
        old.script = lambda request: [Failure(request.id, FailureCode.UNKNOWN_STATE_ID, {})]
        with QueryableStateClient(*proxy.address, direct=True) as client:
            with pytest.raises(QueryError):
                client.get("job", "state", "JFK", timeout_s=0.1)
            place = new
            assert client.get("job", "state", "JFK").value() == "JFK"


def test_keys_of_several_owners_are_merged_in_order() -> None:
    with Peer() as proxy, Peer() as left, Peer() as right:
        owners = ((0, 64, *left.address, STATE_ID), (64, 128, *right.address, STATE_ID))
        proxy.script = lambda request: [Location(request.id, VALUE_STATE, 128, owners)]
        keys = [f"key-{number}" for number in range(300)]
        with QueryableStateClient(*proxy.address, direct=True) as client:
            found = client.get_many("job", "state", keys)
        assert [view.value() for view in found.values()] == keys
        assert left.requests
        assert right.requests


def test_a_lost_connection_is_made_again_without_the_caller_noticing(client: QueryableStateClient, peer: Peer) -> None:
    assert client.get("job", "state", "JFK").value() == "JFK"
    peer.drop_connections()
    assert client.get("job", "state", "LGA").value() == "LGA"
    assert peer.connections == 2


def test_a_connection_that_breaks_mid_answer_is_made_again_for_the_next_request(
    client: QueryableStateClient, peer: Peer
) -> None:
    breaks = iter([b"\x00\x00\x00\x20\x94\x03", b""])

    def script(request: Any) -> Iterable[Reply]:
        torn = next(breaks, None) if isinstance(request, Get) else None
        return peer.honest(request) if torn is None else [torn, CLOSE]

    peer.script = script
    for _ in range(2):
        with pytest.raises(Unavailable):
            client.get("job", "state", "JFK")
    assert client.get("job", "state", "JFK").value() == "JFK"


def test_a_proxy_that_comes_back_within_the_deadline_is_found() -> None:
    with Peer() as first:
        host, port = first.address
        with QueryableStateClient(host, port) as client:
            client.get("job", "state", "JFK")
            first.close()
            outcome = ThreadPoolExecutor(1)
            with outcome:
                answer = outcome.submit(client.get, "job", "state", "LGA")
                with Peer(port=port):
                    assert answer.result(10).value() == "LGA"


def test_a_peer_that_never_answers_is_deadline_exceeded(client: QueryableStateClient, peer: Peer) -> None:
    peer.script = lambda request: [] if isinstance(request, Get) else peer.honest(request)
    with pytest.raises(DeadlineExceeded):
        client.get("job", "state", "JFK", timeout_s=0.1)
    peer.script = peer.honest
    assert client.get("job", "state", "JFK").value() == "JFK"


def test_a_silent_connection_is_given_up_for_a_new_one(peer: Peer) -> None:
    silent = threading.Event()
    peer.script = lambda request: [] if silent.is_set() and peer.connections == 1 else peer.honest(request)
    with QueryableStateClient(*peer.address) as client:
        client.ping()
        silent.set()
        with pytest.raises(DeadlineExceeded):
            client.ping(timeout_s=1.1)
        assert client.ping() > 0
        assert peer.connections == 2


def test_an_overloaded_peer_gets_no_request_during_its_pause(client: QueryableStateClient, peer: Peer) -> None:
    peer.script = refusing(peer, FailureCode.OVERLOADED, retry_after_ms=60_000)
    with pytest.raises(Overloaded):
        client.get("job", "state", "JFK")
    assert len([request for request in peer.requests if isinstance(request, Get)]) == 1


def test_a_wrong_token_is_refused_at_once(direct: bool) -> None:
    with Peer(token=b"secret") as peer:
        with QueryableStateClient(*peer.address, direct=direct) as client, pytest.raises(Unauthenticated):
            client.get("job", "state", "JFK")
        with QueryableStateClient(*peer.address, direct=direct, token="secret") as client:
            assert client.get("job", "state", "JFK").value() == "JFK"


@pytest.mark.parametrize("key", [1.5, None, True, 2**63, "\ud800", ("a", None), (), ["a"]])
def test_an_invalid_key_is_refused_before_it_is_sent(client: QueryableStateClient, peer: Peer, key: Any) -> None:
    with pytest.raises(WrongKeyType):
        client.get("job", "state", key)
    with pytest.raises(WrongKeyType):
        client.get_many("job", "state", ["a", key, "b"])
    assert client.get("job", "state", "JFK").value() == "JFK"


def test_an_unknown_isolation_is_refused(client: QueryableStateClient) -> None:
    with pytest.raises(ConfigError, match="'live', 'committed', got 'dirty'"):
        client.get("job", "state", "JFK", isolation="dirty")


def test_an_unknown_serializer_is_an_error_that_names_the_remedy(peer: Peer) -> None:
    peer.script = lambda request: (
        [peer.location(request, serializer="reversed-text")]
        if isinstance(request, Locate)
        else [Values(request.id, (1,), (b"cba",))]
    )
    with QueryableStateClient(*peer.address) as client, pytest.raises(SerializationError, match="serializers="):
        client.get("job", "state", "JFK")
    with QueryableStateClient(*peer.address, serializers=[ReversedText()]) as client:
        assert client.get("job", "state", "JFK").value() == "abc"


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_a_request_without_a_finite_timeout_is_refused(client: QueryableStateClient, timeout_s: float) -> None:
    with pytest.raises(ConfigError):
        client.get("job", "state", "JFK", timeout_s=timeout_s)


def test_64_threads_share_one_connection_and_never_mix_up_answers(client: QueryableStateClient, peer: Peer) -> None:
    def ask(worker: int) -> list[tuple[str, str]]:
        found = []
        for number in range(40):
            key = f"{worker}-{number}"
            if number % 4:
                found.append((key, client.get("job", "state", key).value()))
            else:
                many = client.get_many("job", "state", [key, f"{key}-other"])
                found += [(asked, view.value()) for asked, view in many.items()]
        return found

    with ThreadPoolExecutor(64) as threads:
        answers = [pair for found in threads.map(ask, range(64)) for pair in found]
    assert len(answers) == 64 * 50
    assert all(key == value for key, value in answers)
    assert peer.connections == 1


def test_a_thread_that_gives_up_loses_no_answer_of_the_others(peer: Peer) -> None:
    release = threading.Event()

    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Get) and request.keys == ("stuck",):
            return []
        if isinstance(request, Get):
            release.wait(10)
        return peer.honest(request)

    peer.script = script
    with QueryableStateClient(*peer.address) as client, ThreadPoolExecutor(9) as threads:
        client.ping()
        leader = threads.submit(client.get, "job", "state", "stuck", timeout_s=0.3)
        others = [threads.submit(client.get, "job", "state", f"key-{number}") for number in range(8)]
        with pytest.raises(DeadlineExceeded):
            leader.result(10)
        release.set()
        assert [other.result(10).value() for other in others] == [f"key-{number}" for number in range(8)]


def test_threads_that_wait_for_one_future_all_get_its_result(client: QueryableStateClient) -> None:
    future = client.submit("job", "state", "JFK")
    with ThreadPoolExecutor(8) as threads:
        assert [view.value() for view in threads.map(lambda _: future.result(), range(8))] == ["JFK"] * 8


def test_close_wakes_all_waiters_with_closed_error(peer: Peer) -> None:
    asked = threading.Semaphore(0)

    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Ping):
            asked.release()
            return []
        return peer.honest(request)

    peer.script = script
    client = QueryableStateClient(*peer.address)
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(client.ping) for _ in range(8)]
        for _ in waiting:
            assert asked.acquire(timeout=10)
        client.close()
        for waiter in waiting:
            with pytest.raises(ClosedError):
                waiter.result(10)


def test_use_after_close_is_closed_error_and_close_is_idempotent(peer: Peer) -> None:
    client = QueryableStateClient(*peer.address)
    future = client.submit("job", "state", "JFK")
    client.close()
    client.close()
    uses: list[Callable[[], Any]] = [
        lambda: client.get("job", "state", "JFK"),
        lambda: client.get_many("job", "state", ["JFK"]),
        lambda: client.submit("job", "state", "JFK"),
        client.jobs,
        lambda: client.states("job"),
        client.ping,
        future.result,
    ]
    for use in uses:
        with pytest.raises(ClosedError):
            use()


def open_files() -> int:
    return len(list(OPEN_FILES.iterdir()))


@pytest.mark.skipif(not OPEN_FILES.exists(), reason="counts open files by /proc")
def test_close_frees_every_file_and_no_thread_was_made(peer: Peer) -> None:
    with QueryableStateClient(*peer.address) as warm:
        warm.ping()
    files, threads = open_files(), threading.active_count()
    client = QueryableStateClient(*peer.address)
    client.get("job", "state", "JFK")
    assert threading.active_count() <= threads + 1  # the peer's thread for the connection
    client.close()
    peer.drop_connections()
    poll_until(lambda: open_files() <= files)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_refused_and_the_parent_continues(client: QueryableStateClient) -> None:
    client.get("job", "state", "JFK")
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Newer interpreters warn of forking beside threads (the peer's): this child only checks and exits.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            client.get("job", "state", "JFK")
        except BaseException as exc:
            os.write(writer, pickle.dumps(type(exc)))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert pickle.loads(pipe.read()) is ClosedError
    assert client.get("job", "state", "LGA").value() == "LGA"


def test_many_unread_futures_do_not_accumulate_without_bound(peer: Peer) -> None:
    with QueryableStateClient(*peer.address) as client:
        client.ping()
        key = "k" * 50_000
        futures = [client.submit("job", "state", key) for _ in range(400)]
        assert all(future.result().value() == key for future in futures)


def poll_until(holds: Callable[[], bool]) -> None:
    """Wait for a condition that has no event, for a bounded time."""
    pause = threading.Event()
    for _ in range(1000):
        if holds():
            return
        pause.wait(0.01)
    raise AssertionError("did not come true within 10 s")
