"""Value, reducing and aggregating states over a byte store: one entry per key.

Rules of this module: as in `table`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, repeat
from typing import Any

from qstate.backends.admission import admit_pairs, none_refused
from qstate.backends.answers import IMMUTABLE, is_immutable
from qstate.backends.byte_stores.layout import groups_and_keys
from qstate.backends.byte_stores.store import ByteSnapshot
from qstate.backends.byte_stores.table import MISSING, ByteState, ByteTable, write_in_pieces
from qstate.backends.change_blocks import FIRST_COUNT, ChangeBlock, ChangeBlocks, next_count
from qstate.backends.contract import ChangeOp
from qstate.keys import Key, Namespace

__all__ = ["ByteValueTable"]

#: Keys that `put_many` writes between two checks of the clock.
_SLICE = 4096

#: Store keys and their bytes, None for entries that are removed.
Entries = dict[bytes, bytes | None]


class ByteValueTable(ByteTable):
    """`None` in `_unwritten` means removed, in `_read` that the store has no value. `_changed` has store keys."""

    def __init__(self, state: ByteState, namespace: Namespace) -> None:
        super().__init__(state, namespace)
        self._unwritten: dict[Key, Any] = {}
        self._read: dict[Key, Any] = {}
        self._changed: set[bytes] = set()
        #: Whether an unwritten value may change in place.
        self._mutable = False

    def get(self, key: Key) -> Any:
        found = self._unwritten.get(key, MISSING)
        if found is MISSING:
            found = self._read.get(key, MISSING)
            if found is MISSING:
                self.spend(1)
                return self._fetch(key)
        return found

    def _fetch(self, key: Key) -> Any:
        if not self._read:
            self.state.touched(self)
        data = self._store.get(self.locate(key)[2])
        self._read[key] = value = None if data is None else self._load(data)
        return value

    def get_many(self, keys: Sequence[Key]) -> Sequence[Any]:
        found = self._cached(keys)
        missing = list(dict.fromkeys(key for key, value in zip(keys, found, strict=True) if value is MISSING))
        if not missing:
            return found
        if not self._read:
            self.state.touched(self)
        located = dict(zip(self._located(missing), missing, strict=True))
        ordered = sorted(located)
        data = self._store.get_many(ordered)
        self._read.update(zip(map(located.__getitem__, ordered), self._loaded(data), strict=True))
        found = self._cached(keys)
        self.spend(len(missing))
        return found

    def _cached(self, keys: Sequence[Key]) -> list[Any]:
        """The value of each key, `MISSING` if it has to be read."""
        return list(map(self._unwritten.get, keys, map(self._read.get, keys, repeat(MISSING))))

    def _loaded(self, data: Sequence[bytes | None]) -> Iterator[Any]:
        """The values of these bytes, None for None."""
        values = iter(self._load_all([found for found in data if found is not None]))
        return (None if found is None else next(values) for found in data)

    def put(self, key: Key, value: Any) -> None:
        if value is None:
            raise none_refused()
        self._set(key, value)

    def delete(self, key: Key) -> None:
        self._set(key, None)

    def _set(self, key: Key, value: Any) -> None:
        unwritten = self._unwritten
        if not unwritten:
            self.state.touched(self)
        unwritten[key] = value
        if not (self._mutable or type(value) in IMMUTABLE or is_immutable(value)):
            self._mutable = True
        clock = self._clock
        clock.left -= 1
        if clock.left < 0:
            clock.run_out()

    def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        admit_pairs(keys, values)
        mutable = not (IMMUTABLE.issuperset(map(type, values)) or all(map(is_immutable, values)))
        pairs = zip(keys, values, strict=True)
        for _ in range(0, len(keys), _SLICE):
            if not self._unwritten:
                self.state.touched(self)
            self._unwritten.update(islice(pairs, _SLICE))
            self._mutable = self._mutable or mutable
            self.spend(_SLICE)

    def shown(self, key: Key) -> Any:
        value = self._unwritten.get(key, MISSING)
        return value if is_immutable(value) else MISSING

    def shown_keys(self) -> list[Key]:
        return list(self._unwritten)

    def flush(self) -> None:
        if self._mutable:
            unwritten = self._unwritten
            self._write_out()
            self._read.update(unwritten)

    def _write_out(self) -> Entries:
        """Write the unwritten values; returns the entries written."""
        data = self._dumped()
        entries = dict(zip(self._located(self._unwritten), data, strict=True))
        self._changed.update(entries)
        ordered = sorted(entries)
        write_in_pieces(self._store, zip(ordered, map(entries.__getitem__, ordered), strict=True))
        self._unwritten, self._mutable = {}, False
        return entries

    def _located(self, keys: Iterable[Key]) -> list[bytes]:
        try:
            groups, encoded = list(map(self.state.group_of, keys)), list(map(self.state.encode, keys))
        except Exception:  # one by one, so that the error names the key
            return [self.locate(key)[2] for key in keys]
        return list(map(self.prefix, groups, encoded))

    def _dumped(self) -> Iterator[bytes | None]:
        """The bytes of each unwritten value, None for the removals."""
        unwritten = self._unwritten
        values = [value for value in unwritten.values() if value is not None]
        try:
            data = self._dump_all(values)
        except Exception:  # serialized one by one, so that the error names the key
            data = [self.dump(key, value) for key, value in unwritten.items() if value is not None]
        if len(data) == len(unwritten):
            return iter(data)
        dumped = iter(data)
        return (None if value is None else next(dumped) for value in unwritten.values())

    def changes(self, committed: ByteSnapshot) -> ChangeBlocks:
        return ChangeBlocks(self._blocks(committed))

    def _blocks(self, committed: ByteSnapshot) -> Iterator[ChangeBlock]:
        self._read = {}
        written = self._write_out()
        new, earlier = iter(written), iter(sorted(self._changed - written.keys()))
        count = FIRST_COUNT
        while True:
            data: Sequence[bytes | None]
            if keys := list(islice(new, count)):
                data = [written[key] for key in keys]
            elif keys := list(islice(earlier, count)):
                data = self._store.get_many(keys)
            else:
                return
            yield from self._blocks_of(committed, keys, data)
            count = next_count(len(keys), sum(map(len, filter(None, data))))

    def _blocks_of(
        self, committed: ByteSnapshot, keys: Sequence[bytes], data: Sequence[bytes | None]
    ) -> Iterator[ChangeBlock]:
        if None in data:
            gone = [key for key, found in zip(keys, data, strict=True) if found is None]
            keys = [key for key, found in zip(keys, data, strict=True) if found is not None]
            data = [found for found in data if found is not None]
            deleted = [key for key in gone if committed.get(key) is not None]
            if deleted:
                yield self._block(ChangeOp.DELETE, deleted)
        if keys:
            yield self._block(ChangeOp.PUT, keys, data)

    def _block(self, op: ChangeOp, entry_keys: Sequence[bytes], data: Sequence[Any] | None = None) -> ChangeBlock:
        groups, keys = groups_and_keys(entry_keys, self.encoded_namespace)
        return ChangeBlock(op, self.state.descriptor.name, self.encoded_namespace, groups, keys, None, data)

    def wrote(self) -> bool:
        return bool(self._unwritten or self._changed)

    def forget(self) -> None:
        self._unwritten, self._read, self._changed, self._mutable = {}, {}, set(), False

    def shrink(self) -> None:
        self._read = {}
        self._write_out()

    def size(self) -> int:
        return (len(self._unwritten) + len(self._read)) * self.weigh(
            chain(self._unwritten.values(), self._read.values())
        )

    def revert(self, committed: ByteSnapshot) -> None:
        write_in_pieces(self._store, ((entry_key, committed.get(entry_key)) for entry_key in sorted(self._changed)))
        self.forget()
