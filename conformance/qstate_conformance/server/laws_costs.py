"""Laws of costs: what a request costs a server is bounded by what it may hold and give, not by what it announces.

A server is compared with itself: the least time of a few tries, against that of a sound request of the same size.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from qstate_conformance.codes import Code, Type
from qstate_conformance.key_groups import Key
from qstate_conformance.laws import law
from qstate_conformance.server.fixture import JOB, LIMITS, key_with_owner, state
from qstate_conformance.server.messages import Failure, Values, Violation, Welcome
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import TEMPERATURE, check_each
from qstate_conformance.server.streams import HANDSHAKE_MAX_FRAME
from qstate_conformance.server.wire import DEADLINE_MS, Session, Stream, connect, frame
from qstate_conformance.subjects import ServerSubject

#: So many times the time of a sound one may be taken, and so much more: a machine may have other work.
_TIMES, _MORE_S = 10, 0.010
_TRIES = 5


def _least_s(action: Callable[[], None]) -> float:
    """The least time that something takes, of a few tries."""
    times = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def _check_cost(rule: str, found_s: float, sound_s: float) -> None:
    if found_s > _TIMES * sound_s + _MORE_S:
        raise Violation(
            f"{rule}: {found_s * 1000:.1f} ms, where a sound one of this size takes {sound_s * 1000:.1f} ms"
        )


def _hostile(room: int) -> dict[str, bytes]:
    """Replacements for a field, of up to so many bytes, that make a reader build more than it received."""
    rows = room // 4 - 1
    return {
        "arrays of 10,000 within each other": (b"\xdc\x27\x10" * 1000).ljust(room, b"\0"),
        "arrays of 1,000 within each other": (b"\xdc\x03\xe8" * 1000).ljust(room, b"\0"),
        "long arrays within each other": (b"\xdd\0\0\xbb\x80" * 1000).ljust(room, b"\0"),
        "maps of 10,000 within each other": (b"\xde\x27\x10\xa0" * 1000).ljust(room, b"\0"),
        "arrays of one within each other": b"\x91" * (room - 1) + b"\0",
        "an array of empty arrays": b"\xdd" + (room - 5).to_bytes(4, "big") + b"\x90" * (room - 5),
        "arrays of arrays of arrays": b"\xdc" + rows.to_bytes(2, "big") + b"\x91\x91\x91\1" * rows,
        "an array of numbers": b"\xdd" + (room - 5).to_bytes(4, "big") + b"\1" * (room - 5),
    }


@law("P-MSG-10", "P-HELLO-2", "P-BROKEN-1")
def test_a_first_message_costs_what_its_size_allows(subject: ServerSubject) -> None:
    """Before a client has authenticated, no message costs more than a Hello of its size."""
    opening = pack((Type.HELLO, 0, (1,), subject.token, ""))
    padding = HANDSHAKE_MAX_FRAME - len(opening) - 3
    padded = b"\x96" + opening[1:] + b"\xc5" + padding.to_bytes(2, "big") + bytes(padding)

    def say(payload: bytes) -> None:
        with Stream((subject.host, subject.port)) as stream:
            stream.send(frame(payload))
            found = stream.receive()
        assert isinstance(found, Welcome | Failure) and (not isinstance(found, Failure) or not found.id), f"{found}"

    connect(subject).close()
    sound_s = _least_s(lambda: say(padded))
    starts = {"in place of versions": b"\x95\0\0", "behind the Hello": b"\x96" + opening[1:]}
    cases = {
        f"{name} {place}": start + data
        for place, start in starts.items()
        for name, data in _hostile(HANDSHAKE_MAX_FRAME - 100).items()
    }
    check_each(cases, lambda payload: _check_cost("P-MSG-10", _least_s(lambda: say(payload)), sound_s))


@law("P-MSG-10", "P-REQ-3", "P-BROKEN-1")
def test_a_request_costs_what_its_size_allows(subject: ServerSubject) -> None:
    """A request with false headers or deep nesting costs no more than a sound Get of its size."""
    room = LIMITS.max_frame - 100
    with connect(subject) as session:
        key = key_with_owner("x" * (room - 20), ("string",))
        sound_s = _least_s(lambda: _expect_values(session, key))
    start = b"\x97\x02\x09\xcd\x03\xe8" + pack(TEMPERATURE)
    places = {"as the namespace": start, "as options": start + b"\xc0", "as keys": start + b"\xc0\x80"}
    places["as a key"] = places["as keys"] + b"\x91"

    def check(payload: bytes) -> None:
        def say() -> None:
            with connect(subject) as session:
                session.expect(9, None)
                session.send(frame(payload))
                found = session.receive()
            assert isinstance(found, Failure), f"{found}"

        _check_cost("P-MSG-10", _least_s(say), sound_s)

    check_each(
        {f"{name} {place}": before + data for place, before in places.items() for name, data in _hostile(room).items()},
        check,
    )


def _expect_values(session: Session, key: Key) -> None:
    found = session.get(TEMPERATURE, key)
    assert isinstance(found, Values), f"{found!r:.200} for a long key"


@law("P-GET-8", "P-REQ-3")
def test_an_answer_that_is_too_large_is_not_made_first(subject: ServerSubject) -> None:
    """A Get that repeats the key of one large value costs no more than one of as many keys without a value."""
    whole = key_with_owner("whole", ("string",))
    count = min(LIMITS.max_keys, (LIMITS.max_frame - 100) // max(len(pack(whole)), len(pack(state("blobs").absent))))

    def ask(key: str, expected: type) -> None:
        found = session.get((JOB, "blobs"), *(key,) * count, deadline_ms=DEADLINE_MS)
        assert isinstance(found, expected), f"P-GET-8: {found!r:.200} for {count} keys"
        assert not isinstance(found, Failure) or found.code == Code.TOO_LARGE, f"P-GET-8: {found}"

    with connect(subject) as session:
        sound_s = _least_s(lambda: ask(str(state("blobs").absent), Values))
        _check_cost("P-GET-8", _least_s(lambda: ask(str(whole), Failure)), sound_s)
