"""Streams without a key: what a program makes of a streaming DataFrame alone.

Rules of this module: it checks arguments and chooses columns, as `keyed_stream` does for keyed streams.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from qstate.descriptors import MapStateDescriptor
from qstate.errors import JobError
from qstate.operators.broadcast import check_broadcast_states
from qstate.operators.functions import ProcessFunction
from qstate.spark.broadcast_streams import BroadcastConnectedStream, BroadcastStream
from qstate.spark.plan.columns import ColumnsOrNames, KeyedColumns, OperatorColumns, StreamColumns
from qstate.spark.plan.operators import JobOperators
from qstate.spark.results import NO_SIDES, check_function, results_of

__all__ = ["Stream"]


class Stream:
    """A stream whose rows have no key. Made by `Job.stream`."""

    def __init__(self, operators: JobOperators, stream: DataFrame) -> None:
        if not stream.isStreaming:
            raise JobError("stream() needs a streaming DataFrame, one that comes from spark.readStream")
        self._operators = operators
        self._columns = StreamColumns(stream)

    def broadcast(self, *states: MapStateDescriptor, order_by: ColumnsOrNames = ()) -> BroadcastStream:
        """The rows for every subtask of an operator, to be connected with another stream.

        `states` are the broadcast states that these rows may write: the function gets their handles with
        `context.get_broadcast_state(descriptor)`. A queryable one is queried by its map keys, for which it declares
        `map_key_type`. `order_by` names columns that the rows of an epoch are sorted by, like the columns of `key_by`;
        rows of equal order, or all without `order_by`, have an order that is the same in every subtask.

        Raises `JobError` for a state without a MapStateDescriptor, with a time-to-live, or of the name of another one.
        """
        check_broadcast_states("broadcast()", states)
        self._columns.resolve("order_by", order_by)
        return BroadcastStream(self._operators, self._columns, states, order_by)

    def connect(self, broadcast: BroadcastStream) -> BroadcastConnectedStream:
        """This stream and broadcast rows, for a `BroadcastProcessFunction`.

        Raises `JobError` for anything but a broadcast stream of the same job.
        """
        return BroadcastConnectedStream(self._operators, KeyedColumns(self._columns, ()), broadcast)

    def process(
        self,
        function: ProcessFunction,
        output_schema: str | StructType,
        *,
        uid: str = "",
        order_by: ColumnsOrNames = (),
        event_time_column: str = "",
        side_outputs: Mapping[str, str | StructType] = NO_SIDES,
    ) -> DataFrame:
        """Run a function with operator state on every row.

        The arguments are those of `KeyedStream.process`. A row goes to a subtask by the hash of its columns, so that an
        epoch that comes again gives each subtask the same rows. Raises `JobError` as `KeyedStream.process`.
        """
        check_function("process() of a stream without a key", function, ProcessFunction)
        streams = [self._columns.stream]
        results = results_of(output_schema, event_time_column, side_outputs, streams)
        columns = OperatorColumns(self._columns, self._columns.all)
        columns.order_by = columns.add(self._columns.resolve("order_by", order_by))
        event_times = self._operators.event_times(streams)
        return self._operators.declare(function, results, uid, columns, event_times=event_times)
