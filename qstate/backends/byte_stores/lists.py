"""List states over a byte store: each addition is an entry of its own, so appending reads nothing.

Rules of this module: as in `table`. `list_items` reads a large list as `map_items` reads a large map, so an entry
of the store holds at most `MOST_BYTES`. An increasing sequence number orders the entries of a key, so the
entries of the running epoch are those above the number of the last commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any

from qstate.backends.admission import admit_list, admit_values
from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.byte_stores.layout import pack_sequence, stop_of
from qstate.backends.byte_stores.store import ByteSnapshot
from qstate.backends.byte_stores.table import BATCH_ENTRIES, SMALL, Batch, ByteContainerTable
from qstate.backends.contract import Change, ChangeOp
from qstate.keys import Key

__all__ = ["ByteListTable", "additions_of"]

#: The most bytes in one entry of the store, unless a single element is larger.
MOST_BYTES = 1 << 16


def additions_of(data: bytes) -> list[bytes]:
    """The entries of the store that hold the packed elements of one change."""
    if len(data) <= MOST_BYTES:
        return [data]
    parts: list[list[bytes]] = [[]]
    left = MOST_BYTES
    for element in unpack_elements(data):
        left -= len(element)
        if left < 0 and parts[-1]:
            parts.append([])
            left = MOST_BYTES - len(element)
        parts[-1].append(element)
    return list(map(pack_elements, parts))


_addition = itemgetter(1)


class _CachedList:
    """`elements`: the whole list, if it was read or written whole. `added`: elements that are not in the store yet."""

    __slots__ = ("added", "elements", "rewritten")

    def __init__(self) -> None:
        self.elements: list[Any] | None = None
        self.added: list[Any] = []
        #: Whether `elements` must replace the store's entries.
        self.rewritten = False


class ByteListTable(ByteContainerTable[_CachedList]):
    """`_changed`: for each changed key, whether this epoch rewrote its list (True) or only added to it (False)."""

    _cached_class = _CachedList

    def get(self, key: Key) -> Any:
        cached = self._cached(key)
        if cached.elements is None:
            prefix = self.locate(key)[2]
            self._complete(cached, map(_addition, self._store.scan(prefix, stop_of(prefix))))
        return cached.elements or None

    def list_items(self, key: Key) -> Iterator[Any]:
        cached = self._cached(key)
        if cached.elements is None:
            prefix = self.locate(key)[2]
            first: list[bytes] = []
            size = 0
            for _, addition in self._store.scan(prefix, stop_of(prefix)):
                first.append(addition)
                size += len(unpack_elements(addition))
                if size > SMALL:
                    self.flush()
                    return self._decoded(self.scan_now(prefix))
            self._complete(cached, first)
        return iter(list(cached.elements or ()))

    def _complete(self, cached: _CachedList, additions: Iterable[bytes]) -> None:
        elements = [self._load(data) for addition in additions for data in unpack_elements(addition)]
        cached.elements = elements + cached.added
        self._clock.left -= len(elements)

    def _decoded(self, found: Iterator[tuple[bytes, bytes]]) -> Iterator[Any]:
        for _, addition in found:
            yield from map(self._load, unpack_elements(addition))

    def put(self, key: Key, value: Any) -> None:
        elements = admit_list(value)
        cached = self._cached(key)
        cached.elements, cached.added, cached.rewritten = elements, [], True
        self._unwritten[key] = cached

    def delete(self, key: Key) -> None:
        self.put(key, [])

    def list_add(self, key: Key, values: Sequence[Any]) -> None:
        admit_values(values)
        if not values:
            return
        cached = self._cached(key)
        if cached.elements is not None:
            cached.elements.extend(values)
        if not cached.rewritten:
            cached.added.extend(values)
        self._unwritten[key] = cached

    def flush(self) -> None:
        staged = []
        for key, cached in self._unwritten.items():
            elements = (cached.elements or []) if cached.rewritten else cached.added
            staged.append((key, cached, self.locate(key)[2], [self.dump(key, element) for element in elements]))
        batch: Batch = {}
        for key, cached, prefix, elements in staged:
            self._changed[key] = self._changed.get(key, False) or cached.rewritten
            if cached.rewritten:
                batch.update(dict.fromkeys(entry_key for entry_key, _ in self._store.scan(prefix, stop_of(prefix))))
            for addition in additions_of(pack_elements(elements)) if elements else ():
                batch[prefix + pack_sequence(self.state.additions.next())] = addition
            cached.added, cached.rewritten = [], False
            self.write(batch, BATCH_ENTRIES)
        self.write(batch)
        self._unwritten = {}

    def changes(self, committed: ByteSnapshot) -> Iterator[Change]:
        self.flush()
        first_new = pack_sequence(self.state.additions.committed + 1)
        for key, rewritten in self._changed.items():
            group, encoded, prefix = self.locate(key)
            start = prefix if rewritten else prefix + first_new
            additions = self._store.scan(start, stop_of(prefix))
            elements = [data for _, addition in additions for data in unpack_elements(addition)]
            if elements:
                op = ChangeOp.PUT if rewritten else ChangeOp.LIST_ADD
                yield self.change(op, group, encoded, pack_elements(elements))
            elif next(committed.scan(prefix, stop_of(prefix)), None) is not None:
                yield self.change(ChangeOp.DELETE, group, encoded)

    def size(self) -> int:
        weight = self.weigh(one for cached in self._cache.values() for one in (cached.elements or cached.added))
        return sum(1 + len(cached.elements or ()) + len(cached.added) for cached in self._cache.values()) * weight

    def revert(self, committed: ByteSnapshot) -> None:
        first_new = pack_sequence(self.state.additions.committed + 1)
        batch: Batch = {}
        for key, rewritten in self._changed.items():
            prefix = self.locate(key)[2]
            start = prefix if rewritten else prefix + first_new
            batch.update(dict.fromkeys(entry_key for entry_key, _ in self._store.scan(start, stop_of(prefix))))
            if rewritten:
                batch.update(committed.scan(prefix, stop_of(prefix)))
            self.write(batch, BATCH_ENTRIES)
        self.write(batch)
        self.forget()
