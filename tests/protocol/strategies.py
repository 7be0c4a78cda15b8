"""Hypothesis strategies for messages and for bytes that are almost messages."""

from __future__ import annotations

from datetime import timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgpack
from hypothesis import strategies as st

from qstate.protocol.codec import encode
from qstate.protocol.limits import MAX_DEADLINE_MS, MAX_ID
from qstate.protocol.messages import (
    Cancel,
    Changes,
    Describe,
    Description,
    Failure,
    Get,
    GetPart,
    Hello,
    Locate,
    Location,
    Message,
    Page,
    Part,
    Ping,
    Poll,
    Pong,
    Run,
    Scan,
    Values,
    Welcome,
)

__all__ = ["almost_payloads", "messages", "plain_values", "requests"]

ids = st.integers(1, MAX_ID)
deadlines = st.integers(0, MAX_DEADLINE_MS)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=255)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
int64s = st.integers(-(2**63), 2**63 - 1)
columns = st.one_of(
    texts,
    st.binary(max_size=20),
    int64s,
    st.booleans(),
    st.dates(),
    st.datetimes(timezones=st.just(timezone.utc)),
    st.integers(-(10**38) + 1, 10**38 - 1).map(lambda cents: Decimal(f"{cents}E-2")),
)
keys = columns | st.tuples(columns, columns) | st.tuples(columns, columns, columns)
state_ids = st.binary(min_size=16, max_size=16)
scalars = texts | int64s | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
details = st.dictionaries(names, scalars, max_size=4)

hellos = st.builds(
    Hello,
    st.lists(st.integers(1, 65535), min_size=1, max_size=5).map(tuple),
    st.none() | st.binary(max_size=40),
    texts,
    st.lists(names, max_size=3).map(tuple),
    st.integers(4096, 2**28 - 1),
)
welcomes = st.builds(
    Welcome,
    st.integers(1, 65535),
    texts,
    st.lists(names, max_size=3).map(tuple),
    st.integers(4096, 2**28 - 1),
    st.integers(1, 2**20),
    st.integers(1, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)
gets = st.builds(
    Get,
    ids,
    deadlines,
    st.tuples(names, names) | state_ids,
    st.none() | keys,
    st.fixed_dictionaries(
        {},
        optional={
            "isolation": st.sampled_from(["live", "committed"]),
            "min_epoch": st.integers(0, 2**63 - 1),
            "max_staleness_ms": st.integers(0, 2**63 - 1),
        },
    ),
    st.lists(keys, min_size=1, max_size=8).map(tuple)
    | st.lists(texts, min_size=1, max_size=8).map(tuple)
    | st.lists(int64s, min_size=1, max_size=8).map(tuple),
    attributes=st.just({})
    | st.text(alphabet="0123456789abcdef-", min_size=55, max_size=55).map(lambda text: {"?traceparent": text}),
)
results = st.tuples(st.integers(-1, 2**63 - 1), st.none() | st.binary(max_size=30)) | st.tuples(
    st.just(-1), st.integers(1, 65535)
)


def _values(number: int, pairs: list[tuple[int, Any]]) -> Values:
    return Values(number, tuple(epoch for epoch, _ in pairs), tuple(result for _, result in pairs), "f")


values = st.builds(_values, ids, st.lists(results, min_size=1, max_size=8))
places = st.none() | st.tuples(st.none() | keys, keys)


@st.composite
def scans(draw: st.DrawFn) -> Scan:
    start = draw(st.integers(0, 32767))
    return Scan(
        draw(ids),
        draw(deadlines),
        draw(st.tuples(names, names) | state_ids),
        draw(st.lists(st.none() | keys, max_size=1).map(tuple)),
        draw(st.none() | texts | st.binary(max_size=9) | st.lists(columns, min_size=1, max_size=3).map(tuple)),
        start,
        draw(st.integers(start + 1, 32768)),
        draw(places),
        draw(st.binary(max_size=64)),
        draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "isolation": st.sampled_from(["live", "committed"]),
                    "show": st.sampled_from(["values", "keys", "count"]),
                    "limit": st.integers(0, 2**63 - 1),
                    "max_bytes": st.integers(0, 2**63 - 1),
                },
            )
        ),
    )


@st.composite
def pages(draw: st.DrawFn) -> Page:
    found = tuple(draw(st.lists(keys, max_size=4)))
    number = len(found)
    result = st.binary(max_size=20) | st.integers(1, 65535)
    return Page(
        draw(ids),
        draw(st.integers(-1, 2**63 - 1)),
        draw(names),
        draw(st.binary(max_size=64)),
        draw(st.integers(0, 32768)),
        draw(places),
        number or draw(st.integers(0, 2**63 - 1)),
        tuple(draw(st.lists(st.none() | keys, min_size=number, max_size=number))) if draw(st.booleans()) else (),
        found,
        tuple(draw(st.lists(result, min_size=number, max_size=number))) if draw(st.booleans()) else (),
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    operation = draw(st.integers(1, 5))
    found = tuple(draw(st.lists(keys, min_size=1, max_size=4)))
    each = {"min_size": len(found), "max_size": len(found)}
    map_keys = tuple(draw(st.lists(keys, **each))) if operation in (3, 4) else None
    data = tuple(draw(st.lists(st.binary(max_size=20), **each))) if operation in (1, 3, 5) else None
    return Run(0, operation, draw(st.none() | keys), found, map_keys, data)


@st.composite
def polls(draw: st.DrawFn) -> Poll:
    start, selected = draw(st.integers(0, 32767)), tuple(draw(st.lists(keys, max_size=3)))
    prefixes = st.none() | texts | st.lists(columns, min_size=1, max_size=3).map(tuple)
    return Poll(
        draw(ids),
        draw(deadlines),
        draw(st.tuples(names, names) | state_ids),
        draw(st.lists(st.none() | keys, max_size=1).map(tuple)),
        selected,
        None if selected else draw(prefixes),
        start,
        draw(st.integers(start + 1, 32768)),
        draw(st.integers(0, 2**63 - 1)),
        draw(st.binary(max_size=64)),
        draw(deadlines),
        draw(st.integers(4096, 2**28 - 1)),
    )


changes = st.builds(
    Changes,
    ids,
    names,
    st.integers(1, 32768),
    st.integers(1, 2**63 - 1),
    st.binary(max_size=64),
    st.integers(-1, 2**63 - 1),
    st.lists(runs(), max_size=3).map(tuple),
    st.just({}),
)
counts = st.integers(0, 2**63 - 1)
get_parts = st.builds(
    GetPart,
    ids,
    deadlines,
    st.tuples(names, names) | state_ids,
    st.none() | keys,
    st.fixed_dictionaries(
        {}, optional={"isolation": st.sampled_from(["live", "committed"]), "min_epoch": counts, "max_bytes": counts}
    ),
    keys,
    st.sampled_from(["entries", "page", "slice", "size", "bytes"]),
    st.lists(keys, min_size=1, max_size=4).map(tuple),
    st.none() | keys,
    counts,
    st.integers(1, 2**63 - 1),
    attributes=st.just({}),
)
parts = st.builds(
    Part,
    ids,
    st.integers(-1, 2**63 - 1),
    names,
    st.none() | st.binary(max_size=20),
    st.none() | keys,
    counts,
    st.binary(max_size=64),
)

descriptions = st.fixed_dictionaries(
    {
        "name": names,
        "kind": st.sampled_from(["value", "list", "map", "reducing", "aggregating"]),
        "serializer": names,
        "serializer_version": st.integers(1, 2**63 - 1),
        "fingerprint": names,
        "namespace_types": st.none() | st.lists(names, max_size=3).map(tuple),
        "key_types": st.lists(st.sampled_from(["string", "binary", "bigint"]), max_size=3).map(tuple),
        "value_type": texts,
        "capabilities": st.lists(names, max_size=3).map(tuple),
    },
    optional={"map_key_type": texts},
)
jobs = st.fixed_dictionaries({"job": names})


@st.composite
def locations(draw: st.DrawFn) -> Location:
    max_parallelism = draw(st.integers(2, 32768))
    bounds = sorted(draw(st.sets(st.integers(0, max_parallelism), min_size=2, max_size=6)))
    ranges = [pair for pair in pairwise(bounds) if draw(st.booleans())]
    owners = tuple((start, stop, draw(names), draw(st.integers(1, 65535)), draw(state_ids)) for start, stop in ranges)
    return Location(draw(ids), draw(descriptions), max_parallelism, owners)


#: Every request that a client may send.
requests = (
    gets
    | get_parts
    | scans()
    | polls()
    | st.builds(Locate, ids, deadlines, names, names)
    | st.builds(Describe, ids, deadlines, st.none() | names, st.just({}) | texts.map(lambda text: {"?after": text}))
    | st.builds(Ping, ids)
)
#: Every message.
messages: st.SearchStrategy[Message] = (
    hellos
    | welcomes
    | requests
    | values
    | parts
    | pages()
    | changes
    | locations()
    | st.builds(
        Description, ids, st.lists(descriptions | jobs, max_size=3).map(tuple), st.sampled_from([{}, {"?more": True}])
    )
    | st.builds(Cancel, ids)
    | st.builds(Pong, ids)
    | st.builds(Failure, st.integers(0, MAX_ID), st.integers(1, 65535), details)
)

#: Any value that MessagePack can carry, as it is read back.
plain_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | texts
    | st.binary(max_size=20)
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8)),
    lambda inner: (
        st.lists(inner, max_size=5).map(tuple) | st.dictionaries(texts | st.binary(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """A valid payload with a few bytes changed, dropped or inserted."""
    payload = bytearray(encode(draw(messages)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(0, len(payload) - 1)))
        payload[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=3))
    return bytes(payload)


@st.composite
def _misfits(draw: st.DrawFn) -> bytes:
    """A type, an id, and other fields: any values, or those of a message except for one."""
    fields = list(msgpack.unpackb(encode(draw(messages)), use_list=False))
    place = draw(st.integers(0, len(fields)))
    fields[place : place + draw(st.integers(0, 1))] = [draw(plain_values)]
    packed: bytes = msgpack.packb(fields)
    return packed


#: Bytes that are rarely a message, but often nearly one.
almost_payloads: st.SearchStrategy[bytes] = (
    st.binary(max_size=60) | _mutated() | _misfits() | plain_values.map(msgpack.packb)
)
