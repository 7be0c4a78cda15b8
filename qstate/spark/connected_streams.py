"""Two keyed streams that one function processes.

Rules of this module: it checks arguments and chooses columns, as `keyed_stream` does for one stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from qstate.errors import JobError
from qstate.operators.functions import KeyedCoProcessFunction
from qstate.spark.plan.columns import ColumnsOrNames, KeyedColumns
from qstate.spark.plan.operators import JobOperators
from qstate.spark.plan.united_columns import UnitedColumns
from qstate.spark.results import NO_SIDES, check_function, results_of

__all__ = ["ConnectedStreams"]


class ConnectedStreams:
    """Two keyed streams, whose rows with equal keys share state. Made by `KeyedStream.connect`."""

    def __init__(self, operators: JobOperators, first: KeyedColumns, second: KeyedColumns) -> None:
        if len(first.keys) != len(second.keys):
            raise JobError(
                f"connect(): both streams need equally many key columns, got {len(first.keys)} and {len(second.keys)}"
            )
        self._operators = operators
        self._keyed = (first, second)

    def process(
        self,
        function: KeyedCoProcessFunction,
        output_schema: str | StructType,
        *,
        uid: str = "",
        order_by: ColumnsOrNames = (),
        event_time_column: str = "",
        side_outputs: Mapping[str, str | StructType] = NO_SIDES,
    ) -> DataFrame:
        """Run a function on every row of both streams, with keyed state that they share.

        The arguments are those of `KeyedStream.process`. `order_by` names columns that both streams have, with equal
        types: the rows of both are sorted together, and of equal ones those of the first stream come first. Without it
        the order of all rows in an epoch is unspecified.

        The operator has event time if both streams have it. Its watermark is the lesser of theirs, and None until each
        stream has had a row with an event time.

        Raises `JobError` as `KeyedStream.process`, and for keys of different types.
        """
        check_function("process() of connected streams", function, KeyedCoProcessFunction)
        streams = [one.columns.stream for one in self._keyed]
        results = results_of(output_schema, event_time_column, side_outputs, streams)
        columns = UnitedColumns(self._keyed, order_by)
        event_times = tuple(
            replace(one, column=names[one.column])
            for one, names in zip(self._operators.event_times(streams), columns.united.columns, strict=False)
        )
        return self._operators.declare(function, results, uid, columns, event_times=event_times)
