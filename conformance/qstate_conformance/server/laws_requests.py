"""Laws of requests: each is answered exactly once, in any order, and a bad one fails alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import JOB, STATES, Entry, State, state
from qstate_conformance.server.messages import Description, Failure, Location, Pong, Values
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, check_answer, check_each, check_known, target_of
from qstate_conformance.server.wire import DEADLINE_MS, Session, connect, frame
from qstate_conformance.subjects import ServerSubject

#: Sends one request of some kind; gives its id and the check of its answer.
Step = Callable[[Session], tuple[int, Callable[[Any], None]]]


def _getting(found: State, entry: Entry) -> Step:
    def send(session: Session) -> tuple[int, Callable[[Any], None]]:
        fields: tuple[Any, ...] = (DEADLINE_MS, target_of(found), entry.namespace, {}, (entry.key,))

        def check(answer: Any) -> None:
            assert isinstance(answer, Values), f"{answer} for {found.name}[{entry.key!r}]"
            check_answer(found, entry, answer.results[0])

        return session.ask(Type.GET, *fields), check

    return send


def _asking(kind: type, code: Type, *fields: Any) -> Step:
    def send(session: Session) -> tuple[int, Callable[[Any], None]]:
        def check(answer: Any) -> None:
            assert isinstance(answer, kind), f"{answer} for {code.name}{fields}"

        return session.ask(code, *fields), check

    return send


def _failing(code: Code, *payload: Any) -> Step:
    def send(session: Session) -> tuple[int, Callable[[Any], None]]:
        number = session.next_id()
        session.expect(number, None)
        session.send(frame(pack((payload[0], number, *payload[1:]))))

        def check(answer: Any) -> None:
            assert isinstance(answer, Failure) and answer.code == code, f"{answer} for {payload}, not {code.name}"

        return number, check

    return send


_STEPS: list[Step] = [
    *(_getting(found, entry) for found in STATES if found.name != "blobs" for entry in found.entries[:4]),
    _asking(Pong, Type.PING),
    _asking(Location, Type.LOCATE, DEADLINE_MS, *TEMPERATURE),
    _asking(Description, Type.DESCRIBE, DEADLINE_MS, JOB),
    _asking(Description, Type.DESCRIBE, DEADLINE_MS, None),
    # A key without an owner is looked for until its time is over: it is overtaken by the others, if they may.
    _asking(Values | Failure, Type.GET, 60, TEMPERATURE, None, {}, (state("temperature").homeless,)),  # type: ignore[arg-type]
    _failing(Code.UNKNOWN_JOB, Type.GET, DEADLINE_MS, ("unknown", "job"), None, {}, ("JFK",)),
    _failing(Code.UNKNOWN_STATE, Type.LOCATE, DEADLINE_MS, JOB, "unknown"),
    _failing(Code.MALFORMED, Type.PING, "more"),
    _failing(Code.WRONG_KEY_TYPE, Type.GET, DEADLINE_MS, TEMPERATURE, None, {}, (None,)),
    _failing(Code.UNSUPPORTED, 77, "what is this"),
]


@law("P-REQ-1", "P-REQ-2", "P-REQ-3", "P-GET-1", "P-PING-1")
@given(steps=st.lists(st.sampled_from(_STEPS), min_size=1, max_size=24), order=st.randoms(use_true_random=False))
def test_every_request_is_answered_once_with_its_own_answer(
    subject: ServerSubject, steps: list[Step], order: Any
) -> None:
    """Requests in flight together, sound and unsound, are each answered once, in any order, each with its answer."""
    with connect(subject) as session:
        sent = [step(session) for step in steps]
        order.shuffle(sent)
        for number, check in sent:
            check(session.answer(number))
        session.end()


@law("P-REQ-1", "P-REQ-2", "P-MSG-2")
@given(numbers=st.lists(strategies.request_ids, unique=True, min_size=1, max_size=12))
def test_a_client_chooses_its_ids(subject: ServerSubject, numbers: list[int]) -> None:
    """Any ids from 1 to 4294967295 may be used, in any order, and again once their answer has come."""
    with connect(subject) as session:
        for _ in range(2):
            for number in numbers:
                session.ask(Type.GET, DEADLINE_MS, TEMPERATURE, None, {}, ("JFK",), number=number)
            for number in numbers:
                check_known(session, number)


@law("P-REQ-2", "P-REQ-5")
@examples(0.3)
@given(others=st.integers(0, 4))
def test_a_second_request_with_an_id_in_flight_is_malformed(subject: ServerSubject, others: int) -> None:
    """A second request with an id that is in flight is MALFORMED; both are answered, and so are all others."""
    homeless = state("temperature").homeless
    with connect(subject) as session:
        # In flight until its deadline, seen from outside.
        slow = session.request(Type.GET, 500, 250, TEMPERATURE, None, {}, (homeless,))
        session.send(slow + frame(pack((Type.PING, 500))))
        numbers = [session.ask(Type.PING) for _ in range(others)]
        first = session.answer(500)
        if isinstance(first, Failure) and first.code == Code.UNKNOWN_KEY_GROUP_LOCATION:
            # It was answered before the second came, which then was no second one.
            session.expect(500, Pong)
            session.answer(500)
        else:
            assert isinstance(first, Failure) and first.code == Code.MALFORMED, f"P-REQ-5: {first}"
            session.expect(500, Values, 1)
            second = session.answer(500)
            assert not isinstance(second, Failure) or second.code != Code.MALFORMED, f"P-REQ-5: {second} for the first"
        for number in numbers:
            assert isinstance(session.answer(number), Pong)


#: What is no request, with sound elements and with others: the type alone decides.
_NO_REQUESTS: dict[str, tuple[Any, ...]] = {
    "a pong": (Type.PONG, 9),
    "a pong with elements": (Type.PONG, 9, 1, 2),
    "values": (Type.VALUES, 9, (7,), (b"x",), "f"),
    "values without elements": (Type.VALUES, 9),
    "a location without elements": (Type.LOCATION, 9),
    "a description": (Type.DESCRIPTION, 9, ()),
    "a description of a number": (Type.DESCRIPTION, 9, 5),
    "a failure": (Type.FAILURE, 9, 1, {}),
    "a failure without elements": (Type.FAILURE, 9),
    "a hello with an id": (Type.HELLO, 9, (1,), None, ""),
    "a hello with an id and nothing else": (Type.HELLO, 9),
    "a welcome with an id": (Type.WELCOME, 9, 1, "", (), 65_536, 100),
    "a welcome with an id and more elements": (Type.WELCOME, 9, 1, "", (), 65_536, 100, (0,) * 20_000),
    "type 11": (11, 9),
    "type 77 with elements": (77, 9, {"a": (1, 2)}, b"x"),
    "the largest type": ((1 << 32) - 1, 9),
}


@law("P-REQ-3", "P-REQ-4", "P-VERSION-3")
def test_a_type_that_is_no_request_is_unsupported(subject: ServerSubject) -> None:
    """A message of an unknown type, or of an answer's, is UNSUPPORTED, whatever its elements, and fails alone."""

    def check(payload: tuple[Any, ...]) -> None:
        with connect(subject) as session:
            code = session.refused(pack(payload), 9)
            assert code == Code.UNSUPPORTED, f"P-REQ-4: code {code}"
            session.ping()

    check_each(_NO_REQUESTS, check)


@law("P-REQ-3", "P-REQ-4", "P-VERSION-3")
@given(kind=st.integers(11, (1 << 32) - 1), number=strategies.request_ids, rest=st.binary(max_size=20))
def test_a_type_of_a_later_version_is_unsupported(subject: ServerSubject, kind: int, number: int, rest: bytes) -> None:
    """A message of any type that version 1 does not have is UNSUPPORTED, and the connection stays open."""
    with connect(subject) as session:
        assert session.refused(pack((kind, number, rest)), number) == Code.UNSUPPORTED
        session.ping()


@law("P-PING-1", "P-REQ-2")
@examples(0.3)
@given(count=st.integers(1, 50))
def test_a_ping_is_answered_with_pong(subject: ServerSubject, count: int) -> None:
    """Each Ping is answered with one Pong of its id."""
    with connect(subject) as session:
        for number in [session.ask(Type.PING) for _ in range(count)]:
            assert isinstance(session.answer(number), Pong)
        session.end()
