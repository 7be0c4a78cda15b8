"""Which Arrow types can be keys and namespaces, and what to do with a column of another type.

Rules of this module: it knows Arrow's types and Spark's names of them. For each type that cannot be a key, the error
has the reason and a remedy that works.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from qstate.keys import ColumnType

__all__ = ["key_column_type", "why_no_key"]

_KEYS: tuple[tuple[Callable[[pa.DataType], bool], ColumnType], ...] = (
    (pa.types.is_string, ColumnType.STRING),
    (pa.types.is_large_string, ColumnType.STRING),
    (pa.types.is_binary, ColumnType.BINARY),
    (pa.types.is_large_binary, ColumnType.BINARY),
    (pa.types.is_signed_integer, ColumnType.BIGINT),
    (pa.types.is_boolean, ColumnType.BOOLEAN),
    (pa.types.is_date32, ColumnType.DATE),
    (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, ColumnType.TIMESTAMP),
)

#: The test for a type, its name in Spark, why it cannot be a key, and the remedy.
_OTHERS: tuple[tuple[Callable[[pa.DataType], bool], str, str, str], ...] = (
    (
        pa.types.is_floating,
        "",
        "equal floating-point numbers may have different bytes (0.0 and -0.0, NaN), so their hashes may differ",
        "cast it to bigint, which cuts fractions off, or to string",
    ),
    (
        pa.types.is_timestamp,
        "timestamp_ntz",
        "a timestamp without a time zone names no moment",
        "cast it to timestamp, which takes it as of the session's time zone",
    ),
    (
        pa.types.is_struct,
        "a struct",
        "a key has plain columns",
        'name its fields, each a key column: "column.field"',
    ),
    (pa.types.is_nested, "an array or a map", "a key has plain columns", "take an element of it, or F.to_json(column)"),
    (pa.types.is_null, "of no type (void)", "it has no value", "cast it to the type that it should have"),
)


def key_column_type(kind: pa.DataType) -> ColumnType | None:
    """The column type of keys, None for a type that cannot be one."""
    if pa.types.is_decimal128(kind):
        return ColumnType.decimal(kind.scale) if kind.scale >= 0 else None
    return next((found for belongs, found in _KEYS if belongs(kind)), None)


def why_no_key(kind: pa.DataType) -> str:
    """Why a type cannot be a key, and the remedy. The end of a sentence whose subject is the column."""
    for belongs, name, reason, remedy in _OTHERS:
        if belongs(kind):
            return f"is {name or kind}, which cannot be a key: {reason}; {remedy}"
    return (
        f"is {kind}, which cannot be a key: keys are strings, binaries, integers, decimals, booleans, dates and "
        "timestamps; cast it to string"
    )
