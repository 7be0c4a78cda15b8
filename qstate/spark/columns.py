"""Columns as Spark resolves them, and the columns that an operator gets of a stream.

Rules of this module: Spark resolves every name and expression, so case, dots and nested fields mean here what they
mean in `select`. From then on a column is known by what it is, not by its name.

An operator gets the columns that its function sees, and behind them hidden ones: keys, namespaces and orders that are
none of those. In Spark's plan they are all called c0, c1, ...: PySpark looks columns up by name when it hands them to a
Python function, which fails for names with dots and for names that differ by case only. The relay puts the names back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from qstate.errors import JobError

__all__ = ["ColumnsOrNames", "OperatorColumns", "StreamColumn", "StreamColumns"]

#: How an argument names one column or several.
ColumnsOrNames = str | Column | Sequence[str | Column]


@dataclass(frozen=True, eq=False)
class StreamColumn:
    """A column of a stream, or an expression over its columns.

    `name` is what `select` would call it, `text` what was written. `source` is the position of a column of the stream;
    for anything else, whatever its name, the expression.
    """

    name: str
    text: str
    source: int | Column

    def is_same(self, other: StreamColumn) -> bool:
        if isinstance(self.source, int) and isinstance(other.source, int):
            return self.source == other.source
        return self is other


class StreamColumns:
    """The columns of one stream. Raises `JobError` for what Spark cannot resolve."""

    def __init__(self, stream: DataFrame) -> None:
        self.stream = stream
        self._ids = _ids(stream)
        self.all = [StreamColumn(name, name, position) for position, name in enumerate(stream.columns)]

    def resolve(self, role: str, columns: ColumnsOrNames) -> list[StreamColumn]:
        """The columns that are meant; `role` names the argument in errors."""
        given = [columns] if isinstance(columns, str | Column) else list(columns)
        return [self._resolved(role, column) for column in given]

    def with_new(self, columns: Sequence[StreamColumn]) -> list[StreamColumn]:
        """All columns of the stream, and those of these expressions whose names mean nothing else."""
        exact = self.stream.sparkSession.conf.get("spark.sql.caseSensitive") == "true"
        names = Counter(name if exact else name.lower() for name in self.stream.columns)
        expressions = [column for column in columns if isinstance(column.source, Column)]
        names.update(column.name if exact else column.name.lower() for column in expressions)
        return [*self.all, *(one for one in expressions if names[one.name if exact else one.name.lower()] == 1)]

    def _resolved(self, role: str, column: str | Column) -> StreamColumn:
        if not isinstance(column, str | Column):
            raise JobError(f"{role} takes column names and Columns, got {column!r}")
        expression = column if isinstance(column, Column) else F.col(column)
        text = column if isinstance(column, str) else str(column).removeprefix("Column<'").removesuffix("'>")
        try:
            selected = self.stream.select(expression)
        except AnalysisException as exc:
            raise JobError(f"{role}: {self._fault(text, exc)}") from exc
        if len(selected.columns) != 1:
            raise JobError(f"{role}: {text!r} stands for {len(selected.columns)} columns; name each of them")
        (found,) = _ids(selected)
        return StreamColumn(selected.columns[0], text, self._ids.index(found) if found in self._ids else expression)

    def _fault(self, text: str, exc: AnalysisException) -> str:
        condition = exc.getCondition() or ""
        stream = f"the stream has {', '.join(self.stream.columns)}"
        if text in self.stream.columns and "." in text:
            return f"{text!r} is a column with a dot in its name: write it in backticks, `{text}`; {stream}"
        if condition == "AMBIGUOUS_REFERENCE":
            return (
                f"{text!r} could be several columns: rename them, or set spark.sql.caseSensitive=true where they "
                f"differ by case only; {stream}"
            )
        if condition.startswith("UNRESOLVED_COLUMN"):
            return f"no column {text!r}; {stream}"
        return f"Spark does not take {text!r}: {str(exc).partition(chr(10))[0]}; {stream}"


class OperatorColumns:
    """The columns of one operator's input: what its function sees, and what is added."""

    def __init__(self, columns: StreamColumns, seen: Sequence[StreamColumn]) -> None:
        self._stream = columns.stream
        self._columns = list(seen)
        self._seen = len(seen)
        self._names = [column.name for column in seen]

    @property
    def names(self) -> list[str]:
        """What the operator calls them."""
        return list(self._names)

    @property
    def hidden(self) -> int:
        """How many of the last ones the function does not see."""
        return len(self._names) - self._seen

    def add(self, columns: Sequence[StreamColumn]) -> tuple[str, ...]:
        """Make sure that these are among them; what the operator calls each."""
        return tuple(self._names[self._index(column)] for column in columns)

    def plan_names(self, names: Sequence[str]) -> list[str]:
        """What the plan calls the columns of these names."""
        return [f"c{self._names.index(name)}" for name in names]

    def plan(self) -> DataFrame:
        """The stream with these columns, under the plan's names."""
        expressions: list[Column] = []
        places: list[int] = []
        for column in self._columns:
            if isinstance(column.source, int):
                places.append(column.source)
            else:
                places.append(len(self._stream.columns) + len(expressions))
                expressions.append(column.source)
        everything = self._stream.select("*", *expressions)
        numbered = everything.toDF(*(f"n{place}" for place in range(len(everything.columns))))
        return numbered.select(*(F.col(f"n{place}").alias(f"c{index}") for index, place in enumerate(places)))

    def schema(self, plan: DataFrame) -> StructType:
        """The types of the columns under the operator's names."""
        return StructType(
            [
                StructField(name, field.dataType, field.nullable)
                for name, field in zip(self._names, plan.schema.fields, strict=True)
            ]
        )

    def _index(self, column: StreamColumn) -> int:
        for index, one in enumerate(self._columns):
            if one.is_same(column):
                return index
        label = column.name if isinstance(column.source, int) else column.text
        self._columns.append(column)
        self._names.append(
            next(one for one in chain([label], (f"{label} ({n})" for n in count(2))) if one not in self._names)
        )
        return len(self._names) - 1


def _ids(frame: DataFrame) -> list[int]:
    """What Spark knows each column by. `select("a")` gives the column `a` itself, and `a + 0 AS a` another one."""
    output: Any = frame._jdf.queryExecution().analyzed().output()
    return [output.apply(position).exprId().id() for position in range(output.size())]
