"""Laws of losses: what a proxy makes of owners that die under a request, and of states that come back as others."""

from __future__ import annotations

import time
from itertools import count

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.server.fixture import CHANGING, DYING, JOB, state
from qstate_conformance.server.messages import Answer, Values, Violation
from qstate_conformance.server.probes import TEMPERATURE, ask_known, check_answer, check_known, located
from qstate_conformance.server.wire import DEADLINE_MS, Session, connect
from qstate_conformance.subjects import ServerSubject

#: A proxy that tries again until the deadline takes longer.
_AT_ONCE_S = DEADLINE_MS / 1000 / 2
_TARGET = (JOB, CHANGING[0].name)
_numbers = count(time.time_ns())


@law("P-RETRY-5", "P-RETRY-1")
def test_a_get_under_which_its_owner_dies_is_not_sent_again(subject: ServerSubject) -> None:
    """A Get whose owner closes the connection is UNAVAILABLE before its deadline, and is sent once."""
    for size in (1, 3):
        keys = tuple(f"key {next(_numbers)}" for _ in range(size))
        with connect(subject) as other, connect(subject) as session:
            started = time.monotonic()
            found = session.get((JOB, DYING), *keys)
            took = time.monotonic() - started
            _expect_unavailable(found)
            if took > _AT_ONCE_S:
                raise Violation(f"P-RETRY-5: the Get was answered after {took:.1f} s, though its owner died at once")
            # It is the application that may ask again, and then has its answer.
            again = session.get((JOB, DYING), *keys)
            if not isinstance(again, Values) or again.results != (None,) * size:
                raise Violation(f"P-RETRY-5: {again} when the Get was made a second time")
            check_known(other, ask_known(other))
            session.end()


@law("P-RETRY-5", "P-REQ-2")
def test_requests_beside_one_that_its_owner_dies_under_are_answered(subject: ServerSubject) -> None:
    """Gets of other states, in flight on the same connection when an owner dies, have their answers."""
    found = state("temperature")
    entries = [entry for entry in found.entries if entry.namespace is None][:8]
    with connect(subject) as session:
        dying = session.ask(Type.GET, DEADLINE_MS, (JOB, DYING), None, {}, (f"key {next(_numbers)}",))
        asked = [session.ask(Type.GET, DEADLINE_MS, TEMPERATURE, None, {}, (entry.key,)) for entry in entries]
        for entry, number in zip(entries, asked, strict=True):
            values = session.answer(number)
            assert isinstance(values, Values), f"P-REQ-2: {values} for {entry.key!r}"
            check_answer(found, entry, values.results[0])
        _expect_unavailable(session.answer(dying))
        session.end()


def _expect_unavailable(found: Answer) -> None:
    codes = set(found.results) if isinstance(found, Values) else {getattr(found, "code", None)}
    if codes != {Code.UNAVAILABLE}:
        raise Violation(f"P-RETRY-5: {found} for a Get under which its owner died")


@law("P-DESC-4", "P-GET-16", "P-LOC-3")
def test_values_have_the_fingerprint_of_their_description(subject: ServerSubject) -> None:
    """Values of a state that comes back as another one have the fingerprint of the description they are read by."""
    kinds: dict[str, str] = {}
    with connect(subject) as one, connect(subject) as other:
        for session in (one, other, one, other):
            told = located(session, CHANGING[0].name).state
            fingerprint, kind = str(told["fingerprint"]), str(told["kind"])
            if kinds.setdefault(fingerprint, kind) != kind:
                raise Violation(f"P-DESC-4: the fingerprint {fingerprint} for {kinds[fingerprint]} and {kind}")
            # Over each connection, whatever it was told before.
            for asking in (one, other):
                _check_read(asking, fingerprint, kind)
        check_known(other, ask_known(other))
    if len(kinds) != len(CHANGING):
        raise Violation(f"P-DESC-4: {kinds} for a state that the fixture changes at each Locate")


def _check_read(session: Session, fingerprint: str, kind: str) -> None:
    (found,) = (found for found in CHANGING if found.kind == kind)
    values = session.get(_TARGET, found.entries[0].key)
    if not isinstance(values, Values) or values.fingerprint != fingerprint:
        raise Violation(f"P-GET-16: {values} for a {kind} with the fingerprint {fingerprint}")
    check_answer(found, found.entries[0], values.results[0])
