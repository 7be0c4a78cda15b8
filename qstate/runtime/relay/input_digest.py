"""The digest of one task's rows, which identifies an epoch. The relay computes it, the task manager receives it.

Rules of this module: Arrow batches and the bytes of the END frame; no sockets, no Spark. The use of the digest is
described in `qstate.checkpoint.log.epoch_input`.

    END    number of rows (u64, big-endian) | sum of the rows' hashes modulo 2**64 (u64)

The hash of each row is its last column: Spark computes it natively, much faster than Python would. The sum depends
neither on the order of the rows nor on how they are split into batches, because Spark guarantees neither.

If rows were combined before the shuffle, the column before has the number of rows in each combined row, and its hash
is the sum of their hashes. Which rows are combined depends on the tasks that read them; the sums do not.
"""

from __future__ import annotations

from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from qstate.checkpoint.log.epoch_input import EpochInput, digest_of_columns

__all__ = ["HASH_COLUMN", "ROWS_COLUMN", "InputDigest", "received_input"]

#: The last column: the hash of a row, or the sum of the hashes of combined rows.
HASH_COLUMN = "__qstate_hash"
#: The column before the hash, if rows were combined: their number.
ROWS_COLUMN = "__qstate_rows"
_END = Struct(">QQ")
_MODULUS = 1 << 64


class InputDigest:
    """Computes the digest of one task's batches."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add a batch, whose last column has the rows' hashes (int64). Returns it without counts and hashes."""
        last = batch.num_columns - 1
        self._sum += pc.sum(batch.column(last).view(pa.uint64()), min_count=0).as_py()  # wraps around at 2**64
        if batch.schema.names[-2:-1] != [ROWS_COLUMN]:
            self._rows += batch.num_rows
            return batch.select(range(last))
        self._rows += pc.sum(batch.column(last - 1), min_count=0).as_py()
        return batch.select(range(last - 1))

    def to_bytes(self) -> bytes:
        """The payload of END."""
        return _END.pack(self._rows, self._sum % _MODULUS)


def received_input(payload: bytes | bytearray | memoryview, schema: pa.Schema) -> EpochInput:
    """The identity of an epoch, from the payload of END and the schema of its rows."""
    rows, digest = _END.unpack(payload)
    return EpochInput(rows, digest, digest_of_columns((field.name, str(field.type)) for field in schema))
