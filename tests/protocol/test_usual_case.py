"""The short cuts for the usual get and the usual answer: they take what the full checks accept, or nothing."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import RemoteProtocolError
from qstate.protocol import Get, Limits, Message, Values, decode, encode, frame
from qstate.protocol.usual import pack_get, pack_values, unpack_get, unpack_values
from tests.protocol.strategies import almost_payloads, messages

LIMITS = Limits()
STATE_ID = bytes(16)
GET = Get(7, 1000, STATE_ID, None, {}, ("a",))


def judged(payload: bytes) -> Message | None:
    try:
        return decode(payload, LIMITS)
    except RemoteProtocolError:
        return None


def altered(message: Message, place: int, value: object) -> bytes:
    fields = list(msgpack.unpackb(encode(message), use_list=False))
    fields[place] = value
    packed: bytes = msgpack.packb(fields)
    return packed


#: A field of the usual messages replaced by what is nearly right.
nearly = st.sampled_from(
    [0, -1, 7.0, True, None, "a", b"", b"a", (), {}, (1,), (7.0,), (True,), (None,), (b"",), ("a", "b"), (("a",),)]
) | st.sampled_from(
    [{"isolation": "live"}, {"": 1}, 2**32, (2**63,), (2**64 - 1,), (-1, -1), (-2,), ((),), ({},), ("a", 1)]
)
near_misses = st.builds(altered, st.just(GET), st.integers(0, 6), nearly) | st.builds(
    altered, st.just(Values(7, (1,), (b"x",))), st.integers(0, 3), nearly
)


@given(messages.map(encode) | almost_payloads | near_misses)
def test_a_short_cut_reads_what_decode_reads_or_leaves_it_to_decode(payload: bytes) -> None:
    for found in (unpack_get(frame(payload), LIMITS), unpack_values(frame(payload), LIMITS)):
        if found is not None:
            expected = judged(payload)
            assert type(found) is type(expected)
            assert repr(found) == repr(expected)


@given(messages)
def test_values_packed_by_the_short_cut_are_those_of_encode(message: Message) -> None:
    if isinstance(message, Values):
        failed = any(isinstance(result, int) for result in message.results)
        assert pack_values(message, LIMITS) == (None if failed else encode(message))


def test_the_usual_get_takes_the_short_cut_both_ways() -> None:
    payload = pack_get(7, 1000, STATE_ID, ("a",))
    assert payload == encode(GET)
    assert unpack_get(frame(payload), LIMITS) == GET


def test_the_usual_answer_takes_the_short_cut_both_ways() -> None:
    values = Values(7, (3, -1), (b"x", None))
    assert unpack_values(frame(pack_values(values, LIMITS) or b""), LIMITS) == values


@pytest.mark.parametrize("cut", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: data + data])
def test_a_short_cut_takes_one_whole_frame_only(cut: object) -> None:
    assert callable(cut)
    assert unpack_get(cut(frame(encode(GET))), LIMITS) is None


@pytest.mark.parametrize("key", ["\ud800", 2**64, -(2**63) - 1])
def test_keys_that_no_message_carries_are_left_to_send(key: str | int) -> None:
    assert pack_get(7, 1000, STATE_ID, (key,)) is None


def test_the_short_cuts_keep_to_the_limits() -> None:
    few = Limits(max_frame=4096, max_keys=2)
    assert unpack_get(frame(encode(GET._replace(keys=("a", "b", "c")))), few) is None
    assert unpack_values(frame(encode(Values(7, (1, 1, 1), (b"", b"", b"")))), few) is None
    assert pack_values(Values(7, (1,), (b"x" * 4096,)), few) is None
