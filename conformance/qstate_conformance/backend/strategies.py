"""What jobs may put into a backend, generated: keys, namespaces, values, programs of writes.

Rules of this module: it makes only what the contract allows. Keys of one program come from a small pool, so that its
writes meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import pairwise
from typing import Any, TypeVar
from uuid import UUID

from hypothesis import strategies as st

from qstate.backends import Timer
from qstate.descriptors import StateKind, TimerDescriptor
from qstate.keys import MAX_PARALLELISM_LIMIT, Key, KeyGroupRange, Namespace
from qstate_conformance.backend.states import STATES
from qstate_conformance.backend.writes import Write

__all__ = [
    "contents_of",
    "cuts",
    "elements",
    "key_lists",
    "keys",
    "map_keys",
    "map_values",
    "maps",
    "namespaces",
    "parallelisms",
    "programs",
    "timer_lists",
    "times",
    "values",
]

_Item = TypeVar("_Item")

_LEAST, _MOST = -(2**63), 2**63 - 1

#: Keys that have been confused with each other somewhere: by type, by case, by normal form, by an empty column.
_DOUBTFUL_COLUMNS: list[str | bytes | int] = [
    "", b"", "a", b"a", "A", "0", 0, 1, -1, "1", b"1", "\x00", b"\x00", "a\x00", b"\xff" * 9, "\u00e9", "e\u0301",
    "\ufb01", "\U0001f600", 127, 128, -32, -33, 255, 256, 2**31 - 1, 2**31, -(2**31) - 1, 2**53 + 1, _LEAST, _MOST,
]  # fmt: skip
#: Made when they are drawn: hypothesis prints what it chooses from.
_HUGE_COLUMNS: dict[str, Callable[[], str | bytes]] = {
    "text": lambda: "x" * 70_000,
    "bytes": lambda: b"\x00" * 70_000,
}

#: No booleans and no decimals: the keys of a table then have one type, for True is 1 in Python.
_columns = st.one_of(
    st.sampled_from(_DOUBTFUL_COLUMNS),
    st.text(max_size=12),
    st.binary(max_size=12),
    st.integers(_LEAST, _MOST),
    st.dates(),
    st.datetimes(timezones=st.just(timezone.utc)).map(lambda found: found.replace(fold=0)),
)
_tuples = st.lists(_columns, min_size=2, max_size=4).map(tuple)

_huge_columns = st.sampled_from(sorted(_HUGE_COLUMNS)).map(lambda name: _HUGE_COLUMNS[name]())

#: A bare column, or a tuple of two to four.
keys: st.SearchStrategy[Key] = st.one_of(_columns, _columns, _tuples, _huge_columns)
namespaces: st.SearchStrategy[Namespace] = st.one_of(st.none(), _columns, _tuples)
map_keys: st.SearchStrategy[Key] = st.one_of(_columns, _columns, _tuples)

_numbers = st.one_of(
    st.integers(_LEAST, 2**64 - 1),
    st.sampled_from([0, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, _MOST, 2**63, 2**64 - 1, -33, _LEAST]),
    st.floats(),
    st.sampled_from([float("nan"), -0.0, 0.0, 5e-324, float("inf"), float("-inf")]),
    st.booleans(),
)
_texts = st.one_of(
    st.text(max_size=20), st.sampled_from(["", "\u00e9", "e\u0301", "\x00", "\U0001f600" * 8, "x" * 300])
)
_moments = st.sampled_from([
    date(2013, 1, 1), date.min, datetime(2013, 1, 1, 5, 30, 0, 1), datetime.max,
    datetime(2013, 3, 10, 2, tzinfo=timezone.utc), datetime(1969, 12, 31, tzinfo=timezone(timedelta(hours=5))),
    Decimal("1.10"), Decimal("-0"), Decimal("1E+400"), timedelta.max, timedelta(microseconds=-1), UUID(int=7),
])  # fmt: skip
_plain = st.one_of(_numbers, _texts, st.binary(max_size=20), _moments)
_HUGE_VALUES: dict[str, Callable[[], Any]] = {
    "text": lambda: "y" * 100_000,
    "bytes": lambda: b"\xff" * 100_000,
    "list": lambda: list(range(5_000)),
    "dict": lambda: {str(number): number for number in range(300)},
    "deep": lambda: _of_depth(60),
}
_huge = st.sampled_from(sorted(_HUGE_VALUES)).map(lambda name: _HUGE_VALUES[name]())


def _nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    inside = st.one_of(children, st.none())
    return st.one_of(
        st.lists(inside, max_size=4),
        st.lists(inside, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(_LEAST, _MOST)), inside, max_size=4),
    )


def _of_depth(depth: int) -> Any:
    nested: Any = [depth]
    for _ in range(depth):
        nested = [nested]
    return nested


#: Whatever MessagePack carries, nested too; None only inside, but see `map_values`.
values: st.SearchStrategy[Any] = st.one_of(
    _plain, _plain, st.recursive(_plain, _nested, max_leaves=12), _huge, st.sampled_from([[], {}, ()])
)
elements: st.SearchStrategy[list[Any]] = st.lists(values, max_size=4)
#: Values of a map's entries, nulls among them.
map_values: st.SearchStrategy[Any] = st.one_of(values, values, st.none())
maps: st.SearchStrategy[dict[Key, Any]] = st.dictionaries(map_keys, map_values, max_size=4)
_accumulators = st.tuples(st.floats(-1e9, 1e9), st.integers(1, 100)).map(list)

#: Strategies of the contents of one key, by kind; never empty.
contents_of: dict[StateKind, st.SearchStrategy[Any]] = {
    StateKind.VALUE: values,
    StateKind.LIST: st.lists(values, min_size=1, max_size=4),
    StateKind.MAP: st.dictionaries(map_keys, map_values, min_size=1, max_size=4),
    StateKind.REDUCING: st.integers(_LEAST, _MOST),
    StateKind.AGGREGATING: _accumulators,
}

#: Times of timers: few, so that they meet, and around zero and the bounds of 64 bits and of a byte.
times = st.one_of(
    st.integers(-2, 2),
    st.sampled_from([_LEAST, _LEAST + 1, -257, -256, 255, 256, _MOST - 1, _MOST]),
    st.integers(_LEAST, _MOST),
)

#: Upper bounds of parallelism, with both ends.
parallelisms = st.one_of(st.sampled_from([1, 2, 3, 127, 128, MAX_PARALLELISM_LIMIT]), st.integers(1, 1024))


@st.composite
def timer_lists(draw: st.DrawFn, most: int = 12) -> list[Timer]:
    """Timers of few namespaces and keys, some of them the same."""
    spaces, pool = _few(draw, namespaces, 3), _few(draw, keys, 4)
    return draw(st.lists(st.builds(Timer, times, st.sampled_from(spaces), st.sampled_from(pool)), max_size=most))


def key_lists(least: int = 1, most: int = 5) -> st.SearchStrategy[list[Key]]:
    """Different keys."""
    return st.lists(keys, min_size=least, max_size=most, unique_by=lambda key: (type(key), key))


@st.composite
def cuts(draw: st.DrawFn, max_parallelism: int, most: int = 4) -> list[KeyGroupRange]:
    """Key-group ranges that share out all groups, as the subtasks of one operator do."""
    inner = draw(st.lists(st.integers(1, max_parallelism - 1), max_size=most - 1, unique=True))
    bounds = [0, *sorted(inner), max_parallelism]
    return [KeyGroupRange(start, stop) for start, stop in pairwise(bounds)]


@st.composite
def programs(draw: st.DrawFn, epochs: int = 3, writes: int = 10) -> list[list[Write]]:
    """Writes of some epochs. Few states, keys and namespaces, often one of each, so that the writes meet."""
    states = _few(draw, st.sampled_from(sorted(STATES)), 3)
    pool = _few(draw, keys, 3)
    spaces = _few(draw, namespaces, 2)
    fields = _few(draw, map_keys, 3)
    write = st.one_of([_writes(name, spaces, pool, fields) for name in states])
    least = draw(st.sampled_from([0, 1, 3, writes // 2]))
    # A program of one epoch is one whose other epochs are empty, so shrinking gets there.
    return draw(st.lists(st.lists(write, min_size=least, max_size=writes), min_size=epochs, max_size=epochs))


def _few(draw: st.DrawFn, items: st.SearchStrategy[_Item], most: int) -> list[_Item]:
    count = draw(st.sampled_from([1, *range(1, most + 1)]))
    return draw(st.lists(items, min_size=count, max_size=count, unique_by=lambda item: (type(item), item)))


def _writes(
    state: str, spaces: Sequence[Namespace], pool: Sequence[Key], fields: Sequence[Key]
) -> st.SearchStrategy[Write]:
    space, key, field = st.sampled_from(spaces), st.sampled_from(pool), st.sampled_from(fields)

    def write(operation: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Write]:
        return st.builds(Write, st.just(operation), st.just(state), space, key, st.tuples(*arguments))

    if isinstance(STATES[state], TimerDescriptor):
        return st.one_of(write("add", times), write("add", times), write("remove", times))
    return st.one_of(write("delete"), *_OF_KIND[STATES[state].kind](write, key, field))


_Of = Callable[..., list[st.SearchStrategy[Write]]]


def _of_values(write: Any, key: Any, field: Any) -> list[st.SearchStrategy[Write]]:
    pairs = st.lists(st.tuples(key, values), max_size=4).map(lambda many: tuple(map(list, zip(*many, strict=True))))
    many = pairs.filter(len).flatmap(lambda columns: write("put_many", *map(st.just, columns)))
    return [write("put", values), write("put", values), many, write("change_in_place", values)]


def _of_lists(write: Any, key: Any, field: Any) -> list[st.SearchStrategy[Write]]:
    return [write("list_add", elements), write("list_add", elements), write("put", elements),
            write("change_in_place", values)]  # fmt: skip


def _of_maps(write: Any, key: Any, field: Any) -> list[st.SearchStrategy[Write]]:
    whole = st.dictionaries(field, map_values, max_size=3)
    return [write("map_put", field, map_values), write("map_put", field, map_values), write("map_remove", field),
            write("put", whole), write("change_in_place", values)]  # fmt: skip


def _of_sums(write: Any, key: Any, field: Any) -> list[st.SearchStrategy[Write]]:
    return [write("put", contents_of[StateKind.REDUCING])]


def _of_means(write: Any, key: Any, field: Any) -> list[st.SearchStrategy[Write]]:
    return [write("put", _accumulators)]


_OF_KIND: dict[StateKind, _Of] = {
    StateKind.VALUE: _of_values,
    StateKind.LIST: _of_lists,
    StateKind.MAP: _of_maps,
    StateKind.REDUCING: _of_sums,
    StateKind.AGGREGATING: _of_means,
}
