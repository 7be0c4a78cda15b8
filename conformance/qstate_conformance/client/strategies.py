"""What hypothesis draws for the client's laws: keys, values and the ways to cut a stream.

Rules of this module: strategies only, in terms of `packing`, so that nothing here depends on how qstate reads or
writes. Keys of a map are drawn different in the sense of Python, where 1, 1.0 and True are one key.
"""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any

import msgpack
from hypothesis import strategies as st

from qstate_conformance.packing import Ext, Pairs, column_extension, pack

__all__ = [
    "bigints",
    "columns",
    "cuts",
    "extensions",
    "keys",
    "map_states",
    "maps_with_array_keys",
    "message_values",
    "names",
    "values",
]

NANOSECONDS = 1000

#: A column of a key: text as it is (never normalized), binary, an integer of 64 bits with sign.
bigints = st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 53, -1, 0])
texts = st.text(max_size=20) | st.sampled_from(["", "Zürich", "Zu\u0308rich", "😀", "\x00", "JFK"])
plain_columns = texts | st.binary(max_size=20) | bigints
#: Dates, timestamps and decimals are extension types, in the only form that a key may have.
columns = (
    plain_columns
    | st.booleans()
    | st.dates().map(column_extension)
    | st.datetimes(timezones=st.just(datetime.timezone.utc)).map(column_extension)
    | st.integers(1 - 10**38, 10**38 - 1).map(lambda cents: column_extension(Decimal(f"{cents}E-2")))
)
keys = columns | st.lists(columns, min_size=2, max_size=4).map(tuple)

#: Names of jobs and states, counted in code points.
names = st.text(min_size=1, max_size=20) | st.sampled_from(["x" * 255, "😀" * 255])

_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.sampled_from([(1 << 53) + 1, (1 << 64) - 1, -(1 << 63), 127, 128, -32, -33])
    | st.floats(width=64)
    | texts
    | st.binary(max_size=20)
)
_scalar_keys = st.none() | st.booleans() | bigints | st.floats(allow_nan=False) | texts | st.binary(max_size=10)


def _comparable(value: Any) -> Any:
    return tuple(_comparable(element) for element in value) if isinstance(value, list) else value


def _maps(map_keys: st.SearchStrategy[Any], entries: st.SearchStrategy[Any]) -> st.SearchStrategy[Pairs]:
    pairs = st.lists(st.tuples(map_keys, entries), max_size=4, unique_by=lambda entry: _comparable(entry[0]))
    return pairs.map(lambda found: Pairs(tuple(found)))


def _timestamp(moment: datetime.datetime) -> Ext:
    seconds, rest = divmod(moment - datetime.datetime(1970, 1, 1), datetime.timedelta(seconds=1))
    nanoseconds = rest // datetime.timedelta(microseconds=1) * NANOSECONDS
    return Ext(-1, msgpack.Timestamp(seconds, nanoseconds).to_bytes())


#: The types that the reference names, and others, which are handed out as they are.
extensions = (
    st.lists(_scalars, max_size=3).map(lambda elements: Ext(1, pack(elements)))
    | st.datetimes().map(lambda moment: Ext(2, moment.isoformat().encode()))
    | st.dates().map(lambda day: Ext(3, day.isoformat().encode()))
    | st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: Ext(4, str(number).encode()))
    | st.datetimes().map(_timestamp)
    | st.uuids().map(lambda found: Ext(5, found.bytes))
    | st.timedeltas().map(lambda found: Ext(6, str(found // datetime.timedelta(microseconds=1)).encode()))
    | st.builds(Ext, st.integers(7, 127), st.binary(max_size=20))
)

#: Every MessagePack value, with extension types at any depth.
values = st.recursive(
    _scalars | extensions,
    lambda inner: st.lists(inner, max_size=4) | _maps(_scalar_keys, inner),
    max_leaves=12,
)

#: Maps with arrays for keys, and arrays in these.
maps_with_array_keys = _maps(
    st.recursive(_scalar_keys, lambda inner: st.lists(inner, max_size=3), max_leaves=4), values
)

#: A map state: its keys are keys.
map_states = _maps(plain_columns | st.lists(plain_columns, min_size=2, max_size=3), values)

#: What a message may have where anything is allowed (an element that a newer server appends): no extension types, and
#: maps with names as keys.
message_values = st.recursive(
    st.none() | st.booleans() | bigints | st.floats(allow_nan=False, allow_infinity=False) | texts | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)


def cuts(data: bytes, sizes: list[int]) -> list[bytes]:
    """The bytes in pieces of these sizes, over and over."""
    pieces, start, index = [], 0, 0
    while start < len(data):
        size = sizes[index % len(sizes)]
        pieces.append(data[start : start + size])
        start, index = start + size, index + 1
    return pieces
