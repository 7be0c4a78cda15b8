"""Clients without options: they ask the owners that they have reached, and the proxy for the keys of the others."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from qstate.errors import Unavailable
from qstate.keys import key_group
from qstate.protocol.messages import Get, Locate, Location
from qstate.runtime.client.state_cache import MOST_OWNERS
from tests.runtime.client.peer import STATE_ID, VALUE_STATE, Peer, Reply
from tests.runtime.client.real_job import MakeClient

#: More gets than any of these tests needs until a client has connected to an owner; a client that waits a second before
#: it tries again needs some thousands of them.
PATIENCE = 200_000
KEYS = [f"key-{number}" for number in range(40)]


def owned_by(proxy: Peer, owners: Callable[[], list[Any]]) -> None:
    """Have the proxy answer Locates with these owners: rows of start, stop, host and port."""

    def script(request: Any) -> Iterable[Reply]:
        if not isinstance(request, Locate):
            return proxy.honest(request)
        return [Location(request.id, proxy.state, 128, tuple((*row, STATE_ID) for row in owners()))]

    proxy.script = script


def gets(peer: Peer) -> list[Get]:
    return [request for request in peer.requests if isinstance(request, Get)]


def located(peer: Peer) -> int:
    return len([request for request in peer.requests if isinstance(request, Locate)])


def get_until(client: Any, reached: Callable[[], object], key: str = "JFK") -> None:
    """Get a value again and again until something holds. No get may fail."""
    for _ in range(PATIENCE):
        if reached():
            return
        assert client.get("job", "state", key).value() == key
    raise AssertionError("it never came to hold")


@pytest.fixture
def proxy() -> Iterator[Peer]:
    with Peer() as proxy:
        yield proxy


@pytest.fixture
def owner() -> Iterator[Peer]:
    with Peer() as owner:
        yield owner


@pytest.fixture
def gone() -> tuple[str, int]:
    """An address that refuses connections."""
    with Peer() as gone:
        return gone.address


@pytest.fixture
def mute() -> Iterator[tuple[str, int]]:
    """An address that takes connections and never sends anything."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()


def test_owners_are_asked_once_they_are_connected(make: MakeClient, proxy: Peer, owner: Peer) -> None:
    owned_by(proxy, lambda: [(0, 128, *owner.address)])
    with make(proxy.address) as client:
        get_until(client, lambda: gets(owner))
        through_the_proxy = len(gets(proxy))
        for key in KEYS:
            assert client.get("job", "state", key).value() == key
    assert len(gets(proxy)) == through_the_proxy
    assert {get.target for get in gets(owner)} == {STATE_ID}
    assert located(proxy) == 1


@pytest.mark.parametrize("which", ["gone", "mute", "no such host"])
def test_the_proxy_is_asked_where_owners_cannot_be_reached(
    make: MakeClient, proxy: Peer, which: str, request: pytest.FixtureRequest
) -> None:
    """No get waits for a connection to an owner, not even the first one."""
    address = ("owner.invalid", 9067) if which == "no such host" else request.getfixturevalue(which)
    owned_by(proxy, lambda: [(0, 128, *address)])
    with make(proxy.address, timeout_s=5.0) as client:
        for key in KEYS:
            assert client.get("job", "state", key, timeout_s=2.0).value() == key
        assert {key: view.value() for key, view in client.get_many("job", "state", KEYS).items()} == dict(
            zip(KEYS, KEYS, strict=True)
        )
    assert {get.target for get in gets(proxy)} == {("job", "state")}
    assert located(proxy) < 5


def test_keys_of_owners_that_cannot_be_reached_share_a_request(
    make: MakeClient, proxy: Peer, owner: Peer, gone: tuple[str, int]
) -> None:
    rows = [(start, start + 16, *(owner.address if start == 32 else gone)) for start in range(0, 128, 16)]
    owned_by(proxy, lambda: rows)
    reached = next(key for key in KEYS if 32 <= key_group(key, 128) < 48)
    with make(proxy.address) as client:
        get_until(client, lambda: gets(owner), reached)
        before = len(gets(proxy))
        found = client.get_many("job", "state", KEYS)
    assert [view.value() for view in found.values()] == KEYS
    assert len(gets(proxy)) == before + 1
    assert all(32 <= key_group(key, 128) < 48 for get in gets(owner) for key in get.keys)


def test_while_an_owner_is_gone_the_proxy_is_asked_and_then_its_successor(make: MakeClient, proxy: Peer) -> None:
    with ExitStack() as stack:
        place = stack.enter_context(Peer())
        owned_by(proxy, lambda: [(0, 128, *place.address)])
        client = stack.enter_context(make(proxy.address))
        get_until(client, lambda: gets(place))
        place.close()
        place.await_gone()
        before = len(gets(proxy))
        for key in KEYS:
            assert client.get("job", "state", key).value() == key
        assert len(gets(proxy)) == before + len(KEYS)
        place = stack.enter_context(Peer())
        get_until(client, lambda: gets(place))


def test_a_get_under_which_its_owner_dies_is_not_sent_again(make: MakeClient, proxy: Peer, owner: Peer) -> None:
    owned_by(proxy, lambda: [(0, 128, *owner.address)])
    with make(proxy.address) as client:
        get_until(client, lambda: gets(owner))
        before = len(gets(proxy))
        owner.script = lambda request: owner.drop_connections() or []
        with pytest.raises(Unavailable):
            client.get("job", "state", "poison")
        assert len(gets(proxy)) == before
        assert client.get("job", "state", "JFK").value() == "JFK"


def test_owners_are_asked_while_the_proxy_is_gone(make: MakeClient, owner: Peer) -> None:
    with Peer() as proxy:
        owned_by(proxy, lambda: [(0, 128, *owner.address)])
        with make(proxy.address) as client:
            get_until(client, lambda: gets(owner))
            proxy.close()
            proxy.await_gone()
            for key in KEYS:
                assert client.get("job", "state", key).value() == key


def test_a_client_connects_to_a_bounded_number_of_owners(make: MakeClient, proxy: Peer) -> None:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(MOST_OWNERS + 30)]
        rows = [(group, group + 1, *one.getsockname()) for group, one in enumerate(listeners)]
        proxy.script = lambda request: (
            [Location(request.id, VALUE_STATE, 1000, tuple((*row, STATE_ID) for row in rows))]
            if isinstance(request, Locate)
            else proxy.honest(request)
        )
        gaps = len(listeners)
        keys = [key for key in map(str, range(2000)) if key_group(key, 1000) < gaps]
        with make(proxy.address) as client:
            assert [view.value() for view in client.get_many("job", "state", keys).values()] == keys
            arrived = 0
            for listener in listeners:
                listener.setblocking(False)
                try:
                    listener.accept()[0].close()
                except BlockingIOError:
                    continue
                arrived += 1
    assert arrived == MOST_OWNERS
