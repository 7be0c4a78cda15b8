"""Laws of frames: any split gives the same payloads, and a frame over the limit is refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import FailureCode, RemoteProtocolError
from qstate.protocol.codec import FrameReader, frame

payloads = st.lists(st.binary(max_size=40), max_size=8)


@given(payloads, st.data())
def test_any_split_of_the_stream_gives_the_same_payloads(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, payloads))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = FrameReader()
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        part = data.draw(st.sampled_from([bytes, bytearray, memoryview]))(stream[start:stop])
        found += list(reader.feed(part))
    assert found == payloads
    assert all(type(payload) is bytes for payload in found)
    assert reader.buffered == 0


@given(payloads, st.binary(max_size=3))
def test_an_incomplete_frame_waits_for_its_other_bytes(payloads: list[bytes], rest: bytes) -> None:
    reader = FrameReader()
    assert list(reader.feed(b"".join(map(frame, payloads)) + rest)) == payloads
    assert reader.buffered == len(rest)


def test_a_buffer_that_the_caller_reuses_does_not_change_a_payload() -> None:
    buffer = bytearray(frame(b"first"))
    (payload,) = FrameReader().feed(memoryview(buffer))
    buffer[:] = frame(b"other")
    assert payload == b"first"


def test_payloads_that_were_not_taken_come_with_the_next_feed() -> None:
    reader = FrameReader()
    assert next(reader.feed(frame(b"one") + frame(b"two") + b"\0")) == b"one"
    assert list(reader.feed(b"\0\0\3six")) == [b"two", b"six"]


@pytest.mark.parametrize("size", [0, 10, 11, 2**32 - 1])
def test_a_length_over_the_limit_is_refused_before_its_body_comes(size: int) -> None:
    reader = FrameReader(max_frame=10)
    header = size.to_bytes(4, "big")
    if size <= 10:
        assert list(reader.feed(header + bytes(size))) == [bytes(size)]
        return
    assert list(reader.feed(header[:3])) == []
    with pytest.raises(RemoteProtocolError) as caught:
        list(reader.feed(header[3:]))
    assert caught.value.code is FailureCode.TOO_LARGE
    with pytest.raises(RemoteProtocolError):
        list(reader.feed(b"more"))


def test_valid_frames_before_an_oversized_one_come_first() -> None:
    frames = FrameReader(max_frame=10).feed(frame(b"valid") + frame(bytes(11)))
    assert next(frames) == b"valid"
    with pytest.raises(RemoteProtocolError):
        next(frames)


def test_the_limit_may_change_between_two_frames_of_one_feed() -> None:
    reader = FrameReader(max_frame=5)
    frames = reader.feed(frame(b"small") + frame(b"larger than five"))
    assert next(frames) == b"small"
    reader.max_frame = 100
    assert next(frames) == b"larger than five"


def test_feeding_single_bytes_costs_no_more_for_a_larger_frame() -> None:
    """Copying the buffer at every byte would cost 64 times as much per byte for a frame 64 times as large."""

    def seconds_per_byte(size: int) -> float:
        reader, stream = FrameReader(), frame(bytes(size))
        found = []
        started = time.process_time()
        for place in range(len(stream)):
            found += list(reader.feed(stream[place : place + 1]))
        assert found == [bytes(size)]
        return (time.process_time() - started) / len(stream)

    small = min(seconds_per_byte(8 * 1024) for _ in range(3))
    large = seconds_per_byte(512 * 1024)
    assert large < 8 * small


def test_a_large_buffer_is_freed_when_it_is_used_up() -> None:
    reader = FrameReader()
    stream = frame(bytes(1 << 20))
    assert [len(payload) for part in (stream[:100], stream[100:]) for payload in reader.feed(part)] == [1 << 20]
    assert reader.buffered == 0
    assert reader._data == b""
