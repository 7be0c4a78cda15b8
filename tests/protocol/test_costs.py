"""The memory and steps of decoding are bounded by a payload's size and the limits, whatever its content."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import msgpack
import pytest

from qstate.errors import FailureCode, RemoteProtocolError
from qstate.protocol.codec import BadContent, decode
from qstate.protocol.limits import Limits
from qstate.protocol.messages import Get, Hello, Values

#: The default limits of a server.
LIMITS = Limits()
MIB = 1 << 20
#: Memory for unused arrays, a few copies of the payload, and one object for each byte of a small payload.
MOST_MEMORY = 3 * MIB
MOST_MEMORY_A_BYTE = 8
#: Calls of Python and C functions: a few for each of the keys that the limits allow.
MOST_CALLS = 30 * LIMITS.max_keys

GET = b"\x97\x02\x07\xcd\x03\xe8\xc4\x10" + bytes(16)
VALUES = b"\x94\x03\x07"


def array(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


#: Replacements of a field.
HOSTILE = {
    "nested arrays of 10,000": b"\xdc\x27\x10" * 1000 + bytes(10_000),
    "nested arrays of 1,000": b"\xdc\x03\xe8" * 1000,
    "nested arrays of 255": b"\xdc\0\xff" * 1000 + bytes(300_000),
    "nested maps": b"\xde\x27\x10\xa0" * 1000 + bytes(30_000),
    "deep": b"\x91" * 60_000 + b"\0",
    "an array that is longer than the payload": array((1 << 32) - 1),
    "16 MB of numbers": array(16_000_000) + b"\1" * 16_000_000,
    "10,000 arrays of 1,600 numbers": array(10_000) + (b"\xdc\x06\x40" + b"\1" * 1600) * 10_000,
    "10,000 arrays of arrays": array(10_000) + (b"\x9f" + b"\x9f" + b"\x91\1" * 15 + b"\x90" * 14) * 10_000,
    "100,000 nested trifles": array(9_000) + b"\x91\x91\x91\1" * 9_000,
    "trifles without end": array(10_000) + b"\x91\x91\x91\1" * 40_000,
    "maps in maps": b"\x81\xa1a" * 20_000 + b"\1",
    "a map of maps": b"\xdf\0\0\xff\xff" + b"\xa1a\x80" * 65_535,
    "extensions": array(10_000) + b"\xc7\xff\x05" + bytes(255) + b"\xd4\1\0" * 9_999,
    "bad extensions": array(10_000) + b"\xc7\1\xff\0" * 10_000,
    "no UTF-8": array(10_000) + b"\xa1\xff" * 10_000,
    "arrays after a number": array(10_000) + b"\1" + b"\x92\1\2" * 9_999,
    "numbers after an array": array(10_000) + b"\x92\1\2" + b"\1" * 9_999,
}
PLACES = {
    "keys": GET + b"\xc0\x80",
    "one key": GET + b"\xc0\x80\x91",
    "namespace": GET,
    "options": GET + b"\xc0",
    "target": GET[:6],
    "epochs": VALUES,
    "results": VALUES + b"\x91\1",
    "entries": b"\x93\x07\x07",
    "state": b"\x95\x05\x07",
    "details": b"\x94\x0a\x07\1",
    "an unknown type": b"\x93\x4d\x07",
    "a hello's versions": b"\x95\0\0",
}


def spent(action: Callable[[], Any]) -> tuple[int, int]:
    """The peak of memory and the number of function calls of an action that may raise a protocol error."""
    calls = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    tracemalloc.start(1)
    sys.setprofile(count)
    try:
        action()
    except RemoteProtocolError:
        pass
    finally:
        sys.setprofile(None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak, calls


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_field_costs_no_more_than_its_size_allows(place: str, name: str) -> None:
    payload = PLACES[place] + HOSTILE[name]
    for decoding in (
        lambda: decode(payload, LIMITS),
        lambda: decode(payload, takes=(Hello,)),
    ):
        memory, calls = spent(decoding)
        assert memory <= MOST_MEMORY + MOST_MEMORY_A_BYTE * len(payload), f"{memory} bytes for {len(payload)}"
        assert calls <= MOST_CALLS, f"{calls} calls for {len(payload)} bytes"


@pytest.mark.parametrize("name", HOSTILE)
def test_before_the_handshake_a_payload_costs_little(name: str) -> None:
    for start in (b"\x95\0\0", b"\x95\0\0\x91\1", b"\x97\0\0\x91\1\xc0\xa0", b"\x93\x4d\x07", GET + b"\xc0\x80"):
        memory, calls = spent(partial(decode, (start + HOSTILE[name])[:65_536], takes=(Hello,)))
        assert (memory <= MIB, calls <= 100) == (True, True), f"{memory} bytes, {calls} calls"


def test_fields_that_a_newer_client_appends_to_its_hello_are_not_built() -> None:
    later = (0,) * 20_000
    payload = msgpack.packb((0, 0, (1,), None, "", (), 4096, later, *later))
    memory, calls = spent(lambda: decode(payload, takes=(Hello,)))
    assert memory < MIB and calls < 100
    assert decode(payload, takes=(Hello,)) == Hello((1,), None, "", (), 4096)


@pytest.mark.parametrize(
    "zero", [b"\0", b"\xcc\0", b"\xcd\0\0", b"\xd0\0", b"\xd1\0\0", b"\xd2" + bytes(4), b"\xd3" + bytes(8)]
)
def test_a_first_message_may_have_its_numbers_in_any_form(zero: bytes) -> None:
    payload = b"\xdc\0\x05" + zero + zero + b"\x91\1\xc0\xa0"
    assert decode(payload, takes=(Hello,)) == Hello((1,), None, "")
    with pytest.raises(RemoteProtocolError):
        decode(payload.replace(zero, b"\xff"), takes=(Hello,))


VALID = {
    "texts": tuple(f"key {number}" for number in range(10_000)),
    "numbers": tuple(range(10_000)),
    "binaries": tuple(number.to_bytes(16, "big") * 3 for number in range(10_000)),
    "pairs": tuple((f"key {number}", number) for number in range(10_000)),
    "many columns": tuple((number,) * 64 for number in range(10_000)),
    "long texts": ("é" * 100_000, "x" * 3_000_000),
    "texts of other alphabets": tuple(f"ключ ܜܝ {number}" for number in range(3_000)),
    "few": ("a", 1, b"\xdc\xdd", ("b", 2)),
    "bytes that look like headers": (b"\xdc\xdd" * 5_000, b"\xdc\xff\xff" * 1_000),
}


@pytest.mark.parametrize("name", VALID)
def test_valid_keys_are_read_however_many_and_however_long(name: str) -> None:
    get = Get(7, 1000, bytes(16), None, {"isolation": "live"}, VALID[name])
    assert decode(msgpack.packb((2, *get)), LIMITS) == get


@pytest.mark.parametrize("cut", [-1, -2, -100, -10_000])
def test_a_large_payload_that_is_too_short_or_too_long_is_broken(cut: int) -> None:
    payload = msgpack.packb((2, *Get(7, 1000, bytes(16), None, {}, VALID["texts"])))
    for damaged in (payload[:cut], payload + payload[cut:]):
        with pytest.raises(RemoteProtocolError) as caught:
            decode(damaged, LIMITS)
        assert not isinstance(caught.value, BadContent)


@pytest.mark.parametrize(
    ("odd", "code"),
    [
        (None, FailureCode.WRONG_KEY_TYPE),
        (1.5, FailureCode.WRONG_KEY_TYPE),
        ({}, FailureCode.WRONG_KEY_TYPE),
        ({"a": 1}, FailureCode.WRONG_KEY_TYPE),
        ({1: 1}, FailureCode.WRONG_KEY_TYPE),
        (("a", ("b", 1)), FailureCode.WRONG_KEY_TYPE),
        (("a",), FailureCode.WRONG_KEY_TYPE),
        ((1,) * 65, FailureCode.WRONG_KEY_TYPE),
        ((1,) * 5000, FailureCode.WRONG_KEY_TYPE),
        (msgpack.ExtType(5, b"x"), FailureCode.WRONG_KEY_TYPE),
        (msgpack.Timestamp(1, 1), FailureCode.WRONG_KEY_TYPE),
    ],
    ids=repr,
)
@pytest.mark.parametrize("others", [5, 9_000])
@pytest.mark.parametrize("valid", ["text", ("a", 1)], ids=["text", "pair"])
def test_one_invalid_key_is_named_among_few_and_many(odd: Any, code: FailureCode, others: int, valid: Any) -> None:
    keys = (*(valid,) * others, odd, valid)
    with pytest.raises(BadContent) as caught:
        decode(msgpack.packb((2, 7, 1000, bytes(16), None, {}, keys)), LIMITS)
    assert (caught.value.code, caught.value.details["index"]) == (code, others)


def test_more_keys_than_the_limit_are_too_large_however_many() -> None:
    for count in (10_001, 20_000, 1_000_000):
        with pytest.raises(BadContent) as caught:
            decode(msgpack.packb((2, 7, 1000, bytes(16), None, {}, (1,) * count)), LIMITS)
        assert (caught.value.code, caught.value.details["limit"]) == (FailureCode.TOO_LARGE, 10_000)


def test_large_answers_are_read() -> None:
    values = Values(7, (3,) * 9_000, (b"x" * 30, None, 5) * 3_000, "f").with_failures_marked()
    assert decode(msgpack.packb((3, *values)), Limits()) == values
