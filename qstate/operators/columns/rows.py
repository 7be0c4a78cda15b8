"""Converts between Arrow batches and Python rows.

Rules of this module: it knows Arrow and Python values; it must not know state, keys or epochs. Functions get plain
Python values (`column_values`). Their results are checked here, because Arrow alone would silently cut 1.5 to 1 and
read bytes as text.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime
from functools import partial
from numbers import Integral, Real
from operator import itemgetter
from typing import Any

import pyarrow as pa

from qstate.errors import JobError

__all__ = ["OutputRows", "Row", "RowMaker"]

Row = tuple[Any, ...]

_ARROW_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class RowMaker:
    """Makes named rows from the columns of one schema.

    A row is a named tuple: `row.temp`, `row[1]`, unpacking. If a column's name is a keyword or no identifier, use
    `getattr(row, "the name")` or its index. Duplicate names and the few names that a named tuple reserves raise
    `JobError`.
    """

    def __init__(self, names: Sequence[str]) -> None:
        #: The class of the rows. No other maker's rows have it.
        self.row_class = _row_class(tuple(names))
        # namedtuple's own _make is a Python function, twice as slow as this.
        self._new: Callable[[Iterable[Any]], Row] = partial(tuple.__new__, self.row_class)

    def rows(self, columns: Sequence[Sequence[Any]]) -> Iterator[Row]:
        """The rows of columns of equal length, as an iterator."""
        return map(self._new, zip(*columns, strict=True))


def _row_class(names: tuple[str, ...]) -> type[Row]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise JobError(f"the input has more than one column named {', '.join(map(repr, twice))}; rename one of them")
    make_class: Callable[..., Any] = namedtuple  # mypy knows namedtuple by name and wants literal fields
    row_class = make_class("Row", names, rename=True)
    reserved = {name for name in dir(tuple) if name.startswith("__")} | {
        name for name in vars(row_class) if name.startswith("_") and not name[1:].isdigit()
    }
    # Read all getters first: namedtuple renames columns to _1, _2 ..., which may be Spark's names of other columns.
    getters = [vars(row_class)[field] for field in row_class._fields]
    for name, getter in zip(names, getters, strict=True):
        if name in reserved:
            raise JobError(f"a column cannot be named {name!r}: rows use that name themselves; rename the column")
        setattr(row_class, name, getter)
    row_class._fields = names  # for _asdict(), and for output rows that are input rows
    made: type[Row] = row_class
    return made


class OutputRows:
    """Converts the rows of a user's function to record batches of the declared output schema.

    A row is a tuple or list in the order of the columns, or a dict or named row (named tuple, Spark's `Row`) with
    exactly the columns' names. `source` names the function in errors.
    """

    def __init__(self, schema: pa.Schema, source: str) -> None:
        self._schema = schema
        self._names: tuple[str, ...] = tuple(schema.names)
        self._source = source

    def batch(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """All rows as one batch. Raises `JobError` that names the function, the row, the column and the values."""
        kinds = set(map(type, rows))
        if not all(kind is tuple or kind is list or self._same_names(kind) for kind in kinds):
            rows = [self._positional(index, row) for index, row in enumerate(rows)]
        if set(map(len, rows)) - {len(self._names)}:
            raise self._wrong_width(rows)
        # Column by column: zip(*rows) makes an iterator per row and takes ten times as long.
        columns = [list(map(itemgetter(position), rows)) for position in range(len(self._names))]
        arrays = [self._array(field, values) for field, values in zip(self._schema, columns, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def checked(self, batch: Any) -> pa.RecordBatch:
        """A batch that a function made, with the declared schema. Raises `JobError` that names what does not fit."""
        if not isinstance(batch, pa.RecordBatch):
            raise JobError(f"{self._source}: expected Arrow record batches, found {_shown(batch)}")
        names, kinds = batch.schema.names, batch.schema.types
        if (names, kinds) != (self._schema.names, self._schema.types):
            found = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
            raise JobError(f"{self._source}: output batches have the columns {self._columns()}; found {found}")
        for field, column in zip(self._schema, batch.columns, strict=True):
            if not field.nullable and column.null_count:
                raise JobError(f"{self._source}: column {field.name!r} of an output batch must not be null")
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)

    def _same_names(self, kind: type) -> bool:
        return issubclass(kind, tuple) and getattr(kind, "_fields", None) == self._names

    def _positional(self, index: int, row: Any) -> Sequence[Any]:
        names = _names_of(row)
        if names is None:
            if isinstance(row, (tuple, list)):
                return row
            raise JobError(
                f"{self._source}: output row {index} is {_shown(row)}, expected a tuple, list, dict or Row with the "
                f"columns {self._columns()}; a function returns an iterable of rows, so a single row is [row]"
            )
        if isinstance(row, tuple):
            row = dict(zip(names, row, strict=True))
        missing = [name for name in self._names if name not in row]
        unknown = [name for name in row if name not in self._names]
        if missing or unknown:
            faults = [f"lacks {missing}"] * bool(missing) + [f"has unknown columns {unknown}"] * bool(unknown)
            raise JobError(
                f"{self._source}: output row {index} {' and '.join(faults)}; the columns are {self._columns()}"
            )
        return [row[name] for name in self._names]

    def _wrong_width(self, rows: Sequence[Sequence[Any]]) -> JobError:
        index, row = next((index, row) for index, row in enumerate(rows) if len(row) != len(self._names))
        return JobError(
            f"{self._source}: output row {index} has {len(row)} columns, expected {len(self._names)} "
            f"({self._columns()}); found {_shown(row)}"
        )

    def _array(self, field: pa.Field, values: Sequence[Any]) -> pa.Array:
        fits = next((rule for belongs, rule in _TYPE_RULES if belongs(field.type)), lambda _: True)
        for kind in set(map(type, values)):
            if not (field.nullable if kind is type(None) else fits(kind)):
                index = next(index for index, value in enumerate(values) if type(value) is kind)
                raise self._misfit(field, index, values[index])
        try:
            return pa.array(values, field.type)
        except _ARROW_REFUSALS as exc:
            index = _first_misfit(values, field.type)
            raise self._misfit(field, index, values[index], f" ({exc})") from exc

    def _misfit(self, field: pa.Field, index: int, value: Any, why: str = "") -> JobError:
        return JobError(
            f"{self._source}: column {field.name!r} of output row {index} must be {field.type}"
            f"{'' if field.nullable else ' and not null'}, found {_shown(value)} of type {type(value).__name__}{why}"
        )

    def _columns(self) -> str:
        return ", ".join(f"{field.name} {field.type}" for field in self._schema)


def _names_of(row: Any) -> Sequence[str] | None:
    """The column names in a row itself: a dict's keys, a named tuple's or a Spark Row's fields."""
    if isinstance(row, dict):
        return list(row)
    if isinstance(row, tuple):
        names = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
        return names if names and all(isinstance(name, str) for name in names) else None
    return None


#: Which Python types are accepted for an Arrow type; for any other, Arrow decides. NumPy's numbers are accepted as
#: numbers.
_TYPE_RULES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[type], bool]], ...] = (
    (pa.types.is_integer, lambda kind: issubclass(kind, Integral) and not issubclass(kind, bool)),
    (pa.types.is_floating, lambda kind: issubclass(kind, Real) and not issubclass(kind, bool)),
    (pa.types.is_boolean, lambda kind: kind is bool or kind.__module__ == "numpy"),
    (pa.types.is_string, lambda kind: issubclass(kind, str)),
    (pa.types.is_large_string, lambda kind: issubclass(kind, str)),
    (pa.types.is_binary, lambda kind: issubclass(kind, (bytes, bytearray, memoryview))),
    (pa.types.is_large_binary, lambda kind: issubclass(kind, (bytes, bytearray, memoryview))),
    (pa.types.is_timestamp, lambda kind: issubclass(kind, datetime) or kind.__module__ == "numpy"),
    (pa.types.is_date, lambda kind: issubclass(kind, date) and not issubclass(kind, datetime)),
)


def _first_misfit(values: Sequence[Any], kind: pa.DataType) -> int:
    for index, value in enumerate(values):
        try:
            pa.array([value], kind)
        except _ARROW_REFUSALS:
            return index
    return 0


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
