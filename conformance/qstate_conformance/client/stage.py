"""What laws about clients share: a client that talks to a peer, and what may be asked of it afterwards.

Rules of this module: the few steps that many laws take. What a law asserts is in the law.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from qstate_conformance.client.driver import GRACE_S, Client, Outcome, Pending, driver_for
from qstate_conformance.client.frames import GET
from qstate_conformance.client.peer import Connection, Peer, Reply
from qstate_conformance.client.requests import Request
from qstate_conformance.subjects import ClientSubject

__all__ = [
    "BRIEFLY_S",
    "MOMENT_S",
    "OWN_SERIALIZER",
    "always",
    "answering_gets",
    "are_answered_again",
    "assert_growing",
    "client_of",
    "connection",
    "declares",
    "fall_silent",
    "gets_sent",
    "has_left",
    "keeps_working",
    "more_gets_come",
    "needs",
    "refuses_gets",
    "when_quiet",
]

#: The serializer that drivers with the feature `serializer` have: text as its UTF-8 bytes in reverse order.
OWN_SERIALIZER = "conformance.reversed"
#: Longer than a client may take to notice what has arrived, and than it may trust a connection that it has just used.
MOMENT_S = 0.1
#: When nothing has come for so long, the client is taken to wait for an answer.
QUIET_S = 0.05
#: The deadline of a later request, of which there are three at most.
AFTERWARDS_S = 2.0
#: How long nothing may come before a connection counts as dead (P-DEADLINE-5), and a deadline far below.
SILENCE_S, BRIEFLY_S = 1.0, 0.2
#: Codes that a later request may meet once more on a connection that the client did not know was gone.
_GONE = {"UNAVAILABLE", "SHUTTING_DOWN", "OVERLOADED", "DEADLINE_EXCEEDED"}


def needs(subject: ClientSubject, *features: str) -> None:
    """Skip the law when the driver does not declare these features."""
    missing = {feature for feature in features if not declares(subject, feature)}
    if missing:
        pytest.skip(f"the driver does not declare the feature {', '.join(sorted(missing))}")


def declares(subject: ClientSubject, feature: str) -> bool:
    """Whether the driver declares this feature."""
    with driver_for(subject.command) as driver:
        return feature in driver.features


@contextmanager
def client_of(subject: ClientSubject, peer: Peer, **options: Any) -> Iterator[Client]:
    """A client of the peer; `options` are those of `Driver.open`."""
    with driver_for(subject.command) as driver, driver.open(peer.address, **options) as client:
        yield client


def answering_gets(peer: Peer, answer: Callable[[Request], Iterable[Reply]]) -> None:
    """Have the peer answer Gets like this, and everything else honestly."""
    peer.answer = lambda request: answer(request) if request.type == GET else peer.explain(request)


def refuses_gets(peer: Peer, frame_of: Callable[[Request], bytes]) -> None:
    """Have the peer answer every Get with one frame."""
    answering_gets(peer, lambda request: [frame_of(request)])


def has_left(peer: Peer, connection: Connection) -> bool:
    """Whether the client closes a connection, without regard to any deadline of its requests."""
    return peer.wait_for(lambda: connection.left_at is not None, GRACE_S)


def connection(peer: Peer, number: int = 0) -> Connection:
    """The client's first connection, or a later one, which it is given a moment to make."""
    assert peer.wait_for(lambda: len(peer.connections) > number, GRACE_S), f"there is no connection {number}"
    return peer.connections[number]


def keeps_working(subject: ClientSubject, peer: Peer, client: Client, key: str = "afterwards") -> None:
    """Assert that the client answers a later get.

    A connection that is gone may cost the first request that is sent on it; not the ones after that. A client that
    could not be opened is opened again.
    """
    outcome = Outcome({}, "UNAVAILABLE")
    for _ in range(3):
        if client.number is None:
            with client_of(subject, peer) as other:
                outcome = other.get(key, timeout_s=AFTERWARDS_S)
        else:
            outcome = client.get(key, timeout_s=AFTERWARDS_S)
        if outcome.code not in _GONE:
            break
    assert outcome.found, f"a later get fails: {outcome.code}: {outcome.text}"
    assert outcome.value == key, f"a later get of {key!r} gives {outcome.value!r}"


def fall_silent(peer: Peer) -> None:
    """Make the peer silent on its current connections, which stay open."""
    dead = len(peer.connections)
    peer.answer = lambda request: [] if request.connection < dead else peer.honest(request)


def are_answered_again(subject: ClientSubject, *left: tuple[Peer, Client]) -> None:
    """Assert that each client has an answer as soon as its connection to a peer was silent for long enough.

    Each is asked again and again, with deadlines shorter than the allowed silence: they must not hide a dead peer.
    """
    until = time.monotonic() + SILENCE_S + GRACE_S
    with driver_for(subject.command) as driver:
        while left:
            assert time.monotonic() < until, f"after {SILENCE_S + GRACE_S:.0f} s, a dead connection is still in use"
            # One that connects when it is opened could not be opened.
            asked = [
                (peer, client if client.number is not None else driver.open(peer.address, timeout_s=BRIEFLY_S))
                for peer, client in left
            ]
            opened = [(peer, client) for peer, client in asked if client.number is not None]
            pending = [client.start_get("afterwards", timeout_s=BRIEFLY_S) for _, client in opened]
            outcomes = [operation.outcome() for operation in pending]
            assert all(outcome.found or outcome.code in _GONE for outcome in outcomes), outcomes
            answered = [peer for (peer, _), outcome in zip(opened, outcomes, strict=True) if outcome.found]
            left = tuple((peer, client) for peer, client in asked if peer not in answered)


def always(*replies: Reply) -> Callable[[Any], Iterable[Reply]]:
    """A `greet` or `answer` of a peer that always gives these replies."""
    return lambda _: replies


def more_gets_come(peer: Peer, number: int, timeout_s: float) -> bool:
    """Whether more than so many Gets have come by then."""
    return peer.wait_for(lambda: len(peer.gets) > number, timeout_s)


def gets_sent(peer: Peer, client: Client) -> int:
    """How many Gets the client has sent until now. An answer to another request shows that none is in flight."""
    client.describe()
    return len(peer.gets)


def when_quiet(peer: Peer, pending: list[Pending], answer: Callable[[list[Request]], None]) -> None:
    """Whenever no more Gets come, let `answer` handle the received ones, until every operation has ended."""
    seen = 0
    until = max(operation.deadline for operation in pending) + GRACE_S
    while not all(operation.done for operation in pending) and time.monotonic() < until:
        before = len(peer.gets)
        if more_gets_come(peer, before, QUIET_S):
            continue
        fresh = peer.gets[seen:]
        seen += len(fresh)
        if fresh:
            answer(fresh)


def assert_growing(times: list[float]) -> None:
    """Assert that these tries came ever further apart.

    A client may stop growing at some wait, and a busy machine makes any wait longer: the early waits are compared
    with the late ones, by their medians.
    """
    waits = [later - earlier for earlier, later in pairwise(times)]
    if len(waits) < 2:
        return
    third = max(1, len(waits) // 3)
    early, late = median(waits[:third]), median(waits[-third:])
    shown = ", ".join(f"{wait * 1000:.1f}" for wait in waits[:20])
    assert late >= 1.5 * early, f"{len(waits)} waits between tries do not grow, in milliseconds: {shown}"
    assert early > 0.0005, f"the first waits are none, in milliseconds: {shown}"
