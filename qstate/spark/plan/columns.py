"""Columns as Spark resolves them, and the columns of a stream that an operator uses.

Rules of this module: Spark resolves every name and expression, so case, dots and nested fields mean the same as in
`select`. After that, a column is identified by its position or expression, not by its name.

An operator gets the columns that its function sees, then hidden columns: keys, namespaces and orders that are not among
the former. In Spark's plan they are all named c0, c1, ..., because PySpark looks columns up by name when it passes them
to a Python function. That fails for names with dots, and for names that differ by case only. The relay task restores
the names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from qstate.errors import JobError
from qstate.operators.columns.inputs import unused_name
from qstate.spark.plan.row_hash import quoted
from qstate.spark.sessions.catalog import session_of

__all__ = ["ColumnsOrNames", "KeyedColumns", "OperatorColumns", "PlannedColumns", "StreamColumn", "StreamColumns"]

#: The type of arguments that name one or several columns.
ColumnsOrNames = str | Column | Sequence[str | Column]


@dataclass(frozen=True, eq=False)
class StreamColumn:
    """A column of a stream, or an expression over its columns.

    `name` is its name in the result of `select`, `text` is the user's text. `source` is the position of a column of the
    stream; otherwise, even if the name is that of a column, it is the expression.
    """

    name: str
    text: str
    source: int | Column

    def is_same(self, other: StreamColumn) -> bool:
        if isinstance(self.source, int) and isinstance(other.source, int):
            return self.source == other.source
        return self is other


class StreamColumns:
    """The columns of one stream. Raises `JobError` for names and expressions that Spark cannot resolve."""

    def __init__(self, stream: DataFrame) -> None:
        self.stream = stream
        self._session = session_of(stream.sparkSession)
        self.all = [StreamColumn(name, name, position) for position, name in enumerate(stream.columns)]

    def resolve(self, role: str, columns: ColumnsOrNames) -> list[StreamColumn]:
        """The columns of an argument; `role` is the argument's name in errors."""
        if not isinstance(columns, str | Column | Iterable):
            raise JobError(f"{role} takes column names and Columns, got {columns!r}")
        given = [columns] if isinstance(columns, str | Column) else list(columns)
        return [self._resolved(role, column) for column in given]

    def without_structs(self, role: str, columns: Sequence[StreamColumn]) -> list[StreamColumn]:
        """The columns, with the fields of a struct in its place; `role` as in `resolve`."""
        found: list[StreamColumn] = []
        for column in columns:
            source = column.source
            expression = F.col(quoted(column.name)) if isinstance(source, int) else source
            kind = self.stream.select(expression).schema.fields[0].dataType
            if isinstance(kind, StructType):
                fields = [self._resolved(role, expression.getField(name)) for name in kind.names]
                found += self.without_structs(role, fields)
            else:
                found.append(column)
        return found

    def with_new(self, columns: Sequence[StreamColumn]) -> list[StreamColumn]:
        """All columns of the stream, then those of these expressions whose names are unique."""
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
            names = self.stream.select(expression).columns
        except AnalysisException as exc:
            raise JobError(f"{role}: {self._fault(text, exc)}") from exc
        if len(names) != 1:
            raise JobError(f"{role}: {text!r} gives {len(names)} columns; name each of them")
        *ids, found = self._session.column_ids(self.stream.select("*", expression))
        return StreamColumn(names[0], text, ids.index(found) if found in ids else expression)

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


@dataclass(frozen=True, slots=True)
class KeyedColumns:
    """The columns of a stream, and those that are its key."""

    columns: StreamColumns
    keys: Sequence[StreamColumn]


class PlannedColumns(ABC):
    """The columns of an operator, and their plan. The plan has names of its own: c0, c1, ....

    `names` are the operator's names of the columns, `inputs` those of the columns that the function sees, by input.
    `keys`, `order_by` and `namespaces` are the names of those that have these roles.
    """

    #: The name of the column with the subtask that a row goes to, null where its key decides; None without one.
    target: str | None = None

    def __init__(self, names: Sequence[str], inputs: tuple[tuple[str, ...], ...]) -> None:
        self.names = list(names)
        self.inputs = inputs
        self.keys: tuple[str, ...] = ()
        self.order_by: tuple[str, ...] = ()
        self.namespaces: tuple[str, ...] = ()

    @abstractmethod
    def plan(self) -> DataFrame:
        """The rows with these columns, under the names of the plan."""

    def plan_names(self, names: Iterable[str]) -> list[str]:
        """The names in the plan of the columns with these names."""
        return [f"c{self.names.index(name)}" for name in names]

    def schema(self, plan: DataFrame) -> StructType:
        """The types of the columns under the operator's names."""
        return StructType(
            [
                StructField(name, field.dataType, field.nullable)
                for name, field in zip(self.names, plan.schema.fields, strict=True)
            ]
        )


class OperatorColumns(PlannedColumns):
    """The columns of one stream: those that the function sees, and hidden ones."""

    def __init__(self, columns: StreamColumns, seen: Sequence[StreamColumn]) -> None:
        names = tuple(column.name for column in seen)
        super().__init__(names, (names,))
        self._stream = columns.stream
        self._columns = list(seen)

    def add(self, columns: Sequence[StreamColumn]) -> tuple[str, ...]:
        """Add those of these columns that are missing. Returns the operator's names of all of them."""
        return tuple(self.names[self._index(column)] for column in columns)

    def plan(self) -> DataFrame:
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

    def _index(self, column: StreamColumn) -> int:
        for index, one in enumerate(self._columns):
            if one.is_same(column):
                return index
        label = column.name if isinstance(column.source, int) else column.text
        self._columns.append(column)
        self.names.append(unused_name(label, self.names))
        return len(self.names) - 1
