"""Owners that a client has reached, and the proxy for the keys of the others."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from qstate_conformance.client import frames
from qstate_conformance.client.driver import GRACE_S, Client
from qstate_conformance.client.frames import LOCATE
from qstate_conformance.client.peer import JOB, STATE, Peer, Reply
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import client_of, needs
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import law
from qstate_conformance.subjects import ClientSubject

STATE_ID = bytes([7] * 16)
KEYS = [f"key {number}" for number in range(8)]
#: How long a get may take that does not wait for an owner; its deadline is far above.
PROMPT_S = 1.0
#: How long a client may take until it asks an owner that it can reach again: after each failure to reach it, it may
#: wait for longer.
PATIENCE_S = 10.0

Owners = list[tuple[int, int, tuple[str, int]]]


def _located(proxy: Peer, owners: Callable[[], Owners]) -> None:
    """Have the proxy answer Locates with these owners, and everything else honestly."""

    def answer(request: Request) -> Iterable[Reply]:
        if request.type != LOCATE:
            return proxy.honest(request)
        rows = [(start, stop, *address, STATE_ID) for start, stop, address in owners()]
        return [frames.location(request.id, proxy.states[STATE], rows)]

    proxy.answer = answer


@contextmanager
def _reaching(subject: ClientSubject, proxy: Peer) -> Iterator[Client]:
    needs(subject, "reached")
    with client_of(subject, proxy, direct=None) as client:
        yield client


def _everything_at(address: tuple[str, int]) -> Owners:
    return [(0, 128, address)]


def _refuses() -> tuple[str, int]:
    with Peer() as gone:
        return gone.address


def _get_all(client: Client, keys: Iterable[str] = KEYS) -> None:
    for key in keys:
        began = time.monotonic()
        outcome = client.get(key)
        assert outcome.value == key, outcome
        assert time.monotonic() - began < PROMPT_S, f"the get took {time.monotonic() - began:.1f} s"


def _get_until(client: Client, reached: Callable[[], object], what: str) -> None:
    """Get again and again until it holds."""
    until = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < until, f"{what} never comes"
        _get_all(client, KEYS[:1])


@law("P-ROUTE-3")
def test_no_get_waits_for_an_owner_that_cannot_be_reached(subject: ClientSubject) -> None:
    """While owners refuse connections, or take them and say nothing, the proxy is asked, from the first get on."""
    with ExitStack() as stack:
        mute = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()
        for address in (_refuses(), mute):
            with Peer() as proxy:
                _located(proxy, partial(_everything_at, address))
                with _reaching(subject, proxy) as client:
                    _get_all(client)
                assert {tuple(get.target) for get in proxy.gets} == {(JOB, STATE)}
                assert proxy.faults == []


@law("P-ROUTE-3", "P-ROUTE-2")
def test_an_owner_is_asked_once_it_is_reached(subject: ClientSubject) -> None:
    """Once a client has a connection to an owner, it asks the owner itself, by its state id, after one Locate."""
    with Peer() as proxy, Peer() as owner:
        _located(proxy, lambda: [(0, 128, owner.address)])
        with _reaching(subject, proxy) as client:
            _get_until(client, lambda: owner.gets, "a Get at the owner")
            before = len(proxy.gets)
            _get_all(client)
        assert len(proxy.gets) == before, "the proxy is asked for keys of an owner that is reached"
        assert {get.target for get in owner.gets} == {STATE_ID}
        assert len(proxy.of_type(LOCATE)) == 1
        assert owner.faults == proxy.faults == []


@law("P-ROUTE-3", "P-KEY-4")
def test_each_key_goes_to_its_owner_or_to_the_proxy(subject: ClientSubject) -> None:
    """When some owners are reached and others are not, each key is asked for where its owner is reached or not."""
    lower = {key for key in KEYS if group_of(key, 128) < 64}
    assert 0 < len(lower) < len(KEYS)
    with Peer() as proxy, Peer() as owner:
        _located(proxy, lambda: [(0, 64, owner.address), (64, 128, _refuses())])
        with _reaching(subject, proxy) as client:
            until = time.monotonic() + GRACE_S
            while not owner.gets and time.monotonic() < until:
                _get_all(client)
            _get_all(client)
        assert {key for get in owner.gets for key in get.keys} == lower
        assert {key for get in proxy.gets for key in get.keys} >= set(KEYS) - lower


@law("P-ROUTE-3", "P-ROUTE-1")
def test_the_proxy_is_asked_while_an_owner_is_gone(subject: ClientSubject) -> None:
    """When the connection to an owner ends, the proxy is asked until the client has reached the next owner."""
    with ExitStack() as stack:
        proxy, owner = stack.enter_context(Peer()), stack.enter_context(Peer())
        _located(proxy, lambda: [(0, 128, owner.address)])
        client = stack.enter_context(_reaching(subject, proxy))
        _get_until(client, lambda: owner.gets, "a Get at the owner")
        owner.close()
        before = len(proxy.gets)
        _get_all(client)
        assert len(proxy.gets) == before + len(KEYS)
        owner = stack.enter_context(Peer())
        _get_until(client, lambda: owner.gets, "a Get at the next owner")
