"""The backends under test, and a byte store in a dict that proves the adapter apart from RocksDB."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qstate.backends import (
    BackendContext,
    ByteSnapshot,
    ByteStore,
    ByteStoreBackend,
    HeapBackend,
    StateBackend,
)
from qstate.backends.byte_stores.rocksdb import RocksDBBackend
from qstate.errors import ClosedError
from qstate.keys import KeyGroupRange

MAX_PARALLELISM = 16
ALL_GROUPS = KeyGroupRange(0, MAX_PARALLELISM)


class MemorySnapshot(ByteSnapshot):
    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries: Mapping[bytes, bytes] | None = entries
        self._sorted: list[bytes] | None = None

    def _open(self) -> Mapping[bytes, bytes]:
        if self._entries is None:
            raise ClosedError("the snapshot was closed")
        return self._entries

    def get(self, key: bytes) -> bytes | None:
        return self._open().get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._open()
        if self._sorted is None:
            self._sorted = sorted(entries)
        keys = self._sorted[bisect_left(self._sorted, start) : bisect_left(self._sorted, stop)]
        return iter([(key, entries[key]) for key in keys])

    def close(self) -> None:
        self._entries = None


class MemoryStore(ByteStore):
    """Every write makes a new dict, so a snapshot is a reference."""

    def __init__(self) -> None:
        self._now = MemorySnapshot({})

    def get(self, key: bytes) -> bytes | None:
        return self._now.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._now.scan(start, stop)

    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        merged = {**self._now._open(), **batch}
        self._now = MemorySnapshot({key: value for key, value in merged.items() if value is not None})

    def snapshot(self) -> ByteSnapshot:
        return MemorySnapshot(self._now._open())

    def close(self) -> None:
        self._now.close()


class MemoryBackend(ByteStoreBackend):
    name = "memory"

    def open_store(self, context: BackendContext) -> ByteStore:
        return MemoryStore()


def _from_the_guide() -> type[StateBackend]:
    """The backend that `docs/how-to/write-a-backend.md` tells a third party to write."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "write-a-backend.md").read_text()
    names: dict[str, Any] = {"__name__": "guide"}
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(compile(block, "write-a-backend.md", "exec"), names)
    found: type[StateBackend] = names["SQLiteBackend"]
    return found


#: A cache of one entry that is flushed at every operation takes the paths that a large epoch takes.
NO_CACHE = {"cache_entries": 1, "flush_interval_s": 0.0}
#: name -> (class, options)
FACTORIES: dict[str, tuple[type[StateBackend], dict[str, Any]]] = {
    "heap": (HeapBackend, {}),
    "memory": (MemoryBackend, {}),
    "memory without cache": (MemoryBackend, NO_CACHE),
    "guide": (_from_the_guide(), {}),
    "rocksdb": (RocksDBBackend, {}),
    "rocksdb without cache": (RocksDBBackend, NO_CACHE),
}


def open_named(name: str, directory: Path, key_groups: KeyGroupRange = ALL_GROUPS) -> StateBackend:
    backend_class, options = FACTORIES[name]
    directory.mkdir(parents=True, exist_ok=True)
    return backend_class(BackendContext(key_groups, MAX_PARALLELISM, directory, options))
