"""The rows of a harness: Python values in, record batches out, and back.

Rules of this module: it knows Arrow and the types that a test declares; it knows no function and no state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeAlias

import pyarrow as pa

from qstate.errors import ConfigError

__all__ = ["Columns", "batch_of", "rows_of", "schema_of"]

#: The columns of rows: a schema of Arrow, or their types by name, as classes of Python or types of Arrow.
Columns: TypeAlias = "pa.Schema | Mapping[str, Any]"

_TYPES: Mapping[type, pa.DataType] = {
    str: pa.string(),
    bytes: pa.binary(),
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    date: pa.date32(),
    datetime: pa.timestamp("us", "UTC"),
}


def schema_of(which: str, columns: Columns) -> pa.Schema:
    """The schema of declared columns. Raises `ConfigError` that names the column."""
    if isinstance(columns, pa.Schema):
        for column in columns:
            _check_unit(which, column.name, column.type)
        return columns
    if not isinstance(columns, Mapping) or not columns:
        raise ConfigError(f"{which} takes the types of the columns by name, as in {{'sensor': str}}, got {columns!r}")
    return pa.schema([(name, _arrow_type(which, name, kind)) for name, kind in columns.items()])


def _arrow_type(which: str, name: str, kind: Any) -> pa.DataType:
    found = kind if isinstance(kind, pa.DataType) else _TYPES.get(kind)
    if found is None:
        known = ", ".join(one.__name__ for one in _TYPES)
        raise ConfigError(f"{which}: column {name!r} has the type {kind!r}; use {known}, or a type of Arrow")
    _check_unit(which, name, found)
    return found


def _check_unit(which: str, name: str, kind: pa.DataType) -> None:
    if pa.types.is_timestamp(kind) and kind.unit != "us":
        raise ConfigError(
            f"{which}: column {name!r} is {kind}, and timestamps of Spark have microseconds: declare it as datetime, "
            "or as a timestamp in us"
        )


def batch_of(rows: Sequence[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Rows, as tuples in the order of the columns or as dicts, as a batch. Raises `ConfigError` if one does not fit."""
    plain = [row if isinstance(row, Mapping) else _named(row, schema) for row in rows]
    for row in plain:
        if unknown := set(row) - set(schema.names):
            raise ConfigError(f"the row {row!r} has unknown columns {sorted(unknown)}; there are {schema.names}")
    try:
        return pa.RecordBatch.from_pylist(plain, schema=schema)
    except (pa.ArrowException, TypeError, ValueError) as exc:
        raise ConfigError(f"the rows {plain!r:.500} do not have the columns {schema}: {exc}") from exc


def _named(row: Any, schema: pa.Schema) -> dict[str, Any]:
    if not isinstance(row, tuple | list) or len(row) != len(schema):
        raise ConfigError(f"a row is a dict, or a tuple of {len(schema)} values ({schema.names}), got {row!r}")
    return dict(zip(schema.names, row, strict=True))


def rows_of(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """The rows of a batch as tuples."""
    return [tuple(row.values()) for row in batch.to_pylist()]
