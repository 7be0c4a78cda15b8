"""Arrow batches to rows and back: the rows of a function, its results, and errors."""

from __future__ import annotations

import re
from collections import namedtuple
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from qstate.errors import JobError
from qstate.operators.columns.column_values import column_values
from qstate.operators.columns.rows import OutputRows, RowMaker

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64()), ("mean", pa.float64())])


def test_rows_have_names_and_positions() -> None:
    (row,) = RowMaker(["station", "temp"]).rows([["JFK"], [3.5]])
    assert (row.station, row[1], tuple(row), len(row)) == ("JFK", 3.5, ("JFK", 3.5), 2)  # type: ignore[attr-defined]
    assert repr(row) == "Row(station='JFK', temp=3.5)"


@pytest.mark.parametrize(
    "names",
    [
        ["class", "mean delay", "_private", "2nd", "ok"],
        ["_1", "_2", "_3"],  # what Spark calls the columns of tuples
        ["_2", "a b", "_0", "c"],
        ["count", "index"],  # methods of a tuple
        ["é", "", "a.b"],
    ],
)
def test_columns_with_odd_names_are_attributes(names: list[str]) -> None:
    (row,) = RowMaker(names).rows([[number] for number in range(len(names))])
    assert [getattr(row, name) for name in names] == list(range(len(names)))
    assert row._asdict() == {name: number for number, name in enumerate(names)}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["_make", "_asdict", "_replace", "_fields", "__class__", "__len__"])
def test_column_names_that_named_tuples_reserve_are_refused(name: str) -> None:
    with pytest.raises(JobError, match=f"a column cannot be named '{name}'"):
        RowMaker(["a", name])


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(JobError, match="more than one column named 'a'"):
        RowMaker(["a", "b", "a"])


def converted(rows: list[Any], schema: pa.Schema = SCHEMA) -> list[Any]:
    found = OutputRows(schema, "function F").batch(rows)
    assert found.schema == schema
    return [tuple(row.values()) for row in found.to_pylist()]


Named = namedtuple("Named", ["mean", "name", "count"])
Exact = namedtuple("Exact", ["name", "count", "mean"])


class SparkRow(tuple[Any, ...]):
    """As `pyspark.sql.Row`: a tuple that keeps its names in `__fields__`."""

    __fields__ = ("mean", "count", "name")


@pytest.mark.parametrize(
    "row",
    [
        ("a", 1, 2.0),
        ["a", 1, 2.0],
        {"mean": 2.0, "name": "a", "count": 1},
        Named(2.0, "a", 1),
        Exact("a", 1, 2.0),
        SparkRow((2.0, 1, "a")),
        ("a", 1, 2),
    ],
)
def test_every_form_of_a_row_is_accepted(row: Any) -> None:
    assert converted([row, row]) == [("a", 1, 2.0)] * 2


def test_forms_may_be_mixed() -> None:
    assert converted([("a", 1, 2.0), {"mean": 2.0, "name": "b", "count": 1}, ["c", None, None]]) == [
        ("a", 1, 2.0),
        ("b", 1, 2.0),
        ("c", None, None),
    ]


def test_no_rows_make_an_empty_batch() -> None:
    assert converted([]) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("a", 1), "output row 1 has 2 columns, expected 3 (name string, count int64, mean double); found ('a', 1)"),
        (["a", 1, 2.0, 3], "output row 1 has 4 columns, expected 3"),
        ("abc", "output row 1 is 'abc', expected a tuple, list, dict or Row"),
        (5, "output row 1 is 5, expected a tuple"),
        (None, "output row 1 is None"),
        ({"name": "a", "count": 1}, "output row 1 lacks ['mean']"),
        ({"name": "a", "count": 1, "mean": 1.0, "x": 1}, "output row 1 has unknown columns ['x']"),
        ({"name": "a", "count": 1, "x": 1}, "output row 1 lacks ['mean'] and has unknown columns ['x']"),
        (namedtuple("Other", "a b c")("a", 1, 2.0), "lacks ['name', 'count', 'mean'] and has unknown columns"),
    ],
)
def test_wrong_shape_is_refused_by_row(row: Any, message: str) -> None:
    with pytest.raises(JobError, match=re.escape(message)) as caught:
        converted([("ok", 1, 1.0), row])
    assert str(caught.value).startswith("function F: ")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.5),
        (pa.int64(), 1.0),
        (pa.int64(), True),
        (pa.int64(), "1"),
        (pa.int64(), 2**63),
        (pa.int8(), 300),
        (pa.float64(), "1.0"),
        (pa.float64(), True),
        (pa.string(), b"bytes"),
        (pa.string(), 1),
        (pa.string(), "\ud800"),
        (pa.binary(), "text"),
        (pa.bool_(), 1),
        (pa.bool_(), "true"),
        (pa.timestamp("us"), "2013-01-01"),
        (pa.timestamp("us"), 5),
        (pa.timestamp("us"), date(2013, 1, 1)),
        (pa.date32(), datetime(2013, 1, 1)),
        (pa.date32(), 5),
        (pa.decimal128(4, 2), Decimal("123.45")),
        (pa.list_(pa.int64()), 5),
        (pa.list_(pa.int64()), ["x"]),
    ],
)
def test_wrong_type_is_refused_by_column_and_row(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(JobError) as caught:
        converted([("ok", None), ("ok", value), ("ok", value)], pa.schema([("a", pa.string()), ("b", kind)]))
    message = str(caught.value)
    assert f"function F: column 'b' of output row 1 must be {kind}, found " in message
    assert f"of type {type(value).__name__}" in message


def test_null_in_a_column_without_nulls_is_refused() -> None:
    schema = pa.schema([pa.field("a", pa.string(), nullable=False)])
    with pytest.raises(JobError, match="column 'a' of output row 1 must be string and not null, found None"):
        converted([("x",), (None,)], schema)


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.float64(), 1, 1.0),
        (pa.timestamp("us", "UTC"), datetime(2013, 1, 1), datetime(2013, 1, 1, tzinfo=timezone.utc)),
        (
            pa.timestamp("us", "UTC"),
            datetime(2013, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2013, 1, 1, tzinfo=timezone.utc),
        ),
        (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.50")),
        (pa.binary(), bytearray(b"x"), b"x"),
        (pa.struct([("x", pa.int64())]), {"x": 1}, {"x": 1}),
        (pa.list_(pa.int64()), (1, 2), [1, 2]),
    ],
)
def test_harmless_conversions_are_made(kind: pa.DataType, value: Any, expected: Any) -> None:
    assert converted([(value,)], pa.schema([("a", kind)])) == [(expected,)]


def test_numpy_numbers_count_as_numbers() -> None:
    values = [array.to_numpy()[0] for array in (pa.array([7]), pa.array([0.5]))]
    schema = pa.schema([("a", pa.int64()), ("b", pa.float64())])
    assert converted([tuple(values)], schema) == [(7, 0.5)]
    with pytest.raises(JobError, match="column 'a' of output row 0 must be int64"):
        converted([(values[1], values[1])], schema)


def test_map_from_the_input_can_be_an_output() -> None:
    by_pair = pa.map_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), pa.map_(pa.string(), pa.int64()))
    schema = pa.schema([("m", by_pair), ("maps", pa.list_(pa.map_(pa.date32(), pa.bool_())))])
    rows = [({(1, ("x", "y")): {"k": 1}}, [{date(2020, 1, 2): True}, None]), (None, [])]
    given = OutputRows(schema, "it").batch(rows)
    assert list(zip(*map(column_values, given.columns), strict=True)) == rows
