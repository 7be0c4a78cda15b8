"""The digest of one task's rows, which identifies an epoch: added up by the relay, received by the task manager.

Rules of this module: Arrow batches and the bytes of the END frame; no sockets, no Spark. What the digest is for is
`qstate.checkpoint.log.epoch_input`'s business.

    END    number of rows (u64, big-endian) | sum of the rows' hashes modulo 2**64 (u64)

The hashes come with the rows, as their last column: Spark computes them natively, for a fraction of what Python would
take. A sum does not depend on the order of the rows nor on how they are cut into batches, and Spark promises neither.
"""

from __future__ import annotations

from struct import Struct

import pyarrow as pa
import pyarrow.compute as pc

from qstate.checkpoint.log.epoch_input import EpochInput, digest_of_columns

__all__ = ["InputDigest", "received_input"]

_END = Struct(">QQ")
_MODULUS = 1 << 64


class InputDigest:
    """Adds up the batches of one task."""

    def __init__(self) -> None:
        self._rows = 0
        self._sum = 0

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Count a batch, whose last column has the rows' hashes (int64); gives it without that column."""
        hashes = batch.column(batch.num_columns - 1)
        self._rows += batch.num_rows
        self._sum += pc.sum(hashes.view(pa.uint64()), min_count=0).as_py()  # wraps around
        return batch.select(range(batch.num_columns - 1))

    def to_bytes(self) -> bytes:
        """The payload of END."""
        return _END.pack(self._rows, self._sum % _MODULUS)


def received_input(payload: bytes | bytearray | memoryview, schema: pa.Schema) -> EpochInput:
    """What identifies an epoch, of the payload of END and the schema of its rows."""
    rows, digest = _END.unpack(payload)
    return EpochInput(rows, digest, digest_of_columns((field.name, str(field.type)) for field in schema))
