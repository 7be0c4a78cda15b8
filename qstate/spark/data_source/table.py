"""A state as a table: its columns, and its rows as Arrow batches.

Rules of this module: it makes columns of a description and batches of rows. It must not know where rows come from.

    key           the key's column; key_1, key_2, ... for several. The option `key_columns` renames them
    namespace     null is the void namespace. A state whose namespaces may be of any types has them as text
    value         see `spark_types`; bytes for a serializer of the user's own; an array, a map for lists and maps
    epoch         the epoch that the row is from
    change_type   only of the change feed: put, delete, add, put_entry or remove_entry
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from qstate.descriptors import StateKind
from qstate.errors import ConfigError, SerializationError
from qstate.keys import ColumnType, Key, Namespace
from qstate.serializers import MessagePackSerializer
from qstate.spark.data_source.spark_types import column_type, columns_type, converter, spark_type
from qstate.values.value_types import ValueType

__all__ = ["StateRow", "StateTable", "batches_of"]

BATCH_ROWS = 10_000
_CHANGE_TYPE = StructField("change_type", StringType(), False)


class StateRow(NamedTuple):
    """One row. `change_type` is that of the change feed."""

    key: Key
    namespace: Namespace
    value: Any
    epoch: int
    change_type: str | None = None


@dataclass(frozen=True, slots=True)
class StateTable:
    """What a table of a state is made of. `map_key_type` is None unless the state is a map."""

    kind: str
    key_types: Sequence[ColumnType]
    namespace_types: Sequence[ColumnType] | None
    serializer: str
    value_type: ValueType
    map_key_type: ValueType | None = None

    def schema(self, key_columns: Sequence[str] = (), *, changes: bool = False) -> StructType:
        """The columns; `key_columns` are the names of the key's. Raises `ConfigError`."""
        count = len(self.key_types)
        names = key_columns or (["key"] if count == 1 else [f"key_{at}" for at in range(1, count + 1)])
        if len(names) != len(self.key_types):
            raise ConfigError(f"key_columns must name the {len(self.key_types)} columns of the key, got {len(names)}")
        keys = [StructField(name, column_type(kind), False) for name, kind in zip(names, self.key_types, strict=True)]
        spaces = self.namespace_types
        fields = [
            *keys,
            StructField("namespace", columns_type(spaces) if spaces else StringType()),
            *([_CHANGE_TYPE] if changes else []),
            StructField("value", self._value_type()),
            StructField("epoch", LongType(), False),
        ]
        found = [field.name for field in fields]
        if len(set(found)) < len(found):
            raise ConfigError(f"the columns would be {', '.join(found)}: give key_columns other names")
        return StructType(fields)

    def _value_type(self) -> DataType:
        plain = self.serializer == MessagePackSerializer.name
        one = spark_type(self.value_type) if plain else BinaryType()
        if self.kind == StateKind.LIST.value:
            return ArrayType(one)
        if self.kind == StateKind.MAP.value:
            key = StringType() if self.map_key_type is None else spark_type(self.map_key_type)
            return MapType(key, one)
        return one


def batches_of(rows: Iterable[StateRow], wanted: StructType, own: StructType) -> Iterator[pa.RecordBatch]:
    """The rows as batches with the columns of `wanted`, which are some of `own`, perhaps of other types.

    Raises `ConfigError` for other columns, and `SerializationError` for a value that has no form in its column's type.
    """
    schema = to_arrow_schema(wanted, timezone="UTC")  # which Spark compares with that of a batch
    places = {name: at for at, name in enumerate(own.fieldNames())}
    unknown = [name for name in wanted.fieldNames() if name not in places]
    if unknown:
        raise ConfigError(f"the state has no columns {', '.join(unknown)}; it has {', '.join(places)}")
    keys = places["namespace"]  # it comes after those
    parts = [
        (name, _extractor(name, places[name], keys), converter(wanted[name].dataType)) for name in wanted.fieldNames()
    ]
    rows = iter(rows)
    while found := list(islice(rows, BATCH_ROWS)):
        columns = []
        for (name, extract, convert), field in zip(parts, schema, strict=True):
            try:
                values = [extract(row) for row in found]
                columns.append(pa.array(values if convert is None else [*map(convert, values)], field.type))
            except (pa.ArrowException, TypeError, ValueError, AttributeError, OverflowError) as exc:
                raise SerializationError(
                    f"a value of the column {name} does not fit {wanted[name].dataType.simpleString()}: {exc}. Give "
                    f"the schema yourself, with that column as string, as in .schema({_with_text(wanted, name)!r})"
                ) from exc
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _with_text(schema: StructType, column: str) -> str:
    """The schema as text, with this column as string."""
    types = {field.name: field.dataType.simpleString() for field in schema} | {column: "string"}
    return ", ".join(f"{name} {kind}" for name, kind in types.items())


def _extractor(name: str, place: int, keys: int) -> Callable[[StateRow], Any]:
    if place >= keys:
        at = StateRow._fields.index(name)
        return lambda row: row[at]
    return (lambda row: row.key) if keys == 1 else lambda row: row.key[place]  # type: ignore[index]
