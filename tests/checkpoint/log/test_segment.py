"""One file of the epoch log: damage that keeps every single block sound is found all the same."""

from __future__ import annotations

from io import BytesIO

import pytest

from qstate.checkpoint.log.segment import BLOCK, MAGIC, TRAILER, SegmentReader, SegmentWriter
from qstate.errors import CheckpointError


def written(*frames: bytes) -> tuple[bytes, int]:
    file = BytesIO()
    writer = SegmentWriter(file, {"what": "test"})
    for frame in frames:
        writer.write_frame(frame)
    seal = writer.write_footer(more=1)
    return file.getvalue(), seal


def block_spans(data: bytes) -> list[tuple[int, int]]:
    """Where each block begins and ends."""
    spans, start = [], len(MAGIC)
    while start < len(data) - TRAILER.size:
        _, length, _ = BLOCK.unpack_from(data, start)
        spans.append((start, start + BLOCK.size + length))
        start = spans[-1][1]
    return spans


def test_header_and_footer_are_read_without_the_body() -> None:
    data, seal = written(b"one", b"two")
    info = SegmentReader(BytesIO(data), "file").info()
    assert info.header == {"what": "test"}
    assert info.footer["entries"] == info.footer["blocks"] == 2
    assert info.footer["more"] == 1
    assert info.seal == seal


def test_swapped_blocks_are_found_before_either_is_given() -> None:
    data, seal = written(b"one", b"two")
    (a, b), (c, d) = block_spans(data)[1:3]
    swapped = data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]
    with pytest.raises(CheckpointError, match=f"damaged block at byte {a}"):
        next(SegmentReader(BytesIO(swapped), "file").frames(seal))


def test_block_of_another_file_in_the_same_place_is_found() -> None:
    data, seal = written(b"one", b"two")
    other, _ = written(b"ONE", b"two")
    start, stop = block_spans(data)[1]
    with pytest.raises(CheckpointError, match="does not add up to its digest"):
        list(SegmentReader(BytesIO(data[:start] + other[start:stop] + data[stop:]), "file").frames(seal))


def test_bytes_between_footer_and_trailer_are_found() -> None:
    data, _ = written(b"one")
    with pytest.raises(CheckpointError, match="does not end with its footer"):
        SegmentReader(BytesIO(data[: -TRAILER.size] + b"\0" + data[-TRAILER.size :]), "file").info()


def test_damaged_length_does_not_ask_for_memory() -> None:
    data, seal = written(b"one")
    start = block_spans(data)[1][0]
    huge = data[: start + 1] + b"\xff\xff\xff\xff" + data[start + 5 :]
    with pytest.raises(CheckpointError, match=f"damaged block at byte {start}, or is cut short"):
        list(SegmentReader(BytesIO(huge), "file").frames(seal))
