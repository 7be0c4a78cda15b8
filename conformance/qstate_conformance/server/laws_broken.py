"""Laws of broken streams: what a server answers to garbage, and that other connections are not affected."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import JOB, LIMITS
from qstate_conformance.server.messages import Failure, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import (
    TEMPERATURE,
    ask_known,
    await_room,
    check_each,
    check_untouched,
    owner_sessions,
)
from qstate_conformance.server.streams import Asked, asked_by, check_answers
from qstate_conformance.server.wire import DEADLINE_MS, Stream, connect, frame, hello
from qstate_conformance.subjects import ServerSubject

#: The deadline of a session's requests. When damage turns a key into one without an owner, the server waits so long.
_ASKED_MS = 200


def _session_bytes(token: bytes | None) -> bytes:
    """What a client sends in a short, valid session that uses every request."""
    requests: tuple[tuple[Any, ...], ...] = (
        (Type.PING, 1),
        (Type.GET, 2, _ASKED_MS, TEMPERATURE, None, {}, ("JFK",)),
        (Type.LOCATE, 3, _ASKED_MS, *TEMPERATURE),
        (Type.DESCRIBE, 4, _ASKED_MS, JOB),
        (Type.GET, 5, _ASKED_MS, (JOB, "meanDelay"), 60, {"isolation": "live"}, (("EWR", 1545),)),
        (Type.PING, 6),
    )
    return hello(token=token) + b"".join(frame(pack(request)) for request in requests)


def _say(subject: ServerSubject, data: bytes) -> None:
    """Send these bytes on a new connection, and check that they are answered."""
    with Stream((subject.host, subject.port)) as stream:
        stream.send(data)
        stream.half_close()
        found = stream.receive_what_comes()
    asked = asked_by(data, LIMITS.max_frame)
    check_answers(asked, found, welcome=asked.opening == hello(token=subject.token)[4:])


@law("P-TLS-4", "P-BROKEN-1")
def test_a_handshake_of_tls_at_a_plain_port_is_refused_in_the_plain(subject: ServerSubject) -> None:
    """A server that speaks no TLS answers a handshake of TLS with a plain Failure of id 0, and closes."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    with Stream((subject.host, subject.port)) as stream:
        stream.send(outgoing.read())
        stream.receive_close_notice(Code.TOO_LARGE)


def _play(subject: ServerSubject, data: bytes) -> None:
    """`_say` these bytes; another connection and a new one are served."""
    with connect(subject) as other:
        _say(subject, data)
        check_untouched(subject, other)


Damage = Callable[[bytes, int, int], bytes]
_DAMAGES: dict[str, Damage] = {
    "flip": lambda data, at, byte: data[:at] + bytes((data[at] ^ (byte or 1),)) + data[at + 1 :],
    "insert": lambda data, at, byte: data[:at] + bytes((byte,)) + data[at:],
    "delete": lambda data, at, byte: data[:at] + data[at + 1 :],
    "truncate": lambda data, at, byte: data[:at],
    "repeat": lambda data, at, byte: data[: at + 1] + data[max(0, at - byte) :],
}


@law("P-BROKEN-1", "P-BROKEN-3", "P-REQ-2", "P-REQ-3", "P-CLOSE-1", "P-CLOSE-3", "P-CLOSE-5")
@examples(2.0)
@given(data=st.data(), damage=st.sampled_from(sorted(_DAMAGES)), byte=st.integers(0, 255))
def test_damage_anywhere_in_a_session_harms_nobody_else(
    subject: ServerSubject, data: st.DataObject, damage: str, byte: int
) -> None:
    """A session with a byte flipped, inserted, deleted or cut off anywhere is answered as it is; no other notices."""
    whole = _session_bytes(subject.token)
    position = data.draw(st.integers(0, len(whole) - 1), label="position")
    _play(subject, _DAMAGES[damage](whole, position, byte))


@law("P-BROKEN-1", "P-BROKEN-3", "P-REQ-2", "P-REQ-3", "P-REQ-5", "P-CLOSE-5")
@examples(0.05)
@given(damage=st.sampled_from(sorted(_DAMAGES)), byte=st.integers(1, 255))
@example(damage="repeat", byte=len(frame(pack((Type.PING, 1)))) - 1)
def test_damage_at_every_place_of_a_session_harms_nobody_else(subject: ServerSubject, damage: str, byte: int) -> None:
    """With the same damage at each place in turn, every request that is still whole is answered once."""
    whole = _session_bytes(subject.token)
    for position in range(len(whole)):
        _say(subject, _DAMAGES[damage](whole, position, byte))
    await_room(subject)


@law("P-BROKEN-1", "P-BROKEN-3", "P-CLOSE-1")
def test_a_session_may_end_at_every_place(subject: ServerSubject) -> None:
    """A client that vanishes after any number of bytes, in order or with a reset, leaves nothing behind."""
    whole = _session_bytes(subject.token)
    with connect(subject) as other:
        for length in range(0, len(whole), 3):
            with Stream((subject.host, subject.port)) as stream:
                stream.send(whole[:length])
                if length % 2:
                    stream.reset()
        await_room(subject)
        check_untouched(subject, other)


@law("P-BROKEN-1", "P-BROKEN-3", "P-FRAME-3")
@given(data=st.binary(min_size=1, max_size=400), shaken=st.booleans())
def test_bytes_without_meaning_harm_nobody_else(subject: ServerSubject, data: bytes, shaken: bool) -> None:
    """Arbitrary bytes, instead of a Hello or after it, end their own connection at most."""
    _play(subject, (hello(token=subject.token) if shaken else b"") + data)


@law("P-BROKEN-1", "P-REQ-3", "P-MSG-1", "P-BROKEN-3")
@given(payloads=st.lists(st.binary(max_size=30), min_size=1, max_size=5))
def test_payloads_without_meaning_harm_nobody_else(subject: ServerSubject, payloads: list[bytes]) -> None:
    """Sound frames with arbitrary payloads fail alone or end their own connection."""
    _play(subject, hello(token=subject.token) + b"".join(frame(payload) for payload in payloads))


#: Payloads that break P-MSG-1, and ids of 0: the rest of the stream has no meaning.
_BREAKING: dict[str, bytes] = {
    "nothing": b"",
    "not MessagePack": b"\xc1",
    "an array that is cut off": b"\x93\x08\x09",
    "bytes after the message": b"\x92\x08\x09\x00",
    "a map": b"\x81\x08\x09",
    "an integer": b"\x08",
    "an empty array": b"\x90",
    "a type alone": b"\x91\x08",
    "an id of 0": pack((Type.PING, 0)),
    "a get with an id of 0": pack((Type.GET, 0, DEADLINE_MS, TEMPERATURE, None, {}, ("JFK",))),
    "an unknown type with an id of 0": pack((99, 0)),
    "a failure of id 0": pack((Type.FAILURE, 0, 1, {})),
    "an id below 0": pack((Type.PING, -1)),
    "an id of 33 bits": pack((Type.PING, 1 << 32)),
    "an id as a float": pack((Type.PING, 1.0)),
    "an id as a boolean": pack((Type.PING, True)),
    "an id that is nil": pack((Type.PING, None)),
    "an id as a string": pack((Type.PING, "1")),
    "a type as a float": pack((8.0, 1)),
    "a type as a string": pack(("ping", 1)),
    "a type below 0": pack((-1, 1)),
    "a type of 33 bits": pack((1 << 32, 1)),
    "a second hello": pack((Type.HELLO, 0, (1,), None, "")),
    "a welcome": pack((Type.WELCOME, 0, 1, "", (), LIMITS.max_frame, LIMITS.max_keys)),
}


@law("P-BROKEN-1", "P-BROKEN-3", "P-MSG-1", "P-MSG-2", "P-FAIL-3", "P-CLOSE-3")
def test_a_stream_without_meaning_is_malformed(subject: ServerSubject) -> None:
    """A payload that breaks P-MSG-1, or an id of 0, is a Failure of id 0 with MALFORMED; then the server closes."""

    def check(payload: bytes) -> None:
        with connect(subject) as session:
            session.ping()
            session.send(frame(payload))
            session.receive_close_notice(Code.MALFORMED)

    with connect(subject) as other:
        check_each(_BREAKING, check)
        check_untouched(subject, other)


@law("P-BROKEN-1", "P-CLOSE-3", "P-FAIL-3", "P-BROKEN-3")
@examples(0.5)
@given(before=st.integers(0, 12), cut=st.booleans(), data=st.binary(min_size=1, max_size=50))
def test_nothing_follows_the_failure_of_a_connection(
    subject: ServerSubject, before: int, cut: bool, data: bytes
) -> None:
    """After requests and then garbage, the Failure of id 0 is the server's last message, at proxy and owner."""
    asked = Asked(hello(token=subject.token), tuple(range(1, before + 1)), broken=True)
    with owner_sessions(subject, "temperature") as owners, connect(subject) as proxy:
        sessions = [(proxy, TEMPERATURE), *((session, owner.state_id) for owner, session in owners)]
        for session, target in sessions:
            numbers = [session.next_id() for _ in range(before)]
            fields: tuple[Any, ...] = (DEADLINE_MS, target, None, {}, ("JFK",))
            requests = b"".join(session.request(Type.GET, number, *fields) for number in numbers)
            garbage = frame(b"\xc1") + data
            for piece in (requests, garbage) if cut else (requests + garbage,):
                session.send(piece)
        for session, _ in sessions:
            found = session.receive_rest()
            check_answers(asked, [session.welcome, *found], welcome=True)
            last = found[-1]
            if not (isinstance(last, Failure) and last.code == Code.MALFORMED):
                raise Violation(f"P-BROKEN-1: {last} at the end of a broken stream")


@law("P-BROKEN-3", "P-HELLO-7")
def test_broken_connections_give_their_places_back(subject: ServerSubject) -> None:
    """After more broken connections than the limit, one after the other, the server accepts sound ones."""
    for end in (_end_with_garbage, _end_with_reset, _end_within_a_frame, _end_before_the_hello):
        for _ in range(LIMITS.max_connections + 6):
            end(subject)
        await_room(subject)


def _end_with_garbage(subject: ServerSubject) -> None:
    with connect(subject) as session:
        session.send(frame(b"\xc1"))
        session.receive_close_notice(Code.MALFORMED)


def _end_with_reset(subject: ServerSubject) -> None:
    with connect(subject) as session:
        ask_known(session)
        session.reset()


def _end_within_a_frame(subject: ServerSubject) -> None:
    with connect(subject) as session:
        session.send(b"\x00\x00\x00\x09\x92")


def _end_before_the_hello(subject: ServerSubject) -> None:
    with Stream((subject.host, subject.port)) as stream:
        stream.send(b"\x00\x00")


@law("P-BROKEN-1", "P-MSG-1", "P-MSG-4")
@examples(0.3)
@given(data=st.data())
def test_a_sound_payload_with_bytes_behind_it_is_broken(subject: ServerSubject, data: st.DataObject) -> None:
    """A payload is one array and nothing after it, in whatever form the array is."""
    payload = data.draw(strategies.in_any_form((8, 5))) + data.draw(st.binary(min_size=1, max_size=5))
    with connect(subject) as session:
        session.send(frame(payload))
        session.receive_close_notice(Code.MALFORMED)
