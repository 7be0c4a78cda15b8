"""A lost connection fails the requests that were sent over it and removes the cached states, and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgpack
import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import DeadlineExceeded, FailureCode, Unavailable, UnknownKeyGroupLocation
from qstate.protocol.messages import Describe, Failure, Get, Locate, Ping, Values
from qstate.runtime.client.state_cache import Way
from tests.runtime.client.peer import CLOSE, FINGERPRINT, STATE_ID, VALUE_STATE, Peer, Reply
from tests.runtime.client.real_job import Asked

PATIENCE_S = 20.0
COMMITTED = "committed"
DIRECT = {"reached": None, "proxy": False, "direct": True}
MakeClient = Callable[..., Any]


@pytest.fixture(params=[f"{kind} {way}" for kind in ("sync", "asyncio") for way in ("reached", "proxy", "direct")])
def make(request: pytest.FixtureRequest) -> MakeClient:
    kind, way = request.param.split()

    def client(peer: Peer, **options: Any) -> Any:
        options = {"direct": DIRECT[way], **options}
        return QueryableStateClient(*peer.address, **options) if kind == "sync" else Asked(peer.address, **options)

    return client


def of_type(peer: Peer, kind: type) -> list[Any]:
    return [request for request in peer.requests if isinstance(request, kind)]


def closes_under(kind: type, peer: Peer) -> Callable[[Any], Iterable[Reply]]:
    return lambda request: [CLOSE] if isinstance(request, kind) else peer.honest(request)


@pytest.mark.parametrize("kind", [Locate, Describe, Ping])
def test_every_request_whose_connection_breaks_is_sent_once(make: MakeClient, kind: type) -> None:
    ask: dict[type, Callable[[Any], Any]] = {
        Locate: lambda client: client.get("job", "state", "JFK"),
        Describe: lambda client: client.states("job"),
        Ping: lambda client: client.ping(),
    }
    with Peer() as peer, make(peer) as client:
        peer.requests.clear()
        peer.script = closes_under(kind, peer)
        with pytest.raises(Unavailable):
            ask[kind](client)
        assert len(of_type(peer, kind)) == 1


@pytest.mark.parametrize("many", [False, True])
def test_a_committed_get_whose_connection_breaks_does_not_go_to_a_fallback(make: MakeClient, many: bool) -> None:
    with Peer() as job, Peer() as standby, make(job, fallback=[standby.address]) as client:
        assert client.get("job", "state", "warm", isolation=COMMITTED).value() == "warm"
        job.script = closes_under(Get, job)
        with pytest.raises(Unavailable):
            if many:
                client.get_many("job", "state", ["poison", "more"], isolation=COMMITTED)
            else:
                client.get("job", "state", "poison", isolation=COMMITTED)
        assert of_type(standby, Get) == []
        assert client.get("job", "state", "JFK", isolation=COMMITTED).value() == "JFK"
        assert [get.keys for get in of_type(standby, Get)] == [("JFK",)]


@pytest.mark.parametrize("code", [FailureCode.SHUTTING_DOWN, FailureCode.OVERLOADED])
def test_a_server_that_sends_a_close_notice_is_asked_again(make: MakeClient, code: FailureCode) -> None:
    with Peer() as peer:
        peer.script = lambda request: (
            [Failure(0, code, {}), CLOSE]
            if isinstance(request, Get) and len(of_type(peer, Get)) == 1
            else peer.honest(request)
        )
        with make(peer) as client:
            assert client.get("job", "state", "JFK").value() == "JFK"
        assert len(of_type(peer, Get)) == 2


def test_a_connection_that_was_closed_between_two_requests_fails_neither(make: MakeClient) -> None:
    with Peer() as peer, make(peer) as client:
        for number in range(20):
            assert client.get("job", "state", f"{number}").value() == f"{number}"
            peer.drop_connections()
            peer.await_gone()
        assert len(of_type(peer, Get)) == 20


def test_an_unreachable_owner_counts_as_no_owner(make: MakeClient) -> None:
    with Peer() as gone:
        port = gone.address[1]
    with Peer() as peer:
        peer.script = lambda request: (
            [peer.location(request)._replace(owners=((0, 128, "127.0.0.1", port, STATE_ID),))]
            if isinstance(request, Locate)
            else peer.honest(request)
        )
        with make(peer) as client:
            if not client_is_direct(client):
                return
            with pytest.raises(UnknownKeyGroupLocation, match=str(port)):
                client.get("job", "state", "JFK", timeout_s=0.3)


def client_is_direct(client: Any) -> bool:
    inner = client._client if isinstance(client, Asked) else client
    return bool(inner._links.states.way is Way.OWNERS)


#: A description that differs from that of other peers.
REDUCING = {**VALUE_STATE, "kind": "reducing", "fingerprint": "of another description"}


@pytest.mark.parametrize("way", [f"{kind} {way}" for kind in ("sync", "asyncio") for way in DIRECT])
@pytest.mark.parametrize("many", [1, 3])
def test_a_value_is_decoded_by_its_own_description(way: str, many: int) -> None:
    with Peer() as first:
        port = first.address[1]
        with make_client(way, first) as client:
            kinds = [type(client.get("job", "state", "JFK")).__name__]
            first.close()
            with Peer(port=port, state=REDUCING):
                if many == 1:
                    kinds.append(type(client.get("job", "state", "JFK")).__name__)
                else:
                    found = client.get_many("job", "state", [f"{number}" for number in range(many)])
                    kinds += {type(view).__name__ for view in found.values()}
    assert kinds == ["ReadOnlyValueState", "ReadOnlyReducingState"]


def make_client(way: str, peer: Peer, **options: Any) -> Any:
    kind, which = way.split()
    options = {"direct": DIRECT[which], **options}
    return QueryableStateClient(*peer.address, **options) if kind == "sync" else Asked(peer.address, **options)


def test_gets_made_while_the_connection_is_dead_are_decoded_by_the_new_description() -> None:
    async def ask() -> set[str]:
        async with await AsyncQueryableStateClient.connect(host, port) as client:
            await client.get("job", "state", "warm")
            first.close()  # the loop has not run since, so the client has not noticed
            second.start()
            views = await asyncio.gather(*(client.get("job", "state", f"{number}") for number in range(40)))
            return {type(view).__name__ for view in views}

    class Second:
        def start(self) -> None:
            self.peer = Peer(port=port, state=REDUCING)

    with Peer() as first:
        host, port = first.address
        second = Second()
        try:
            assert asyncio.run(ask()) == {"ReadOnlyReducingState"}
        finally:
            second.peer.close()


def test_a_direct_client_keeps_a_location_when_the_proxy_ends() -> None:
    with Peer() as owner, Peer() as proxy:
        proxy.script = owner_script(proxy, owner)
        for way in ("sync direct", "asyncio direct"):
            with make_client(way, proxy) as client:
                assert client.get("job", "state", "JFK").value() == "JFK"
                proxy.drop_connections()
                proxy.requests.clear()
                assert client.get("job", "state", "LGA").value() == "LGA"
                assert of_type(proxy, Locate) == []


def owner_script(proxy: Peer, owner: Peer, **state: Any) -> Callable[[Any], Iterable[Reply]]:
    return lambda request: (
        [proxy.location(request, **state)._replace(owners=((0, 128, *owner.address, STATE_ID),))]
        if isinstance(request, Locate)
        else proxy.honest(request)
    )


@pytest.mark.parametrize("way", [f"{kind} {way}" for kind in ("sync", "asyncio") for way in DIRECT])
def test_the_server_checks_keys_of_another_type(way: str) -> None:
    """The job may have been restarted with keys of another type, so the cached state must not refuse a key."""
    came_back = threading.Event()

    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Get) and came_back.is_set() and request.target == STATE_ID:
            return [Failure(request.id, FailureCode.UNKNOWN_STATE_ID, {})]
        if isinstance(request, Locate) and came_back.is_set():
            peer.state = {**VALUE_STATE, "key_types": ["bigint"], "fingerprint": "of another description"}
            return [peer.location(request)._replace(owners=((0, 128, *peer.address, bytes([1] * 16)),))]
        return peer.honest(request)

    with Peer() as peer:
        peer.script = script
        with make_client(way, peer) as client:
            assert client.get("job", "state", "JFK").value() == "JFK"
            came_back.set()
            assert client.get("job", "state", 7).value() == 7


def test_requests_at_a_silent_peer_keep_waiting_while_later_ones_use_a_new_connection() -> None:
    held: list[Any] = []

    def script(request: Any) -> Iterable[Reply]:
        if isinstance(request, Get) and request.keys[0] in ("slow", "given up"):
            held.append(request)
            return []
        return peer.honest(request)

    with Peer() as peer:
        peer.script = script
        with QueryableStateClient(*peer.address) as client, ThreadPoolExecutor(1) as threads:
            assert client.get("job", "state", "JFK").value() == "JFK"
            slow = threads.submit(client.get, "job", "state", "slow", timeout_s=PATIENCE_S)
            with pytest.raises(DeadlineExceeded):
                client.get("job", "state", "given up", timeout_s=1.5)
            assert client.get("job", "state", "LGA").value() == "LGA"
            assert peer.connections == 2
            peer.send_to(0, Values(held[0].id, (1,), (msgpack.packb("late"),), FINGERPRINT))
            assert slow.result(PATIENCE_S).value() == "late"
            until = time.monotonic() + PATIENCE_S
            while len(client._links.open) > 1 and time.monotonic() < until:
                client.ping()
            assert len(client._links.open) == 1, "no request waits on the silent connection any more"
