"""Keyed streams: what a program makes of a streaming DataFrame and key columns.

Rules of this module: it checks arguments and chooses columns, in the driver; `operators` makes the plan. As many of the
user's errors as possible are found here, before the query starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import LongType, StructField, StructType

from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.operators.functions import FlatMapWithState, KeyedBatchFunction, KeyedProcessFunction, StreamFunction
from qstate.operators.sinks import QueryableReducingSink, QueryableValueSink
from qstate.spark.broadcast_streams import BroadcastConnectedStream, BroadcastStream
from qstate.spark.connected_streams import ConnectedStreams
from qstate.spark.plan.columns import ColumnsOrNames, KeyedColumns, OperatorColumns, StreamColumns
from qstate.spark.plan.operators import JobOperators
from qstate.spark.results import NO_SIDES, Results, check_function, check_no_class, results_of
from qstate.spark.sink import QueryableStateStream

__all__ = ["KeyedStream"]

#: mapInArrow refuses a result without columns. So the result of a sink has one column, and no rows.
_NOTHING = Results(StructType([StructField("nothing", LongType())]))


class KeyedStream:
    """A stream whose rows have a key. Made by `Job.key_by`."""

    def __init__(self, operators: JobOperators, stream: DataFrame, columns: Sequence[str | Column]) -> None:
        if not stream.isStreaming:
            raise JobError("key_by needs a streaming DataFrame, one that comes from spark.readStream")
        if not columns:
            raise JobError("key_by needs at least one column")
        self._operators = operators
        self._stream = stream
        self._columns = StreamColumns(stream)
        self._keys = self._columns.resolve("key_by", columns)

    @overload
    def connect(self, other: KeyedStream) -> ConnectedStreams: ...

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream: ...

    def connect(self, other: KeyedStream | BroadcastStream) -> ConnectedStreams | BroadcastConnectedStream:
        """This stream and another one, for a function that processes the rows of both.

        The other one is a keyed stream, whose keys have the same types, or `job.stream(df).broadcast(...)`: rows for
        every subtask. Raises `JobError` for a stream of another job, or with another number of key columns, and for a
        stream without a key that is not broadcast.
        """
        own = KeyedColumns(self._columns, self._keys)
        if not isinstance(other, KeyedStream):
            return BroadcastConnectedStream(self._operators, own, other)
        if other._operators != self._operators:
            raise JobError("connect() takes a keyed stream of the same job")
        return ConnectedStreams(self._operators, own, KeyedColumns(other._columns, other._keys))

    def process(
        self,
        function: KeyedProcessFunction | KeyedBatchFunction,
        output_schema: str | StructType,
        *,
        uid: str = "",
        order_by: ColumnsOrNames = (),
        namespace: ColumnsOrNames = (),
        event_time_column: str = "",
        side_outputs: Mapping[str, str | StructType] = NO_SIDES,
    ) -> DataFrame:
        """Run a function on every row, or on whole Arrow batches of rows, with keyed state.

        The result is an ordinary streaming DataFrame.

        `output_schema` is a DDL text or a StructType of the rows that the function yields. `uid` names the operator and
        its state, so keep it when the program changes. Without a uid, it is made from the names of the function and the
        key columns, with a warning: renaming those would lose the state. While its query does not run, a uid may be
        declared again, as by a notebook's cell that is run again: a query of the newest result continues with the
        state, a query of an earlier result is refused.

        `order_by` names event-time columns, like the columns of `key_by`: in each epoch, the function gets the rows of
        a key in that order (nulls last). Without it their order within an epoch is unspecified, because Spark's shuffle
        does not keep it.

        `namespace` is for batch functions: it names the column(s) of each row's namespace, like the columns of
        `key_by`. Other functions choose the namespace with `in_namespace`.

        `event_time_column` names the column of the result that gets the stream's watermark (`withWatermark` before
        `key_by`), for Spark's windows, joins and deduplication after the operator. Rows whose time in that column is
        older than the watermark are late there. Without it the result has no watermark.

        `side_outputs` has the schemas of the side outputs by their names, for `context.output(name, row)`. The result
        then has one struct column for each output: `main`, with the columns of `output_schema`, and the side outputs.
        In each row exactly one of them is not null. `write_each` writes all outputs in one query, and `output_of` gives
        one of them. `event_time_column` is a column of `main`, and `output_of(result, "main")` has the watermark.

        Raises `JobError` for an unknown column, a uid whose query runs, a function that cannot be pickled, an
        `event_time_column` without a watermark, or a side output whose name or schema cannot be.
        """
        check_function("process()", function, KeyedProcessFunction, KeyedBatchFunction)
        results = results_of(output_schema, event_time_column, side_outputs, [self._stream])
        columns = OperatorColumns(self._columns, self._columns.with_new(self._keys))
        columns.order_by = columns.add(self._columns.resolve("order_by", order_by))
        columns.namespaces = columns.add(self._columns.resolve("namespace", namespace))
        columns.keys = columns.add(self._keys)
        event_times = self._operators.event_times([self._stream])
        return self._operators.declare(function, results, uid, columns, event_times=event_times)

    def flat_map_with_state(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        output_schema: str | StructType,
        *,
        uid: str = "",
        state: ValueStateDescriptor,
        order_by: ColumnsOrNames = (),
        event_time_column: str = "",
    ) -> DataFrame:
        """A shortcut for one value per key: `function(row, value)` returns (rows to emit, new value).

        `value` is None for a key without state; a new value of None clears it. Raises `JobError` as `process`.
        """
        check_no_class("flat_map_with_state()", function)
        if not callable(function):
            raise JobError(f"flat_map_with_state() needs a function(row, value), got {function!r}")
        if not isinstance(state, ValueStateDescriptor):
            raise JobError(f"flat_map_with_state() needs a ValueStateDescriptor as its state, got {state!r}")
        return self.process(
            FlatMapWithState(function, state),
            output_schema,
            uid=uid,
            order_by=order_by,
            event_time_column=event_time_column,
        )

    def as_queryable_state(
        self,
        state: str | ValueStateDescriptor | ReducingStateDescriptor,
        *,
        uid: str = "",
        value: ColumnsOrNames = (),
        namespace: ColumnsOrNames = (),
        order_by: ColumnsOrNames = (),
        combine: bool = False,
    ) -> QueryableStateStream:
        """The queryable state sink: clients can query the stream's last value per key, or a reduction of all values.

        `state` is the queryable name, or a value descriptor (the last value is kept), or a reducing descriptor
        (values are combined). A descriptor without a queryable name is queryable by its own name. `value`
        names the column to store, or several to store as a map from name to value; by default all but the key
        and namespace columns. `namespace` names the column(s) that separate values of one key, such as Spark's
        `window`: a struct stands for its fields, so a namespace is the tuple of the window's start and end.
        `order_by` is that of `process`. All of them take names and expressions like `key_by`.

        `combine` makes each task drop a key's older rows before the shuffle: faster when each key occurs many times in
        a micro-batch, slower when most keys occur once. It keeps the last value only, so a reducing descriptor does not
        allow it.

        Call `start()` on the result. Raises `JobError` for an unknown column, a uid whose query runs, a type that
        cannot be a key, or `combine` with a reducing descriptor.
        """
        descriptor = ValueStateDescriptor(state) if isinstance(state, str) else state
        if not isinstance(descriptor, ValueStateDescriptor | ReducingStateDescriptor):
            raise JobError(f"as_queryable_state takes a name, a value or a reducing descriptor, got {state!r}")
        if not isinstance(combine, bool):
            raise JobError(f"combine is True or False, got {combine!r}")
        if descriptor.queryable_name is None:
            descriptor = descriptor.queryable(descriptor.name)
        resolve = self._columns.resolve
        spaces = resolve("namespace", namespace)
        values = resolve("value", value) or [
            one for one in self._columns.all if not any(map(one.is_same, (*self._keys, *spaces)))
        ]
        columns = OperatorColumns(self._columns, values)
        columns.order_by = columns.add(resolve("order_by", order_by))
        columns.namespaces = columns.add(self._columns.without_structs("namespace", spaces))
        sink: StreamFunction
        if isinstance(descriptor, ReducingStateDescriptor):
            if combine:
                raise JobError("combine drops all but the last row of a key; a reducing descriptor needs every row")
            sink = QueryableReducingSink(descriptor, columns.names[: len(values)])
        else:
            sink = QueryableValueSink(descriptor, columns.names[: len(values)])
        columns.keys = columns.add(self._keys)
        result = self._operators.declare(sink, _NOTHING, uid, columns, latest_only=combine)
        return QueryableStateStream(result, str(descriptor.queryable_name))
