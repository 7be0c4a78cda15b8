"""The columns of a stream and of broadcast rows that are the inputs of one operator, united in one plan.

Rules of this module: `qstate.operators.columns.inputs` says which columns the united rows have; this module builds
their plan. Each broadcast row is repeated once for each subtask. In an epoch they are sorted by the orders that the
user names, and by their hashes, so that their order is the same in every subtask and whenever the epoch comes again.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.operators.columns.inputs import TARGET_COLUMN, BroadcastNames, InputNames, unused_name
from qstate.spark.plan.columns import ColumnsOrNames, KeyedColumns, OperatorColumns, PlannedColumns, StreamColumns
from qstate.spark.plan.row_hash import row_hash
from qstate.spark.plan.united_columns import UnitedPlan, keyed_input

__all__ = ["BroadcastColumns"]


class BroadcastColumns(UnitedPlan):
    """The united columns. A stream without a key has no key columns."""

    target = TARGET_COLUMN

    def __init__(
        self,
        broadcast: StreamColumns,
        broadcast_order: ColumnsOrNames,
        stream: KeyedColumns,
        order_by: ColumnsOrNames,
        parallelism: int,
    ) -> None:
        repeated = _BroadcastRows(broadcast, broadcast_order, parallelism)
        columns, names = keyed_input(stream, order_by)
        super().__init__(BroadcastNames([repeated.input, names]), [repeated, columns], [repeated.input, names])


class _BroadcastRows(PlannedColumns):
    """The columns of broadcast rows: those of their stream, their orders, their hash, and the subtask they go to."""

    def __init__(self, stream: StreamColumns, order_by: ColumnsOrNames, parallelism: int) -> None:
        self._columns = OperatorColumns(stream, stream.all)
        (seen,) = self._columns.inputs
        orders = self._columns.add(stream.resolve("order_by", order_by))
        row_order = unused_name("hash", self._columns.names)
        target = unused_name("subtask", [*self._columns.names, row_order])
        self._parallelism = parallelism
        self.input = InputNames(seen, (), (*orders, row_order), target=target)
        super().__init__([*self._columns.names, row_order, target], (self.input.columns,))

    def plan(self) -> DataFrame:
        rows = self._columns.plan()
        row_order, target = self.plan_names(self.names[-2:])
        hashed = rows.withColumn(row_order, row_hash(rows.schema))
        return hashed.withColumn(target, F.explode(F.sequence(F.lit(0), F.lit(self._parallelism - 1))))
