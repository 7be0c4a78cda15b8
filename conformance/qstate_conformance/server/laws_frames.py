"""Laws of frames: how the stream may be cut, and how large a payload may be."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import group_of
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import GAP, LIMITS, MAX_PARALLELISM
from qstate_conformance.server.messages import Values
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, check_known, check_untouched
from qstate_conformance.server.wire import DEADLINE_MS, Session, connect
from qstate_conformance.subjects import ServerSubject


def _known_requests(session: Session, count: int) -> tuple[list[int], bytes]:
    """The ids and the bytes of several requests, each the known question."""
    numbers = [session.next_id() for _ in range(count)]
    fields: tuple[Any, ...] = (DEADLINE_MS, TEMPERATURE, None, {}, ("JFK",))
    return numbers, b"".join(session.request(Type.GET, number, *fields) for number in numbers)


@law("P-FRAME-1", "P-FRAME-4")
def test_a_frame_may_come_byte_by_byte(subject: ServerSubject) -> None:
    """Requests that come one byte at a time are answered like any others."""
    with connect(subject) as session:
        numbers, data = _known_requests(session, 3)
        session.send_in_pieces(data, range(len(data)))
        for number in numbers:
            check_known(session, number)


@law("P-FRAME-1", "P-FRAME-4", "P-REQ-2")
@given(data=st.data(), count=st.integers(1, 8))
def test_the_cut_into_reads_does_not_matter(subject: ServerSubject, data: st.DataObject, count: int) -> None:
    """However several requests are cut into writes, within frames and across them, each is answered."""
    with connect(subject) as session:
        numbers, stream = _known_requests(session, count)
        session.send_in_pieces(stream, data.draw(strategies.cuts(len(stream))))
        for number in numbers:
            check_known(session, number)


@law("P-FRAME-4", "P-REQ-1", "P-REQ-2")
@examples(0.1)
@given(count=st.integers(LIMITS.max_requests // 2, LIMITS.max_requests - 4))
def test_many_frames_may_come_at_once(subject: ServerSubject, count: int) -> None:
    """Many requests in one write are answered, each once and with its own id."""
    with connect(subject) as session:
        numbers, stream = _known_requests(session, count)
        session.send(stream)
        for number in reversed(numbers):
            check_known(session, number)
        session.end()


@law("P-FRAME-2", "P-FRAME-3")
@examples(0.2)
@given(size=st.one_of(st.just(LIMITS.max_frame), st.integers(300, LIMITS.max_frame)))
def test_a_payload_up_to_the_limit_is_served(subject: ServerSubject, size: int) -> None:
    """A request whose payload has up to max_frame bytes is served."""
    with connect(subject) as session:
        number = session.next_id()
        rest = len(_large_get(number, "x" * 256)) - 256
        text = _owned_text(max(1, size - rest))
        number = session.ask(Type.GET, DEADLINE_MS, TEMPERATURE, None, {}, ("JFK", text), number=number)
        assert len(_large_get(number, text)) in (size, size - 1) or size < rest + 256
        found = session.answer(number)
    assert isinstance(found, Values), f"P-FRAME-2: {found} for a payload of {size} bytes"


def _large_get(number: int, text: str) -> bytes:
    return pack((Type.GET, number, DEADLINE_MS, TEMPERATURE, None, {}, ("JFK", text)))


def _owned_text(length: int) -> str:
    """Text of this length whose key group has an owner."""
    candidates = ("x" * (length - 1) + last for last in "abcdefghijklmnop")
    return next(text for text in candidates if not GAP[0] <= group_of(text, MAX_PARALLELISM) < GAP[1])


@law("P-FRAME-3", "P-BROKEN-1", "P-FAIL-3")
@examples(0.5)
@given(length=st.one_of(st.just(LIMITS.max_frame + 1), st.integers(LIMITS.max_frame + 1, (1 << 32) - 1)))
def test_a_longer_frame_is_refused_as_soon_as_its_length_is_known(subject: ServerSubject, length: int) -> None:
    """A length over max_frame is TOO_LARGE at once: the server does not wait for a byte of the payload."""
    with connect(subject) as session:
        session.send(length.to_bytes(4, "big"))
        session.receive_close_notice(Code.TOO_LARGE)


@law("P-FRAME-3", "P-BROKEN-1", "P-BROKEN-3")
def test_a_refused_frame_may_be_followed_by_much(subject: ServerSubject) -> None:
    """The Failure for a frame that is too long arrives although the client still sends. Others are not affected."""
    with connect(subject) as other, connect(subject) as session:
        session.send((1 << 30).to_bytes(4, "big") + b"\0" * 200_000)
        session.receive_close_notice(Code.TOO_LARGE)
        check_untouched(subject, other)
