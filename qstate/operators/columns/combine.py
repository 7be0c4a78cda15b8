"""Combines rows before the shuffle: each task sends only its latest row of each key.

Rules of this module: Arrow batches in, fewer rows out; no Spark, no state. Use it only where the function keeps just a
key's latest row. It holds rows back, so it needs micro-batches that end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["LatestRowPerKey"]

#: Rows are combined when this many bytes have arrived, which also bounds the memory of a task. Measured between 10,000
#: and 1,000,000 rows of 22 bytes, larger chunks were never slower, and left fewer rows.
CHUNK_BYTES = 64 << 20
_POSITION = "__qstate_position"


class LatestRowPerKey:
    """The latest row of each key, in no particular order, for the batches of one task.

    `key_columns` include the namespace columns; a null is a key of its own, which the operator refuses later. The
    latest row is the one that arrived last, or the last by `order_by` (nulls last, as the operator sorts). When the
    keys of a task do not fit `CHUNK_BYTES`, a key may be returned several times, its latest row last.

    In the columns `summed` (bigint), a returned row has the sum over the rows that were combined into it, modulo 2**64.
    So the sum over all rows does not change.
    """

    def __init__(self, key_columns: Sequence[str], order_by: Sequence[str] = (), summed: Sequence[str] = ()) -> None:
        self._key_columns = list(key_columns)
        self._order_by = [(name, "ascending") for name in order_by]
        self._summed = list(summed)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size < CHUNK_BYTES:
                continue
            held = self._combined(held)
            size = sum(batch.nbytes for batch in held)
            if size > CHUNK_BYTES // 2:  # nearly every row has a key of its own: keeping them gains little
                yield from held
                held, size = [], 0
        if held:
            yield from self._combined(held)

    def _combined(self, held: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        table = pa.Table.from_batches(held)
        if self._order_by:
            table = table.take(pc.sort_indices(table, sort_keys=self._order_by))
        keys = table.select([*self._key_columns, *self._summed])
        keys = keys.append_column(_POSITION, pa.array(np.arange(len(table))))
        sums = [(name, "sum") for name in self._summed]
        groups = keys.group_by(self._key_columns, use_threads=False).aggregate([(_POSITION, "max"), *sums])
        latest = table.take(groups.column(f"{_POSITION}_max"))
        for name, _ in sums:
            latest = latest.set_column(latest.schema.get_field_index(name), name, groups.column(f"{name}_sum"))
        batches: list[pa.RecordBatch] = latest.to_batches()
        return batches
