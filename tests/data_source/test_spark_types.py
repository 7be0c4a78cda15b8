"""Every kind of type: its Spark type, and values of it that Arrow and Spark take."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql.types import ByteType, LongType, StringType, StructField, StructType

from qstate.errors import ConfigError, SerializationError
from qstate.keys import ColumnType
from qstate.spark.data_source.spark_types import column_type, spark_type
from qstate.spark.data_source.table import StateRow, StateTable, batches_of
from qstate.values.value_types import OBJECT, value_type_of


class Colour(Enum):
    RED = 1


class Pair(NamedTuple):
    low: int
    high: float | None


@dataclass
class Reading:
    temperature: float
    station: str | None = None
    pairs: list[Pair] | None = None


TEXT = (ColumnType.STRING,)
MOMENT = datetime(2013, 7, 18, 12, tzinfo=timezone.utc)
#: A type, its name in Spark, a value as a view or a stored entry has it, and the value in the table.
CASES: list[tuple[Any, str, Any, Any]] = [
    (bool, "boolean", True, True),
    (int, "bigint", 7, 7),
    (float, "double", 7.5, 7.5),
    (int | float, "double", 7, 7.0),
    (str, "string", "seven", "seven"),
    (bytes, "binary", b"\x07", b"\x07"),
    (date, "date", date(2013, 7, 18), date(2013, 7, 18)),
    (datetime, "timestamp", MOMENT, MOMENT),
    (datetime, "timestamp", datetime(2013, 7, 18, 12), MOMENT),
    (timedelta, "interval day to second", timedelta(seconds=1.5), timedelta(seconds=1.5)),
    (Decimal, "decimal(38,18)", Decimal("12.5"), Decimal("12.500000000000000000")),
    (UUID, "string", UUID(int=7), str(UUID(int=7))),
    (Colour, "string", "RED", "RED"),
    (float | None, "double", None, None),
    (int | str, "string", 7, "7"),
    (list[int], "array<bigint>", [1, 2], [1, 2]),
    (list[UUID], "array<string>", [UUID(int=7)], [str(UUID(int=7))]),
    (tuple[int, ...], "array<bigint>", (1, 2), [1, 2]),
    (tuple[int, str], "struct<_1:bigint,_2:string>", (1, "a"), {"_1": 1, "_2": "a"}),
    (dict[str, int], "map<string,bigint>", {"a": 1}, [("a", 1)]),
    (dict[str, list[Pair]], "map<string,array<struct<low:bigint,high:double>>>", {}, []),
    (Pair, "struct<low:bigint,high:double>", {"low": 1}, {"low": 1, "high": None}),
    (
        Reading,
        "struct<temperature:double,station:string,pairs:array<struct<low:bigint,high:double>>>",
        {"temperature": 1.5, "station": None, "pairs": [{"low": 1, "high": 2.0}], "unknown": 1},
        {"temperature": 1.5, "station": None, "pairs": [{"low": 1, "high": 2.0}]},
    ),
    (object, "string", {"a": [1, None, MOMENT]}, f'{{"a": [1, null, "{MOMENT.isoformat()}"]}}'),
    (object, "string", "text", "text"),
]


def table(value_type: Any = object, kind: str = "value", serializer: str = "msgpack", **more: Any) -> StateTable:
    return StateTable(kind, TEXT, None, serializer, value_type_of(value_type), **more)


def read(found: StateTable, *rows: StateRow, wanted: StructType | None = None) -> list[dict[str, Any]]:
    own = found.schema()
    return [one for batch in batches_of(rows, wanted or own, own) for one in batch.to_pylist()]


@pytest.mark.parametrize(("declared", "named", "value", "shown"), CASES)
def test_a_declared_type_and_its_values(declared: Any, named: str, value: Any, shown: Any) -> None:
    found = table(declared)
    assert found.schema()["value"].dataType.simpleString() == named
    assert read(found, StateRow("JFK", None, value, 3)) == [
        {"key": "JFK", "namespace": None, "value": shown, "epoch": 3}
    ]


def test_lists_and_maps_of_each_serializer() -> None:
    kinds = {
        ("list", "msgpack"): "array<bigint>",
        ("list", "own"): "array<binary>",
        ("map", "msgpack"): "map<bigint,bigint>",
        ("map", "own"): "map<bigint,binary>",
        ("value", "own"): "binary",
        ("reducing", "msgpack"): "bigint",
    }
    for (kind, serializer), named in kinds.items():
        keys = {"map_key_type": value_type_of(int)} if kind == "map" else {}
        found = table(int, kind, serializer, **keys)
        assert found.schema()["value"].dataType.simpleString() == named
    found = table(int | None, "map", map_key_type=value_type_of(str))
    assert read(found, StateRow("JFK", None, {"LAX": None}, 3))[0]["value"] == [("LAX", None)]


def test_columns_of_keys_and_namespaces() -> None:
    assert [column_type(kind).simpleString() for kind in (ColumnType.BIGINT, ColumnType.decimal(2))] == [
        "bigint",
        "decimal(38,2)",
    ]
    found = StateTable("value", (*TEXT, ColumnType.DATE), (ColumnType.TIMESTAMP,) * 2, "msgpack", OBJECT)
    assert found.schema().fieldNames() == ["key_1", "key_2", "namespace", "value", "epoch"]
    assert found.schema(["airport", "day"]).fieldNames()[:2] == ["airport", "day"]
    day = date(2013, 7, 18)
    (row,) = read(found, StateRow(("JFK", day), (MOMENT, MOMENT), "x", 3))
    assert (row["key_1"], row["key_2"], row["namespace"]) == ("JFK", day, {"_1": MOMENT, "_2": MOMENT})


@pytest.mark.parametrize("names", [["a"], ["value", "b"], ["a", "a"]])
def test_names_of_key_columns_that_cannot_be(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="key_columns"):
        StateTable("value", TEXT * 2, None, "msgpack", OBJECT).schema(names)


def test_a_namespace_of_any_type_is_text() -> None:
    rows = [StateRow("JFK", namespace, 1, 3) for namespace in ("day", date(2013, 7, 18), ("a", 1), None)]
    assert [one["namespace"] for one in read(table(int), *rows)] == ["day", "2013-07-18", '["a", 1]', None]


def test_a_schema_of_the_users_chooses_columns_and_types() -> None:
    wanted = StructType(
        [StructField("value", spark_type(value_type_of(str))), StructField("key", column_type(TEXT[0]))]
    )
    assert read(table(list[int]), StateRow("JFK", None, [1], 3), wanted=wanted) == [{"value": "[1]", "key": "JFK"}]
    with pytest.raises(ConfigError, match="no columns colour; it has key, namespace, value, epoch"):
        read(table(), StateRow("JFK", None, 1, 3), wanted=StructType().add("colour", "string"))


@pytest.mark.parametrize(
    ("declared", "value"), [(int, "seven"), (int, 1 << 64), (Decimal, Decimal("1E-30")), (Pair, 7)]
)
def test_a_value_that_does_not_fit_says_what_to_do(declared: Any, value: Any) -> None:
    with pytest.raises(SerializationError, match=r"the column value does not fit .* schema yourself"):
        read(table(declared), StateRow("JFK", None, value, 3))


@pytest.mark.parametrize("column", ["key_2", "value"])
def test_the_schema_that_is_proposed_has_the_columns_of_this_state(column: str) -> None:
    found = StateTable("value", [ColumnType.STRING, ColumnType.BIGINT], None, "msgpack", value_type_of(int))
    types = {"key_1": StringType(), "key_2": LongType(), "value": LongType()}
    wanted = StructType([StructField(name, kind) for name, kind in (types | {column: ByteType()}).items()])
    with pytest.raises(SerializationError) as caught:
        read(found, StateRow(("JFK", 1000), None, 1000, 3), wanted=wanted)
    proposed = {"key_1": "string", "key_2": "bigint", "value": "bigint"} | {column: "string"}
    text = ", ".join(f"{name} {kind}" for name, kind in proposed.items())
    assert str(caught.value).endswith(f".schema({text!r})")


def test_keys_of_a_map_that_are_one_text_are_no_map_of_spark() -> None:
    found = table(int, "map", map_key_type=OBJECT)
    row = StateRow("JFK", None, {1: 2, "1": 3}, 3)
    with pytest.raises(SerializationError, match=r"same as text\. Give the schema yourself"):
        read(found, row)
    wanted = StructType([StructField("value", spark_type(value_type_of(str)))])
    assert read(found, row, wanted=wanted) == [{"value": '[[1, 2], ["1", 3]]'}]
    assert read(found, row._replace(value={1: 2, "2": 3}))[0]["value"] == [("1", 2), ("2", 3)]


def test_many_rows_come_in_several_batches() -> None:
    own = table(int).schema()
    batches = list(batches_of((StateRow("JFK", None, one, 3) for one in range(25_000)), own, own))
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000]
    assert pa.Table.from_batches(batches)["value"].to_pylist() == list(range(25_000))
