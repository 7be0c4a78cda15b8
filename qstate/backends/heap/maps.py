"""The heap's table of map states. It tracks each written entry, so that a commit writes only these.

Rules of this module: as in `table`, which explains the layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from qstate.backends.admission import admit_map, admit_map_key
from qstate.backends.answers import map_answer
from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import Change, ChangeOp, Wanted
from qstate.backends.heap.containers import HeapContainerTable
from qstate.descriptors import StateDescriptor
from qstate.keys import Key, KeyGroupRange, decode_keys, encode_key

__all__ = ["HeapMapTable"]


_NOTHING: dict[Any, Any] = {}
_ABSENT: Any = object()


class _WholeMap(set[Key]):
    """Marks a map that was written as a whole: all its entries count as written."""

    def add(self, key: Key) -> None:
        pass


_WHOLE = _WholeMap()


class HeapMapTable(HeapContainerTable):
    """Map states. `_before` has the map keys that were written since S."""

    _before: dict[Key, set[Key]]
    _committed: dict[Key, dict[Key, bytes]]
    _staged: dict[Key, dict[Key, bytes | None]]
    _sealed: dict[Key, dict[Key, bytes | None]]
    _admit = staticmethod(admit_map)
    _whole = _WHOLE

    def map_get(self, key: Key, map_key: Key) -> Any:
        found = self.live.get(key)
        return found.get(map_key) if found else None

    def map_contains(self, key: Key, map_key: Key) -> bool:
        found = self.live.get(key)
        return found is not None and map_key in found

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        if type(map_key) is not str:
            admit_map_key(map_key)
        try:
            self._before[key].add(map_key)
        except KeyError:
            self._touch(key, {map_key})
        try:
            self.live[key][map_key] = value
        except KeyError:
            self.live[key] = {map_key: value}

    def map_remove(self, key: Key, map_key: Key) -> None:
        found = self.live.get(key)
        if not found or map_key not in found:
            return
        if key in self._before:
            self._before[key].add(map_key)
        else:
            self._touch(key, {map_key})
        del found[map_key]
        if not found:
            del self.live[key]

    def map_items(self, key: Key) -> Iterator[tuple[Key, Any]]:
        found = self.live.get(key)
        return iter(list(found.items())) if found else iter(())

    def _changes(self) -> Iterator[Change]:
        self._staged = {}
        key: Any = None
        map_key: Any = None
        dump, encode, change, live_get = self._dump, self._encode, self.change, self.live.get
        put, remove = ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE
        try:
            for key, marks in list(self._before.items()):
                map_key = None
                group, encoded = self._group_of(key), encode(key)
                entries, standing = live_get(key, _NOTHING), self._committed.get(key, _NOTHING)
                staged: dict[Key, bytes | None] = {}
                self._staged[key] = staged
                whole = marks is _WHOLE
                if whole and standing:
                    yield change(ChangeOp.DELETE, group, encoded)
                for map_key in list(entries if whole else marks):
                    value = entries.get(map_key, _ABSENT)
                    if value is not _ABSENT:
                        staged[map_key] = data = dump(value)
                        yield change(put, group, encoded, data, encode(map_key))
                    elif map_key in standing:
                        staged[map_key] = None
                        yield change(remove, group, encoded, b"", encode(map_key))
        except Exception as exc:
            raise self._failure(key, exc, map_key) from exc

    def seal(self) -> None:
        committed, sealed = self._committed, self._sealed
        for key, marks in self._before.items():
            staged, found = self._staged[key], committed.get(key)
            whole = marks is _WHOLE
            old = self._old(found or {}, staged, whole)
            sealed[key] = {**old, **sealed[key]} if key in sealed else old
            if found is None or whole:
                found = committed[key] = {}
            for map_key, data in staged.items():
                if data is None:
                    found.pop(map_key, None)
                else:
                    found[map_key] = data
            if not found:
                del committed[key]
        self._before, self._staged = {}, {}

    @staticmethod
    def _old(found: Mapping[Key, bytes], staged: Mapping[Key, bytes | None], whole: bool) -> dict[Key, bytes | None]:
        """The old values of the entries that an epoch changes, None for those that it adds."""
        if whole:
            return {**dict.fromkeys(staged), **found}
        return {map_key: found.get(map_key) for map_key in staged}

    def _loaded(self, committed: dict[Key, bytes]) -> dict[Key, Any]:
        return {map_key: self._load(data) for map_key, data in committed.items()}

    def image(self, key: Key) -> dict[Key, bytes] | None:
        committed, sealed = self._committed.get(key, {}), self._sealed.get(key)
        if not sealed:
            return committed.copy() or None
        merged: dict[Key, bytes | None] = {**committed, **sealed}
        return {map_key: data for map_key, data in merged.items() if data is not None} or None

    def frozen(self) -> HeapMapTable:
        copy = type(self)(self.state, self.namespace)
        # A commit changes the maps of `_committed` in place, and replaces those of `_sealed`.
        copy._committed = dict(zip(self._committed, map(dict.copy, self._committed.values()), strict=True))
        copy._sealed = self._sealed.copy()
        return copy

    def final_keys(self) -> Iterable[Key]:
        return self._committed.keys() | self._sealed.keys()

    def image_answer(self, descriptor: StateDescriptor, dump: Callable[[Any], bytes], image: dict[Key, bytes]) -> bytes:
        return map_answer(descriptor, {encode_key(map_key): data for map_key, data in image.items()})

    def entries(self, groups: KeyGroupRange) -> Iterator[Change]:
        for key, found in list(self._committed.items()):
            group = self._group_of(key)
            if group in groups:
                encoded = self._encode(key)
                for map_key, data in found.items():
                    yield self.change(ChangeOp.MAP_PUT, group, encoded, data, self._encode(map_key))

    def walk(self, groups: KeyGroupRange, wanted: Wanted) -> Iterator[Change | None]:
        for key in self.committed_keys():
            group, encoded = self._group_of(key), self._encode(key)
            for map_key in list(self._committed.get(key, _NOTHING)):
                data = self._committed.get(key, _NOTHING).get(map_key)  # there may be a commit between two entries
                if data is not None:
                    found = group in groups and wanted(data)
                    yield self.change(ChangeOp.MAP_PUT, group, encoded, data, self._encode(map_key)) if found else None

    def committed_data(self, key: Key) -> bytes | None:
        raise AssertionError("a map has no PUT")

    def _load_data(self, block: ChangeBlock, keys: Sequence[Any]) -> None:
        live, committed = self.live, self._committed
        map_keys: Sequence[Any] = decode_keys(block.map_keys or ())
        if block.op is ChangeOp.MAP_PUT:
            data = [b""] * len(keys) if block.data is None else block.data
            for key, map_key, value, stored in zip(keys, map_keys, self._load_all(data), data, strict=True):
                live.setdefault(key, {})[map_key] = value
                committed.setdefault(key, {})[map_key] = stored
            return
        layers: tuple[dict[Key, dict[Key, Any]], ...] = (live, committed)
        for key, map_key in zip(keys, map_keys, strict=True):
            for layer in layers:
                found = layer.get(key, {})
                found.pop(map_key, None)
                if not found:
                    layer.pop(key, None)
