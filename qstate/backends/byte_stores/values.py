"""Value, reducing and aggregating states over a byte store: one entry per key.

Rules of this module: as in `table`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from qstate.backends.admission import admit_pairs, none_refused
from qstate.backends.byte_stores.store import ByteSnapshot
from qstate.backends.byte_stores.table import BATCH_ENTRIES, MISSING, Batch, ByteState, ByteTable
from qstate.backends.contract import Change, ChangeOp
from qstate.keys import Key, Namespace

__all__ = ["ByteValueTable"]

#: Keys that `put_many` writes between two checks of the clock.
_SLICE = 4096


class ByteValueTable(ByteTable):
    """`None` in `_unwritten` means removed, in `_read` that the store has no value."""

    def __init__(self, state: ByteState, namespace: Namespace) -> None:
        super().__init__(state, namespace)
        self._unwritten: dict[Key, Any] = {}
        self._read: dict[Key, Any] = {}
        self._changed: dict[Key, None] = {}

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
        clock = self._clock
        clock.left -= 1
        if clock.left < 0:
            clock.run_out()

    def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        admit_pairs(keys, values)
        pairs = zip(keys, values, strict=True)
        for _ in range(0, len(keys), _SLICE):
            if not self._unwritten:
                self.state.touched(self)
            self._unwritten.update(islice(pairs, _SLICE))
            self.spend(_SLICE)

    def flush(self) -> None:
        self._write_out()

    def _write_out(self) -> list[tuple[Key, int, bytes, bytes, bytes | None]]:
        """Write; returns (key, group, encoded key, store key, data or None) of each entry written."""
        dumped = iter(self._dumped())
        written = []
        for key, value in self._unwritten.items():
            written.append((key, *self.locate(key), None if value is None else next(dumped)))
        self._changed.update(dict.fromkeys(self._unwritten))
        batch: Batch = {}
        for _, _, _, entry_key, data in written:
            batch[entry_key] = data
            self.write(batch, BATCH_ENTRIES)
        self.write(batch)
        self._read.update(self._unwritten)
        self._unwritten = {}
        return written

    def _dumped(self) -> list[bytes]:
        """The bytes of each unwritten value, without the removals."""
        try:
            return self._dump_all([value for value in self._unwritten.values() if value is not None])
        except Exception:  # serialized one by one, so that the error names the key
            return [self.dump(key, value) for key, value in self._unwritten.items() if value is not None]

    def changes(self, committed: ByteSnapshot) -> Iterator[Change]:
        earlier = self._changed.keys() - self._unwritten.keys()
        for _, group, encoded, entry_key, data in self._write_out():
            yield from self._change_of(committed, group, encoded, entry_key, data)
        for key in earlier:
            group, encoded, entry_key = self.locate(key)
            yield from self._change_of(committed, group, encoded, entry_key, self._store.get(entry_key))

    def _change_of(
        self, committed: ByteSnapshot, group: int, encoded: bytes, entry_key: bytes, data: bytes | None
    ) -> Iterator[Change]:
        if data is not None:
            yield self.change(ChangeOp.PUT, group, encoded, data)
        elif committed.get(entry_key) is not None:
            yield self.change(ChangeOp.DELETE, group, encoded)

    def wrote(self) -> bool:
        return bool(self._unwritten or self._changed)

    def forget(self) -> None:
        self._unwritten, self._read, self._changed = {}, {}, {}

    def shrink(self) -> None:
        self._read = {}

    def size(self) -> int:
        return len(self._unwritten) + len(self._read)

    def revert(self, committed: ByteSnapshot) -> None:
        batch: Batch = {}
        for key in self._changed:
            entry_key = self.locate(key)[2]
            batch[entry_key] = committed.get(entry_key)
            self.write(batch, BATCH_ENTRIES)
        self.write(batch)
        self.forget()
