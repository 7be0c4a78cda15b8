"""Deadlines: a request ends in time whatever the server does, and says truthfully how long it waits."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import GRACE_S, Client
from qstate_conformance.client.frames import CODES
from qstate_conformance.client.peer import Peer
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import always, answering_gets, client_of, keeps_working, more_gets_come, needs
from qstate_conformance.laws import law
from qstate_conformance.packing import pack
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

SHORT_S = 0.25
IN_VAIN = {"DEADLINE_EXCEEDED", "UNAVAILABLE"}
LATE = "the late answer"


@law("P-DEADLINE-4")
def test_a_silent_server_does_not_hold_a_request_beyond_its_deadline(subject: ClientSubject) -> None:
    """A request that is never answered ends a little after its deadline, with DEADLINE_EXCEEDED or UNAVAILABLE."""
    with Peer() as peer:
        answering_gets(peer, lambda request: [])
        with client_of(subject, peer) as client:
            assert client.get("key", timeout_s=SHORT_S).code in IN_VAIN
            assert client.get("key", timeout_s=SHORT_S).code in IN_VAIN


@law("P-DEADLINE-4")
def test_a_server_that_never_welcomes_does_not_hold_a_request(subject: ClientSubject) -> None:
    """A request to a server that never answers the Hello ends a little after its deadline."""
    with Peer(greet=always()) as peer, client_of(subject, peer, timeout_s=SHORT_S) as client:
        assert client.get("key", timeout_s=SHORT_S).code in IN_VAIN


@law("P-DEADLINE-4", "P-RETRY-5")
def test_an_answer_that_stops_half_way_does_not_hold_a_request(subject: ClientSubject) -> None:
    """A request whose answer stops anywhere in its frame ends a little after its deadline."""
    whole = frames.values(1, [pack("key")])
    for size in (1, 4, 6, len(whole) - 1):
        with Peer() as peer:
            answering_gets(peer, partial(_cut, size))
            with client_of(subject, peer) as client:
                assert client.get("key", timeout_s=SHORT_S / 2).code in IN_VAIN


def _cut(size: int, request: Request) -> Iterable[object]:
    return [frames.values(request.id, [pack("key")])[:size]]


@law("P-DEADLINE-4")
def test_a_silent_look_up_does_not_hold_a_request(subject: ClientSubject) -> None:
    """A first request ends a little after its deadline also when what the client asks about the state has no answer."""
    with Peer() as peer:
        peer.answer = lambda request: peer.explain(request) if request.type == frames.PING else []
        with client_of(subject, peer) as client:
            assert client.get("key", timeout_s=SHORT_S).code in IN_VAIN
            assert client.describe(timeout_s=SHORT_S).code in IN_VAIN


@law("P-DEADLINE-1", "P-DEADLINE-4")
@examples(0.1)
@given(timeout_ms=st.integers(1000, 30_000))
def test_the_deadline_that_is_sent_is_what_is_left(subject: ClientSubject, timeout_ms: int) -> None:
    """The deadline_ms of a request is the rest of the caller's time: no more, and not much less."""
    with Peer() as peer, client_of(subject, peer) as client:
        assert client.get("key", timeout_s=timeout_ms / 1000).value == "key"
        (get,) = peer.gets
        assert timeout_ms / 4 <= get.deadline_ms <= timeout_ms


@law("P-DEADLINE-1", "P-DEADLINE-4", "P-MSG-6")
def test_a_deadline_of_weeks_is_a_deadline(subject: ClientSubject) -> None:
    """A caller may wait for longer than a timer of 31 bits, or the field of the message, can hold."""
    for timeout_s in (1 << 31) / 1000 + 1, (1 << 32) / 1000 - 1, (1 << 32) / 1000 + 1:
        with Peer() as peer:
            answering_gets(peer, lambda request: [])
            with client_of(subject, peer) as client:
                waiting = client.start_get("key", timeout_s=timeout_s)
                assert peer.wait_for(lambda: bool(peer.gets), GRACE_S), f"with {timeout_s:.0f} s, nothing is sent"
                # What overflows is over at once.
                assert not more_gets_come(peer, 1, 0.05), f"with {timeout_s:.0f} s, the client tries again at once"
                (get,) = peer.gets
                peer.connection_of(get).answer(get, frames.values(get.id, [pack("key")]))
                outcome = waiting.outcome()
                assert outcome.value == "key", f"with {timeout_s:.0f} s: {outcome}"
            assert get.deadline_ms > 1 << 30, f"of {timeout_s:.0f} s, the server gets {get.deadline_ms} ms"
            assert peer.faults == []


@law("P-DEADLINE-1", "P-RETRY-1")
def test_the_deadline_of_a_retry_is_what_is_left_by_then(subject: ClientSubject) -> None:
    """A request that is tried again is sent with a deadline_ms that is shorter by the time that has passed."""
    needs(subject, "retry")
    timeout_ms, pause_ms = 3000, 600
    with Peer() as peer:

        def answer(request: Request) -> Iterable[object]:
            if len(peer.gets) > 1:
                return peer.honest(request)
            return [frames.failure(request.id, CODES["OVERLOADED"], {"retry_after_ms": pause_ms})]

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            assert client.get("key", timeout_s=timeout_ms / 1000).value == "key"
        _, second = peer.gets
        assert second.deadline_ms <= timeout_ms - pause_ms, (
            f"after {pause_ms} of {timeout_ms} ms, {second} says too much"
        )


@law("P-REQ-7", "P-REQ-1")
@examples(0.1)
@given(others=st.integers(1, 5))
def test_a_late_answer_is_dropped_and_its_id_not_used_again(subject: ClientSubject, others: int) -> None:
    """After its deadline a request's id stays in use until the answer comes. The client drops that answer."""
    silent: list[Request] = []
    with Peer() as peer:

        def answer(request: Request) -> Iterable[object]:
            if request.keys[0] == "silent":
                silent.append(request)
                return []
            return peer.honest(request)

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            assert client.get("first").value == "first"
            assert client.get("silent", timeout_s=0.1).code in IN_VAIN
            _ask_others(client, others)
            for request in silent:
                peer.connection_of(request).answer(request, frames.values(request.id, [pack(LATE)] * len(request.keys)))
            # One request may meet the connection's end, if the client gave the connection up.
            keeps_working(subject, peer, client)
            _ask_others(client, others)
        assert peer.faults == []


@law("P-REQ-7", "P-REQ-6")
def test_a_late_answer_does_not_end_the_connection(subject: ClientSubject) -> None:
    """The client drops an answer after the request's deadline, and the connection serves other requests."""
    silent: list[Request] = []
    with Peer() as peer:

        def answer(request: Request) -> Iterable[object]:
            if request.keys[0] != "silent":
                return peer.honest(request)
            silent.append(request)
            return []

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            assert client.get("first").value == "first"
            assert client.get("silent", timeout_s=0.1).code in IN_VAIN
            _ask_others(client, 1)
            # A client may have given the connection up; one that has not uses it, and has heard that the server lives.
            kept = [request for request in silent if request.connection == peer.gets[-1].connection]
            for request in kept:
                peer.connection_of(request).answer(request, frames.values(request.id, [pack(LATE)] * len(request.keys)))
            _ask_others(client, 3)
            left = [request for request in kept if peer.connection_of(request).left_at is not None]
            assert not left, f"the late answer to {left} ended the connection"


@law("P-CANCEL-3", "P-REQ-7")
def test_a_server_that_does_not_know_cancel_gets_none(subject: ClientSubject) -> None:
    """A client that gives a request up does not cancel it on a server that does not announce the feature."""
    with Peer() as peer:
        answering_gets(peer, lambda request: [] if request.keys[0] == "silent" else peer.honest(request))
        with client_of(subject, peer) as client:
            assert client.get("first").value == "first"
            assert client.get("silent", timeout_s=SHORT_S).code in IN_VAIN
            keeps_working(subject, peer, client)
        assert peer.faults == []


def _ask_others(client: Client, number: int) -> None:
    for index in range(number):
        outcome = client.get(f"key {index}")
        assert outcome.value == f"key {index}", f"the get after an unanswered one gives {outcome}"


@law("P-REQ-7")
def test_a_request_that_timed_out_takes_nothing_from_the_others(subject: ClientSubject) -> None:
    """While one request runs into its deadline, others on the same connection are answered."""
    needs(subject, "async")
    with Peer() as peer:
        answering_gets(peer, lambda request: [] if request.keys[0] == "silent" else peer.honest(request))
        with client_of(subject, peer) as client:
            silent = client.start_get("silent", namespace=1, timeout_s=SHORT_S)
            for number in range(10):
                assert client.get(f"key {number}").value == f"key {number}"
            assert silent.outcome().code in IN_VAIN
            assert client.get("afterwards").value == "afterwards"
