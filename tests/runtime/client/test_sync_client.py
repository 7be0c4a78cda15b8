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

import pytest

from qstate.client import QueryableStateClient
from qstate.errors import (
    ClosedError,
    DeadlineExceeded,
)
from qstate.protocol.messages import Get, Locate, Ping
from tests.runtime.client.peer import STATE_ID, Peer, Reply

OPEN_FILES = Path("/proc/self/fd")


@pytest.fixture
def client(peer: Peer, direct: bool | None) -> Iterator[QueryableStateClient]:
    with QueryableStateClient(*peer.address, direct=direct, random=Random(3)) as client:
        yield client


def test_the_target_is_the_name_at_a_proxy_and_the_id_at_a_state_server(
    client: QueryableStateClient, peer: Peer, direct: bool
) -> None:
    client.get("job", "state", "JFK", ("window", 1), "committed")
    locate, get = peer.requests
    assert isinstance(locate, Locate)
    assert get.target == (("job", "state") if direct is False else STATE_ID)
    assert (get.namespace, get.options, get.keys) == (("window", 1), {"isolation": "committed"}, ("JFK",))
    assert 9_000 < get.deadline_ms < 10_000


def test_the_location_is_looked_up_once(client: QueryableStateClient, peer: Peer) -> None:
    for _ in range(3):
        client.get("job", "state", "JFK")
    assert [type(request) for request in peer.requests] == [Locate, Get, Get, Get]


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


def test_the_future_of_a_closed_client_is_closed_error(peer: Peer) -> None:
    with QueryableStateClient(*peer.address) as client:
        future = client.submit("job", "state", "JFK")
    with pytest.raises(ClosedError):
        future.result()


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
