"""Laws of shares: how much of a server's places, room for requests and memory one client can take from the others."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.server.fixture import JOB, LIMITS, key_with_owner, state
from qstate_conformance.server.messages import Failure, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, ask_known, await_room, check_known, check_untouched
from qstate_conformance.server.wire import DEADLINE_MS, Session, Stream, connect, frame, hello
from qstate_conformance.subjects import ServerSubject

#: So long the requests that a law keeps in flight stay so.
_WAITING_MS = 100
_BUSY_MS = 2_000
_FOR_EVER_MS = (1 << 32) - 1
_SMALL_BUFFER = 4096
#: Requests whose answers are far more than the buffers of two kernels and a server's share for one connection.
_UNREAD = 600
#: Each of them has more bytes than this.
_LARGE = 48_000


@law("P-REQ-8", "P-REQ-2", "P-BROKEN-3")
def test_one_connection_does_not_take_all_room_for_requests(subject: ServerSubject) -> None:
    """While a connection has many more requests in flight than its share, another one is served; all are answered."""
    homeless = state("temperature").homeless
    with connect(subject) as other, connect(subject) as greedy:
        fields: tuple[Any, ...] = (_WAITING_MS, TEMPERATURE, None, {}, (homeless,))
        numbers = [greedy.next_id() for _ in range(4 * LIMITS.max_requests)]
        greedy.send(b"".join(greedy.request(Type.GET, number, *fields) for number in numbers))
        for _ in range(20):
            check_known(other, ask_known(other))
        for number in numbers:
            greedy.answer(number)
        check_untouched(subject, greedy, other)


@law("P-CLOSE-6", "P-HELLO-7", "P-FAIL-3")
def test_an_idle_connection_gives_its_place_to_a_new_one(subject: ServerSubject) -> None:
    """When all places are taken by connections on which nothing happens, a new one is let in, in time."""
    with ExitStack() as stack:
        sessions = _fill(stack, subject, LIMITS.max_connections)
        with connect(subject) as fresh:
            check_known(fresh, ask_known(fresh))
            given_up = [session for session in sessions if not _is_served(session)]
        if len(given_up) > 2:
            raise Violation(f"P-CLOSE-6: {len(given_up)} connections given up for one")
    await_room(subject)


def _fill(stack: ExitStack, subject: ServerSubject, places: int) -> list[Session]:
    return [stack.enter_context(connect(subject)) for _ in range(places)]


def _is_served(session: Session) -> bool:
    """Whether a connection is still open. The server says why it closed one."""
    if session.is_silent(0.01):
        check_known(session, ask_known(session))
        return True
    session.receive_close_notice(Code.OVERLOADED)
    return False


@law("P-CLOSE-6", "P-REQ-2", "P-HELLO-7")
def test_a_connection_with_a_request_in_flight_keeps_its_place(subject: ServerSubject) -> None:
    """When all places are taken and requests are in flight on all of them, a new connection gets OVERLOADED."""
    homeless = state("temperature").homeless
    with ExitStack() as stack:
        sessions = _fill(stack, subject, LIMITS.max_connections)
        numbers = [session.ask(Type.GET, _BUSY_MS, TEMPERATURE, None, {}, (homeless,)) for session in sessions]
        with Stream((subject.host, subject.port)) as extra:
            extra.send(hello(token=subject.token))
            _check_retry_after(extra.receive_close_notice(Code.OVERLOADED))
        for session, number in zip(sessions, numbers, strict=True):
            session.answer(number)
    await_room(subject)


def _check_retry_after(found: Failure) -> None:
    wait = found.details.get("retry_after_ms")
    if wait is not None and not (isinstance(wait, int) and wait >= 0):
        raise Violation(f"P-RETRY-3: retry_after_ms is {wait!r}")


@law("P-CLOSE-6", "P-HELLO-7")
def test_a_connection_without_a_handshake_gives_its_place_first(subject: ServerSubject) -> None:
    """When all places are taken, one without a handshake is given up before those that have shaken hands."""
    with ExitStack() as stack:
        sessions = _fill(stack, subject, LIMITS.max_connections - 1)
        silent = stack.enter_context(Stream((subject.host, subject.port)))
        with connect(subject) as fresh:
            check_known(fresh, ask_known(fresh))
            silent.receive_close_notice(Code.OVERLOADED)
            for session in sessions:
                check_known(session, ask_known(session))
    await_room(subject)


@law("P-CLOSE-4", "P-CLOSE-5", "P-BROKEN-3")
def test_a_client_that_takes_nothing_of_its_answers_loses_its_connection(subject: ServerSubject) -> None:
    """A connection whose client reads nothing, or has ended its half and waits for long, is closed in time."""
    key = key_with_owner("fits", ("string",))
    get: tuple[Any, ...] = (DEADLINE_MS, (JOB, "blobs"), None, {}, (key,))
    requests = b"".join(frame(pack((int(Type.GET), number, *get))) for number in range(1, _UNREAD + 1))
    with ExitStack() as stack:
        other, gone = stack.enter_context(connect(subject)), stack.enter_context(connect(subject))
        lazy = stack.enter_context(connect(subject, receive_buffer=_SMALL_BUFFER))
        gone.ask(Type.GET, _FOR_EVER_MS, TEMPERATURE, None, {}, (state("temperature").homeless,))
        gone.half_close()
        asked = lazy.flood(requests, len(requests), LIMITS.unread_timeout_ms / 1000)
        lazy.wait_for_end(2 * LIMITS.unread_timeout_ms / 1000)
        answers = lazy.read_away() // _LARGE
        if asked == len(requests) and answers == _UNREAD:
            raise Violation("P-CLOSE-4: all answers were kept for a client that read none of them")
        # The server may say why; that it closes is what `receive_rest` waits for.
        gone.receive_rest()
        check_untouched(subject, other)
