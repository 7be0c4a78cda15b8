"""The operators of a job: plans an operator's input and result, and declares it.

Rules of this module: it builds query plans and operator specs, in the driver. The relay does all work after the
shuffle.

    columns of one input, or of several united ones -> key group, row hash (Spark SQL) -> [union with ticks, for timers]
        -> repartitionById(parallelism, subtask) -> mapInArrow(relay) -> DataFrame
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from uuid import uuid4

from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from qstate.descriptors import MapStateDescriptor
from qstate.errors import JobError
from qstate.keys import ColumnType
from qstate.operators.columns.combine import LatestRowPerKey
from qstate.operators.functions import StreamFunction
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.time.epoch_time import EventTime
from qstate.runtime.job.declarations import Declaration
from qstate.runtime.job.job_manager import JobManager
from qstate.runtime.relay.input_digest import HASH_COLUMN, ROWS_COLUMN
from qstate.runtime.relay.relay import JobTicket
from qstate.spark.plan.columns import PlannedColumns
from qstate.spark.plan.event_time import event_time_of, operator_name
from qstate.spark.plan.relay_task import SUBTASK_COLUMN, RelayTask
from qstate.spark.plan.row_hash import row_hash
from qstate.spark.plan.ticks import ticks_of
from qstate.spark.queries import StreamingQueries
from qstate.spark.results import Results

__all__ = ["JobOperators"]


@dataclass(frozen=True, slots=True)
class JobOperators:
    """Declares the operators of one job."""

    manager: JobManager
    ticket: JobTicket
    queries: StreamingQueries

    def declare(
        self,
        function: StreamFunction,
        results: Results,
        uid: str,
        columns: PlannedColumns,
        *,
        latest_only: bool = False,
        event_times: tuple[EventTime, ...] = (),
        broadcast_states: tuple[MapStateDescriptor, ...] = (),
    ) -> DataFrame:
        """Declare an operator; returns its result.

        Without keys the rows are placed by their hashes. `latest_only`: only the latest row of each key is needed.
        Raises `JobError` for an operator that cannot work.
        """
        if not isinstance(uid, str):
            raise JobError(f"a uid is text, got {uid!r}")
        uid = uid or self._derived_uid(function, columns.keys)
        if ROWS_COLUMN in columns.names:
            raise JobError(f"a column of the stream is called {ROWS_COLUMN!r}, which qstate uses itself: rename it")
        rows = columns.plan()
        timezone = rows.sparkSession.conf.get("spark.sql.session.timeZone")
        spec = OperatorSpec(
            uid=uid,
            job=self.manager.job,
            function=function,
            key_columns=columns.keys,
            input_schema=to_arrow_schema(columns.schema(rows), timezone=timezone),
            output_schema=to_arrow_schema(results.main, timezone=timezone),
            order_by=columns.order_by,
            namespace_columns=columns.namespaces,
            inputs=columns.inputs,
            event_times=event_times,
            broadcast_states=broadcast_states,
            side_outputs={name: to_arrow_schema(side, timezone=timezone) for name, side in results.sides.items()},
        )
        declaration = Declaration(uuid4().hex, _pickled(spec), event_times, spec.keeps_time)
        placed = self._placed(columns, rows, spec, latest_only=latest_only)
        if spec.uses_timers:
            placed = placed.unionByName(self._ticks(uid, declaration.token, placed))
        task = RelayTask(
            self.ticket, uid, declaration.token, self.manager.parallelism, columns.names, combined=latest_only
        )
        task.__name__ = operator_name(self.queries.mark, uid)
        result = placed.repartitionById(self.manager.parallelism, F.col(SUBTASK_COLUMN)).mapInArrow(
            task, results.schema
        )
        self.manager.declare(uid, declaration, self.queries.running())  # last, so that a failure changes nothing
        return result

    def _placed(self, columns: PlannedColumns, rows: DataFrame, spec: OperatorSpec, *, latest_only: bool) -> DataFrame:
        """The rows with their subtasks and hashes."""
        # Hash before the shuffle: one projection for both columns takes half the time of two.
        placed = rows.withColumns(
            {
                SUBTASK_COLUMN: self._subtask_column(columns, rows.schema, spec),
                **({ROWS_COLUMN: F.lit(1).cast("bigint")} if latest_only else {}),
                HASH_COLUMN: row_hash(rows.schema),
            }
        )
        if not latest_only:
            return placed
        latest = LatestRowPerKey(
            columns.plan_names(dict.fromkeys((*spec.key_columns, *spec.namespace_columns))),
            columns.plan_names(spec.order_by),
            summed=(ROWS_COLUMN, HASH_COLUMN),
        )
        return placed.mapInArrow(latest, placed.schema)

    def _ticks(self, uid: str, token: str, placed: DataFrame) -> DataFrame:
        """The ticks of an operator as rows of its input: null but for the subtask, which is the first one."""
        ticks = ticks_of(placed.sparkSession, self.ticket, uid, f"qstate_ticks_{token}")
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in placed.schema]
        return ticks.select(*columns).withColumn(SUBTASK_COLUMN, F.lit(0).cast("int"))

    def _derived_uid(self, function: StreamFunction, keys: Sequence[str]) -> str:
        """A uid for an operator without one. It is the same in each run of a program, whichever query starts first."""
        name = f"{function.display_name} by {', '.join(keys)}" if keys else function.display_name
        uid = next(
            one for one in chain([name], (f"{name} {n}" for n in count(2))) if not self.manager.has_operator(one)
        )
        warnings.warn(
            f"an operator without uid is called {uid!r}: its state is lost when the function, the key columns or the "
            f"order of such operators change; give it a name of its own, uid={uid!r} keeps what it has",
            stacklevel=4,
        )
        return uid

    def _subtask_column(self, columns: PlannedColumns, schema: StructType, spec: OperatorSpec) -> Column:
        """The subtask of a row: of its key, of its hash without a key, or the one that it is meant for."""
        if spec.key_columns:
            subtask = self._subtask_of(columns.plan_names(spec.key_columns), spec.key_types)
        else:
            subtask = F.pmod(row_hash(schema), F.lit(self.manager.parallelism)).cast("int")
        if columns.target is None:
            return subtask
        (target,) = columns.plan_names([columns.target])
        return F.coalesce(F.col(target), subtask)

    def _subtask_of(self, names: Sequence[str], key_types: Sequence[ColumnType]) -> Column:
        """`subtask_of(key_group)` in Spark SQL. Integers and decimals are widened first, as in `qstate.keys`.

        The division is exact enough in doubles: the dividend is below 2**30 and the divisor below 2**15.
        """
        columns = [
            F.col(name).cast(kind.value) if kind.widened else F.col(name)
            for name, kind in zip(names, key_types, strict=True)
        ]
        groups = self.manager.config.max_parallelism
        group = F.pmod(F.xxhash64(*columns), F.lit(groups))
        return F.floor(group * F.lit(self.manager.parallelism) / F.lit(groups)).cast("int")

    def event_times(self, streams: Sequence[DataFrame]) -> tuple[EventTime, ...]:
        """Where the event times of these streams are; empty if one of them has none."""
        found = [event_time_of(stream, self.queries.mark) for stream in streams]
        return () if None in found else tuple(one for one in found if one is not None)


def _pickled(spec: OperatorSpec) -> bytes:
    try:
        data: bytes = CloudPickleSerializer().dumps(spec)  # type: ignore[no-untyped-call]  # untyped in PySpark
    except Exception as exc:  # pickling runs code of all objects that the function refers to
        raise JobError(
            f"operator {spec.uid!r}: {type(spec.function).__name__} cannot be pickled ({type(exc).__name__}: {exc}); "
            "create connections, locks and the like in open(), which runs in the task manager"
        ) from exc
    return data
