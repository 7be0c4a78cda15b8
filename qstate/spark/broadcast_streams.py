"""Broadcast rows, and a stream that is connected with them.

Rules of this module: it checks arguments and chooses columns, as `keyed_stream` does for one stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from qstate.descriptors import MapStateDescriptor
from qstate.errors import JobError
from qstate.operators.columns.inputs import BROADCAST
from qstate.operators.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from qstate.spark.plan.broadcast_columns import BroadcastColumns
from qstate.spark.plan.columns import ColumnsOrNames, KeyedColumns, StreamColumns
from qstate.spark.plan.operators import JobOperators
from qstate.spark.results import NO_SIDES, check_function, results_of

__all__ = ["BroadcastConnectedStream", "BroadcastStream"]


@dataclass(frozen=True, slots=True)
class BroadcastStream:
    """A stream whose rows every subtask gets, and the broadcast states that they write. Made by `Stream.broadcast`."""

    operators: JobOperators
    columns: StreamColumns
    states: tuple[MapStateDescriptor, ...]
    order_by: ColumnsOrNames


class BroadcastConnectedStream:
    """A stream and broadcast rows for one function. Made by `connect` of a keyed stream, or of one without a key.

    Raises `JobError` for anything but broadcast rows of the same job.
    """

    def __init__(self, operators: JobOperators, stream: KeyedColumns, broadcast: BroadcastStream) -> None:
        if not isinstance(broadcast, BroadcastStream):
            raise JobError(
                "connect() takes the rows of job.stream(...).broadcast(...), or, if this stream is keyed, another "
                f"keyed one; got {broadcast!r}"
            )
        if broadcast.operators != operators:
            raise JobError("connect() takes a broadcast stream of the same job")
        self._operators = operators
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self,
        function: KeyedBroadcastProcessFunction | BroadcastProcessFunction,
        output_schema: str | StructType,
        *,
        uid: str = "",
        order_by: ColumnsOrNames = (),
        event_time_column: str = "",
        side_outputs: Mapping[str, str | StructType] = NO_SIDES,
    ) -> DataFrame:
        """Run a function on every row of the stream, and on every broadcast row in every subtask.

        A keyed stream takes a `KeyedBroadcastProcessFunction`, one without a key a `BroadcastProcessFunction`. The
        arguments are those of `KeyedStream.process`; `order_by` names columns of the stream. In each epoch every
        subtask processes all broadcast rows first, in the same order. So it holds the rows of an epoch until the last
        one has arrived, as with `order_by`.

        The operator has the event time of the stream. Its watermark is that of the stream; if the broadcast rows have
        event time, too, it is the lesser of both, and None until there was a broadcast row with an event time.

        Raises `JobError` as `KeyedStream.process`, and for broadcast states that cannot be.
        """
        keyed = bool(self._stream.keys)
        kind = KeyedBroadcastProcessFunction if keyed else BroadcastProcessFunction
        check_function(f"process() of a {'keyed' if keyed else 'plain'} stream with broadcast rows", function, kind)
        broadcast = self._broadcast
        streams = [self._stream.columns.stream, broadcast.columns.stream]
        results = results_of(output_schema, event_time_column, side_outputs, streams)
        columns = BroadcastColumns(
            broadcast.columns, broadcast.order_by, self._stream, order_by, self._operators.manager.parallelism
        )
        own, of_broadcast = map(self._operators.event_times, ([one] for one in streams))
        found = (*own, *of_broadcast) if own else ()  # in this order, which is stored
        inputs = (1 - BROADCAST, BROADCAST)
        event_times = [
            replace(one, column=columns.united.columns[number][one.column])
            for number, one in zip(inputs, found, strict=False)
        ]
        return self._operators.declare(
            function, results, uid, columns, event_times=tuple(event_times), broadcast_states=broadcast.states
        )
