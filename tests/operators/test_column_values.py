"""Arrow columns as Python values: as Arrow gives them, but zoned timestamps in UTC and maps as dicts, at any depth."""

from __future__ import annotations

from datetime import date, datetime, timezone
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.operators.columns.column_values import column_values, timestamp_milliseconds

NAIVE = st.datetimes()
INT64 = st.integers(-(2**63), 2**63 - 1)

COLUMNS = st.one_of(
    st.tuples(st.just(pa.int64()), st.lists(st.none() | INT64)),
    st.tuples(st.just(pa.int8()), st.lists(st.none() | st.integers(-128, 127))),
    st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats(allow_nan=False))),
    st.tuples(st.just(pa.string()), st.lists(st.none() | st.text())),
    st.tuples(st.just(pa.binary()), st.lists(st.none() | st.binary())),
    st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
    st.tuples(st.just(pa.date32()), st.lists(st.none() | st.dates())),
    st.tuples(st.just(pa.timestamp("us")), st.lists(st.none() | NAIVE)),
    st.tuples(st.just(pa.list_(pa.int64())), st.lists(st.none() | st.lists(INT64))),
    st.tuples(st.just(pa.decimal128(10, 2)), st.lists(st.none() | st.decimals(-9999, 9999, places=2))),
)


@given(column=COLUMNS)
def test_columns_become_the_values_that_arrow_gives(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    array = pa.array(values, kind)
    found = column_values(array)
    assert found == array.to_pylist() == values
    assert list(map(type, found)) == list(map(type, array.to_pylist()))


@given(values=st.lists(st.none() | NAIVE), zone=st.sampled_from(["UTC", "Europe/Berlin", "+05:30"]))
def test_zoned_timestamps_become_datetimes_in_utc(values: list[datetime | None], zone: str) -> None:
    moments = [value and value.replace(tzinfo=timezone.utc) for value in values]
    found = column_values(pa.array(moments, pa.timestamp("us", zone)))
    assert found == moments
    assert all(value is None or value.tzinfo is timezone.utc for value in found)


def test_sliced_columns_show_their_slice_only() -> None:
    assert column_values(pa.array(range(10)).slice(3, 2)) == [3, 4]
    assert column_values(pa.array([date(2013, 1, day) for day in range(1, 9)]).slice(6)) == [
        date(2013, 1, 7),
        date(2013, 1, 8),
    ]


def test_timestamp_beyond_python_is_an_error_and_not_a_number() -> None:
    with pytest.raises((ValueError, OverflowError)):
        column_values(pa.array([300_000_000_000_000_000], pa.timestamp("us")))


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_nested_timestamps_become_datetimes_in_utc(zone: str) -> None:
    moment = datetime(2020, 7, 1, 12, tzinfo=timezone.utc)
    inner = pa.timestamp("us", zone)
    for kind, value in (
        (pa.struct([("at", inner)]), {"at": moment}),
        (pa.list_(inner), [moment, None]),
        (pa.map_(pa.string(), inner), {"at": moment}),
    ):
        (found,) = column_values(pa.array([value], kind))
        assert repr(found) == repr(value)


MAP = pa.map_(pa.string(), pa.int64())
MAPS = st.none() | st.dictionaries(st.text(max_size=2), st.none() | INT64, max_size=3)


@given(values=st.lists(MAPS), start=st.integers(0, 2))
def test_maps_become_dicts(values: list[dict[str, int] | None], start: int) -> None:
    array = pa.array([value and list(value.items()) for value in values], MAP)
    assert column_values(array.slice(start)) == values[start:]


NESTED = st.lists(
    st.none()
    | st.fixed_dictionaries({"n": st.none() | INT64, "maps": st.none() | st.lists(MAPS, max_size=2), "own": MAPS})
)


@given(values=NESTED, start=st.integers(0, 2))
def test_maps_in_arrays_and_structs_become_dicts(values: list[Any], start: int) -> None:
    kind = pa.struct([("n", pa.int64()), ("maps", pa.list_(MAP)), ("own", MAP)])
    array = pa.array(values, kind)
    assert column_values(array.slice(start)) == values[start:]
    around = pa.map_(pa.string(), kind)
    assert column_values(pa.array([list(zip("abcdef", values[:6], strict=False))], around)) == [
        dict(zip("abcdef", values[:6], strict=False))
    ]


@pytest.mark.parametrize(
    ("kind", "entries", "expected"),
    [
        (pa.map_(pa.int32(), pa.string()), [(1, "one"), (2, None)], {1: "one", 2: None}),
        (pa.map_(pa.date32(), pa.bool_()), [(date(2020, 1, 2), True)], {date(2020, 1, 2): True}),
        (pa.map_(pa.timestamp("us"), pa.int8()), [(datetime(2020, 1, 2), 3)], {datetime(2020, 1, 2): 3}),
        (pa.map_(pa.list_(pa.int64()), pa.int64()), [([1, 2], 3), ([], 4)], {(1, 2): 3, (): 4}),
        (
            pa.map_(pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]), pa.int64()),
            [({"a": 1, "b": ["x", "y"]}, 5)],
            {(1, ("x", "y")): 5},
        ),
        (MAP, [("twice", 1), ("once", 2), ("twice", 3)], {"twice": 3, "once": 2}),
    ],
    ids=["integer", "date", "timestamp", "array", "struct", "the same twice"],
)
def test_map_keys_are_column_values_or_tuples(kind: Any, entries: Any, expected: Any) -> None:
    assert column_values(pa.array([entries, None, []], kind)) == [expected, None, {}]


def test_null_list_has_no_elements_whatever_its_buffer_holds() -> None:
    offsets = pa.array([0, 2, 2, 3], pa.int32())
    elements = pa.array([[("a", 1)], [("b", 2)], [("c", 3)]], MAP)
    masked = pa.ListArray.from_arrays(offsets, elements, mask=pa.array([True, False, False]))
    assert column_values(masked) == [None, [], [{"c": 3}]]


@pytest.mark.parametrize(("unit", "in_a_second"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
@given(counts=st.lists(st.none() | st.integers(-(2**52), 2**52)))
def test_timestamps_of_any_unit_are_milliseconds_rounded_down(
    unit: str, in_a_second: int, counts: list[int | None]
) -> None:
    found = timestamp_milliseconds(pa.array(counts, pa.int64()).cast(pa.timestamp(unit, "Asia/Tokyo")))
    assert found == [None if count is None else count * 1000 // in_a_second for count in counts]
