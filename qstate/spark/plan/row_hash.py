"""A hash of each row in Spark SQL. The hashes identify the rows of an epoch.

Rules of this module: a schema in, a column expression out. Equal rows have equal hashes, in every task and run.

Spark's `xxhash64` hashes a value's parts one after the other, and a null does not change the hash. So it gives
`array(1, null)` and `array(1)` one hash, and `array(array(1), array(2))` and `array(array(1, 2))`. Other types it
refuses. Such types are converted, at any depth:

    columns of a row      before each, whether it is null: so `(null, 1)` is not `(1, null)`
    struct                the hash of its fields, as of a row's columns
    array                 its size, then its elements, or the hash of each element where one may be null
    map                   the exclusive or of its entries' hashes, because a map has no order
    variant               its type and its text
    geometry, geography   its well-known binary form
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

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
    for column, kind in columns:
        # With spark.sql.ansi.enabled, the size of a null is null.
        yield F.coalesce(F.size(column), F.lit(-1)) if isinstance(kind, ArrayType) else column.isNull()
        yield column if _is_hashed(kind) else _form(column, kind)


def _is_hashed(kind: DataType) -> bool:
    """Whether `xxhash64` itself has other hashes for other values."""
    if isinstance(kind, ArrayType):
        return not kind.containsNull and not isinstance(kind.elementType, ArrayType) and _is_hashed(kind.elementType)
    return not isinstance(kind, StructType | MapType) and kind.typeName() not in (*_AS_TEXT, *_AS_BINARY)


def _form(column: Column, kind: DataType) -> Column:
    """What `xxhash64` is given instead: equal for equal values, and null for a null."""
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(column, lambda one: _hash_of([(one, element)]))
    if isinstance(kind, StructType):
        # By numbers: names of fields may be repeated, or differ by case only.
        fields = [StructField(f"f{number}", field.dataType) for number, field in enumerate(kind.fields)]
        numbered = column.cast(StructType(fields))
        hashed = _hash_of((numbered.getField(field.name), field.dataType) for field in fields)
        return F.when(column.isNotNull(), hashed)
    if isinstance(kind, MapType):
        types = kind.keyType, kind.valueType
        return F.aggregate(
            F.map_entries(column),
            F.lit(0).cast("bigint"),
            lambda found, entry: found.bitwiseXOR(_hash_of(zip((entry.key, entry.value), types, strict=True))),
        )
    if kind.typeName() in _AS_BINARY:
        return F.st_asbinary(column)
    return F.when(column.isNotNull(), F.concat_ws(" ", F.schema_of_variant(column), column.cast("string")))
