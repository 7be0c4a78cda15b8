"""A state backend for qstate that keeps its state in SQLite."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from threading import Lock
from typing import Any, ClassVar

from qstate.backends import (
    BackendContext,
    BackendOption,
    ByteSnapshot,
    ByteStore,
    ByteStoreBackend,
    Capability,
)
from qstate.errors import ClosedError

#: Entries that are read at once.
PAGE = 200


class Connection:
    """A connection that any thread may use, one at a time."""

    def __init__(self, path: str, cache_mib: int) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._lock = Lock()
        self._closed = False
        self.run(f"PRAGMA cache_size = {-1024 * cache_mib}")

    def run(self, statement: str, *arguments: Any) -> list[Any]:
        with self._lock:
            self.check_open()
            return self._connection.execute(statement, arguments).fetchall()

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("the SQLite store was closed")

    def get(self, key: bytes) -> bytes | None:
        found = self.run("SELECT value FROM entries WHERE key = ?", key)
        return found[0][0] if found else None

    def page(self, start: bytes, stop: bytes) -> list[tuple[bytes, bytes]]:
        """The first entries of a range."""
        page = f"SELECT key, value FROM entries WHERE key >= ? AND key < ? ORDER BY key LIMIT {PAGE}"
        return self.run(page, start, stop)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._connection.close()


class SQLiteSnapshot(Connection, ByteSnapshot):
    """A read transaction: SQLite's write-ahead log keeps its view of the database."""

    def __init__(self, path: str, cache_mib: int) -> None:
        super().__init__(path, cache_mib)
        self._take_view()

    def _take_view(self) -> None:
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT 1 FROM entries LIMIT 1").fetchall()  # the view is fixed by the first read

    def without_view(self, task: Callable[[], object]) -> None:
        """Let go of the view for the time of a task, in which nothing is written: the next view is the same."""
        with self._lock:
            if not self._closed:
                self._connection.execute("COMMIT")
                task()
                self._take_view()

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        while found := self.page(start, stop):
            yield from found
            start = found[-1][0] + b"\0"


class SQLiteStore(Connection, ByteStore):
    def __init__(self, path: str, cache_mib: int) -> None:
        super().__init__(path, cache_mib)
        self._parameters = path, cache_mib
        self._newest: SQLiteSnapshot | None = None
        self.run("PRAGMA journal_mode = WAL")
        self.run("PRAGMA synchronous = OFF")  # the epoch log is the durable truth
        self.run("CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID")

    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        puts = [(key, value) for key, value in batch.items() if value is not None]
        deletes = [(key,) for key, value in batch.items() if value is None]
        if self._newest is not None:
            # The first write after a snapshot. SQLite restarts its log only when it is copied and has no readers.
            self._newest.without_view(lambda: self.run("PRAGMA wal_checkpoint(PASSIVE)"))
            self._newest = None
        with self._lock:
            self.check_open()
            self._connection.execute("BEGIN")
            self._connection.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", puts)
            self._connection.executemany("DELETE FROM entries WHERE key = ?", deletes)
            self._connection.execute("COMMIT")

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        found = self.page(start, stop)
        return iter(found) if len(found) < PAGE else self._scan_many(start, stop)

    def _scan_many(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Pages of the store itself would see what is written between them.
        snapshot = SQLiteSnapshot(*self._parameters)
        try:
            yield from snapshot.scan(start, stop)
        finally:
            snapshot.close()

    def snapshot(self) -> ByteSnapshot:
        self._newest = SQLiteSnapshot(*self._parameters)
        return self._newest


class SQLiteBackend(ByteStoreBackend):
    name = "sqlite"
    capabilities = ByteStoreBackend.capabilities | {Capability.LARGER_THAN_MEMORY}
    options: ClassVar[Mapping[str, BackendOption]] = {
        **ByteStoreBackend.options,
        "cache_mib": BackendOption(int, 8, "memory for pages of the database, per connection", minimum=1),
    }

    def open_store(self, context: BackendContext) -> ByteStore:
        cache_mib = context.options.get("cache_mib", self.options["cache_mib"].default)
        return SQLiteStore(str(context.directory / "state.db"), cache_mib)
