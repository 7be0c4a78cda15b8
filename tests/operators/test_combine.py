"""Combining before the shuffle: the sink stores the same state with it and without it."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh64_intdigest

from qstate.operators.columns import combine
from qstate.operators.columns.combine import LatestRowPerKey
from qstate.runtime.relay.input_digest import HASH_COLUMN, ROWS_COLUMN, InputDigest

SCHEMA = pa.schema([("key", pa.string()), ("window", pa.int64()), ("at", pa.int64()), ("temp", pa.float64())])
ROWS = st.lists(
    st.tuples(
        st.none() | st.sampled_from("abc"),
        st.none() | st.integers(0, 1),
        st.none() | st.integers(0, 5),
        st.none() | st.floats(allow_nan=False),
    ),
    max_size=20,
)


def batches_of(rows: list[list[Any]]) -> list[pa.RecordBatch]:
    return [
        pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in part], SCHEMA) for part in rows
    ]


def rows_of(batches: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def latest(rows: list[tuple[Any, ...]], *key: int) -> dict[Any, tuple[Any, ...]]:
    return {tuple(row[index] for index in key): row for row in rows}


@pytest.fixture(params=[1, 200, combine.CHUNK_BYTES])
def any_chunk_bytes(request: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(combine, "CHUNK_BYTES", request.param)
    size: int = request.param
    return size


@pytest.mark.parametrize("key", [("key",), ("key", "window"), ("window",)])
def test_the_last_row_of_each_key_stays_the_last(any_chunk_bytes: int, key: tuple[str, ...]) -> None:
    positions = [SCHEMA.names.index(name) for name in key]

    @given(parts=st.lists(ROWS, max_size=4))
    def law(parts: list[list[Any]]) -> None:
        rows = [row for part in parts for row in part]
        found = rows_of(list(LatestRowPerKey(key)(batches_of(parts))))
        assert latest(found, *positions) == latest(rows, *positions)

    law()


@pytest.mark.parametrize("chunk", [1, 200, 1 << 20])
def test_with_an_order_the_newest_row_of_each_key_stays(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(combine, "CHUNK_BYTES", chunk)

    @given(parts=st.lists(ROWS, max_size=4))
    def law(parts: list[list[Any]]) -> None:
        def newest_last(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
            return sorted(rows, key=lambda row: math.inf if row[2] is None else row[2])

        rows = [row for part in parts for row in part]
        found = rows_of(list(LatestRowPerKey(["key"], ["at"])(batches_of(parts))))
        assert latest(newest_last(found), 0) == latest(newest_last(rows), 0)

    law()


@pytest.mark.parametrize("order_by", [(), ("at",)])
def test_combined_rows_keep_the_digest_of_the_epoch(any_chunk_bytes: int, order_by: tuple[str, ...]) -> None:
    """The identity of an epoch does not depend on which rows were combined, nor on how the input was split."""

    @given(tasks=st.lists(st.lists(ROWS, max_size=3), max_size=3))
    def law(tasks: list[list[list[Any]]]) -> None:
        plain, combined = InputDigest(), InputDigest()
        for parts in tasks:
            rows = [counted(batch) for batch in batches_of(parts)]
            for batch in rows:
                plain.take(batch.drop_columns([ROWS_COLUMN]))
            for batch in LatestRowPerKey(["key"], order_by, summed=(ROWS_COLUMN, HASH_COLUMN))(rows):
                assert combined.take(batch).schema == SCHEMA
        assert combined.to_bytes() == plain.to_bytes()

    law()


def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch as it comes from Spark: each row counts as one, and has any hash."""
    hashes = [xxh64_intdigest(repr(row).encode()) - (1 << 63) for row in rows_of([batch])]
    ones = pa.array([1] * batch.num_rows, pa.int64())
    return batch.append_column(ROWS_COLUMN, ones).append_column(HASH_COLUMN, pa.array(hashes, pa.int64()))


def test_task_whose_keys_fit_into_memory_returns_each_key_once() -> None:
    parts = [
        [("abc"[index % 3], 0, index, float(index)) for index in range(start, start + 50)] for start in (0, 50, 100)
    ]
    found = rows_of(list(LatestRowPerKey(["key"])(batches_of(parts))))
    assert sorted(found) == [("a", 0, 147, 147.0), ("b", 0, 148, 148.0), ("c", 0, 149, 149.0)]


def test_rows_that_all_have_their_own_key_are_not_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(combine, "CHUNK_BYTES", 1)
    given_so_far: list[int] = []

    def input_batches() -> Any:
        for number in range(3):
            given_so_far.append(number)
            yield from batches_of([[(f"key {number}", 0, 0, 0.0)]])

    for number, batch in enumerate(LatestRowPerKey(["key"])(input_batches())):
        assert given_so_far == list(range(number + 1)) and batch.num_rows == 1
