"""The input of one session, as a relay sends it: the rows, then their identity (number and digest).

Rules of this module: frames in, batches out. It does not know what the subtask does with the rows. Both functions raise
`ConnectionError` when the relay is gone.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.errors import JobError
from qstate.runtime.relay.data_channel import FrameKind, SessionChannel
from qstate.runtime.relay.input_digest import received_input

__all__ = ["read_rows", "skip_rows"]


def read_rows(
    channel: SessionChannel,
    schema: pa.Schema,
    *,
    waiting: Callable[[], object],
    received: Callable[[pa.RecordBatch], object],
) -> EpochInput:
    """Call `received` with each batch as it arrives, and `waiting` before each wait for more; return their identity.

    `schema` is that of the operator's input.
    """
    sent: pa.Schema | None = None
    while True:
        if channel.quiet():
            waiting()
        frame = channel.receive()
        if frame.kind is FrameKind.BATCH:
            received(pa.ipc.read_record_batch(pa.py_buffer(frame.payload), sent))
        elif frame.kind is FrameKind.SCHEMA:
            sent = pa.ipc.read_schema(pa.py_buffer(frame.payload))
        elif frame.kind is FrameKind.END:
            return received_input(frame.payload, schema)
        else:
            raise JobError(f"a relay sent {frame.kind.name}, expected rows or END")


def skip_rows(channel: SessionChannel, schema: pa.Schema) -> EpochInput:
    """Read to the end without decoding the rows. Returns their identity."""
    while (frame := channel.receive()).kind is not FrameKind.END:
        pass
    return received_input(frame.payload, schema)
