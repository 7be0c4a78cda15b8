"""The values of Arrow columns as plain Python objects.

Rules of this module: it knows Arrow types and Python values; it must not know rows, state or keys. At any depth, a
timestamp with a time zone becomes a `datetime` in UTC, the zone in which state stores it, and a map becomes a dict.

A struct or array that is a map's key becomes a tuple, because keys of a dict must be hashable. Spark allows equal keys
in maps from other sources; then the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["column_values", "timestamp_milliseconds"]

_FIRST_TIME = datetime(1, 1, 1)
_LAST_TIME = datetime(9999, 12, 31, 23, 59, 59, 999999)

#: How many of a timestamp's unit are a millisecond. Seconds are converted to milliseconds first.
_PER_MILLISECOND = {"ms": 1, "us": 1_000, "ns": 1_000_000}

Reader = Callable[[pa.Array], list[Any]]


def column_values(array: pa.Array) -> list[Any]:
    """The values of an Arrow array, nulls as None."""
    return _reader(array.type)(array)


def timestamp_milliseconds(times: pa.Array) -> list[Any]:
    """Timestamps as milliseconds since 1970-01-01 UTC, rounded down, as Spark does; nulls as None."""
    if times.type.unit == "s":
        times = times.cast(pa.timestamp("ms", times.type.tz))
    counts = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: list[Any] = (counts // _PER_MILLISECOND[times.type.unit]).tolist()
    if times.null_count:
        return [None if missing else time for time, missing in zip(found, times.is_null().to_pylist(), strict=True)]
    return found


@lru_cache(maxsize=1024)
def _reader(kind: pa.DataType) -> Reader:
    """The function that reads arrays of a type, chosen once per type."""
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return _timestamps
    if pa.types.is_date32(kind):
        return _by_numpy
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers
    if _arrow_reads(kind):
        return _listed
    if pa.types.is_map(kind):
        return _maps
    return _structs if pa.types.is_struct(kind) else _lists


def _arrow_reads(kind: pa.DataType) -> bool:
    """Whether `to_pylist`, three times as fast as the functions below, gives the values that this module promises."""
    if pa.types.is_map(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None and kind.unit != "ns"):
        return False
    if pa.types.is_struct(kind):
        return all(_arrow_reads(field.type) for field in kind)
    return _arrow_reads(kind.value_type) if pa.types.is_list(kind) or pa.types.is_large_list(kind) else True


def _listed(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_pylist()
    return values


def _by_numpy(array: pa.Array) -> list[Any]:
    values: list[Any] = array.to_numpy(zero_copy_only=False).tolist()
    return values


def _numbers(array: pa.Array) -> list[Any]:
    return _listed(array) if array.null_count else _by_numpy(array)


def _timestamps(array: pa.Array) -> list[Any]:
    """Datetimes through NumPy: ten times as fast as `to_pylist`, which takes 3 us for one with a time zone."""
    naive = array.cast(pa.timestamp(array.type.unit)) if array.type.tz else array
    bounds = pc.min_max(naive)
    limits = pa.array([_FIRST_TIME, _LAST_TIME], pa.timestamp("us")).cast(naive.type, safe=False)
    if bounds["min"].is_valid and (bounds["min"].value < limits[0].value or bounds["max"].value > limits[1].value):
        return _listed(array)  # NumPy would return integers for these; Arrow raises a clear error
    values = _by_numpy(naive)
    if array.type.tz is None:
        return values
    # Columns often repeat a timestamp (hourly readings, windows), and equal values may share a datetime.
    known = {value: value.replace(tzinfo=timezone.utc) for value in set(values) if value is not None}
    return list(map(known.get, values))


def _structs(array: pa.Array) -> list[Any]:
    names = [field.name for field in array.type]
    columns = [column_values(array.field(position)) for position in range(len(names))]
    return _with_nulls(array, list(map(dict, map(zip, repeat(names), zip(*columns, strict=True)))))


def _lists(array: pa.Array) -> list[Any]:
    offsets, first, length = _extent(array)
    values = column_values(array.values.slice(first, length))
    return _with_nulls(array, [values[start:stop] for start, stop in pairwise(offsets)])


def _maps(array: pa.Array) -> list[Any]:
    offsets, first, length = _extent(array)
    keys = column_values(array.keys.slice(first, length))
    if pa.types.is_nested(array.type.key_type):
        keys = list(map(_hashable, keys))
    entries = list(zip(keys, column_values(array.items.slice(first, length)), strict=True))
    return _with_nulls(array, [dict(entries[start:stop]) for start, stop in pairwise(offsets)])


def _extent(array: pa.Array) -> tuple[list[int], int, int]:
    """The offsets of the lists of an array, which may be a slice; and the first of its elements, and their number."""
    offsets: list[int] = array.offsets.to_numpy().tolist()
    first = offsets[0]
    return [offset - first for offset in offsets], first, offsets[-1] - first


def _hashable(key: Any) -> Any:
    if isinstance(key, dict):
        return tuple(map(_hashable, key.values()))
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


def _with_nulls(array: pa.Array, values: list[Any]) -> list[Any]:
    if array.null_count == 0:
        return values
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]
