"""Laws of clients that are slow, half gone, or many."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from qstate_conformance.codes import Type
from qstate_conformance.laws import law
from qstate_conformance.server.fixture import JOB, LIMITS, STATES, key_with_owner, state
from qstate_conformance.server.messages import Values, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import (
    KNOWN,
    TEMPERATURE,
    ask_known,
    await_room,
    check_answer,
    check_known,
    check_untouched,
    owner_sessions,
    target_of,
)
from qstate_conformance.server.wire import DEADLINE_MS, Session, Stream, connect, frame, hello
from qstate_conformance.subjects import ServerSubject

_SMALL_BUFFER = 4096
#: Far more than the buffers of two kernels and a server's share for one connection.
_FLOOD_BYTES = 16 << 20


@law("P-BROKEN-3", "P-CLOSE-4", "P-CLOSE-1")
def test_a_client_that_does_not_read_holds_up_nobody(subject: ServerSubject) -> None:
    """A client that asks for much and reads nothing may lose its connection; the others are served meanwhile."""
    key = key_with_owner("fits", ("string",))
    request = pack((Type.GET, 1, DEADLINE_MS, (JOB, "blobs"), None, {}, (key,)))
    requests = b"".join(
        frame(request[:2] + b"\xce" + number.to_bytes(4, "big") + request[3:]) for number in range(1, 2000)
    )
    with connect(subject) as other, connect(subject, receive_buffer=_SMALL_BUFFER) as lazy:
        for _ in range(4):
            lazy.flood(requests, _FLOOD_BYTES // 4, 0.2)
            other.ping()
    check_untouched(subject)


@law("P-FRAME-1", "P-REQ-2", "P-CLOSE-4")
def test_a_client_that_reads_slowly_gets_whole_frames(subject: ServerSubject) -> None:
    """A client with a small buffer that reads late gets every answer, whole, or loses its connection between two."""
    found = next(entry for entry in state("blobs").entries if entry.key == key_with_owner("fits", ("string",)))
    with connect(subject, receive_buffer=_SMALL_BUFFER) as session:
        numbers = [session.ask(Type.GET, DEADLINE_MS, (JOB, "blobs"), None, {}, (found.key,)) for _ in range(6)]
        with connect(subject) as other:
            check_known(other, ask_known(other))
        for number in numbers:
            values = session.answer(number)
            assert isinstance(values, Values) and values.results == (found.contents,), f"{values!r:.200}"


@law("P-CLOSE-5", "P-REQ-2", "P-BROKEN-3")
def test_a_half_closed_connection_is_answered_and_ends(subject: ServerSubject) -> None:
    """A client that says that it sends nothing more gets all the answers that are due, and then the end."""
    homeless = state("temperature").homeless
    for before in (0, 1, 10):
        with connect(subject) as session:
            for _ in range(before):
                ask_known(session)
                session.ask(Type.GET, 100, TEMPERATURE, None, {}, (homeless,))
            session.end()
    with owner_sessions(subject, "temperature") as owners:
        for owner, session in owners:
            for _ in range(10):
                session.ask(Type.GET, DEADLINE_MS, owner.state_id, None, {}, (KNOWN.key,))
            session.end()
    with Stream((subject.host, subject.port)) as stream:
        stream.send(hello(token=subject.token)[:7])
        stream.half_close()
        stream.receive_what_comes()
    check_untouched(subject)


@law("P-CLOSE-1", "P-BROKEN-3", "P-REQ-2")
def test_clients_that_vanish_with_requests_in_flight_harm_nobody(subject: ServerSubject) -> None:
    """Clients that reset or close while their requests are in flight leave the server as it was."""
    homeless = state("temperature").homeless
    with connect(subject) as other:
        for number in range(30):
            with connect(subject) as session:
                session.ask(Type.GET, 30, TEMPERATURE, None, {}, (homeless,))
                ask_known(session)
                if number % 2:
                    session.reset()
        check_untouched(subject, other)
        # No session waits for the answers. They are all sent when this Get has its own.
        other.get(TEMPERATURE, homeless, deadline_ms=60)


@law("P-REQ-2", "P-BROKEN-3", "P-GET-1")
def test_many_connections_get_their_own_answers(subject: ServerSubject) -> None:
    """As many connections as the limit allows, half of them asking at once, each get their own answers."""
    questions = [(found, entry) for found in STATES if found.name != "blobs" for entry in found.entries]
    with ExitStack() as stack:
        sessions = [stack.enter_context(connect(subject)) for _ in range(LIMITS.max_connections - 4)]
        for shift in range(4):
            asked: list[tuple[Session, int, int]] = []
            # Every other one: a request may still count when its answer is here already.
            for index, session in list(enumerate(sessions))[shift % 2 :: 2]:
                found, entry = questions[(index * 7 + shift) % len(questions)]
                fields: tuple[Any, ...] = (DEADLINE_MS, target_of(found), entry.namespace, {}, (entry.key,))
                asked.append((session, session.ask(Type.GET, *fields), (index * 7 + shift) % len(questions)))
            for session, number, question in reversed(asked):
                values = session.answer(number)
                assert isinstance(values, Values), f"P-REQ-2: {values}"
                check_answer(*questions[question], values.results[0])
    await_room(subject)


@law("P-REQ-2", "P-BROKEN-3")
def test_clients_on_many_threads_are_served(subject: ServerSubject) -> None:
    """Connections that open, ask and close on many threads at once are each served in full, or get OVERLOADED."""

    def talk(client: int) -> str | None:
        with connect(subject) as session:
            for _ in range(10):
                number = ask_known(session)
                try:
                    check_known(session, number)
                except Violation as exc:
                    return f"client {client}: {exc}"
        return None

    with ThreadPoolExecutor(12) as pool:
        problems = [problem for problem in pool.map(talk, range(48)) if problem]
    if problems:
        raise Violation(f"P-REQ-2: {problems[0]}")
    await_room(subject)
