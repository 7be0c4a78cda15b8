"""Trying again: only where it can help, not at once, longer each time, and never beyond the deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.client import frames
from qstate_conformance.client.driver import Client, Outcome
from qstate_conformance.client.frames import CODES, FATAL_ANSWERS, LOOK_UP_AGAIN, RETRY_HERE
from qstate_conformance.client.peer import Peer
from qstate_conformance.client.requests import Request
from qstate_conformance.client.stage import (
    answering_gets,
    assert_growing,
    client_of,
    gets_sent,
    keeps_working,
    more_gets_come,
    needs,
    refuses_gets,
)
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ClientSubject

MAY_PASS = {**RETRY_HERE, **LOOK_UP_AGAIN}
#: Timers may fire this much before their time.
EARLY_S = 0.005
#: How long nothing more must come after a request has ended.
AFTERWARDS_S = 0.25
SHORT_S = 0.4
LONG_S = 1.2
#: Longer than most caps that a client may have put on a wait. Who knows that it is in vain need not wait at all.
PATIENT_S = 6.0


def _per_key(code: int) -> Callable[[Request], bytes]:
    return lambda request: frames.values(request.id, [code] * len(request.keys))


def _whole(code: int, details: dict[str, object] | None = None) -> Callable[[Request], bytes]:
    return lambda request: frames.failure(request.id, code, details)


@law("P-RETRY-1", "P-FAIL-1")
def test_a_fatal_code_is_the_outcome_and_not_tried_again(subject: ClientSubject) -> None:
    """After a Failure with a fatal code the request ends with that code, and is not sent again."""
    for name, code in FATAL_ANSWERS.items():
        _asked_once(subject, _whole(code, {"unheard_of": 1.5}), name)


@law("P-RETRY-1", "P-GET-2")
def test_a_fatal_code_of_a_key_is_the_outcome_and_not_tried_again(subject: ClientSubject) -> None:
    """After Values with a fatal code for a key the request ends with that code, and is not sent again."""
    for name, code in FATAL_ANSWERS.items():
        _asked_once(subject, _per_key(code), name)


@law("P-FAIL-2", "P-RETRY-1", "P-VERSION-2")
@examples(0.1)
@given(code=st.integers(max(CODES.values()) + 1, 65535) | st.sampled_from([0x7FFF, 0x8000, 0xFFFF]))
def test_an_unknown_code_is_internal(subject: ClientSubject, code: int) -> None:
    """A client treats a code that it does not know as INTERNAL: it reports that, and does not try again."""
    _asked_once(subject, _whole(code), "INTERNAL")
    _asked_once(subject, _per_key(code), "INTERNAL")


def _asked_once(subject: ClientSubject, answer: Callable[[Request], bytes], name: str) -> None:
    with Peer() as peer:
        refuses_gets(peer, answer)
        with client_of(subject, peer) as client:
            outcome = client.get("key", timeout_s=LONG_S)
            # An answer to another request shows that no message of the first one is still in flight.
            assert not client.describe().failed
        assert outcome.code == name, f"{name} became {outcome}"
        assert len(peer.gets) == 1, f"after {name} the Get was sent {len(peer.gets)} times"


@law("P-RETRY-1")
def test_a_code_that_may_pass_is_tried_again(subject: ClientSubject) -> None:
    """A client that retries gets its answer after two failures that may pass, of the request or of its key."""
    needs(subject, "retry")
    for name, code in MAY_PASS.items():
        for answer in (_whole(code), _per_key(code)):
            with Peer() as peer:
                answering_gets(peer, _fails_twice(peer, answer))
                with client_of(subject, peer) as client:
                    outcome = client.get("key")
                assert outcome.value == "key", f"after two {name}: {outcome}"


def _fails_twice(peer: Peer, answer: Callable[[Request], bytes]) -> Callable[[Request], Iterable[object]]:
    return lambda request: [answer(request)] if len(peer.gets) <= 2 else peer.honest(request)


@law("P-RETRY-1")
def test_no_try_comes_after_the_deadline(subject: ClientSubject) -> None:
    """A request that always fails ends by its deadline with one of its failures' codes, and is not sent again."""
    names = ("RESTORING", "OVERLOADED", "SHUTTING_DOWN", "EPOCH_NOT_REACHED", "TOO_STALE", "NO_COMMITTED_EPOCH")
    with _refusing(subject, names) as refused:
        asked = [client.start_get("key", timeout_s=0.1) for _, client in refused.values()]
        for name, operation in zip(refused, asked, strict=True):
            outcome = operation.outcome()
            assert outcome.code in (name, "DEADLINE_EXCEEDED"), f"{name} became {outcome}"
        tries = {name: gets_sent(peer, client) for name, (peer, client) in refused.items()}
        until = time.monotonic() + AFTERWARDS_S
        for name, (peer, _) in refused.items():
            more = more_gets_come(peer, tries[name], max(0.0, until - time.monotonic()))
            assert not more, f"after it had ended with {name} it was sent again"


@contextmanager
def _refusing(subject: ClientSubject, names: Iterable[str]) -> Iterator[dict[str, tuple[Peer, Client]]]:
    """Of each code a peer that refuses every Get with it, and a client of that peer."""
    with ExitStack() as stack:
        refused = {}
        for name in names:
            peer = stack.enter_context(Peer())
            refuses_gets(peer, _whole(CODES[name]))
            refused[name] = (peer, stack.enter_context(client_of(subject, peer)))
        yield refused


@law("P-RETRY-1")
def test_no_connection_is_made_after_the_deadline(subject: ClientSubject) -> None:
    """A request to a server that refuses every connection fails by its deadline, and the client stops trying."""
    with Peer() as peer, client_of(subject, peer) as client:
        assert client.get("key").value == "key"
        answering_gets(peer, lambda request: [frames.failure(0, CODES["INTERNAL"])])
        peer.greet = lambda made: [frames.failure(0, CODES["INTERNAL"])]
        assert client.get("key", timeout_s=SHORT_S).failed
        made = len(peer.connections)
        assert not peer.wait_for(lambda: len(peer.connections) > made, AFTERWARDS_S), (
            "the client still connects after the request has ended"
        )


@law("P-RETRY-2")
def test_the_waits_between_tries_grow(subject: ClientSubject) -> None:
    """Between tries a client waits, longer each time."""
    with _refusing(subject, ("RESTORING", "CONCURRENT_MODIFICATION")) as refused:
        asked = [client.start_get("key", timeout_s=LONG_S) for _, client in refused.values()]
        assert all(operation.outcome().failed for operation in asked)
        for peer, _ in refused.values():
            assert_growing([get.at for get in peer.gets])


@law("P-RETRY-3")
@examples(0.05)
@given(wait_ms=st.integers(100, 300))
def test_an_overloaded_server_is_left_alone_as_long_as_it_says(subject: ClientSubject, wait_ms: int) -> None:
    """After OVERLOADED with retry_after_ms, the client waits at least that long."""
    refused_at: list[float] = []
    with Peer() as peer:

        def answer(request: Request) -> Iterable[object]:
            if len(peer.gets) > 1:
                return peer.honest(request)
            refused_at.append(time.monotonic())
            return [frames.failure(request.id, CODES["OVERLOADED"], {"retry_after_ms": wait_ms})]

        answering_gets(peer, answer)
        with client_of(subject, peer) as client:
            outcome = client.get("key", timeout_s=LONG_S)
        assert _is_answer_or(outcome, "OVERLOADED"), outcome
        for get in peer.gets[1:]:
            came_after = get.at - refused_at[0]
            assert came_after >= wait_ms / 1000 - EARLY_S, (
                f"told to come back after {wait_ms} ms, the client came after {came_after * 1000:.1f} ms"
            )


@law("P-RETRY-3", "P-RETRY-1")
def test_a_wait_beyond_the_deadline_is_not_shortened(subject: ClientSubject) -> None:
    """When retry_after_ms ends after the deadline, the request fails without another try."""
    with Peer() as peer:
        refuses_gets(peer, _whole(CODES["OVERLOADED"], {"retry_after_ms": 60_000}))
        with client_of(subject, peer) as client:
            assert client.get("key", timeout_s=SHORT_S).code in ("OVERLOADED", "DEADLINE_EXCEEDED")
        assert len(peer.gets) <= 1


@law("P-RETRY-3", "P-RETRY-1")
def test_a_long_wait_is_a_wait(subject: ClientSubject) -> None:
    """A client waits out a retry_after_ms of many seconds, or of more than a timer may hold."""
    beyond = round(PATIENT_S * 1000) + 1000
    for wait_ms, timeout_s in ((beyond, PATIENT_S), (1 << 31, SHORT_S), (1 << 32, SHORT_S), ((1 << 63) - 1, SHORT_S)):
        with Peer() as peer:
            refuses_gets(peer, _whole(CODES["OVERLOADED"], {"retry_after_ms": wait_ms}))
            with client_of(subject, peer) as client:
                assert client.get("key", timeout_s=timeout_s).code in ("OVERLOADED", "DEADLINE_EXCEEDED")
            assert len(peer.gets) <= 1, f"told to come back after {wait_ms} ms, the client came within {timeout_s} s"


@law("P-FAIL-1", "P-RETRY-3")
def test_details_are_not_depended_on(subject: ClientSubject) -> None:
    """A client reports failures without details, or with details of other types or names, by their code."""
    strange: list[dict[str, object]] = [
        {},
        {"retry_after_ms": None},
        {"retry_after_ms": "soon"},
        {"retry_after_ms": -5},
        {"retry_after_ms": True},
        {"retry_after_ms": 0.5},
        {"state_id": 7, "host": None, "unheard of": "x" * 300},
    ]
    for details in strange:
        for name in ("OVERLOADED", "WRONG_KEY_TYPE", "UNKNOWN_STATE_ID", "UNSUPPORTED"):
            with Peer() as peer:
                answering_gets(peer, _fails_first(peer, _whole(CODES[name], details)))
                with client_of(subject, peer) as client:
                    outcome = client.get("key")
                    keeps_working(subject, peer, client)
                assert _is_answer_or(outcome, name), f"{name} with {details} became {outcome}"


def _fails_first(peer: Peer, answer: Callable[[Request], bytes]) -> Callable[[Request], Iterable[object]]:
    return lambda request: [answer(request)] if len(peer.gets) <= 1 else peer.honest(request)


def _is_answer_or(outcome: Outcome, code: str) -> bool:
    return outcome.value == "key" or outcome.code == code
