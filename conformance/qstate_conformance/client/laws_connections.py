"""Connections that end, or are dead: what that means for requests in flight, and that later ones have another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import cycle

from qstate_conformance.client import frames
from qstate_conformance.client.driver import GRACE_S
from qstate_conformance.client.frames import CODES
from qstate_conformance.client.peer import CLOSE, HANG_UP, STATE, Connection, Peer, state_map
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import (
    BRIEFLY_S,
    MOMENT_S,
    OWN_SERIALIZER,
    answering_gets,
    are_answered_again,
    assert_growing,
    client_of,
    connection,
    declares,
    fall_silent,
    has_left,
    keeps_working,
    needs,
)
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.subjects import ClientSubject

MARK = "after the end"
#: More often than a client may have been made to bear.
OFTEN = 21


@law("P-CLOSE-1", "P-RETRY-5", "P-BROKEN-3")
def test_a_connection_that_was_closed_while_idle_is_made_again(subject: ClientSubject) -> None:
    """After the server has closed an idle connection, orderly or not, later requests are answered."""
    for rough in (False, True):
        with Peer() as peer, client_of(subject, peer) as client:
            for number in range(3):
                keeps_working(subject, peer, client, f"key {number}")
                for made in peer.connections:
                    made.hang_up() if rough else made.close()
            keeps_working(subject, peer, client)
            assert len(peer.connections) >= 2


@law("P-RETRY-6", "P-BROKEN-2", "P-CLOSE-1")
def test_a_client_connects_again_as_often_as_it_has_to(subject: ClientSubject) -> None:
    """After any number of closed, reset or broken connections, a later request has a new one."""
    ends: Iterator[Callable[[Connection], None]] = cycle(
        [Connection.close, Connection.hang_up, lambda made: made.send(frames.frame(b"\xc1"))]
    )
    with Peer() as peer, client_of(subject, peer) as client:
        for number in range(OFTEN):
            keeps_working(subject, peer, client, f"key {number}")
            end = next(ends)
            for made in peer.connections:
                end(made)
        keeps_working(subject, peer, client)
        assert len(peer.connections) > OFTEN


@law("P-RETRY-6", "P-HELLO-7", "P-RETRY-1")
def test_a_server_that_turned_a_client_away_often_is_tried_again(subject: ClientSubject) -> None:
    """After any number of connections that ended before their Welcome, a later request has a new one."""
    with Peer() as peer, client_of(subject, peer) as client:
        assert client.get("before").value == "before"
        welcomed = len(peer.connections)
        peer.greet = lambda made: [CLOSE] if made.number < welcomed + OFTEN else [frames.welcome()]
        for made in peer.connections:
            made.close()
        for _ in range(OFTEN):
            if len(peer.connections) < welcomed + OFTEN:
                client.get("meanwhile", timeout_s=MOMENT_S)
        keeps_working(subject, peer, client)


@law("P-RETRY-5", "P-CLOSE-1", "P-RETRY-1")
def test_a_request_under_which_the_connection_ends_is_unavailable_and_not_sent_again(subject: ClientSubject) -> None:
    """A Get whose connection ends is UNAVAILABLE at once, and is not sent again. Later Gets are sent."""
    for end in (CLOSE, HANG_UP):
        for known in (True, False):
            with Peer() as peer:
                answering_gets(peer, partial(_poisoned, peer, end))
                with client_of(subject, peer) as client:
                    if known:
                        assert client.get("before").value == "before"
                    began = time.monotonic()
                    outcome = client.get("poison", timeout_s=2 * GRACE_S)
                    assert outcome.code == "UNAVAILABLE", outcome
                    assert time.monotonic() - began < GRACE_S, "the client waited although it must not try again"
                    keeps_working(subject, peer, client)
                sent = [get for get in peer.gets if "poison" in get.keys]
                assert len(sent) == 1, f"a Get under which the connection ended was sent {len(sent)} times"


@law("P-RETRY-5", "P-CLOSE-1")
def test_requests_in_flight_together_end_with_their_connection(subject: ClientSubject) -> None:
    """Of several requests in flight on a connection that ends, each is UNAVAILABLE and none is sent again."""
    needs(subject, "async")
    with Peer() as peer:
        answering_gets(peer, lambda request: [] if request.namespace is not None else peer.honest(request))
        with client_of(subject, peer) as client:
            assert client.get("before").value == "before"
            pending = [client.start_get(f"key {number}", namespace=number) for number in range(5)]
            held = [get for get in peer.gets if get.namespace is not None]
            assert peer.wait_for(lambda: sum(get.namespace is not None for get in peer.gets) >= 5, GRACE_S), held
            for made in peer.connections:
                made.close()
            outcomes = [operation.outcome() for operation in pending]
            assert [outcome.code for outcome in outcomes] == ["UNAVAILABLE"] * 5, outcomes
            keeps_working(subject, peer, client)
        assert sum(get.namespace is not None for get in peer.gets) == 5, "a Get was sent again"


#: The state of a law's peer when it has come back as another one, and its fingerprint.
ANOTHER_FINGERPRINT = "8796a5b4c3d2e1f0"
ANOTHER_STATE = {STATE: state_map(serializer=OWN_SERIALIZER, fingerprint=ANOTHER_FINGERPRINT)}


def _answering_as_another(request: Request) -> Iterable[bytes]:
    reversed_texts = [key[::-1].encode() for key in request.keys]
    return [frames.values(request.id, reversed_texts, fingerprint=ANOTHER_FINGERPRINT)]


@law("P-DESC-5", "P-VALUE-3")
def test_a_value_is_read_by_the_description_whose_fingerprint_it_has(subject: ClientSubject) -> None:
    """When values have another fingerprint, a client looks the state up and asks again, over whatever connection."""
    needs(subject, "serializer", "retry")
    for end in ("no end", "shutdown", "closed"):
        with Peer() as peer, client_of(subject, peer) as client:
            assert client.get("before").value == "before"
            peer.states = ANOTHER_STATE
            answering_gets(peer, _answering_as_another)
            for made in list(peer.connections) if end != "no end" else ():
                if end == "shutdown":
                    made.send(frames.failure(0, CODES["SHUTTING_DOWN"]))
                made.close()
            if end != "no end":
                # Longer than a client may take to notice it, and than one may trust a connection just used.
                time.sleep(MOMENT_S * 3)
            keeps_working(subject, peer, client, "afterwards")
            assert client.get("again").value == "again"


@law("P-DESC-5", "P-RETRY-1", "P-RETRY-2")
def test_values_of_a_description_that_nobody_tells_are_not_given_away(subject: ClientSubject) -> None:
    """Values whose fingerprint no Location has are no result: the get fails by its deadline, after growing waits."""
    with Peer() as peer, client_of(subject, peer) as client:
        answering_gets(peer, lambda request: [frames.values(request.id, [b"\x01"], fingerprint="of nobody")])
        assert client.get("key", timeout_s=1.0).failed
        assert_growing([get.at for get in peer.gets])
        answering_gets(peer, peer.honest)
        keeps_working(subject, peer, client)


@law("P-FAIL-3", "P-CLOSE-3")
def test_a_failure_of_the_connection_makes_requests_in_flight_unavailable(subject: ClientSubject) -> None:
    """After a Failure of id 0 with any code, the client retries requests in flight, or reports them as UNAVAILABLE."""
    for name, code in {**CODES, "an unknown code": 4711}.items():
        if name in ("SHUTTING_DOWN", "OVERLOADED"):
            continue
        outcome = _after_failure_of_the_connection(subject, code)
        assert outcome in ("UNAVAILABLE", "answered"), f"after a Failure of id 0 with {name}, the request is {outcome}"


@law("P-FAIL-3", "P-CLOSE-2", "P-CLOSE-3")
def test_a_server_that_goes_away_or_is_too_busy_is_told_as_that(subject: ClientSubject) -> None:
    """After a Failure of id 0 with SHUTTING_DOWN or OVERLOADED, requests in flight are treated by that code."""
    for name in ("SHUTTING_DOWN", "OVERLOADED"):
        outcome = _after_failure_of_the_connection(subject, CODES[name])
        assert outcome in (name, "answered"), f"after a Failure of id 0 with {name}, the request is {outcome}"


def _after_failure_of_the_connection(subject: ClientSubject, code: int) -> str:
    """The request's code, or `answered`. What the server says after the Failure must be ignored."""
    with Peer() as peer:
        answering_gets(
            peer,
            lambda request: _first(
                peer, [frames.failure(0, code) + frames.values(request.id, [pack(MARK)]), CLOSE], request
            ),
        )
        with client_of(subject, peer) as client:
            outcome = client.get("key")
            assert outcome.value != MARK, "the client took an answer after a Failure of id 0"
            keeps_working(subject, peer, client)
    return outcome.code or ("answered" if outcome.value == "key" else str(outcome))


@law("P-CLOSE-3", "P-FAIL-3")
def test_a_connection_with_a_failure_of_its_own_is_not_used_again(subject: ClientSubject) -> None:
    """After a Failure of id 0 the client sends nothing more on that connection, also when the server leaves it open."""
    with Peer() as peer:
        answering_gets(peer, partial(_first, peer, [frames.failure(0, CODES["INTERNAL"])]))
        with client_of(subject, peer) as client:
            client.get("key")
            keeps_working(subject, peer, client)
            assert peer.gets[0].connection not in [get.connection for get in peer.gets[1:]]
            assert has_left(peer, connection(peer, peer.gets[0].connection)), "the client keeps the connection open"


@law("P-DEADLINE-5", "P-DEADLINE-4", "P-RETRY-5", "P-HELLO-7")
def test_a_dead_connection_is_given_up(subject: ClientSubject) -> None:
    """A client gives up a connection that is silent for a second, or has no Welcome; later requests have a new one."""
    with ExitStack() as stack:
        peer, unwelcome = stack.enter_context(Peer()), stack.enter_context(Peer(greet=_welcomes_the_second))
        client = stack.enter_context(client_of(subject, peer))
        other = stack.enter_context(client_of(subject, unwelcome, timeout_s=BRIEFLY_S))
        assert client.get("before").value == "before"
        fall_silent(peer)
        # A request that has more time may wait for it on the old connection, and keeps no other there.
        waiting = client.start_get("waiting", namespace=1, timeout_s=1.5) if declares(subject, "async") else None
        are_answered_again(subject, (peer, client), (unwelcome, other))
        if waiting is not None:
            outcome = waiting.outcome()
            assert outcome.code in ("DEADLINE_EXCEEDED", "UNAVAILABLE") or outcome.value == "waiting", outcome
        for side in (peer, unwelcome):
            assert has_left(side, connection(side)), "the client keeps a dead connection on which no request waits"


def _welcomes_the_second(made: Connection) -> Iterable[object]:
    return [frames.welcome()] if made.number else []


@law("P-CLOSE-1")
def test_close_ends_the_requests_in_flight(subject: ClientSubject) -> None:
    """Closing a client ends its requests in flight, by their deadline at the latest, and its connections."""
    needs(subject, "async")
    with Peer() as peer:
        answering_gets(peer, lambda request: [])
        with client_of(subject, peer) as client:
            pending = [client.start_get(f"key {number}", namespace=number, timeout_s=0.5) for number in range(5)]
            assert peer.wait_for(lambda: bool(peer.gets), GRACE_S)
            client.close()
            assert all(operation.outcome().failed for operation in pending)
        assert all(has_left(peer, made) for made in peer.connections)


@law("P-CLOSE-1")
def test_close_leaves_no_connection(subject: ClientSubject) -> None:
    """Closing a client closes its connections. Closing it twice is no failure."""
    with Peer() as peer:
        with client_of(subject, peer) as client:
            assert client.get("key").value == "key"
            client.close()
            began = time.monotonic()
            assert all(has_left(peer, made) for made in peer.connections)
            assert time.monotonic() - began < GRACE_S
            assert client.get("key").failed
        assert peer.faults == []


def _poisoned(peer: Peer, end: object, request: Request) -> Iterable[object]:
    """The end of the connection for a Get of the key `poison`, and honest replies to others."""
    return [end] if "poison" in request.keys else peer.honest(request)


def _first(peer: Peer, replies: list[object], request: Request) -> Iterable[object]:
    """These replies to the first Get, honest ones to the others."""
    return replies if len(peer.gets) == 1 else peer.honest(request)
