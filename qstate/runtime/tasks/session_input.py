"""What a relay sends of one epoch: its rows, then what identifies them.

Rules of this module: frames in, batches out. What is done with the rows is the subtask's.
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
        #: What identifies the rows; known when all have come.
        self.identity: EpochInput | None = None

    def batches(self, waiting: Callable[[], object]) -> Iterator[pa.RecordBatch]:
        """The rows as they come; `waiting` is called before each wait for more."""
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
                raise JobError(f"a relay sent {frame.kind.name} where rows were due")

    def skip(self) -> EpochInput:
        """Read to the end, without making rows of it."""
        while (frame := self._channel.receive()).kind is not FrameKind.END:
            pass
        return received_input(frame.payload, self._schema)
