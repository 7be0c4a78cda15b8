"""The RocksDB backend, on rocksdict: state that is serialized and may be larger than memory.

Rules of this module: only this module imports rocksdict, and it translates rocksdict's exceptions. The database is
temporary: the epoch log makes the state durable, so the write-ahead log is off and the directory starts empty.

Properties of rocksdict 0.3.29 that were tested, and that this module needs:

- get, put, write, snapshot and iteration keep the interpreter's lock (so they are safe from any thread, and a write
  batch should be short: see `BATCH_ENTRIES`); flush releases it.
- The database raises `DbClosedError` after `close` and `RuntimeError` during `close` (it is "mutably borrowed").
  Snapshots and iterators keep the database open internally until they are dropped, and still work. Other failures are
  bare `Exception`s.
- A snapshot's `[]` reads the snapshot, but its iterators read the database as of their creation: rocksdict sets the
  snapshot on options that it then discards. An iterator keeps the view of its creation. So a snapshot here is a pair
  of both, made together, and its scans share the one iterator under a lock. The iterator pins the write buffer of its
  moment, which costs memory, but never more than one buffer each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar

from qstate.backends.byte_stores.backend import ByteStoreBackend
from qstate.backends.byte_stores.store import ByteSnapshot, ByteStore
from qstate.backends.contract import BackendContext, BackendOption, Capability
from qstate.errors import ClosedError, InstallationError, JobError, QStateError
from qstate.host.storage_faults import BY_TMPDIR, FULL, storage_fault

try:
    import rocksdict
except ImportError as exc:
    raise InstallationError(
        "the rocksdb backend needs the package rocksdict: pip install 'spark-qstate[rocksdb]'"
    ) from exc

__all__ = ["RocksDBBackend", "RocksDBStore"]

_MIB = 1024 * 1024
#: Entries that one scan of a snapshot reads before it releases the lock for other readers.
_SCAN_ENTRIES = 1000
#: The properties for `estimate`. RocksDB keeps them all, so to read them takes 0.1 ms.
_ESTIMATES = ("rocksdb.estimate-num-keys", "rocksdb.cur-size-all-mem-tables", "rocksdb.live-sst-files-size")
_COMPRESSIONS = {
    "none": rocksdict.DBCompressionType.none,
    "snappy": rocksdict.DBCompressionType.snappy,
    "lz4": rocksdict.DBCompressionType.lz4,
    "zstd": rocksdict.DBCompressionType.zstd,
}


class RocksDBBackend(ByteStoreBackend):
    """Keeps state in an embedded RocksDB database in the task manager's scratch directory."""

    name: ClassVar[str] = "rocksdb"
    capabilities = ByteStoreBackend.capabilities | {Capability.LARGER_THAN_MEMORY}
    options: ClassVar[Mapping[str, BackendOption]] = {
        **ByteStoreBackend.options,
        "write_buffer_mib": BackendOption(int, 32, "memory per write buffer, of which there are two", minimum=1),
        "block_cache_mib": BackendOption(int, 64, "memory to cache blocks, indexes and filters", minimum=1),
        "bloom_bits": BackendOption(int, 10, "bits per key of the bloom filters; 0: none", minimum=0),
        "compression": BackendOption(str, "lz4", "compression of the files", choices=tuple(_COMPRESSIONS)),
        "background_jobs": BackendOption(int, 2, "threads for flushes and compactions", minimum=1),
    }

    def open_store(self, context: BackendContext) -> ByteStore:
        return RocksDBStore(str(context.directory / "rocksdb"), context.options)


class RocksDBStore(ByteStore):
    """A RocksDB database in rocksdict's raw mode: bytes in, bytes out."""

    def __init__(self, path: str, settings: Mapping[str, Any]) -> None:
        self._path = Path(path)
        try:
            self._database = rocksdict.Rdict(path, _options(settings))
        except Exception as exc:
            raise _failed(exc, self._path) from exc
        # Any, because the stub declares a method where the extension has a property.
        unlogged: Any = rocksdict.WriteOptions()
        unlogged.disable_wal = True
        self._database.set_write_options(unlogged)
        self._get: Callable[[bytes], bytes | None] = self._database.get
        self._closing = False

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._get(key)
        except Exception as exc:
            raise self._translated(exc) from exc

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        try:
            found: Any = self._database.get(list(keys))
        except Exception as exc:
            raise self._translated(exc) from exc
        return found  # type: ignore[no-any-return]  # the stub has a default's type

    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        writes = rocksdict.WriteBatch(raw_mode=True)
        put, delete = writes.put, writes.delete
        for key, value in batch.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._database.write(writes)
        except Exception as exc:
            raise self._translated(exc) from exc

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        bound = _before(stop)
        try:
            found: Iterator[Any] = self._database.items(from_key=start, read_opt=bound)
        except Exception as exc:
            raise self._translated(exc) from exc
        return _held(found, bound)

    def snapshot(self) -> ByteSnapshot:
        try:
            return _RocksDBSnapshot(self._database)
        except Exception as exc:
            raise self._translated(exc) from exc

    def estimate(self) -> tuple[int | None, int | None]:
        try:
            entries, *sizes = map(self._database.property_int_value, _ESTIMATES)
        except Exception as exc:
            raise self._translated(exc) from exc
        return entries, sum(size or 0 for size in sizes)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._database.close()

    def _translated(self, exc: Exception) -> QStateError:
        return _closed() if self._closing else _failed(exc, self._path)


class _RocksDBSnapshot(ByteSnapshot):
    """A snapshot for `get` and an iterator of the same moment for `scan`: see the module's rules."""

    def __init__(self, database: rocksdict.Rdict) -> None:
        self._snapshot: rocksdict.Snapshot | None = database.snapshot()
        self._cursor: rocksdict.RdictIter | None = database.iter()
        self._lock = Lock()

    def get(self, key: bytes) -> bytes | None:
        snapshot = self._snapshot
        if snapshot is None:
            raise _closed()
        try:
            found: bytes = snapshot[key]
        except Exception as exc:
            # rocksdict has no `get` on snapshots and no exception class for a missing key.
            if str(exc) == "key not found":
                return None
            raise JobError(f"the RocksDB database failed: {exc}") from exc
        return found

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        while True:
            part = self._part(start, stop)
            yield from part
            if len(part) < _SCAN_ENTRIES:
                return
            start = part[-1][0] + b"\0"

    def _part(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """The first entries of a range, so few that other readers do not wait long for the lock."""
        part: list[tuple[bytes, bytes]] = []
        with self._lock:
            cursor = self._cursor
            if cursor is None:
                raise _closed()
            cursor.seek(start)
            while len(part) < _SCAN_ENTRIES and cursor.valid():
                key = cursor.key()
                if key >= stop:
                    break
                part.append((key, cursor.value()))
                cursor.next()
            else:
                cursor.status()
        return part

    def close(self) -> None:
        # The database frees both with the last reference to them.
        with self._lock:
            self._snapshot = self._cursor = None


def _failed(exc: Exception, path: Path) -> JobError:
    """The error for a failure, which RocksDB describes only in text."""
    code = next((code for code in FULL if os.strerror(code) in str(exc)), None)
    room = "" if code is None else f"; {storage_fault(OSError(code, ''), path, BY_TMPDIR)}"
    return JobError(f"the RocksDB database in {path} failed: {exc}{room}")


def _held(found: Iterator[Any], bound: rocksdict.ReadOptions) -> Iterator[tuple[bytes, bytes]]:
    """The iterator's entries, with its upper bound kept alive.

    RocksDB keeps a pointer into rocksdict's options. An iterator that outlives them would end at a random key.
    """
    yield from found
    del bound


def _before(stop: bytes) -> rocksdict.ReadOptions:
    bounded = rocksdict.ReadOptions()
    bounded.set_iterate_upper_bound(stop)
    return bounded


def _options(settings: Mapping[str, Any]) -> rocksdict.Options:
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(settings["block_cache_mib"] * _MIB))
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    # Partitioned: the cache has 64 shards, and every get would read a whole filter that is larger than a shard.
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_pin_top_level_index_and_filter(True)
    if settings["bloom_bits"]:
        table.set_bloom_filter(settings["bloom_bits"], False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_error_if_exists(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_size(settings["write_buffer_mib"] * _MIB)
    options.set_max_write_buffer_number(2)
    options.set_compression_type(_COMPRESSIONS[settings["compression"]]())
    options.set_max_background_jobs(settings["background_jobs"])
    # Files with runs of deletions are compacted soon, so that expired and cleared state leaves the disk: of 200,000
    # values of which nine tenths had been deleted, a steady job kept 22 MiB without this and 9 MiB with it.
    options.add_compact_on_deletion_collector_factory(1024, 512, 0.0)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(1)
    return options


def _closed() -> ClosedError:
    return ClosedError("the RocksDB database was closed")
