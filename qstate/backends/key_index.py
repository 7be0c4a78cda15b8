"""The keys of some tables in the order in which scans visit them.

Rules of this module: it knows keys, their encoding and their key groups, and nothing of the values.

A dict has no order and no position to continue from. So a scan has a list of the keys, by key group. To make it costs a
hash of each key: two seconds for a million. So it can be made in parts. A group is encoded and sorted when it is read.
That takes ten times the memory of its list, so only the groups that were read last are kept so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from threading import Lock
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from qstate.backends.contract import Selection
from qstate.keys import Key, key_encoder

__all__ = ["MOST_SORTED", "IndexedTable", "KeyIndex", "Place"]


class IndexedState(Protocol):
    """What an index needs of a table's state."""

    @property
    def group_of(self) -> Callable[[Key], int]: ...


class IndexedTable(Protocol):
    """What an index needs of a table."""

    encoded_namespace: bytes

    @property
    def state(self) -> IndexedState: ...


#: Finding the groups of so many takes about a millisecond.
KEYS_AT_ONCE = 500
#: How many groups are kept sorted. Scans that share an index may read different ones.
MOST_SORTED = 8
#: Gives the keys of a table; called once, when the first group is read.
KeysOf = Callable[[], Iterable[Key]]
SomeTable = TypeVar("SomeTable", bound=IndexedTable)


class Place(NamedTuple):
    """A key and its place in the order: the encoded namespace and key."""

    namespace: bytes
    key: bytes
    table: Any  # of the type of the index's tables: Python 3.10 has no generic named tuples
    plain: Key


class KeyIndex(Generic[SomeTable]):
    """The keys of some tables as of an epoch, by key group. Any thread."""

    def __init__(self, epoch: int, tables: Iterable[tuple[SomeTable, KeysOf]]) -> None:
        self.epoch = epoch
        self._lock = Lock()
        #: The keys that are in no group yet, by table.
        self._tables = list(tables)
        self._rest = _keys_of(self._tables)
        self._complete = False
        self._groups: dict[int, dict[SomeTable, list[Key]]] = {}
        #: The last ones that were read, in this order.
        self._sorted: dict[int, list[Place]] = {}

    def prepare(self) -> Iterator[None]:
        """Find the group of each key, some keys in each step. Several threads may do so together."""
        while not self._complete:
            with self._lock:
                self._group_some()
            yield

    def selected(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Place]:
        """The selected keys of a group after a place, in order."""
        places = self._places(group)
        start = 0 if after is None else bisect_right(places, after, key=_order)
        for place in places[start:]:
            if selection.namespace in (None, place.namespace) and place.key.startswith(selection.prefix):
                yield place

    def _places(self, group: int) -> list[Place]:
        with self._lock:
            found = self._sorted.pop(group, None)
            if found is None:
                while not self._complete:
                    self._group_some()
                found = _in_order(self._groups.get(group, {}))
            self._sorted[group] = found
            if len(self._sorted) > MOST_SORTED:
                del self._sorted[next(iter(self._sorted))]
            return found

    def _group_some(self) -> None:
        """Find the group of some more keys. Call it under the lock."""
        groups, done = self._groups, 0
        try:
            for table, key in islice(self._rest, KEYS_AT_ONCE):
                groups.setdefault(table.state.group_of(key), {}).setdefault(table, []).append(key)
                done += 1
        except Exception:
            # The next one begins again, because an iterator that has failed has no further keys.
            self._rest, self._groups = _keys_of(self._tables), {}
            raise
        if done < KEYS_AT_ONCE:
            self._complete, self._tables = True, []


def _keys_of(tables: Iterable[tuple[SomeTable, KeysOf]]) -> Iterator[tuple[SomeTable, Key]]:
    for table, keys_of in tables:
        for key in keys_of():
            yield table, key


def _in_order(keys: Mapping[SomeTable, Iterable[Key]]) -> list[Place]:
    encode = key_encoder()
    found = [
        Place(table.encoded_namespace, encode(key), table, key) for table, of_table in keys.items() for key in of_table
    ]
    found.sort(key=_order)
    return found


def _order(place: tuple[Any, ...]) -> tuple[bytes, bytes]:
    return place[0], place[1]
