"""Laws of the limits that a client can reach: requests in flight, and what a server under load still does."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import law
from qstate_conformance.server.fixture import LIMITS, MAX_PARALLELISM, STATES, Entry, State, state
from qstate_conformance.server.messages import Failure, Pong, Values, Violation
from qstate_conformance.server.probes import (
    TEMPERATURE,
    check_answer,
    check_known,
    check_untouched,
    owner_sessions,
    target_of,
)
from qstate_conformance.server.wire import DEADLINE_MS, Session, Target, connect
from qstate_conformance.subjects import ServerSubject

#: So long the requests that fill the server stay in flight.
_FILLING_MS = 400
#: Of so many requests a long run consists.
_LONG_RUN = 20_000
#: Many in flight, and fewer than a connection may have.
_AT_ONCE = 24


@law("P-REQ-2", "P-REQ-3", "P-BROKEN-3")
def test_requests_over_the_limit_are_overloaded_and_the_rest_answered(subject: ServerSubject) -> None:
    """Requests over the fixture's limit are OVERLOADED, all are answered once, and then the server takes new ones."""
    homeless = state("temperature").homeless
    share = LIMITS.max_requests_per_connection - 4
    count = 3 * share
    with ExitStack() as stack:
        other, *sessions = [stack.enter_context(connect(subject)) for _ in range(4)]
        fields: tuple[Any, ...] = (_FILLING_MS, TEMPERATURE, None, {}, (homeless,))
        asked = [(session, session.next_id()) for session in sessions for _ in range(share)]
        for session in sessions:
            mine = [number for asker, number in asked if asker is session]
            session.send(b"".join(session.request(Type.GET, number, *fields) for number in mine))
        found = [session.answer(number) for session, number in asked]
        refused = [one for one in found if isinstance(one, Failure) and one.code == Code.OVERLOADED]
        if not count - LIMITS.max_requests <= len(refused) < count:
            raise Violation(
                f"{len(refused)} of {count} requests OVERLOADED, where {LIMITS.max_requests} may be in flight"
            )
        for one in refused:
            wait = one.details.get("retry_after_ms", 0)
            assert type(wait) is int and wait >= 0, f"P-RETRY-3: retry_after_ms is {wait!r}"
        check_untouched(subject, *sessions, other)
        for session in sessions:
            session.end()


@law("P-REQ-1", "P-REQ-2", "P-GET-1")
def test_at_the_limit_of_requests_each_has_its_own_answer(subject: ServerSubject) -> None:
    """With the most requests in flight, each for another key, each gets its own answer."""
    questions = [(found, entry) for found in STATES if found.name != "blobs" for entry in found.entries]
    homeless = state("temperature").homeless
    with connect(subject) as full, connect(subject) as session:
        for waiting in (0, LIMITS.max_requests // 2):
            fields: tuple[Any, ...] = (_FILLING_MS // 4, TEMPERATURE, None, {}, (homeless,))
            asked = [full.ask(Type.GET, *fields) for _ in range(waiting)]
            chosen = questions[: LIMITS.max_requests // 2]
            numbers = [session.next_id() for _ in chosen]
            session.send(b"".join(map(partial(_asking, session), numbers, chosen)))
            for number, (found, entry) in zip(numbers, chosen, strict=True):
                values = session.answer(number)
                # A request that was in flight before this law may take a place of these.
                if not (isinstance(values, Failure) and values.code == Code.OVERLOADED):
                    assert isinstance(values, Values), f"P-REQ-2: {values} for {found.name}[{entry.key!r}]"
                    check_answer(found, entry, values.results[0])
            for number in asked:
                full.answer(number)
        session.end()


def _asking(session: Session, number: int, question: tuple[State, Entry]) -> bytes:
    found, entry = question
    fields: tuple[Any, ...] = (DEADLINE_MS, target_of(found), entry.namespace, {}, (entry.key,))
    return session.request(Type.GET, number, *fields)


@law("P-PING-1", "P-REQ-2")
def test_a_ping_is_answered_while_gets_wait(subject: ServerSubject) -> None:
    """A Ping among Gets that wait for an owner is answered, on their connection and on others."""
    homeless = state("temperature").homeless
    with connect(subject) as other, connect(subject) as session:
        waiting = [session.ask(Type.GET, 150, TEMPERATURE, None, {}, (homeless,)) for _ in range(10)]
        session.ping()
        other.ping()
        for number in waiting:
            session.answer(number)


@law("P-REQ-2", "P-FRAME-4")
def test_a_long_run_of_requests_is_answered_to_the_end(subject: ServerSubject) -> None:
    """A connection answers its thousandth request like the first."""
    with connect(subject) as session:
        for _ in range(40):
            numbers = [session.ask(Type.GET, 10_000, TEMPERATURE, None, {}, ("JFK",)) for _ in range(25)]
            for number in numbers:
                check_known(session, number)
        session.end()


@law("P-REQ-1", "P-REQ-2", "P-GET-1", "P-PING-1", soak=True)
def test_twenty_thousand_requests_of_one_connection_are_answered(subject: ServerSubject) -> None:
    """A connection to a proxy or an owner answers the last of 20,000 single requests like the first."""
    found = state("temperature")
    with connect(subject) as session:
        _ask_on_and_on(session, TEMPERATURE, found, [entry for entry in found.entries if entry.namespace is None])
    with owner_sessions(subject, found.name) as owners:
        owner, session = owners[0]
        groups = range(owner.start, owner.stop)
        mine = [entry for entry in found.entries if group_of(entry.key, MAX_PARALLELISM) in groups]
        _ask_on_and_on(session, owner.state_id, found, [entry for entry in mine if entry.namespace is None])


def _ask_on_and_on(session: Session, target: Target, found: State, entries: list[Entry]) -> None:
    """Ask for these entries over and over, and Ping in between, with many in flight all the while."""
    questions = cycle([*entries, None])
    asked: deque[tuple[int, Entry | None]] = deque()
    for number in range(_LONG_RUN + _AT_ONCE):
        if number < _LONG_RUN:
            entry = next(questions)
            fields: tuple[Any, ...] = (DEADLINE_MS, target, None, {}, (entry.key,)) if entry else ()
            asked.append((session.ask(Type.GET if entry else Type.PING, *fields), entry))
        if number >= _AT_ONCE:
            _check_one(session, found, *asked.popleft())
    session.end()


def _check_one(session: Session, found: State, number: int, entry: Entry | None) -> None:
    answer = session.answer(number)
    if entry is None:
        assert isinstance(answer, Pong), f"P-PING-1: {answer} for Ping {number}"
        return
    assert isinstance(answer, Values), f"P-REQ-2: {answer} for request {number}"
    check_answer(found, entry, answer.results[0])
