"""Keyed streams: builds an operator and its result from a streaming DataFrame and key columns.

Rules of this module: it builds query plans and operator specs, in the driver. The relay does all work after the
shuffle. As many of the user's errors as possible are found here, before the query starts.

    DataFrame -> key group, row hash (Spark SQL) -> [union with ticks, for timers]
              -> repartitionById(parallelism, subtask) -> mapInArrow(relay) -> DataFrame
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, count
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from pyspark.errors import ParseException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.keys import ColumnType
from qstate.operators.combine import LatestRowPerKey
from qstate.operators.epoch_time import EventTime
from qstate.operators.functions import FlatMapWithState, KeyedBatchFunction, KeyedFunction, KeyedProcessFunction
from qstate.operators.operator import OperatorSpec
from qstate.operators.side_outputs import MAIN
from qstate.operators.sinks import QueryableReducingSink, QueryableValueSink
from qstate.runtime.job.declarations import Declaration
from qstate.runtime.job.job_manager import JobManager
from qstate.runtime.relay.input_digest import HASH_COLUMN, ROWS_COLUMN
from qstate.runtime.relay.relay import JobTicket
from qstate.spark.columns import ColumnsOrNames, OperatorColumns, StreamColumns
from qstate.spark.event_time import event_time_of, operator_name, with_watermark_of
from qstate.spark.queries import StreamingQueries
from qstate.spark.relay_task import SUBTASK_COLUMN, RelayTask
from qstate.spark.row_hash import row_hash
from qstate.spark.sink import QueryableStateStream
from qstate.spark.ticks import ticks_of

__all__ = ["KeyedStream"]

#: mapInArrow refuses a result without columns. So the result of a sink has one column, and no rows.
_NOTHING = StructType([StructField("nothing", LongType())])
_NO_SIDES: Mapping[str, Any] = MappingProxyType({})
_EXAMPLE = "'sensor string, alert double'"


class KeyedStream:
    """A stream whose rows have a key. Made by `Job.key_by`."""

    def __init__(
        self,
        manager: JobManager,
        ticket: JobTicket,
        queries: StreamingQueries,
        stream: DataFrame,
        columns: Sequence[str | Column],
    ) -> None:
        if not stream.isStreaming:
            raise JobError("key_by needs a streaming DataFrame, one that comes from spark.readStream")
        if not columns:
            raise JobError("key_by needs at least one column")
        self._manager = manager
        self._ticket = ticket
        self._queries = queries
        self._stream = stream
        self._columns = StreamColumns(stream)
        self._keys = self._columns.resolve("key_by", columns)

    def process(
        self,
        function: KeyedProcessFunction | KeyedBatchFunction,
        output_schema: str | StructType,
        *,
        uid: str = "",
        order_by: ColumnsOrNames = (),
        namespace: ColumnsOrNames = (),
        event_time_column: str = "",
        side_outputs: Mapping[str, str | StructType] = _NO_SIDES,
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
        _check_no_class("process()", function)
        if not isinstance(function, KeyedProcessFunction | KeyedBatchFunction):
            raise JobError(f"process() needs a KeyedProcessFunction or a KeyedBatchFunction, got {function!r}")
        if not isinstance(event_time_column, str):
            raise JobError(f"event_time_column takes the name of a column of output_schema, got {event_time_column!r}")
        if not isinstance(side_outputs, Mapping):
            raise JobError(f"side_outputs takes the schemas of the side outputs by name, got {side_outputs!r}")
        schema = _parsed_schema("output_schema", output_schema)
        sides = {name: _parsed_schema(f"side output {name!r}", side) for name, side in side_outputs.items()}
        if event_time_column:
            schema = with_watermark_of(self._stream, schema, event_time_column)
        columns = OperatorColumns(self._columns, self._columns.with_new(self._keys))
        order = columns.add(self._columns.resolve("order_by", order_by))
        spaces = columns.add(self._columns.resolve("namespace", namespace))
        event_time = event_time_of(self._stream, self._queries.mark)
        return self._operator(
            function, schema, uid, columns, order_by=order, namespaces=spaces, event_time=event_time, sides=sides
        )

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
        _check_no_class("flat_map_with_state()", function)
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
        order = columns.add(resolve("order_by", order_by))
        namespaces = columns.add(self._columns.without_structs("namespace", spaces))
        sink: KeyedFunction
        if isinstance(descriptor, ReducingStateDescriptor):
            if combine:
                raise JobError("combine drops all but the last row of a key; a reducing descriptor needs every row")
            sink = QueryableReducingSink(descriptor, columns.names[: len(values)])
        else:
            sink = QueryableValueSink(descriptor, columns.names[: len(values)])
        result = self._operator(
            sink, _NOTHING, uid, columns, order_by=order, namespaces=namespaces, latest_only=combine
        )
        return QueryableStateStream(result, str(descriptor.queryable_name))

    # -- the plan ---------------------------------------------------------------------------------------------

    def _operator(
        self,
        function: KeyedFunction,
        schema: StructType,
        uid: str,
        columns: OperatorColumns,
        *,
        order_by: tuple[str, ...],
        namespaces: tuple[str, ...] = (),
        latest_only: bool = False,
        event_time: EventTime | None = None,
        sides: Mapping[str, StructType] = _NO_SIDES,
    ) -> DataFrame:
        if not isinstance(uid, str):
            raise JobError(f"a uid is text, got {uid!r}")
        uid = uid or self._derived_uid(function)
        keys = columns.add(self._keys)
        if ROWS_COLUMN in columns.names:
            raise JobError(f"a column of the stream is called {ROWS_COLUMN!r}, which qstate uses itself: rename it")
        rows = columns.plan()
        timezone = self._stream.sparkSession.conf.get("spark.sql.session.timeZone")
        spec = OperatorSpec(
            uid=uid,
            job=self._manager.job,
            function=function,
            key_columns=keys,
            input_schema=to_arrow_schema(columns.schema(rows), timezone=timezone),
            output_schema=to_arrow_schema(schema, timezone=timezone),
            order_by=order_by,
            namespace_columns=namespaces,
            hidden_columns=columns.hidden,
            event_time=event_time,
            side_outputs={name: to_arrow_schema(side, timezone=timezone) for name, side in sides.items()},
        )
        declaration = Declaration(uuid4().hex, _pickled(spec), event_time, spec.keeps_time)
        # Hash before the shuffle: one projection for both columns takes half the time of two.
        placed = rows.withColumns(
            {
                SUBTASK_COLUMN: self._subtask_column(columns.plan_names(keys), spec.key_types),
                **({ROWS_COLUMN: F.lit(1).cast("bigint")} if latest_only else {}),
                HASH_COLUMN: row_hash(rows.schema),
            }
        )
        if spec.uses_timers:
            placed = placed.unionByName(self._ticks(uid, declaration.token, placed))
        if latest_only:
            latest = LatestRowPerKey(
                columns.plan_names(dict.fromkeys((*keys, *namespaces))),
                columns.plan_names(order_by),
                summed=(ROWS_COLUMN, HASH_COLUMN),
            )
            placed = placed.mapInArrow(latest, placed.schema)
        task = RelayTask(
            self._ticket, uid, declaration.token, self._manager.parallelism, columns.names, combined=latest_only
        )
        task.__name__ = operator_name(self._queries.mark, uid)
        result = placed.repartitionById(self._manager.parallelism, F.col(SUBTASK_COLUMN))
        result = result.mapInArrow(task, _result_schema(schema, sides))
        self._manager.declare(uid, declaration, self._queries.running())  # last, so that a failure changes nothing
        return result

    def _ticks(self, uid: str, token: str, placed: DataFrame) -> DataFrame:
        """The ticks of an operator as rows of its input: null but for the subtask, which is the first one."""
        ticks = ticks_of(self._stream.sparkSession, self._ticket, uid, f"qstate_ticks_{token}")
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in placed.schema]
        return ticks.select(*columns).withColumn(SUBTASK_COLUMN, F.lit(0).cast("int"))

    def _derived_uid(self, function: KeyedFunction) -> str:
        """A uid for an operator without one. It is the same in each run of a program, whichever query starts first."""
        name = f"{function.display_name} by {', '.join(key.name for key in self._keys)}"
        uid = next(
            one for one in chain([name], (f"{name} {n}" for n in count(2))) if not self._manager.has_operator(one)
        )
        warnings.warn(
            f"an operator without uid is called {uid!r}: its state is lost when the function, the key columns or the "
            f"order of such operators change; give it a name of its own, uid={uid!r} keeps what it has",
            stacklevel=4,
        )
        return uid

    def _subtask_column(self, names: Sequence[str], key_types: Sequence[ColumnType]) -> Column:
        """`subtask_of(key_group)` in Spark SQL. Integers and decimals are widened first, as in `qstate.keys`.

        The division is exact enough in doubles: the dividend is below 2**30 and the divisor below 2**15.
        """
        columns = [
            F.col(name).cast(kind.value) if kind.widened else F.col(name)
            for name, kind in zip(names, key_types, strict=True)
        ]
        groups = self._manager.config.max_parallelism
        group = F.pmod(F.xxhash64(*columns), F.lit(groups))
        return F.floor(group * F.lit(self._manager.parallelism) / F.lit(groups)).cast("int")


def _check_no_class(caller: str, function: object) -> None:
    if isinstance(function, type):
        raise JobError(f"{caller} needs a function object, got the class: write {function.__name__}(...)")


def _result_schema(main: StructType, sides: Mapping[str, StructType]) -> StructType:
    """The result's schema, as `OperatorSpec.result_schema`. Columns of the structs keep their metadata: watermarks."""
    outputs = {MAIN: main, **sides}
    return StructType([StructField(name, schema) for name, schema in outputs.items()]) if sides else main


def _parsed_schema(what: str, schema: str | StructType) -> StructType:
    try:
        parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    except ParseException as exc:
        reason = next(filter(None, str(exc).splitlines()), "")
        raise JobError(f"{what} cannot be read: {schema!r} ({reason}); expected is {_EXAMPLE}") from exc
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise JobError(f"{what} needs at least one column, as in {_EXAMPLE}; got {schema!r}")
    return parsed


def _pickled(spec: OperatorSpec) -> bytes:
    try:
        data: bytes = CloudPickleSerializer().dumps(spec)  # type: ignore[no-untyped-call]  # untyped in PySpark
    except Exception as exc:  # pickling runs code of all objects that the function refers to
        raise JobError(
            f"operator {spec.uid!r}: {type(spec.function).__name__} cannot be pickled ({type(exc).__name__}: {exc}); "
            "create connections, locks and the like in open(), which runs in the task manager"
        ) from exc
    return data
