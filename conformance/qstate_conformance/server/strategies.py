"""Generated keys, tokens, cuts and MessagePack forms for the laws of servers.

Rules of this module: what is sound and what is not, by the protocol reference. It sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timezone
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from qstate_conformance.key_groups import Key
from qstate_conformance.packing import Ext, pack

__all__ = ["cuts", "in_any_form", "keys_of", "names", "not_keys", "other_keys", "request_ids", "texts"]

_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
request_ids = st.one_of(st.integers(1, 300), st.integers(1, (1 << 32) - 1))

_COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "binary": st.binary(max_size=12),
    "bigint": _INT64,
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(timezone.utc)),
    "decimal(38,2)": st.integers(1 - 10**38, 10**38 - 1).map(lambda cents: Decimal(f"{cents}E-2")),
    "decimal(38,1)": st.integers(1 - 10**38, 10**38 - 1).map(lambda tenths: Decimal(f"{tenths}E-1")),
}
_COLUMN = st.one_of(*_COLUMNS.values())

#: What is no key at all.
not_keys: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.sampled_from(
        [
            Ext(9, b"x"),
            Ext(1, b"\x90"),
            Ext(2, b"2013-07-18T00:00:00"),
            Ext(3, b"2013-13-01"),
            Ext(3, b"20130718"),
            Ext(4, b"1.5e3"),
            Ext(4, b"01.50"),
            Ext(4, b"+1"),
            Ext(4, b"-0.00"),
            Ext(4, b"NaN"),
            Ext(4, b"1" * 39),
            Ext(-1, b"\x00\x00\x00\x01" + bytes(8)),
            Ext(-1, b"\x00" * 5),
        ]
    ),
    st.floats(allow_nan=False, allow_infinity=False),
    st.just(()),
    st.tuples(_COLUMN),
    st.tuples(_COLUMN, st.none()),
    st.tuples(_COLUMN, st.just(Ext(3, b"today")), _COLUMN),
    st.tuples(_COLUMN, st.tuples(_COLUMN, _COLUMN)),
    st.tuples(st.floats(allow_nan=False, allow_infinity=False), _COLUMN),
    st.integers(1 << 63, (1 << 64) - 1),
    st.tuples(_COLUMN, st.integers(1 << 63, (1 << 64) - 1)),
    st.just({}),
    st.dictionaries(names, _COLUMN, min_size=1, max_size=2),
)


def keys_of(key_types: tuple[str, ...]) -> st.SearchStrategy[Key]:
    """Keys of these column types."""
    columns: list[st.SearchStrategy[Any]] = [_COLUMNS[kind] for kind in key_types]
    return columns[0] if len(columns) == 1 else st.tuples(*columns)


def other_keys(key_types: tuple[str, ...]) -> st.SearchStrategy[Key]:
    """Keys of other column types than these, or of another number of columns."""
    others: list[tuple[str, ...]] = [(kind,) for kind in _COLUMNS if (kind,) != key_types]
    others += [(one, two) for one in _COLUMNS for two in _COLUMNS if (one, two) != key_types]
    others += [("string",) * 3, ("bigint",) * 8]
    return st.sampled_from(others).flatmap(keys_of)


def cuts(length: int) -> st.SearchStrategy[list[int]]:
    """Places to cut so many bytes at."""
    return st.lists(st.integers(1, max(1, length - 1)), max_size=8)


@st.composite
def in_any_form(draw: Callable[[Any], Any], value: Any) -> bytes:
    """The value's bytes in some form of MessagePack, the shortest or not."""
    return pack(value, lambda count: draw(st.integers(0, count - 1)))
