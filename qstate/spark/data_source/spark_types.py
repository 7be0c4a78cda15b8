"""Which Spark type a type of qstate becomes, and how a value of it becomes a value of the Spark type.

Rules of this module: types and values only; it knows neither states nor Arrow. The Spark type alone decides how values
are converted, so a schema of the user's replaces the one below.

    qstate                          Spark
    bool, int, float, str, bytes    boolean, bigint, double, string, binary
    date, datetime                  date, timestamp (without a time zone it counts as UTC)
    timedelta, Decimal              interval day to second, decimal(38,18)
    list, tuple[T, ...]             array
    tuple[A, B]                     struct of _1, _2
    dict                            map
    a dataclass, a named tuple      struct of its fields
    X | None, int | float           X, double
    UUID, an enum                   string
    object, other unions            string: text as it is, anything else as JSON
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from qstate.keys import ColumnType
from qstate.values.text_forms import printable
from qstate.values.value_forms import same
from qstate.values.value_types import (
    DictType,
    ListType,
    RecordType,
    ScalarType,
    TupleOfType,
    TupleType,
    UnionType,
    ValueType,
)

__all__ = ["column_type", "columns_type", "converter", "spark_type"]

Step = Callable[[Any], Any]

_SCALARS: dict[str, DataType] = {
    "bool": BooleanType(),
    "int": LongType(),
    "float": DoubleType(),
    "str": StringType(),
    "bytes": BinaryType(),
    "date": DateType(),
    "datetime": TimestampType(),
    "timedelta": DayTimeIntervalType(),
    "Decimal": DecimalType(38, 18),
}
_COLUMNS: dict[ColumnType, DataType] = {
    ColumnType.STRING: StringType(),
    ColumnType.BINARY: BinaryType(),
    ColumnType.BIGINT: LongType(),
    ColumnType.BOOLEAN: BooleanType(),
    ColumnType.DATE: DateType(),
    ColumnType.TIMESTAMP: TimestampType(),
}
_NONE = ScalarType("None")
_NUMBERS = {ScalarType("int"), ScalarType("float")}


def column_type(kind: ColumnType) -> DataType:
    """The type of one column of a key or a namespace."""
    return _COLUMNS.get(kind) or DecimalType(38, int(str(kind.value).rstrip(")").rpartition(",")[2]))


def columns_type(kinds: Sequence[ColumnType]) -> DataType:
    """The type of a namespace: that of its column, a struct for several."""
    return column_type(kinds[0]) if len(kinds) == 1 else _positions([column_type(kind) for kind in kinds])


def spark_type(kind: ValueType) -> DataType:
    """The Spark type of a declared type."""
    match kind:
        case ScalarType(name):
            return _SCALARS.get(name, StringType())
        case ListType(item) | TupleOfType(item):
            return ArrayType(spark_type(item))
        case TupleType(items) if items:
            return _positions([spark_type(item) for item in items])
        case DictType(key, value) if not (isinstance(key, UnionType) and _NONE in key.alternatives) and key != _NONE:
            return MapType(spark_type(key), spark_type(value))
        case RecordType(_, fields) if fields:
            return StructType([StructField(field.name, spark_type(field.type)) for field in fields])
        case UnionType(alternatives):
            return _union_type(set(alternatives) - {_NONE})
    return StringType()


def _union_type(alternatives: set[ValueType]) -> DataType:
    if len(alternatives) == 1:
        return spark_type(alternatives.pop())
    return DoubleType() if alternatives == _NUMBERS else StringType()


def _positions(types: Sequence[DataType]) -> StructType:
    """A struct of items without names: they have Scala's."""
    return StructType([StructField(f"_{at}", kind) for at, kind in enumerate(types, 1)])


def converter(kind: DataType) -> Step | None:
    """How values are made ready for Arrow's array of that type; None: they are as they are."""
    if isinstance(kind, StringType):
        return _as_text
    if isinstance(kind, ArrayType):
        return _of_array(converter(kind.elementType))
    if isinstance(kind, MapType):
        return _of_map(converter(kind.keyType) or same, converter(kind.valueType) or same)
    return _of_struct(kind) if isinstance(kind, StructType) else None


def _as_text(value: Any) -> Any:
    if value is None or type(value) is str:
        return value
    plain = printable(value)
    return plain if isinstance(plain, str) else json.dumps(plain)


def _of_array(item: Step | None) -> Step | None:
    if item is None:
        return None
    return lambda value: value if value is None else [item(one) for one in value]


def _of_map(key: Step, item: Step) -> Step:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        entries = [(key(one), item(other)) for one, other in value.items()]
        if key is _as_text and len({text for text, _ in entries}) < len(entries):
            raise ValueError("two keys of a map are the same as text")
        return entries

    return convert


def _of_struct(kind: StructType) -> Step:
    names = kind.fieldNames()
    steps = {field.name: step for field in kind.fields if (step := converter(field.dataType)) is not None}

    def convert(value: Any) -> Any:
        if isinstance(value, list | tuple):
            value = dict(zip(names, value, strict=False))
        if value is None or not steps:
            return value
        return {**value, **{name: step(value[name]) for name, step in steps.items() if name in value}}

    return convert
