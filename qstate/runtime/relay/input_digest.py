"""The digest of one task's rows, which identifies an epoch: added up by the relay, received by the task manager.

Rules of this module: Arrow batches and the bytes of the END frame; no sockets, no Spark. What the digest is for is
`qstate.checkpoint.log.epoch_input`'s business.

    END    number of rows (u64, big-endian) | sum of the rows' hashes modulo 2**64 (u64)

The hashes come with the rows, as their last column: Spark computes them natively, for a fraction of what Python would
take. A sum does not depend on the order of the rows nor on how they are cut into batches, and Spark promises neither.

Where rows were combined before the shuffle, the column before has the number of rows that each one stands for, and the
hash is the sum of theirs: which rows were combined depends on the tasks that read them, and the sums do not.
"""

from __future__ import annotations

from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from qstate.checkpoint.log.epoch_input import EpochInput, digest_of_columns

__all__ = ["HASH_COLUMN", "ROWS_COLUMN", "InputDigest", "received_input"]

#: The hash of a row, or the sum of the hashes of those it stands for; the last column.
HASH_COLUMN = "__qstate_hash"
#: The number of rows that a row stands for; the column before the hash, where rows were combined.
ROWS_COLUMN = "__qstate_rows"
_END = Struct(">QQ")
_MODULUS = 1 << 64


class InputDigest:
    """Adds up the batches of one task."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count a batch, whose last column has the rows' hashes (int64); gives it without what it counted by."""
        last = batch.num_columns - 1
        self._sum += pc.sum(batch.column(last).view(pa.uint64()), min_count=0).as_py()  # wraps around
        if batch.schema.names[-2:-1] != [ROWS_COLUMN]:
            self._rows += batch.num_rows
            return batch.select(range(last))
        self._rows += pc.sum(batch.column(last - 1), min_count=0).as_py()
        return batch.select(range(last - 1))

    def to_bytes(self) -> bytes:
        """The payload of END."""
        return _END.pack(self._rows, self._sum % _MODULUS)


def received_input(payload: bytes | bytearray | memoryview, schema: pa.Schema) -> EpochInput:
    """What identifies an epoch, of the payload of END and the schema of its rows."""
    rows, digest = _END.unpack(payload)
    return EpochInput(rows, digest, digest_of_columns((field.name, str(field.type)) for field in schema))
