"""Laws of Cancel: a request whose client has given up is answered at once, and once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.server.fixture import state
from qstate_conformance.server.messages import Failure, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, ask_known, check_known
from qstate_conformance.server.wire import Session, connect, frame
from qstate_conformance.subjects import ServerSubject

_FEATURE = "cancel"
#: The deadline of requests that are cancelled, and the share of it after which an answer is not the Cancel's.
_WAITING_MS = 8_000
_AT_ONCE_S = _WAITING_MS / 1000 / 2
_NO_OWNER = (Code.CANCELLED, Code.UNKNOWN_KEY_GROUP_LOCATION)


def _needs_cancel(session: Session) -> None:
    if _FEATURE not in session.welcome.features:
        pytest.skip("the server does not announce the feature cancel")


def _cancel(session: Session, number: int) -> None:
    session.send(frame(pack((int(Type.CANCEL), number))))


@law("P-CANCEL-1", "P-REQ-2", "P-VERSION-3")
def test_a_request_that_waits_is_answered_when_it_is_cancelled(subject: ServerSubject) -> None:
    """A Get that waits for an owner is answered once when it is cancelled, long before its deadline; others stay."""
    homeless = state("temperature").homeless
    with connect(subject) as session:
        _needs_cancel(session)
        fields: tuple[Any, ...] = (TEMPERATURE, None, {}, (homeless,))
        numbers = [session.ask(Type.GET, _WAITING_MS, *fields) for _ in range(5)]
        kept = session.ask(Type.GET, _WAITING_MS // 4, *fields)
        began = time.monotonic()
        for number in numbers:
            _cancel(session, number)
        for number in numbers:
            found = session.answer(number)
            if not isinstance(found, Failure) or found.code not in _NO_OWNER:
                raise Violation(f"P-CANCEL-1: {found} for a Get of a key without an owner")
        if time.monotonic() - began > _AT_ONCE_S:
            raise Violation("P-CANCEL-1: cancelled requests wait for their deadlines")
        found = session.answer(kept)
        if not isinstance(found, Failure) or found.code == Code.CANCELLED:
            raise Violation(f"P-CANCEL-1: {found} for a Get that was not cancelled")
        session.end()


@law("P-CANCEL-2", "P-REQ-2")
def test_a_cancel_of_nothing_in_flight_is_ignored(subject: ServerSubject) -> None:
    """A Cancel with an id that was never used, or whose answer has come, has no answer and harms no request."""
    with connect(subject) as session:
        _needs_cancel(session)
        answered = ask_known(session)
        check_known(session, answered)
        waiting = ask_known(session)
        for number in (answered, session.next_id(), (1 << 32) - 1):
            _cancel(session, number)
        check_known(session, waiting)
        session.ping()
        check_known(session, ask_known(session))
        session.end()
