"""A full state backend over any ordered byte store.

Rules of this module: it knows epochs, snapshots and threads; `layout` has the format of keys, and the tables read and
write entries. Only the operator's thread writes to the store. There are two snapshots: that of the last commit (for
rollback and `entries`) and that of the last final epoch (for committed reads). Live readers read the store itself.
Several users share a snapshot, and the last one closes it: a reader may still use it when the operator has a newer one.

Writes wait in the tables' cache until the commit or until the cache is full. Live readers read values there that cannot
change in place. All others are written when `flush_interval_s` has passed, too, and when the operator is about to wait
for input (`publish`): live reads of these lag behind by as much.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from operator import itemgetter
from threading import Lock
from time import monotonic
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from qstate.backends.admission import admit_descriptor, admit_timers
from qstate.backends.answers import Answer, bounded
from qstate.backends.byte_stores.entries import changes_between, page_of
from qstate.backends.byte_stores.layout import group_bounds, pack_sequence, prefix_of, stop_of
from qstate.backends.byte_stores.lists import ByteListTable, additions_of
from qstate.backends.byte_stores.maps import ByteMapTable
from qstate.backends.byte_stores.parts import StoredParts
from qstate.backends.byte_stores.scans import ByteStoreScan, LiveByteStoreScan
from qstate.backends.byte_stores.store import ByteSnapshot, ByteStore
from qstate.backends.byte_stores.stored_answers import answer_of_entries, list_of, map_of, result_of
from qstate.backends.byte_stores.table import (
    BATCH_ENTRIES,
    MISSING,
    Additions,
    Batch,
    ByteState,
    ByteTable,
    EpochWrites,
    WriteClock,
    write_in_pieces,
)
from qstate.backends.byte_stores.timers import ByteTimerQueue
from qstate.backends.byte_stores.values import ByteValueTable
from qstate.backends.change_blocks import ChangeBlock, ChangeBlocks, blocks_of
from qstate.backends.contract import (
    UNBOUNDED,
    BackendContext,
    BackendOption,
    Capability,
    Change,
    ChangeOp,
    Isolation,
    ReadResult,
    StateBackend,
    StateReader,
    StateScan,
    StateSizes,
    Wanted,
)
from qstate.backends.key_index import KeyIndex
from qstate.backends.value_parts import ValueParts, whole_value
from qstate.descriptors import StateDescriptor, StateKind, TimerDescriptor
from qstate.errors import ClosedError, FailureCode, JobError
from qstate.host.line_limit import limited
from qstate.keys import Key, KeyGroupRange, Namespace, check_key, key_encoder, key_grouper, key_identity

__all__ = ["ByteStoreBackend"]

_LOG = limited(logging.getLogger(__name__))

#: Before the first epoch.
NO_EPOCH = -1
#: Table operations between two checks of the clock and of the cache's size.
_MOST_OPERATIONS = 256
#: Table operations before the cache is counted first, while the size of values is unknown.
_FIRST_LOOK = 10_000

_entry_key_of, _data_of = itemgetter(0), itemgetter(1)
#: The most blocks of changes that a restore puts into one batch; a block has about a MiB if values are large.
_MOST_BLOCKS = 64
#: The kinds whose value is one entry of the store. A set would hash the enum members in Python.
_SINGLE_ENTRY = (StateKind.VALUE, StateKind.REDUCING, StateKind.AGGREGATING)
_TABLE_CLASSES: dict[StateKind, Callable[[ByteState, Namespace], ByteTable]] = {
    StateKind.VALUE: ByteValueTable,
    StateKind.REDUCING: ByteValueTable,
    StateKind.AGGREGATING: ByteValueTable,
    StateKind.LIST: ByteListTable,
    StateKind.MAP: ByteMapTable,
}


class _SharedSnapshot:
    """A snapshot and its epoch, with a reference count."""

    def __init__(self, epoch: int, snapshot: ByteSnapshot) -> None:
        self.epoch = epoch
        self.snapshot = snapshot
        self._holders = 1
        self._lock = Lock()

    def hold(self) -> _SharedSnapshot:
        with self._lock:
            self._holders += 1
        return self

    def release(self) -> None:
        with self._lock:
            self._holders -= 1
            last = self._holders == 0
        if last:
            self.snapshot.close()


class ByteStoreBackend(StateBackend):
    """Builds the five kinds of state on a `ByteStore`. A subclass sets `name` and opens the store."""

    capabilities: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.SNAPSHOT_READS, Capability.COMMITTED_READS, Capability.SCANS, Capability.PARTS}
    )
    options: ClassVar[Mapping[str, BackendOption]] = {
        "cache_entries": BackendOption(
            int, 1_000_000, "small values held in memory within an epoch; a larger one counts as several", minimum=1
        ),
        "flush_interval_s": BackendOption(
            float, 0.5, "how long lists, maps and dicts may be hidden from live reads", minimum=0
        ),
    }

    @abstractmethod
    def open_store(self, context: BackendContext) -> ByteStore:
        """Open an empty store in `context.directory`. Called once, by `__init__`."""

    def __init__(self, context: BackendContext) -> None:
        self._key_groups = context.key_groups
        self._group_of = key_grouper(context.max_parallelism)
        self._encode = key_encoder()
        settings = {name: option.default for name, option in self.options.items()} | dict(context.options)
        context = replace(context, options=settings)
        self._cache_entries: int = settings["cache_entries"]
        self._flush_interval_s: float = settings["flush_interval_s"]
        self._flush_due = monotonic() + self._flush_interval_s
        self._room = min(self._cache_entries, _FIRST_LOOK)
        self._operations = min(_MOST_OPERATIONS, self._cache_entries)
        self._clock = WriteClock(self._look_at_the_clock)
        self._additions = Additions()
        self._states: dict[str, ByteState] = {}
        # A table exists while it holds entries of the epoch (`_touched`) or a handle refers to it.
        self._tables: WeakValueDictionary[tuple[str, Any], ByteTable] = WeakValueDictionary()
        self._timers: dict[str, ByteTimerQueue] = {}
        self._touched: dict[EpochWrites, None] = {}
        self._running = NO_EPOCH
        self._closed = False
        self._lock = Lock()
        self._store = self.open_store(context)
        self._committed = _SharedSnapshot(NO_EPOCH, self._store.snapshot())
        self._final = self._committed.hold()

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> ByteTable:
        self._check_open()
        place = (descriptor.name, key_identity(namespace))
        found = self._tables.get(place)
        if found is not None and found.state.descriptor.kind is descriptor.kind:
            return found
        if namespace is not None:
            check_key(namespace)
        table = _TABLE_CLASSES[descriptor.kind](self._state(descriptor), namespace)
        self._tables[place] = table
        return table

    def timers(self, descriptor: TimerDescriptor) -> ByteTimerQueue:
        self._check_open()
        found = self._timers.get(descriptor.name)
        if found is None:
            admit_timers(descriptor, self._states)
            found = self._timers[descriptor.name] = ByteTimerQueue(
                self._state(descriptor), lambda: self._committed.snapshot
            )
        return found

    def _state(self, descriptor: StateDescriptor) -> ByteState:
        state = self._states.get(descriptor.name)
        if state is None:
            state = ByteState(
                descriptor=descriptor,
                ordinal=len(self._states),
                dump=descriptor.serializer.dumper(),
                group_of=self._group_of,
                encode=self._encode,
                store=self._store,
                clock=self._clock,
                additions=self._additions,
                touched=self._touch,
            )
            self._states[descriptor.name] = state
        admit_descriptor(descriptor, held=state.descriptor)
        return state

    def _touch(self, table: EpochWrites) -> None:
        self._touched[table] = None

    def _look_at_the_clock(self) -> None:
        self._room += self._clock.left - self._operations
        self._clock.left = self._operations
        if self._room <= 0:
            held = sum(table.size() for table in self._touched)
            if held >= self._cache_entries:
                for table in self._touched:
                    table.shrink()
                held = 0
            # Counting costs time, so it is not repeated soon; the cache may become an eighth larger.
            room = max(self._cache_entries - held, self._cache_entries // 8)
            self._room = room // max((table.weight for table in self._touched), default=1)
        if monotonic() >= self._flush_due:
            self.publish()

    def publish(self) -> None:
        self._check_open()
        for table in self._touched:
            table.flush()
        self._flush_due = monotonic() + self._flush_interval_s

    def begin(self, epoch: int) -> None:
        self._check_open()
        if epoch <= self._committed.epoch:
            raise JobError(f"epoch {epoch} cannot begin: epoch {self._committed.epoch} is committed already")
        self.finalize(self._committed.epoch)
        self._running = epoch

    def commit(self, epoch: int) -> ChangeBlocks:
        self._check_open()
        if epoch <= self._committed.epoch:
            raise JobError(f"epoch {epoch} cannot be committed: epoch {self._committed.epoch} is already")
        return ChangeBlocks(self._commit(epoch))

    def _commit(self, epoch: int) -> Iterator[ChangeBlock]:
        for table in list(self._touched):
            yield from blocks_of(table.changes(self._committed.snapshot))
        self._forget_tables()
        self._replace_committed(epoch)

    def _replace_committed(self, epoch: int) -> None:
        self._running = epoch
        self._additions.committed = self._additions.last
        outdated, self._committed = self._committed, _SharedSnapshot(epoch, self._store.snapshot())
        outdated.release()

    def _forget_tables(self) -> None:
        for table in self._touched:
            table.forget()
        self._touched = {}
        self._flush_due = monotonic() + self._flush_interval_s

    def finalize(self, epoch: int) -> None:
        self._check_open()
        if self._final.epoch < self._committed.epoch <= epoch:
            self._replace_final()

    def _replace_final(self) -> None:
        with self._lock:
            outdated, self._final = self._final, self._committed.hold()
        outdated.release()

    def rollback(self) -> None:
        self._check_open()
        for table in self._touched:
            table.revert(self._committed.snapshot)
        self._forget_tables()
        self._running = self._committed.epoch

    def sizes(self) -> StateSizes:
        entries, size = self._store.estimate()
        return StateSizes(entries=entries, bytes=size)

    def reader(self, isolation: Isolation) -> StateReader:
        self._check_open()
        return _LiveReader(self) if isolation is Isolation.LIVE else _CommittedReader(self)

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        self._check_open()
        if self._committed.epoch != NO_EPOCH or any(table.wrote() for table in self._touched):
            raise JobError("only an empty backend can be restored")
        self._forget_tables()  # they may have cached that a key has no value
        batch: Batch = {}
        for number, block in enumerate(blocks_of(changes)):
            wanted = block.within(self._key_groups)
            state = self._states.get(wanted.state)
            if state is None and wanted.keys:
                raise JobError(f"the changes contain a state {wanted.state!r} that no function has declared")
            if state is None:
                continue
            queue = self._timers.get(wanted.state)
            if queue is not None:
                for change in wanted.changes():
                    queue.load(change, batch)
            elif state.descriptor.kind in _SINGLE_ENTRY:
                self._load(wanted, state, batch)
            else:
                for change in wanted.changes():
                    self._apply(change, state, batch)
            if len(batch) >= BATCH_ENTRIES or number % _MOST_BLOCKS == 0:
                self._write(batch)
        self._write(batch)
        self._replace_committed(epoch)
        self._replace_final()

    def _load(self, block: ChangeBlock, state: ByteState, batch: Batch) -> None:
        prefixes = {group: prefix_of(group, state.ordinal, block.namespace) for group in set(block.groups)}
        entry_keys = [prefixes[group] + key for group, key in zip(block.groups, block.keys, strict=True)]
        if block.op is ChangeOp.DELETE:
            batch.update(dict.fromkeys(entry_keys))
        else:
            batch.update(zip(entry_keys, repeat(b"") if block.data is None else block.data, strict=False))

    def _write(self, batch: Batch) -> None:
        """Write and empty the batch."""
        write_in_pieces(self._store, sorted(batch.items(), key=_entry_key_of))
        batch.clear()

    def _apply(self, change: Change, state: ByteState, batch: Batch) -> None:
        prefix = prefix_of(change.group, state.ordinal, change.namespace) + change.key
        if change.op is ChangeOp.PUT or change.op is ChangeOp.DELETE:
            self._write(batch)
            batch.update(dict.fromkeys(entry_key for entry_key, _ in self._store.scan(prefix, stop_of(prefix))))
        if change.op is ChangeOp.PUT or change.op is ChangeOp.LIST_ADD:
            for addition in additions_of(change.data):
                batch[prefix + pack_sequence(self._additions.next())] = addition
        elif change.op is not ChangeOp.DELETE:
            batch[prefix + change.map_key] = change.data if change.op is ChangeOp.MAP_PUT else None

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        self._check_open()
        states = {state.ordinal: state.descriptor for state in self._states.values()}
        shared = self._committed.hold()
        try:
            yield from changes_between(shared.snapshot, states, *group_bounds(key_groups.start, key_groups.stop))
            for queue in self._timers.values():
                yield from queue.entries(shared.snapshot, key_groups)
        finally:
            shared.release()

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        states = {state.ordinal: state.descriptor for name, state in self._states.items() if name in wanted}
        start: bytes | None
        start, stop = group_bounds(key_groups.start, key_groups.stop)
        while start is not None:
            self._check_open()
            shared = self._committed.hold()
            try:
                page, start = page_of(shared.snapshot, states, start, stop)
            finally:
                shared.release()
            for entry in page:
                yield entry.change() if wanted[entry.descriptor.name](entry.data) else None

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._forget_tables()
        self._committed.release()
        with self._lock:
            self._final.release()
        self._store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"the {self.name} backend was closed")

    # For the readers, from any thread.

    def find(self, descriptor: StateDescriptor, namespace: Namespace) -> ByteTable | None:
        return self._tables.get((descriptor.name, key_identity(namespace)))

    def live_store(self) -> tuple[int, ByteStore]:
        self._check_open()
        return self._running, self._store

    def final_snapshot(self) -> _SharedSnapshot:
        """The snapshot of the last final epoch, with a reference for the caller, who must release it."""
        with self._lock:
            self._check_open()
            return self._final.hold()

    def place(self, descriptor: StateDescriptor) -> tuple[int, StateKind] | None:
        """The number of the state in the store and its kind; None when it was never opened."""
        state = self._states.get(descriptor.name)
        return None if state is None else (state.ordinal, descriptor.kind)

    def cached_keys(self, descriptor: StateDescriptor) -> KeyIndex[ByteTable]:
        """The keys whose values tables can show before they are written, and the running epoch."""
        tables = [table for table in list(self._touched) if isinstance(table, ByteTable)]
        own = [table for table in tables if table.state.descriptor.name == descriptor.name]
        return KeyIndex(self._running, ((table, table.shown_keys) for table in own))

    def prefix_finder(self, descriptor: StateDescriptor, namespace: Namespace) -> Callable[[Key], bytes] | None:
        """The function from a key to its store key or prefix, for one thread; None when the state was never opened."""
        state = self._states.get(descriptor.name)
        if state is None:
            return None
        encode, group_of, ordinal = key_encoder(), self._group_of, state.ordinal
        encoded = encode(namespace)
        return lambda key: prefix_of(group_of(key), ordinal, encoded) + encode(key)


class _LiveReader(StateReader):
    """Reads the entries that the tables have flushed, and before them the values that a table can show itself."""

    def __init__(self, backend: ByteStoreBackend) -> None:
        self._backend = backend

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        epoch, store = self._backend.live_store()
        find = self._backend.prefix_finder(descriptor, namespace)
        table = self._backend.find(descriptor, namespace)
        if find is None or table is None or descriptor.kind not in _SINGLE_ENTRY:
            return ReadResult(epoch, _answers(find, store, descriptor, keys, most_bytes))
        return ReadResult(epoch, bounded(_newest(table, find, store, descriptor, keys), most_bytes))

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        backend = self._backend
        cached = backend.cached_keys(descriptor)
        _, store = backend.live_store()

        def newest(table: ByteTable, key: Key, most_bytes: int) -> Answer:
            answer = next(_newest(table, lambda key: table.locate(key)[2], store, descriptor, (key,)))
            return FailureCode.TOO_LARGE if isinstance(answer, bytes) and len(answer) > most_bytes else answer

        return LiveByteStoreScan(store, backend.place(descriptor), answer_of_entries(descriptor), cached, newest)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        if descriptor.kind in _SINGLE_ENTRY:
            return whole_value(descriptor, self.get(descriptor, namespace, (key,)))
        epoch, store = self._backend.live_store()
        find = self._backend.prefix_finder(descriptor, namespace)
        return StoredParts(store, epoch, None if find is None else find(key), lambda: None)


class _CommittedReader(StateReader):
    """Reads the snapshot of the last final epoch."""

    def __init__(self, backend: ByteStoreBackend) -> None:
        self._backend = backend

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        shared = self._backend.final_snapshot()
        try:
            find = self._backend.prefix_finder(descriptor, namespace)
            return ReadResult(shared.epoch, _answers(find, shared.snapshot, descriptor, keys, most_bytes))
        finally:
            shared.release()

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        shared = self._backend.final_snapshot()
        place = self._backend.place(descriptor)
        return ByteStoreScan(shared.snapshot, shared.epoch, place, answer_of_entries(descriptor), shared.release)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        if descriptor.kind in _SINGLE_ENTRY:
            return whole_value(descriptor, self.get(descriptor, namespace, (key,)))
        shared = self._backend.final_snapshot()
        find = self._backend.prefix_finder(descriptor, namespace)
        return StoredParts(shared.snapshot, shared.epoch, None if find is None else find(key), shared.release)


def _answers(
    find: Callable[[Key], bytes] | None,
    source: ByteStore | ByteSnapshot,
    descriptor: StateDescriptor,
    keys: Sequence[Key],
    most_bytes: int,
) -> list[Answer]:
    if find is None:
        return [None] * len(keys)
    prefixes = map(find, keys)
    kind = descriptor.kind
    if kind is StateKind.VALUE or kind is StateKind.REDUCING:
        return bounded(map(source.get, prefixes), most_bytes)
    if kind is StateKind.LIST:
        lists = (list_of(map(_data_of, _entries(source, prefix)), descriptor, most_bytes) for prefix in prefixes)
        return bounded(lists, most_bytes)
    if kind is StateKind.MAP:
        maps = (map_of(_entries(source, prefix), len(prefix), descriptor, most_bytes) for prefix in prefixes)
        return bounded(maps, most_bytes)
    dump = descriptor.result_dumper()
    return bounded((result_of(source.get(prefix), descriptor, dump) for prefix in prefixes), most_bytes)


def _entries(source: ByteStore | ByteSnapshot, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    return source.scan(prefix, stop_of(prefix))


def _newest(
    table: ByteTable, find: Callable[[Key], bytes], store: ByteStore, descriptor: StateDescriptor, keys: Sequence[Key]
) -> Iterator[Answer]:
    """The newest answers for a state with one entry per key."""
    dump = descriptor.result_dumper()
    for key in keys:
        value = table.shown(key)  # first: what the operator writes meanwhile is in the store afterwards
        if value is MISSING:
            found = store.get(find(key))
            yield result_of(found, descriptor, dump) if descriptor.kind is StateKind.AGGREGATING else found
        else:
            yield _answer(value, descriptor, dump)


def _answer(value: Any, descriptor: StateDescriptor, dump: Callable[[Any], bytes]) -> Answer:
    try:
        return None if value is None else dump(value)
    except Exception:
        _LOG.exception("state %r: a value cannot be serialized", descriptor.name)
        return FailureCode.INTERNAL
