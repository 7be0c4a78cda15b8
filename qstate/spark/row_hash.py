"""A hash of each row in Spark SQL. The hashes identify the rows of an epoch.

Rules of this module: a schema in, a column expression out. Equal rows have equal hashes, in every task and run.

Spark's `xxhash64` accepts nearly every type, natively and in generated code. The types that it refuses are converted,
at any depth:

    map                   the exclusive or of its entries' hashes, because a map has no order
    variant               its text
    geometry, geography   its well-known binary form

A null does not change Spark's hash. So a number is hashed between two columns, to distinguish `(null, 1)` from
`(1, null)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

__all__ = ["quoted", "row_hash"]

_AS_TEXT = ("variant",)
_AS_BINARY = ("geometry", "geography")


def row_hash(schema: StructType) -> Column:
    """The hash of a row of this schema, a bigint."""
    return _hash_of((F.col(quoted(field.name)), field.dataType) for field in schema.fields)


def quoted(name: str) -> str:
    """A column's name, quoted for Spark."""
    return "`" + name.replace("`", "``") + "`"


def _hash_of(columns: Iterable[tuple[Column, DataType]]) -> Column:
    return F.xxhash64(*_hashable(columns))


def _hashable(columns: Iterable[tuple[Column, DataType]]) -> Iterator[Column]:
    for number, (column, kind) in enumerate(columns):
        if number:
            yield F.lit(number)
        yield column if _is_hashed(kind) else _form(column, kind)


def _is_hashed(kind: DataType) -> bool:
    """Whether `xxhash64` accepts the type."""
    if isinstance(kind, ArrayType):
        return _is_hashed(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_hashed(field.dataType) for field in kind.fields)
    return not isinstance(kind, MapType) and kind.typeName() not in (*_AS_TEXT, *_AS_BINARY)


def _form(column: Column, kind: DataType) -> Column:
    """A form that `xxhash64` accepts, which is equal for equal values, and null for a null."""
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(column, lambda one: _hash_of([(one, element)]))
    if isinstance(kind, StructType):
        hashed = _hash_of((column.getField(field.name), field.dataType) for field in kind.fields)
        return F.when(column.isNotNull(), hashed)
    if isinstance(kind, MapType):
        types = kind.keyType, kind.valueType
        return F.aggregate(
            F.map_entries(column),
            F.lit(0).cast("bigint"),
            lambda found, entry: found.bitwiseXOR(_hash_of(zip((entry.key, entry.value), types, strict=True))),
        )
    return F.st_asbinary(column) if kind.typeName() in _AS_BINARY else column.cast("string")
