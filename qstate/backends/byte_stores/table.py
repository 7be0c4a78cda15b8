"""The base class of the tables over a byte store: a write-back cache of decoded values, and the keys an epoch changed.

Rules of this module: only the operator's thread uses it, and it knows no epoch numbers. Until the next commit, a table
keeps

    unwritten   decoded values that are not in the store yet; queries do not see them either
    read        decoded values that are also in the store
    changed     the keys that this epoch wrote to the store (a rollback restores them from the snapshot)

`flush` writes the unwritten values to the store. All entries of one key go into one batch, so no reader sees half of
them. It serializes all values before it writes the first, so a value that cannot be serialized leaves the store as it
was.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Generic, NamedTuple, TypeVar

from qstate.backends.admission import refused_write
from qstate.backends.byte_stores.layout import prefix_of, stop_of
from qstate.backends.byte_stores.store import ByteSnapshot, ByteStore
from qstate.backends.contract import Change, ChangeOp, StateTable
from qstate.descriptors import StateDescriptor
from qstate.errors import SerializationError
from qstate.keys import Key, Namespace

__all__ = [
    "BATCH_BYTES",
    "BATCH_ENTRIES",
    "MISSING",
    "SMALL",
    "Additions",
    "Batch",
    "ByteContainerTable",
    "ByteState",
    "ByteTable",
    "EpochWrites",
    "WriteClock",
    "write_bounded",
    "write_in_pieces",
]

MISSING: Any = object()

#: A cached value counts once, and once more for as many bytes of its serialized form.
WEIGHED_BYTES = 16
#: How many values of a table are serialized to estimate the size of all.
_SAMPLE = 16

#: A store may hold the interpreter's lock while it writes; a batch of this size takes about a millisecond.
BATCH_ENTRIES = 1000
#: The same for large values. A store may also keep a batch whole in memory, whatever the size of its buffers.
BATCH_BYTES = 1024 * 1024

#: The most entries or elements of a map or list that is read whole, and cached, by those who want them one by one.
SMALL = 256

Batch = dict[bytes, bytes | None]
Cached = TypeVar("Cached")


def write_bounded(store: ByteStore, batch: Batch) -> None:
    """Write the batch, or parts of it that have about `BATCH_BYTES` each."""
    if sum(map(len, filter(None, batch.values()))) <= BATCH_BYTES:
        store.write(batch)
        return
    part, size = Batch(), 0
    for key, value in batch.items():
        part[key] = value
        size += len(value or b"")
        if size >= BATCH_BYTES:
            store.write(part)
            part, size = {}, 0
    if part:
        store.write(part)


def write_in_pieces(store: ByteStore, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
    """Write any number of entries, in batches. Most stores are fastest if they come in the order of their keys."""
    remaining = iter(entries)
    while batch := dict(islice(remaining, BATCH_ENTRIES)):
        write_bounded(store, batch)


class WriteClock:
    """Counts table operations down to the next check of the clock and the cache's size."""

    __slots__ = ("left", "run_out")

    def __init__(self, run_out: Callable[[], None]) -> None:
        self.left = 0
        self.run_out = run_out


class Additions:
    """Numbers the additions to lists; `committed` is the last number of the last commit."""

    __slots__ = ("committed", "last")

    def __init__(self) -> None:
        self.last = self.committed = 0

    def next(self) -> int:
        self.last += 1
        return self.last


class ByteState(NamedTuple):
    """What the tables of one state share, in all namespaces."""

    descriptor: StateDescriptor
    ordinal: int
    dump: Callable[[Any], bytes]
    group_of: Callable[[Key], int]
    encode: Callable[[Namespace], bytes]
    store: ByteStore
    clock: WriteClock
    additions: Additions
    #: Called with a table or queue when it begins to hold entries until the next commit.
    touched: Callable[[EpochWrites], None]


class EpochWrites(ABC):
    """What the backend needs from a table of any kind, and from a queue of timers: the writes of the epoch."""

    #: What a cached value counts at most in `size`.
    weight = 1

    @abstractmethod
    def flush(self) -> None:
        """Write what live readers could not see otherwise. Raises `SerializationError`; the store is unchanged then."""

    @abstractmethod
    def changes(self, committed: ByteSnapshot) -> Iterable[Change]:
        """Flush, and yield what the epoch changed since the last committed snapshot; `ChangeBlocks` are the fastest."""

    @abstractmethod
    def wrote(self) -> bool:
        """Whether the epoch wrote anything, to the store or to the cache."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the cache and the epoch's changed keys. Unwritten values are lost."""

    @abstractmethod
    def shrink(self) -> None:
        """Write the unwritten values, and drop all cached ones. Raises as `flush`."""

    @abstractmethod
    def size(self) -> int:
        """The approximate number of cached values; a large one counts as several (`WEIGHED_BYTES`)."""

    @abstractmethod
    def revert(self, committed: ByteSnapshot) -> None:
        """Restore the snapshot's entries of all keys that this epoch changed in the store, and forget the epoch."""


class ByteTable(EpochWrites, StateTable):
    """What the tables of all kinds share."""

    def __init__(self, state: ByteState, namespace: Namespace) -> None:
        self.state = state
        self.namespace = namespace
        self._store = state.store
        self._dump = state.dump
        self._dump_all = state.descriptor.serializer.dump_all
        self._load = state.descriptor.serializer.loads
        self._load_all = state.descriptor.serializer.load_all
        self._clock = state.clock
        self.encoded_namespace = state.encode(namespace)
        self._prefixes: dict[int, bytes] = {}

    def weigh(self, values: Iterable[Any]) -> int:
        """How much a cached value counts, from the first of them. Their size is known only when they are serialized."""
        sample = [value for value in islice(values, _SAMPLE) if value is not None]
        try:
            sizes = list(map(len, self._dump_all(sample)))
        except Exception:  # the commit will refuse a value
            return self.weight
        if sizes:
            self.weight = 1 + sum(sizes) // len(sizes) // WEIGHED_BYTES
        return self.weight

    def shown(self, key: Key) -> Any:
        """What live readers must read in place of the store's value: None for a removed one, `MISSING` for nothing.

        Any thread may call it.
        """
        return MISSING

    def shown_keys(self) -> list[Key]:
        """The keys for which `shown` may have a value. Any thread."""
        return []

    def prefix(self, group: int, encoded_key: bytes) -> bytes:
        """The store key of a value, or the prefix of the store keys of a list or map."""
        try:
            return self._prefixes[group] + encoded_key
        except KeyError:
            self._prefixes[group] = prefix_of(group, self.state.ordinal, self.encoded_namespace)
            return self._prefixes[group] + encoded_key

    def locate(self, key: Key) -> tuple[int, bytes, bytes]:
        """The key's group, encoding and prefix."""
        try:
            group, encoded = self.state.group_of(key), self.state.encode(key)
        except Exception as exc:
            raise self.failure(key, exc) from exc
        return group, encoded, self.prefix(group, encoded)

    def scan_now(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The stored entries of one key, of which there are some, as they are now; read one by one.

        The caller has flushed. The store decides at the latest with the first entry which moment it shows.
        """
        found = self._store.scan(prefix, stop_of(prefix))
        return chain((next(found),), found)

    def dump(self, key: Key, value: Any, map_key: Key | None = None) -> bytes:
        try:
            return self._dump(value)
        except Exception as exc:
            raise self.failure(key, exc, map_key) from exc

    def change(self, op: ChangeOp, group: int, key: bytes, data: bytes = b"", map_key: bytes = b"") -> Change:
        return Change(op, self.state.descriptor.name, group, self.encoded_namespace, key, map_key, data)

    def failure(self, key: Any, exc: Exception, map_key: Key | None = None) -> SerializationError:
        return refused_write(self.state.descriptor.name, self.namespace, key, exc, map_key)

    def write(self, batch: Batch, at_least: int = 1) -> None:
        """Write and empty the batch if it has at least so many entries."""
        if len(batch) >= at_least:
            write_bounded(self._store, batch)
            batch.clear()

    def spend(self, operations: int) -> None:
        """Count operations; may flush and shrink every table, so do not call it in the middle of a write."""
        self._clock.left -= operations
        if self._clock.left < 0:
            self._clock.run_out()


class ByteContainerTable(ByteTable, Generic[Cached]):
    """What the tables of lists and of maps share: what is cached of each key, and which keys the epoch wrote."""

    #: What is cached of a key; a new one knows nothing of its list or map.
    _cached_class: type[Cached]

    def __init__(self, state: ByteState, namespace: Namespace) -> None:
        super().__init__(state, namespace)
        self._cache: dict[Key, Cached] = {}
        self._unwritten: dict[Key, Cached] = {}
        #: For each key that this epoch wrote to the store, what it wrote of it.
        self._changed: dict[Key, Any] = {}

    def _cached(self, key: Key) -> Cached:
        clock = self._clock
        clock.left -= 1
        if clock.left < 0:
            clock.run_out()
        cached = self._cache.get(key)
        if cached is None:
            if not self._cache:
                self.state.touched(self)
            cached = self._cache[key] = self._cached_class()
        return cached

    def wrote(self) -> bool:
        return bool(self._unwritten or self._changed)

    def forget(self) -> None:
        self._cache, self._unwritten, self._changed = {}, {}, {}

    def shrink(self) -> None:
        self.flush()
        self._cache = dict(self._unwritten)
