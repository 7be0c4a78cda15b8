"""The fast path for plain gets and plain answers accepts only what the full checks accept."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import RemoteProtocolError
from qstate.protocol import Get, Limits, Message, Values, decode, encode, frame
from qstate.protocol.fast_path import pack_get, pack_values, unpack_get, unpack_values
from tests.protocol.strategies import almost_payloads, messages

LIMITS = Limits()
STATE_ID = bytes(16)
GET = Get(7, 1000, STATE_ID, None, {}, ("a",))


def decoded(payload: bytes) -> Message | None:
    try:
        return decode(payload, LIMITS)
    except RemoteProtocolError:
        return None


def altered(message: Message, place: int, value: object) -> bytes:
    fields = list(msgpack.unpackb(encode(message), use_list=False))
    fields[place] = value
    packed: bytes = msgpack.packb(fields)
    return packed


#: Values to replace a field of a plain message, most of them nearly valid.
nearly = st.sampled_from(
    [0, -1, 7.0, True, None, "a", b"", b"a", (), {}, (1,), (7.0,), (True,), (None,), (b"",), ("a", "b"), (("a",),)]
) | st.sampled_from(
    [{"isolation": "live"}, {"": 1}, 2**32, (2**63,), (2**64 - 1,), (-1, -1), (-2,), ((),), ({},), ("a", 1)]
)
near_misses = st.builds(altered, st.just(GET), st.integers(0, 6), nearly) | st.builds(
    altered, st.just(Values(7, (1,), (b"x",))), st.integers(0, 3), nearly
)


#: One integer in every form that MessagePack has, other integers, other values, and a truncated integer.
NUMBERS = [
    *[b"\x05", b"\xcc\x05", b"\xcd\0\x05", b"\xce\0\0\0\x05", b"\xcf" + bytes(7) + b"\x05", b"\xd0\x05"],
    *[b"\xd3" + bytes(8), b"\xcf\x7f" + b"\xff" * 7, b"\xcf" + b"\xff" * 8, b"\xcf\0\0\0\x01" + bytes(4)],
    *[b"\0", b"\xff", b"\xfe", b"\xc0", b"\xc3", b"\xcb" + bytes(8), b"\xa1a", b"\x90", b"\xcd\0", b"\xc1"],
]
#: Headers of arrays of 19, 20, 21 and 0 elements, of arrays and a bin in other forms, and a truncated header.
ARRAYS = [
    *[b"\xdc\0" + bytes((count,)) for count in (19, 20, 21, 0)],
    b"\xdd\0\0\0\x14",
    b"\x94",
    b"\xc4\x14",
    b"\xdc\0",
]


def of_many(
    array: bytes = b"\xdc\0\x14", epochs: bytes = b"\x05" * 20, results: int = 20, request_id: bytes = b"\x07"
) -> bytes:
    """The payload of Values with many results; an argument may spoil it."""
    return b"\x94\x03" + request_id + array + epochs + msgpack.packb((b"x",) * results)


VALID, LONG_NUMBERS = of_many(), of_many(epochs=b"\xcd\1\5" * 20, request_id=b"\xcd\1\5")
NEARLY_OF_MANY = {
    "id": [of_many(request_id=number) for number in NUMBERS],
    "array": [of_many(array) for array in ARRAYS],
    "epochs": [of_many(epochs=number * 20) for number in NUMBERS],
    "last epoch": [of_many(epochs=number * 19 + odd) for number in NUMBERS for odd in NUMBERS],
    "results": [of_many(results=results) for results in (0, 1, 19, 21)],
    "end": [valid[:cut] for valid in (VALID, LONG_NUMBERS) for cut in range(2, len(valid))] + [VALID + b"\0"],
}


@pytest.mark.parametrize("place", NEARLY_OF_MANY)
def test_near_miss_of_an_answer_of_one_epoch_is_read_as_by_decode(place: str) -> None:
    for payload in (VALID, LONG_NUMBERS, *NEARLY_OF_MANY[place]):
        found = unpack_values(frame(payload), LIMITS)
        assert found is None or repr(found) == repr(decoded(payload)), payload


@given(messages.map(encode) | almost_payloads | near_misses)
def test_fast_path_reads_what_decode_reads_or_returns_none(payload: bytes) -> None:
    for found in (unpack_get(frame(payload), LIMITS), unpack_values(frame(payload), LIMITS)):
        if found is not None:
            expected = decoded(payload)
            assert type(found) is type(expected)
            assert repr(found) == repr(expected)


@given(messages)
def test_values_packed_by_the_fast_path_are_those_of_encode(message: Message) -> None:
    if isinstance(message, Values):
        failed = any(isinstance(result, int) for result in message.results)
        assert pack_values(message, LIMITS) == (None if failed else encode(message))


def test_plain_get_takes_the_fast_path_both_ways() -> None:
    payload = pack_get(7, 1000, STATE_ID, ("a",))
    assert payload == encode(GET)
    assert unpack_get(frame(payload), LIMITS) == GET


def test_plain_answer_takes_the_fast_path_both_ways() -> None:
    values = Values(7, (3, -1), (b"x", None))
    assert unpack_values(frame(pack_values(values, LIMITS) or b""), LIMITS) == values


@pytest.mark.parametrize("epoch", [0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1, -1])
@pytest.mark.parametrize("count", [2, 15, 16, 100, 4000, 65_535, 65_536])
def test_answer_of_many_keys_and_one_epoch_takes_the_fast_path_both_ways(epoch: int, count: int) -> None:
    limits = Limits(max_keys=100_000)
    values = Values(2**32 - 1, (epoch,) * count, (b"x", None) * (count // 2) + (b"y",) * (count % 2))
    payload = pack_values(values, limits)
    assert payload == encode(values, limits)
    # A large payload is not unpacked at once.
    assert unpack_values(frame(payload), limits) == (values if count < 65_535 else None)


@pytest.mark.parametrize("odd", [5, 1.5, True, "a", (), {}])
@pytest.mark.parametrize("size", [1, 100])
def test_one_result_or_key_of_another_type_is_left_to_decode(odd: object, size: int) -> None:
    results = (*(b"x" * size,) * 30, odd)
    assert unpack_values(frame(msgpack.packb((3, 7, (1,) * 31, results))), LIMITS) is None
    keys = (*("x" * size,) * 30, odd)
    payload = msgpack.packb((2, 7, 1000, STATE_ID, None, {}, keys))
    found = unpack_get(frame(payload), LIMITS)
    assert found == decoded(payload)
    assert (found is None) == (type(odd) not in (str, int))


@pytest.mark.parametrize("odd", [bytearray(b"x"), "x", 5, 1.5])
def test_only_values_and_nil_are_packed(odd: Any) -> None:
    assert pack_values(Values(7, (1,) * 31, (*(b"x",) * 30, odd)), LIMITS) is None
    assert pack_values(Values(7, (1,), (odd,)), LIMITS) is None


@pytest.mark.parametrize(
    "epochs", [(True,) * 31, (1.0,) * 31, (-2,) * 31, (2**63,) * 31, (1,) * 30 + ("a",), (1,) * 30]
)
def test_only_epochs_are_packed(epochs: Any) -> None:
    assert pack_values(Values(7, epochs, (b"x",) * 31), LIMITS) is None


@pytest.mark.parametrize("cut", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: data + data])
def test_fast_path_takes_exactly_one_frame(cut: object) -> None:
    assert callable(cut)
    assert unpack_get(cut(frame(encode(GET))), LIMITS) is None


@pytest.mark.parametrize("key", ["\ud800", 2**64, -(2**63) - 1])
def test_keys_that_no_message_carries_are_left_to_send(key: str | int) -> None:
    assert pack_get(7, 1000, STATE_ID, (key,)) is None


def test_fast_path_keeps_the_limits() -> None:
    few = Limits(max_frame=4096, max_keys=2)
    assert unpack_get(frame(encode(GET._replace(keys=("a", "b", "c")))), few) is None
    assert unpack_values(frame(encode(Values(7, (1, 1, 1), (b"", b"", b"")))), few) is None
    assert pack_values(Values(7, (1,), (b"x" * 4096,)), few) is None
