"""Keyed streams: from a streaming DataFrame and key columns to an operator and its result.

Rules of this module: it builds query plans and operator specs, on the driver. Everything after the shuffle is the
relay's. What the user got wrong is found here, before the query starts, as far as it can be.

    DataFrame -> key group, row hash (Spark SQL) -> repartitionById(parallelism, subtask) -> mapInArrow(relay)
              -> DataFrame
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from itertools import chain, count
from typing import Any

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.keys import ColumnType
from qstate.operators.combine import LatestRowPerKey
from qstate.operators.functions import FlatMapWithState, KeyedFunction, KeyedProcessFunction
from qstate.operators.operator import OperatorSpec
from qstate.operators.sinks import QueryableReducingSink, QueryableValueSink
from qstate.runtime.job_manager import JobManager
from qstate.runtime.relay import JobTicket
from qstate.spark.relay_task import HASH_COLUMN, SUBTASK_COLUMN, RelayTask
from qstate.spark.row_hash import quoted, row_hash
from qstate.spark.sink import QueryableStateStream

__all__ = ["KeyedStream"]

#: mapInArrow refuses a result without columns; a sink's has one, and never a row.
_NOTHING = StructType([StructField("nothing", LongType())])


class KeyedStream:
    """A stream whose rows have a key. Made by `Job.key_by`."""

    def __init__(
        self, manager: JobManager, ticket: JobTicket, stream: DataFrame, columns: Sequence[str | Column]
    ) -> None:
        if not stream.isStreaming:
            raise JobError("key_by needs a streaming DataFrame, one that comes from spark.readStream")
        if not columns:
            raise JobError("key_by needs at least one column")
        self._manager = manager
        self._ticket = ticket
        self._names, self._stream = _named_columns(stream, columns)

    def process(
        self,
        function: KeyedProcessFunction,
        output_schema: str | StructType,
        *,
        uid: str = "",
        order_by: str | Sequence[str] = (),
    ) -> DataFrame:
        """Run a function on every row, with keyed state; the result is an ordinary streaming DataFrame.

        `output_schema` is a DDL text or a StructType of the rows that the function yields. `uid` names the
        operator: its state belongs to that name, so keep it when the program changes. Without one it is made of
        the function's and the key columns' names, with a warning: renaming those would lose the state. `order_by` names
        event-time columns: each key's rows of one epoch then reach the function in that order (nulls last).
        Without it their order within an epoch is unspecified: Spark's shuffle does not keep it.

        Raises `JobError` for an unknown column, a uid in use, or a function that cannot be pickled.
        """
        if not isinstance(function, KeyedProcessFunction):
            raise JobError(f"process() needs a KeyedProcessFunction, got {type(function).__name__}")
        schema = _parsed_schema(output_schema)
        order = _names(order_by)
        self._check_columns("order_by", order)
        return self._operator(function, schema, uid, order)

    def flat_map_with_state(
        self,
        function: Callable[[Any, Any], tuple[Any, Any]],
        output_schema: str | StructType,
        *,
        uid: str = "",
        state: ValueStateDescriptor,
        order_by: str | Sequence[str] = (),
    ) -> DataFrame:
        """The shortcut for one value per key: `function(row, value)` gives (rows to emit, new value).

        `value` is None for a key without state; a new value of None clears it.
        """
        return self.process(FlatMapWithState(function, state), output_schema, uid=uid, order_by=order_by)

    def as_queryable_state(
        self,
        state: str | ValueStateDescriptor | ReducingStateDescriptor,
        *,
        uid: str = "",
        value: str | Sequence[str] = (),
        namespace: str | Sequence[str] = (),
        order_by: str | Sequence[str] = (),
        combine: bool = False,
    ) -> QueryableStateStream:
        """The queryable state sink: the stream's last value per key, or their reduction, for clients to read.

        `state` is the queryable name, or a value descriptor (the last value counts), or a reducing descriptor
        (values are combined). A descriptor without a queryable name is queryable by its own name. `value`
        names the column to store, or several to store as a map from name to value; by default all but the key
        and namespace columns. `namespace` names the column(s) that separate values of one key, such as a
        window's start. `order_by` is that of `process`.

        `combine` drops a key's older rows before the shuffle, task by task: worth it where each key comes many times in
        a micro-batch, a loss where most keys come once. The last value counts, so it is not for a reducing descriptor.

        Call `start()` on the result. Raises `JobError` for an unknown column, a uid in use, a type that cannot be a
        key, or `combine` with a reducing descriptor.
        """
        descriptor = ValueStateDescriptor(state) if isinstance(state, str) else state
        if not isinstance(descriptor, ValueStateDescriptor | ReducingStateDescriptor):
            raise JobError(f"as_queryable_state takes a name, a value or a reducing descriptor, got {state!r}")
        if descriptor.queryable_name is None:
            descriptor = descriptor.queryable(descriptor.name)
        spaces = _names(namespace)
        order = _names(order_by)
        identity = (*self._names, *spaces)
        values = _names(value) or tuple(name for name in self._stream.columns if name not in identity)
        self._check_columns("value", values)
        self._check_columns("namespace", spaces)
        self._check_columns("order_by", order)
        sink: KeyedFunction
        if isinstance(descriptor, ReducingStateDescriptor):
            if combine:
                raise JobError("combine drops all but the last row of a key; a reducing descriptor needs every row")
            sink = QueryableReducingSink(descriptor, values)
        else:
            sink = QueryableValueSink(descriptor, values)
        before_shuffle = LatestRowPerKey(identity, order) if combine else None
        result = self._operator(sink, _NOTHING, uid, order, namespaces=spaces, before_shuffle=before_shuffle)
        return QueryableStateStream(result, str(descriptor.queryable_name))

    # -- the plan ---------------------------------------------------------------------------------------------

    def _operator(
        self,
        function: KeyedFunction,
        schema: StructType,
        uid: str,
        order: tuple[str, ...],
        *,
        namespaces: tuple[str, ...] = (),
        before_shuffle: LatestRowPerKey | None = None,
    ) -> DataFrame:
        uid = uid or self._derived_uid(function)
        parallelism = self._manager.parallelism
        timezone = self._stream.sparkSession.conf.get("spark.sql.session.timeZone")
        spec = OperatorSpec(
            uid=uid,
            job=self._manager.job,
            function=function,
            key_columns=self._names,
            input_schema=to_arrow_schema(self._stream.schema, timezone=timezone),
            output_schema=to_arrow_schema(schema, timezone=timezone),
            order_by=order,
            namespace_columns=namespaces,
        )
        data = _pickled(spec)
        rows = self._stream if before_shuffle is None else self._stream.mapInArrow(before_shuffle, self._stream.schema)
        # The hash before the shuffle, too: one projection for both costs half of what a second one after it would.
        placed = rows.withColumns(
            {
                SUBTASK_COLUMN: self._subtask_column(spec.key_types, parallelism),
                HASH_COLUMN: row_hash(self._stream.schema),
            }
        )
        task = RelayTask(self._ticket, uid, parallelism)
        result = placed.repartitionById(parallelism, F.col(SUBTASK_COLUMN)).mapInArrow(task, schema)
        self._manager.add_operator(uid, data)  # last: what failed has not used the uid up
        return result

    def _derived_uid(self, function: KeyedFunction) -> str:
        """A uid for an operator that was not given one: the same for the same program, whatever is queried first."""
        name = f"{function.display_name} by {', '.join(self._names)}"
        uid = next(
            one for one in chain([name], (f"{name} {n}" for n in count(2))) if not self._manager.has_operator(one)
        )
        warnings.warn(
            f"an operator without uid is called {uid!r}: its state is lost when the function, the key columns or the "
            f"order of such operators change; give it a name of its own, uid={uid!r} keeps what it has",
            stacklevel=4,
        )
        return uid

    def _subtask_column(self, key_types: Sequence[ColumnType], parallelism: int) -> Column:
        """`subtask_of(key_group)` in Spark SQL; integers are widened first, as `qstate.keys` says.

        The division is exact enough in doubles: its terms stay below 2**30 and its divisor below 2**15.
        """
        columns = [
            F.col(quoted(name)).cast("bigint") if kind is ColumnType.BIGINT else F.col(quoted(name))
            for name, kind in zip(self._names, key_types, strict=True)
        ]
        groups = self._manager.config.max_parallelism
        group = F.pmod(F.xxhash64(*columns), F.lit(groups))
        return F.floor(group * F.lit(parallelism) / F.lit(groups)).cast("int")

    def _check_columns(self, what: str, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._stream.columns:
                raise JobError(f"{what}: no column {name!r}; the stream has {', '.join(self._stream.columns)}")


def _named_columns(stream: DataFrame, columns: Sequence[str | Column]) -> tuple[tuple[str, ...], DataFrame]:
    """The key columns' names; a Column expression becomes a column of its own first."""
    names: list[str] = []
    for column in columns:
        if isinstance(column, str):
            if column not in stream.columns:
                raise JobError(f"key_by: no column {column!r}; the stream has {', '.join(stream.columns)}")
            names.append(column)
        else:
            name = stream.select(column).columns[0]
            if name not in stream.columns:
                stream = stream.withColumn(name, column)
            names.append(name)
    return tuple(names), stream


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    """One column name or several, as a tuple."""
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _parsed_schema(schema: str | StructType) -> StructType:
    parsed = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise JobError(f"output_schema needs at least one column, as in 'sensor string, alert double'; got {schema!r}")
    return parsed


def _pickled(spec: OperatorSpec) -> bytes:
    try:
        data: bytes = CloudPickleSerializer().dumps(spec)  # type: ignore[no-untyped-call]  # untyped in PySpark
    except Exception as exc:  # pickling runs code of whatever the function refers to
        raise JobError(
            f"operator {spec.uid!r}: {type(spec.function).__name__} cannot be pickled ({type(exc).__name__}: {exc}); "
            "create connections, locks and the like in open(), which runs in the task manager"
        ) from exc
    return data
