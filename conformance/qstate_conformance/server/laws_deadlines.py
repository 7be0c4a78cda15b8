"""Laws of deadlines: counted from receipt, and kept."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server.fixture import JOB, LIMITS, SILENT, SILENT_JOB, UNREACHABLE, state
from qstate_conformance.server.messages import Answer, Failure, Values, Violation
from qstate_conformance.server.probes import KNOWN, TEMPERATURE, ask_known, check_known
from qstate_conformance.server.wire import connect
from qstate_conformance.subjects import ServerSubject

#: How much later than its deadline an answer may come on a machine that stalls.
_GRACE_S = 3.0
_SHORT_MS = 150
#: Longer than a proxy waits before it takes a silent owner for dead.
_LONG_SILENCE_MS = 4_000


def _codes(found: Values | Failure) -> set[object]:
    return {found.code} if isinstance(found, Failure) else set(found.results)


@law("P-DEADLINE-1", "P-DEADLINE-3", "P-GET-6")
@examples(0.05)
@given(deadline_ms=st.integers(0, 400), name=st.sampled_from(["temperature", UNREACHABLE]))
def test_a_proxy_answers_by_the_deadline(subject: ServerSubject, deadline_ms: int, name: str) -> None:
    """A Get that waits for an owner is answered when its deadline has passed, and not much later."""
    with connect(subject) as session:
        started = time.monotonic()
        found = session.get((JOB, name), state("temperature").homeless, deadline_ms=deadline_ms)
        took = time.monotonic() - started
    if took > deadline_ms / 1000 + _GRACE_S:
        raise Violation(f"P-DEADLINE-3: the answer to a Get of {deadline_ms} ms came after {took:.3f} s")
    allowed = {Code.UNKNOWN_KEY_GROUP_LOCATION, Code.DEADLINE_EXCEEDED}
    assert _codes(found) <= allowed, f"P-GET-6: {found} for a key without an owner"


@law("P-DEADLINE-1", "P-DEADLINE-2", "P-REQ-2")
@examples(0.3)
@given(deadline_ms=st.integers(0, 3))
def test_a_deadline_of_almost_nothing_is_a_deadline(subject: ServerSubject, deadline_ms: int) -> None:
    """A request that leaves no time is answered once: with its answer, or DEADLINE_EXCEEDED."""
    with connect(subject) as session:
        for found in (
            session.get(TEMPERATURE, KNOWN.key, deadline_ms=deadline_ms),
            session.locate(*TEMPERATURE, deadline_ms=deadline_ms),
            session.describe(JOB, deadline_ms=deadline_ms),
            session.describe(None, deadline_ms=deadline_ms),
        ):
            late = found.code == Code.DEADLINE_EXCEEDED if isinstance(found, Failure) else True
            if isinstance(found, Values) and found.results != (KNOWN.contents,):
                late = found.results == (Code.DEADLINE_EXCEEDED,)
            assert late, f"P-DEADLINE-2: {found} for a deadline of {deadline_ms} ms"
        session.end()


@law("P-DEADLINE-1", "P-MSG-6")
def test_the_longest_deadline_is_a_deadline(subject: ServerSubject) -> None:
    """A deadline of 4294967295 ms is valid: answers do not wait for it, and a request that waits affects no other."""
    longest = (1 << 32) - 1
    with connect(subject) as session, connect(subject) as waiting:
        waiting.ask(Type.GET, longest, TEMPERATURE, None, {}, (state("temperature").homeless,))
        check_known(session, session.ask(Type.GET, longest, TEMPERATURE, None, {}, (KNOWN.key,)))
        waiting.is_silent(0.2)
        check_known(session, session.ask(Type.GET, longest, TEMPERATURE, None, {}, (KNOWN.key,)))
        waiting.ping()


@law("P-DEADLINE-1", "P-REQ-2")
def test_each_request_has_its_own_deadline(subject: ServerSubject) -> None:
    """Of requests in flight together, each is answered by its own deadline, in any order."""
    deadlines = [900, 600, 300, 50]
    homeless = state("temperature").homeless
    with connect(subject) as session:
        started = time.monotonic()
        asked = [session.ask(Type.GET, ms, TEMPERATURE, None, {}, (homeless,)) for ms in deadlines]
        for number, deadline_ms in reversed(list(zip(asked, deadlines, strict=True))):
            session.answer(number)
            took = time.monotonic() - started
            if took > deadline_ms / 1000 + _GRACE_S:
                raise Violation(f"P-DEADLINE-1: the answer to a Get of {deadline_ms} ms came after {took:.3f} s")


@law("P-DEADLINE-1", "P-DEADLINE-3", "P-REQ-2")
def test_a_server_with_much_to_do_keeps_deadlines(subject: ServerSubject) -> None:
    """With nearly as many requests in flight as may be, each is answered by its own deadline, or found too late."""
    homeless = state("temperature").homeless
    with connect(subject) as one, connect(subject) as other:
        deadlines = [100 + 3 * number for number in range(LIMITS.max_requests - 8)]
        started = time.monotonic()
        asked = [
            ((one, other)[number % 2].ask(Type.GET, deadline_ms, TEMPERATURE, None, {}, (homeless,)), deadline_ms)
            for number, deadline_ms in enumerate(deadlines)
        ]
        for number, (request, deadline_ms) in enumerate(asked):
            (one, other)[number % 2].answer(request)
            took = time.monotonic() - started
            if took > deadline_ms / 1000 + _GRACE_S:
                raise Violation(f"P-DEADLINE-1: the answer to a Get of {deadline_ms} ms came after {took:.3f} s")


@law("P-DEADLINE-3", "P-DEADLINE-1", "P-REQ-2")
def test_gets_of_a_silent_owner_are_answered_and_give_their_places_back(subject: ServerSubject) -> None:
    """Gets of a silent owner are answered by their deadlines, and leave the server unchanged."""
    homeless = state("temperature").homeless
    with connect(subject) as session:
        started = time.monotonic()
        for deadline_ms in (_SHORT_MS, _LONG_SILENCE_MS):
            asked = [
                session.ask(Type.GET, deadline_ms, (JOB, SILENT), None, {}, keys)
                for keys in (("JFK",), ("JFK",), ("JFK", "N14228"))
            ]
            for number in asked:
                _expect_late(session.answer(number))
            took = time.monotonic() - started
            if took > 2 * deadline_ms / 1000 + _GRACE_S:
                raise Violation(f"P-DEADLINE-3: the answer to a Get of {deadline_ms} ms came after {took:.3f} s")
        asked = [
            session.ask(Type.GET, _SHORT_MS, TEMPERATURE, None, {}, (homeless,)) for _ in range(LIMITS.max_requests)
        ]
        found = [session.answer(number) for number in asked]
        if any(isinstance(one, Failure) and one.code == Code.OVERLOADED for one in found):
            raise Violation("P-REQ-2: requests that were answered still take the places of others")
        session.end()


@law("P-DEADLINE-3", "P-DEADLINE-1", "P-REQ-2")
def test_what_nobody_can_locate_is_answered_by_the_deadline(subject: ServerSubject) -> None:
    """Get, Locate and Describe of a job that cannot be located are answered by their deadlines."""
    with connect(subject) as session:
        started = time.monotonic()
        for found in (
            session.get((SILENT_JOB, "state"), "JFK", deadline_ms=_SHORT_MS),
            session.locate(SILENT_JOB, "state", deadline_ms=_SHORT_MS),
            session.describe(SILENT_JOB, deadline_ms=_SHORT_MS),
        ):
            _expect_late(found)
        took = time.monotonic() - started
        if took > 3 * _SHORT_MS / 1000 + _GRACE_S:
            raise Violation(f"P-DEADLINE-3: three requests of {_SHORT_MS} ms took {took:.3f} s")
        check_known(session, ask_known(session))
        session.end()


def _expect_late(found: Answer) -> None:
    codes = set(found.results) if isinstance(found, Values) else {getattr(found, "code", None)}
    if codes != {Code.DEADLINE_EXCEEDED}:
        raise Violation(f"P-DEADLINE-3: {found} where no owner answers")
