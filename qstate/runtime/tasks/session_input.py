"""The input of one session, as a relay sends it: the rows, then their identity (number and digest).

Rules of this module: frames in, batches out. It does not know what the subtask does with the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.errors import JobError
from qstate.runtime.relay.data_channel import FrameKind, TaskChannel
from qstate.runtime.relay.input_digest import received_input

__all__ = ["SessionInput"]


class SessionInput:
    """The input of one session, read once: as batches, or skipped. Raises `ConnectionError` when the relay is gone."""

    def __init__(self, channel: TaskChannel, schema: pa.Schema) -> None:
        """`schema` is that of the operator's input."""
        self._channel = channel
        self._schema = schema
        #: The identity of the rows; None until all have arrived.
        self.identity: EpochInput | None = None

    def batches(self, waiting: Callable[[], object]) -> Iterator[pa.RecordBatch]:
        """The rows as they arrive; `waiting` is called before each wait for more."""
        schema: pa.Schema | None = None
        while True:
            if self._channel.quiet():
                waiting()
            frame = self._channel.receive()
            if frame.kind is FrameKind.BATCH:
                yield pa.ipc.read_record_batch(pa.py_buffer(frame.payload), schema)
            elif frame.kind is FrameKind.SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(frame.payload))
            elif frame.kind is FrameKind.END:
                self.identity = received_input(frame.payload, self._schema)
                return
            else:
                raise JobError(f"a relay sent {frame.kind.name}, expected rows or END")

    def skip(self) -> EpochInput:
        """Read to the end without decoding the rows. Returns their identity."""
        while (frame := self._channel.receive()).kind is not FrameKind.END:
            pass
        return received_input(frame.payload, self._schema)
