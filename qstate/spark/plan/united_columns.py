"""The columns of several streams that are the inputs of one operator, united in one plan.

Rules of this module: `qstate.operators.columns.inputs` says which columns the united rows have; this module builds
their plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.errors import JobError
from qstate.operators.columns.inputs import InputNames, UnitedNames
from qstate.spark.plan.columns import ColumnsOrNames, KeyedColumns, OperatorColumns, PlannedColumns
from qstate.spark.plan.event_time import comes_from_operator
from qstate.spark.sessions.catalog import session_of

__all__ = ["UnitedColumns", "UnitedPlan", "keyed_input"]

#: Spark widens the smaller of two integer types.
_INTEGERS = ("tinyint", "smallint", "int", "bigint")


def keyed_input(stream: KeyedColumns, order_by: ColumnsOrNames) -> tuple[OperatorColumns, InputNames]:
    """The columns of one stream, and their names as those of an input: its own, its keys and its orders."""
    columns = OperatorColumns(stream.columns, stream.columns.with_new(stream.keys))
    (seen,) = columns.inputs
    keys = columns.add(stream.keys)
    return columns, InputNames(seen, keys, columns.add(stream.columns.resolve("order_by", order_by)))


class UnitedPlan(PlannedColumns):
    """The columns of several inputs, united in one plan. `names` are those of each input."""

    def __init__(self, united: UnitedNames, columns: Sequence[PlannedColumns], names: Sequence[InputNames]) -> None:
        super().__init__(united.all, tuple(one.columns for one in names))
        self.united = united
        self.keys, self.order_by = united.keys, united.order_by
        self._columns = columns
        self._of_input = names

    def plan(self) -> DataFrame:
        """The rows of all inputs, each with the united columns.

        A task of an operator must have the number of its subtask. In a union, tasks are numbered from the first plan
        on. So the plan that comes from an operator is the first one, and if there are several, the others are shuffled
        before.
        """
        plans = [columns.plan() for columns in self._columns]
        self._check(plans)
        after_operators = [number for number, plan in enumerate(plans) if comes_from_operator(plan)]
        others = [number for number in range(len(plans)) if number not in after_operators]
        shuffled = [
            self._of(number, plans).repartition(session_of(plans[number].sparkSession).default_parallelism())
            for number in after_operators[1:]
        ]
        unshuffled = [self._of(number, plans) for number in (*after_operators[:1], *others)]
        parts = reduce(DataFrame.union, [*unshuffled, *shuffled])
        return parts.toDF(*(f"c{index}" for index in range(len(parts.columns))))

    def _check(self, plans: Sequence[DataFrame]) -> None:
        """Raise `JobError` for plans that cannot be united."""

    def _of(self, number: int, plans: Sequence[DataFrame]) -> DataFrame:
        """The rows of one input with the united columns."""
        found = []
        for source in self.united.sources(number):
            if source is None:
                found.append(F.lit(number).cast("tinyint"))
                continue
            other, column = source
            (name,) = self._columns[other].plan_names([column])
            own = other == number
            found.append(F.col(name) if own else F.lit(None).cast(plans[other].schema[name].dataType))
        return plans[number].select(*found)


class UnitedColumns(UnitedPlan):
    """The columns of keyed streams, whose keys have equal types. `order_by` names columns that each stream has.

    Raises `JobError` for keys or orders of different types.
    """

    def __init__(self, streams: Sequence[KeyedColumns], order_by: ColumnsOrNames) -> None:
        columns, names = zip(*(keyed_input(stream, order_by) for stream in streams), strict=True)
        super().__init__(UnitedNames(names), columns, names)

    def _check(self, plans: Sequence[DataFrame]) -> None:
        self._check_types("key", [one.keys for one in self._of_input], plans)
        self._check_types("order_by", [one.order_by for one in self._of_input], plans)

    def _check_types(self, role: str, names: Sequence[Sequence[str]], plans: Sequence[DataFrame]) -> None:
        kinds = [
            [plan.schema[name].dataType.simpleString() for name in columns.plan_names(of_input)]
            for columns, of_input, plan in zip(self._columns, names, plans, strict=True)
        ]
        for kind, other, name, named in zip(*kinds, *names, strict=True):
            if kind != other and not {kind, other} <= set(_INTEGERS):
                raise JobError(
                    f"connect(): the {role} columns of both streams must have equal types; {name!r} of the first one "
                    f"is {kind}, {named!r} of the second one is {other}: cast one of them"
                )
