"""Laws of messages: every form of MessagePack is read, and no value is taken for one of another type."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qstate_conformance.codes import Code, Type
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.server import strategies
from qstate_conformance.server.fixture import JOB, STATES
from qstate_conformance.server.messages import Description, Location, Pong, Values, Violation
from qstate_conformance.server.packing import pack
from qstate_conformance.server.probes import KNOWN, TEMPERATURE, check_answer, check_each, target_of
from qstate_conformance.server.wire import DEADLINE_MS, connect, frame
from qstate_conformance.subjects import ServerSubject

_ENTRIES = [(state, entry) for state in STATES for entry in state.entries if state.name != "blobs"]


@law("P-MSG-4", "P-GET-1", "P-KEY-1")
@given(data=st.data(), which=st.sampled_from(_ENTRIES), number=strategies.request_ids)
def test_a_get_is_read_in_every_form(subject: ServerSubject, data: st.DataObject, which: Any, number: int) -> None:
    """Integers, strings, binaries, arrays and maps are read in every form that MessagePack has for them."""
    state, entry = which
    fields = (DEADLINE_MS, target_of(state), entry.namespace, {"isolation": "live"}, (entry.key, entry.key))
    payload = data.draw(strategies.in_any_form((2, number, *fields)))
    with connect(subject) as session:
        session.expect(number, Values, 2)
        session.send(frame(payload))
        found = session.answer(number)
    assert isinstance(found, Values), f"P-MSG-4: {found} for {payload.hex()}"
    for result in found.results:
        check_answer(state, entry, result)


@law("P-MSG-4", "P-PING-1")
@given(data=st.data(), number=strategies.request_ids)
def test_other_requests_are_read_in_every_form(subject: ServerSubject, data: st.DataObject, number: int) -> None:
    """Ping, Locate and Describe are read in every form that MessagePack has for them."""
    request, answer = data.draw(
        st.sampled_from(
            [
                ((8, number), Pong),
                ((4, number, DEADLINE_MS, JOB, "Höhe über NN ✈"), Location),
                ((6, number, DEADLINE_MS, None), Description),
                ((6, number, DEADLINE_MS, JOB), Description),
            ]
        )
    )
    payload = data.draw(strategies.in_any_form(request))
    with connect(subject) as session:
        session.expect(number, answer)
        session.send(frame(payload))
        found = session.answer(number)
    assert isinstance(found, answer), f"P-MSG-4: {found} for {payload.hex()}"


def _get(**changed: Any) -> tuple[Any, ...]:
    fields = {"deadline": 1000, "target": TEMPERATURE, "namespace": None, "options": {}, "keys": ("JFK",)} | changed
    return (Type.GET, 9, *fields.values())


#: Requests that break a rule about types or sizes and nothing that has a code of its own: MALFORMED.
_MALFORMED: dict[str, tuple[Any, ...]] = {
    "ping with a field": (Type.PING, 9, None),
    "get without keys": _get()[:-1],
    "get with a field more": (*_get(), None),
    "locate with a field less": (Type.LOCATE, 9, 1000, JOB),
    "locate with a field more": (Type.LOCATE, 9, 1000, JOB, "temperature", None),
    "describe with a field less": (Type.DESCRIBE, 9, 1000),
    "describe with a field more": (Type.DESCRIBE, 9, 1000, None, None),
    "a deadline below 0": _get(deadline=-1),
    "a deadline of 33 bits": _get(deadline=1 << 32),
    "a deadline as a float": _get(deadline=1000.0),
    "a deadline as a boolean": _get(deadline=True),
    "a deadline as a string": _get(deadline="1000"),
    "a deadline that is nil": _get(deadline=None),
    "a locate's deadline as a float": (Type.LOCATE, 9, 1000.0, JOB, "temperature"),
    "a describe's deadline below 0": (Type.DESCRIBE, 9, -1, None),
    "a target of one name": _get(target=(JOB,)),
    "a target of three names": _get(target=(JOB, "temperature", "more")),
    "a target as a string": _get(target="temperature"),
    "a target that is nil": _get(target=None),
    "a target of binaries": _get(target=(JOB.encode(), b"temperature")),
    "a state id of 15 bytes": _get(target=b"x" * 15),
    "a state id of 17 bytes": _get(target=b"x" * 17),
    "a state id as a string": _get(target="x" * 16),
    "an empty job": _get(target=("", "temperature")),
    "an empty state": _get(target=(JOB, "")),
    "a job of 256 characters": _get(target=("é" * 256, "temperature")),
    "options that are nil": _get(options=None),
    "options that are an array": _get(options=()),
    "an option whose name is a binary": _get(options={b"isolation": "live"}),
    "an option whose name is a number": _get(options={1: "live"}),
    "an option without a name": _get(options={"": "live"}),
    "an option that is an array": _get(options={"isolation": ("live",)}),
    "an option that is not finite": _get(options={"isolation": math.inf}),
    "an option that is a binary": _get(options={"isolation": b"live"}),
    "an epoch below 0": _get(options={"min_epoch": -1}),
    "an epoch as a float": _get(options={"min_epoch": 7.0}),
    "an epoch as a string": _get(options={"min_epoch": "7"}),
    "an epoch as a boolean": _get(options={"min_epoch": True}),
    "an epoch that is nil": _get(options={"min_epoch": None}),
    "an epoch of 64 bits without sign": _get(options={"min_epoch": 1 << 63}),
    "a staleness below 0": _get(options={"max_staleness_ms": -1}),
    "a staleness as a float": _get(options={"max_staleness_ms": 500.0}),
    "a staleness as a string": _get(options={"max_staleness_ms": "500"}),
    "a staleness that is nil, beside an isolation": _get(options={"isolation": "live", "max_staleness_ms": None}),
    "no key": _get(keys=()),
    "keys that are a string": _get(keys="JFK"),
    "keys that are nil": _get(keys=None),
    "keys that are a map": _get(keys={"JFK": 1}),
    "a job as a number": (Type.LOCATE, 9, 1000, 3, "temperature"),
    "a job as a binary": (Type.LOCATE, 9, 1000, JOB.encode(), "temperature"),
    "a state of 256 characters": (Type.LOCATE, 9, 1000, JOB, "x" * 256),
    "an empty job to describe": (Type.DESCRIBE, 9, 1000, ""),
    "a job to describe as a binary": (Type.DESCRIBE, 9, 1000, JOB.encode()),
}


@law("P-MSG-3", "P-MSG-5", "P-MSG-6", "P-MSG-7", "P-MSG-8", "P-REQ-3", "P-REQ-4")
def test_what_breaks_a_rule_of_types_or_sizes_is_malformed(subject: ServerSubject) -> None:
    """A request with a wrong number of elements, or one of a wrong type or size, is MALFORMED, and it alone fails."""

    def check(payload: tuple[Any, ...]) -> None:
        with connect(subject) as session:
            _expect(session.refused(pack(payload), 9), Code.MALFORMED)
            session.ping()

    check_each(_MALFORMED, check)


def _expect(code: int, *wanted: Code) -> None:
    if code not in wanted:
        raise Violation(f"P-REQ-4: code {code} instead of {' or '.join(one.name for one in wanted)}")


_GET_START = b"\x97\x02\x09\xcd\x03\xe8" + pack(TEMPERATURE)
#: Payloads that MessagePack libraries do not write.
_ODD: dict[str, tuple[bytes, tuple[Code, ...]]] = {
    "a key that is not UTF-8": (_GET_START + b"\xc0\x80\x91\xa2\xc3\x28", (Code.MALFORMED,)),
    "a key with half a surrogate pair": (_GET_START + b"\xc0\x80\x91\xa3\xed\xa0\x80", (Code.MALFORMED,)),
    "an option twice": (
        _GET_START + b"\xc0\x82" + 2 * (pack("isolation") + pack("live")) + b"\x91\xa1x",
        (Code.MALFORMED,),
    ),
    "an extension type as a namespace": (_GET_START + b"\xd4\x01\x00\x80\x91\xa1x", (Code.WRONG_KEY_TYPE,)),
    "an extension type as a key": (_GET_START + b"\xc0\x80\x91\xd4\x01\x00", (Code.WRONG_KEY_TYPE,)),
    "a timestamp as a key": (_GET_START + b"\xc0\x80\x91\xd6\xff\0\0\0\0", (Code.WRONG_KEY_TYPE,)),
    "an extension type as options": (_GET_START + b"\xc0\xd4\x01\x00\x91\xa1x", (Code.MALFORMED,)),
    "an extension type as a deadline": (
        b"\x97\x02\x09\xd4\x01\x00" + _GET_START[6:] + b"\xc0\x80\x91\xa1x",
        (Code.MALFORMED,),
    ),
    # Both rules are broken, and the reference does not say which comes first.
    "65 options": (
        _GET_START + b"\xc0" + pack({f"option {n}": n for n in range(65)}) + b"\x91\xa1x",
        (Code.MALFORMED, Code.UNSUPPORTED),
    ),
}


@law("P-MSG-5", "P-MSG-7", "P-MSG-9", "P-REQ-3", "P-REQ-4")
def test_odd_messagepack_fails_its_request_alone(subject: ServerSubject) -> None:
    """Text that is not UTF-8, a map with a key twice and extension types fail their request, and no other."""

    def check(case: tuple[bytes, tuple[Code, ...]]) -> None:
        payload, codes = case
        with connect(subject) as session:
            _expect(session.refused(payload, 9), *codes)
            session.ping()

    check_each(_ODD, check)


@law("P-MSG-5", "P-KEY-5")
@examples(0.3)
@given(name=st.one_of(strategies.names, st.sampled_from(["\U0001f600" * 255, "é" * 255, "x" * 255, "\0"])))
def test_a_name_is_any_string_of_255_code_points(subject: ServerSubject, name: str) -> None:
    """A name of 1 to 255 characters, counted in code points, is sound, so an unknown one is unknown, not MALFORMED."""
    if name in (JOB, *(state.name for state in STATES)):
        return
    with connect(subject) as session:
        _expect(getattr(session.locate(name, "temperature"), "code", 0), Code.UNKNOWN_JOB)
        _expect(getattr(session.get((JOB, name), "JFK"), "code", 0), Code.UNKNOWN_STATE)


@law("P-MSG-5", "P-KEY-1")
def test_text_and_binary_are_different_keys(subject: ServerSubject) -> None:
    """A binary is not taken for a string, although both hash alike: the key is of a wrong type."""
    with connect(subject) as session:
        assert isinstance(KNOWN.key, str)
        found = session.get(TEMPERATURE, KNOWN.key.encode())
        _expect(getattr(found, "code", 0), Code.WRONG_KEY_TYPE)
