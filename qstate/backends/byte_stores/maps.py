"""Map states over a byte store: one entry per map key, read and written one by one.

Rules of this module: as in `table`. `map_items` keeps a small map in the cache. It reads a larger one from the store,
an entry at a time, and does not cache it, so memory stays bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from qstate.backends.admission import admit_map, admit_map_key
from qstate.backends.byte_stores.layout import stop_of
from qstate.backends.byte_stores.store import ByteSnapshot
from qstate.backends.byte_stores.table import BATCH_ENTRIES, MISSING, SMALL, Batch, ByteContainerTable
from qstate.backends.contract import Change, ChangeOp
from qstate.keys import Key, decode_key

__all__ = ["ByteMapTable"]

#: In the place of a value: there is no entry. None is a value.
_ABSENT: Any = object()


class _CachedMap:
    """`known`: map keys to values, `_ABSENT` without an entry; it has all map keys if `complete`."""

    __slots__ = ("complete", "known", "rewritten", "unwritten")

    def __init__(self) -> None:
        self.known: dict[Key, Any] = {}
        self.complete = False
        self.unwritten: set[Key] = set()
        #: Whether `known` must replace the store's entries.
        self.rewritten = False


def _entries(cached: _CachedMap) -> list[tuple[Key, Any]]:
    return [(map_key, value) for map_key, value in cached.known.items() if value is not _ABSENT]


class ByteMapTable(ByteContainerTable[_CachedMap]):
    """`_changed`: for each changed key the map keys that this epoch wrote to the store, None for a rewritten map."""

    _cached_class = _CachedMap

    def get(self, key: Key) -> Any:
        cached = self._cached(key)
        if not cached.complete:
            prefix = self.locate(key)[2]
            self._complete(cached, prefix, self._store.scan(prefix, stop_of(prefix)))
        return dict(_entries(cached)) or None

    def map_items(self, key: Key) -> Iterator[tuple[Key, Any]]:
        cached = self._cached(key)
        if not cached.complete:
            prefix = self.locate(key)[2]
            first = list(islice(self._store.scan(prefix, stop_of(prefix)), SMALL + 1))
            if len(first) > SMALL:
                self.flush()
                return self._decoded(len(prefix), self.scan_now(prefix))
            self._complete(cached, prefix, first)
        return iter(_entries(cached))

    def _complete(self, cached: _CachedMap, prefix: bytes, found: Iterable[tuple[bytes, bytes]]) -> None:
        stored: dict[Any, Any] = {}
        for entry_key, data in found:
            map_key: Any = decode_key(entry_key[len(prefix) :])
            # A known value may be newer, or the same object that user code holds.
            stored[map_key] = None if map_key in cached.known else self._load(data)
        cached.known = {**stored, **cached.known}
        cached.complete = True
        self._clock.left -= len(stored)

    def _decoded(self, start: int, found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[Key, Any]]:
        for entry_key, data in found:
            map_key: Any = decode_key(entry_key[start:])
            yield map_key, self._load(data)

    def put(self, key: Key, value: Any) -> None:
        entries = admit_map(value)
        cached = self._cached(key)
        cached.known, cached.complete, cached.rewritten = dict(entries), True, True
        self._unwritten[key] = cached

    def delete(self, key: Key) -> None:
        self.put(key, {})

    def map_get(self, key: Key, map_key: Key) -> Any:
        cached = self._cached(key)
        found = cached.known.get(map_key, MISSING)
        if found is MISSING:
            found = self._read(key, map_key, cached)
        return None if found is _ABSENT else found

    def map_contains(self, key: Key, map_key: Key) -> bool:
        cached = self._cached(key)
        found = cached.known.get(map_key, MISSING)
        if found is MISSING:
            found = self._read(key, map_key, cached)
        return found is not _ABSENT

    def _read(self, key: Key, map_key: Key, cached: _CachedMap) -> Any:
        """Cache an entry that is not known."""
        if type(map_key) is not str:
            admit_map_key(map_key)
        data = None if cached.complete else self._store.get(self.locate(key)[2] + self.state.encode(map_key))
        cached.known[map_key] = value = _ABSENT if data is None else self._load(data)
        return value

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        if type(map_key) is not str:
            admit_map_key(map_key)
        self._set(key, map_key, value)

    def map_remove(self, key: Key, map_key: Key) -> None:
        if type(map_key) is not str:
            admit_map_key(map_key)
        self._set(key, map_key, _ABSENT)

    def _set(self, key: Key, map_key: Key, value: Any) -> None:
        cached = self._cached(key)
        cached.known[map_key] = value
        cached.unwritten.add(map_key)
        self._unwritten[key] = cached

    def flush(self) -> None:
        staged = []
        for key, cached in self._unwritten.items():
            prefix, written = self.locate(key)[2], cached.known if cached.rewritten else cached.unwritten
            staged.append((key, cached, prefix, {map_key: self._entry(key, cached, map_key) for map_key in written}))
        batch: Batch = {}
        for key, cached, prefix, entries in staged:
            changed = self._changed.setdefault(key, set())
            if cached.rewritten:
                self._changed[key] = None
                batch.update(dict.fromkeys(entry_key for entry_key, _ in self._store.scan(prefix, stop_of(prefix))))
            elif changed is not None:
                changed.update(entries)
            batch.update((prefix + sub_key, data) for sub_key, data in entries.values())
            cached.unwritten, cached.rewritten = set(), False
            self.write(batch, BATCH_ENTRIES)
        self.write(batch)
        self._unwritten = {}

    def _entry(self, key: Key, cached: _CachedMap, map_key: Key) -> tuple[bytes, bytes | None]:
        try:
            sub_key = self.state.encode(map_key)
        except Exception as exc:
            raise self.failure(key, exc, map_key) from exc
        value = cached.known[map_key]
        return sub_key, None if value is _ABSENT else self.dump(key, value, map_key)

    def changes(self, committed: ByteSnapshot) -> Iterator[Change]:
        self.flush()
        for key, map_keys in self._changed.items():
            group, encoded, prefix = self.locate(key)
            if map_keys is None:
                if next(committed.scan(prefix, stop_of(prefix)), None) is not None:
                    yield self.change(ChangeOp.DELETE, group, encoded)
                for entry_key, data in self._store.scan(prefix, stop_of(prefix)):
                    yield self.change(ChangeOp.MAP_PUT, group, encoded, data, entry_key[len(prefix) :])
                continue
            for sub_key in map(self.state.encode, map_keys):
                found = self._store.get(prefix + sub_key)
                if found is not None:
                    yield self.change(ChangeOp.MAP_PUT, group, encoded, found, sub_key)
                elif committed.get(prefix + sub_key) is not None:
                    yield self.change(ChangeOp.MAP_REMOVE, group, encoded, b"", sub_key)

    def size(self) -> int:
        known = (value for cached in self._cache.values() for value in cached.known.values())
        weight = self.weigh(value for value in known if value is not _ABSENT)
        return sum(1 + len(cached.known) for cached in self._cache.values()) * weight

    def revert(self, committed: ByteSnapshot) -> None:
        batch: Batch = {}
        for key, map_keys in self._changed.items():
            prefix = self.locate(key)[2]
            if map_keys is None:
                batch.update(dict.fromkeys(entry_key for entry_key, _ in self._store.scan(prefix, stop_of(prefix))))
                batch.update(committed.scan(prefix, stop_of(prefix)))
            else:
                for sub_key in map(self.state.encode, map_keys):
                    batch[prefix + sub_key] = committed.get(prefix + sub_key)
            self.write(batch, BATCH_ENTRIES)
        self.write(batch)
        self.forget()
