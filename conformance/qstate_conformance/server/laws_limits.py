"""Laws of the limits that a client can reach: requests in flight, and what a server under load still does."""

from __future__ import annotations

from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.server.fixture import LIMITS, state
from qstate_conformance.server.messages import Failure, Violation
from qstate_conformance.server.probes import TEMPERATURE, check_known, check_untouched
from qstate_conformance.server.wire import connect
from qstate_conformance.subjects import ServerSubject

#: So long the requests that fill the server stay in flight.
_FILLING_MS = 400


@law("P-REQ-2", "P-REQ-3", "P-BROKEN-3")
def test_requests_over_the_limit_are_overloaded_and_the_rest_answered(subject: ServerSubject) -> None:
    """Requests over the fixture's limit are OVERLOADED, all are answered once, and then the server takes new ones."""
    homeless = state("temperature").homeless
    count = LIMITS.max_requests + 20
    with connect(subject) as other, connect(subject) as session:
        fields: tuple[Any, ...] = (_FILLING_MS, TEMPERATURE, None, {}, (homeless,))
        numbers = [session.next_id() for _ in range(count)]
        session.send(b"".join(session.request(Type.GET, number, *fields) for number in numbers))
        found = [session.answer(number) for number in numbers]
        refused = [one for one in found if isinstance(one, Failure) and one.code == Code.OVERLOADED]
        if not 20 <= len(refused) < count:
            raise Violation(
                f"{len(refused)} of {count} requests OVERLOADED, where {LIMITS.max_requests} may be in flight"
            )
        for one in refused:
            wait = one.details.get("retry_after_ms", 0)
            assert type(wait) is int and wait >= 0, f"P-RETRY-3: retry_after_ms is {wait!r}"
        check_untouched(subject, session, other)
        session.end()


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
    """A connection answers its thousandth request as it did the first."""
    with connect(subject) as session:
        for _ in range(40):
            numbers = [session.ask(Type.GET, 10_000, TEMPERATURE, None, {}, ("JFK",)) for _ in range(25)]
            for number in numbers:
                check_known(session, number)
        session.end()
