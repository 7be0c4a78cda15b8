"""Dead connections: one that nobody has closed, and on which nothing comes any more, takes no more requests.

Short deadlines must not hide a death: each law asks over and over, with less time than a server may be silent.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial

from qstate_conformance.client import frames
from qstate_conformance.client.driver import GRACE_S, Client, driver_for
from qstate_conformance.client.peer import Connection, Peer
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import client_of, connection, declares, has_left, needs
from qstate_conformance.laws import law
from qstate_conformance.subjects import ClientSubject

#: How long nothing may come before the connection counts as dead (P-DEADLINE-5).
SILENCE_S = 1.0
SHORT_S = 0.2
LONGER_S = 1.5
IN_VAIN = {"DEADLINE_EXCEEDED", "UNAVAILABLE"}


@law("P-DEADLINE-5", "P-DEADLINE-4", "P-RETRY-5", "P-HELLO-7")
def test_a_dead_connection_is_given_up(subject: ClientSubject) -> None:
    """A connection on which nothing comes, or no Welcome, is left after a second; later requests have a new one."""
    with ExitStack() as stack:
        peer, unwelcome = stack.enter_context(Peer()), stack.enter_context(Peer(greet=_welcomes_the_second))
        client = stack.enter_context(client_of(subject, peer))
        other = stack.enter_context(client_of(subject, unwelcome, timeout_s=SHORT_S))
        assert client.get("before").value == "before"
        _fall_silent(peer)
        # A request that has more time may wait for it on the old connection, and keeps no other there.
        waiting = client.start_get("waiting", namespace=1, timeout_s=LONGER_S) if declares(subject, "async") else None
        _are_answered_again(subject, (peer, client), (unwelcome, other))
        if waiting is not None:
            outcome = waiting.outcome()
            assert outcome.code in IN_VAIN or outcome.value == "waiting", outcome
        for side in (peer, unwelcome):
            assert has_left(side, connection(side)), "the client keeps a dead connection on which no request waits"


@law("P-DEADLINE-5", "P-DEADLINE-4", "P-ROUTE-1")
def test_a_dead_connection_to_an_owner_is_given_up(subject: ClientSubject) -> None:
    """A connection to an owner on which nothing comes any more is left, and later requests have a new one."""
    needs(subject, "direct")
    with Peer() as proxy, Peer() as owner:
        proxy.answer = partial(_located_at, proxy, owner)
        with client_of(subject, proxy, direct=True) as client:
            assert client.get("before").value == "before"
            _fall_silent(owner)
            _are_answered_again(subject, (proxy, client))
            assert has_left(owner, connection(owner)), "the client keeps the dead connection open"


def _welcomes_the_second(made: Connection) -> Iterable[object]:
    return [frames.welcome()] if made.number else []


def _located_at(proxy: Peer, owner: Peer, request: Request) -> Iterable[object]:
    if request.type == frames.LOCATE:
        return [frames.location(request.id, proxy.states["state"], [owner.owner()])]
    return [] if request.type == frames.GET else proxy.explain(request)


def _fall_silent(peer: Peer) -> None:
    """Answer nothing any more on the connections that there are, and leave them open."""
    dead = len(peer.connections)
    peer.answer = lambda request: [] if request.connection < dead else peer.honest(request)


def _are_answered_again(subject: ClientSubject, *left: tuple[Peer, Client]) -> None:
    """Ask each client until it has an answer: each has one as soon as its connection was silent for long enough."""
    until = time.monotonic() + SILENCE_S + GRACE_S
    with driver_for(subject.command) as driver:
        while left:
            assert time.monotonic() < until, f"after {SILENCE_S + GRACE_S:.0f} s, a dead connection is still in use"
            # One that connects when it is opened could not be opened.
            asked = [
                (peer, client if client.number is not None else driver.open(peer.address, timeout_s=SHORT_S))
                for peer, client in left
            ]
            opened = [(peer, client) for peer, client in asked if client.number is not None]
            pending = [client.start_get("afterwards", timeout_s=SHORT_S) for _, client in opened]
            outcomes = [operation.outcome() for operation in pending]
            assert all(outcome.found or outcome.code in IN_VAIN for outcome in outcomes), outcomes
            answered = [peer for (peer, _), outcome in zip(opened, outcomes, strict=True) if outcome.found]
            left = tuple((peer, client) for peer, client in asked if peer not in answered)
