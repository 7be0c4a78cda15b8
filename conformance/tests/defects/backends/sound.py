"""Sound backends, and the subclasses and proxies through which defects are added.

`DictBackend` is the byte-store adapter over a dict; `PlainBackend` is the least that the contract asks for: three
methods per table, no capability. `TableProxy` and `ReaderProxy` pass everything on, for a defect to override.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any, ClassVar

from qstate.backends import (
    UNBOUNDED,
    BackendContext,
    ByteSnapshot,
    ByteStore,
    ByteStoreBackend,
    Capability,
    Change,
    ChangeOp,
    Isolation,
    ReadResult,
    StateBackend,
    StateReader,
    StateScan,
    StateTable,
    Timer,
    TimerQueue,
)
from qstate.backends.admission import (
    admit_descriptor,
    admit_list,
    admit_map,
    admit_map_key,
    admit_time,
    admit_timers,
    none_refused,
)
from qstate.backends.answers import bounded, live_answer, pack_elements, unpack_elements
from qstate.descriptors import StateDescriptor, StateKind, TimerDescriptor
from qstate.errors import ClosedError, FailureCode, JobError, SerializationError, UnsupportedOperation
from qstate.keys import Key, KeyGroupRange, Namespace, check_key, decode_key, encode_key, key_group


class DictSnapshot(ByteSnapshot):
    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries: Mapping[bytes, bytes] | None = entries

    def entries(self) -> Mapping[bytes, bytes]:
        if self._entries is None:
            raise ClosedError("the snapshot was closed")
        return self._entries

    def get(self, key: bytes) -> bytes | None:
        return self.entries().get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted((key, value) for key, value in self.entries().items() if start <= key < stop))

    def close(self) -> None:
        self._entries = None


class DictStore(ByteStore):
    """Every write makes a new dict, so a snapshot is a reference."""

    def __init__(self) -> None:
        self.now = DictSnapshot({})

    def get(self, key: bytes) -> bytes | None:
        return self.now.get(key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self.now.scan(start, stop)

    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        merged = {**self.now.entries(), **batch}
        self.now = DictSnapshot({key: value for key, value in merged.items() if value is not None})

    def snapshot(self) -> ByteSnapshot:
        return DictSnapshot(self.now.entries())

    def close(self) -> None:
        self.now.close()


class DictBackend(ByteStoreBackend):
    """The adapter over a dict. `caught_by` is the law that a defect breaks."""

    name = "dict"
    caught_by: ClassVar[str] = ""

    def open_store(self, context: BackendContext) -> ByteStore:
        self.context = context
        return DictStore()


class TableProxy(StateTable):
    """Passes everything on to the table of a sound backend."""

    def __init__(self, inner: StateTable, descriptor: StateDescriptor, backend: Any) -> None:
        self.inner = inner
        self.descriptor = descriptor
        self.backend = backend

    def get(self, key: Key) -> Any:
        return self.inner.get(key)

    def put(self, key: Key, value: Any) -> None:
        self.inner.put(key, value)

    def delete(self, key: Key) -> None:
        self.inner.delete(key)

    def get_many(self, keys: Sequence[Key]) -> Sequence[Any]:
        return self.inner.get_many(keys)

    def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self.inner.put_many(keys, values)

    def list_add(self, key: Key, values: Sequence[Any]) -> None:
        self.inner.list_add(key, values)

    def map_get(self, key: Key, map_key: Key) -> Any:
        return self.inner.map_get(key, map_key)

    def map_contains(self, key: Key, map_key: Key) -> bool:
        return self.inner.map_contains(key, map_key)

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        self.inner.map_put(key, map_key, value)

    def map_remove(self, key: Key, map_key: Key) -> None:
        self.inner.map_remove(key, map_key)

    def map_items(self, key: Key) -> Iterator[tuple[Key, Any]]:
        return self.inner.map_items(key)

    def list_items(self, key: Key) -> Iterator[Any]:
        return self.inner.list_items(key)


class TimersProxy(TimerQueue):
    """Passes everything on to the queue of a sound backend."""

    def __init__(self, inner: TimerQueue, backend: Any) -> None:
        self.inner = inner
        self.backend = backend

    def add(self, timer: Timer) -> None:
        self.inner.add(timer)

    def remove(self, timer: Timer) -> None:
        self.inner.remove(timer)

    def take(self, upto: int, limit: int) -> list[Timer]:
        return self.inner.take(upto, limit)

    def first(self) -> int | None:
        return self.inner.first()


class ReaderProxy(StateReader):
    """Passes everything on to the reader of a sound backend."""

    def __init__(self, inner: StateReader, backend: Any, isolation: Isolation) -> None:
        self.inner = inner
        self.backend = backend
        self.isolation = isolation

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        return self.inner.get(descriptor, namespace, keys, most_bytes)

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        return self.inner.scan(descriptor)


class WithTables(DictBackend):
    """Gives tables of the class `proxy`."""

    proxy: ClassVar[type[TableProxy]] = TableProxy

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return self.proxy(super().table(descriptor, namespace), descriptor, self)


class WithTimers(DictBackend):
    """Gives queues of the class `queue`, always the same for a name."""

    queue: ClassVar[type[TimersProxy]] = TimersProxy

    def timers(self, descriptor: TimerDescriptor) -> Any:
        found = super().timers(descriptor)
        queues = self.__dict__.setdefault("queues", {})
        return queues.setdefault(descriptor.name, self.queue(found, self))


class WithReaders(DictBackend):
    """Gives readers of the class `proxy`."""

    proxy: ClassVar[type[ReaderProxy]] = ReaderProxy

    def reader(self, isolation: Isolation) -> StateReader:
        return self.proxy(super().reader(isolation), self, isolation)


class PlainTable(StateTable):
    """One state in one namespace; `entries` is this namespace's part of the backend's dict."""

    def __init__(self, backend: PlainBackend, descriptor: StateDescriptor, namespace: Namespace) -> None:
        self._backend = backend
        self._descriptor = descriptor
        self._name, self._namespace = descriptor.name, namespace

    def _place(self, key: Key) -> tuple[str, bytes, bytes]:
        return self._name, encode_key(self._namespace), encode_key(key)

    def get(self, key: Key) -> Any:
        return self._backend.live.get(self._place(key))

    def put(self, key: Key, value: Any) -> None:
        if value is None:
            raise none_refused()
        kind = self._descriptor.kind
        if kind is StateKind.LIST:
            value = admit_list(value)
        elif kind is StateKind.MAP:
            value = admit_map(value)
        if kind in (StateKind.LIST, StateKind.MAP) and not value:
            self.delete(key)
            return
        self._backend.touched[self._place(key)] = None
        self._backend.live[self._place(key)] = value

    def delete(self, key: Key) -> None:
        self._backend.touched[self._place(key)] = None
        self._backend.live.pop(self._place(key), None)

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        admit_map_key(map_key)
        super().map_put(key, map_key, value)


class PlainTimers(TimerQueue):
    """A set of timers, sorted when one is taken from it, and a copy of it as of the last commit."""

    def __init__(self, backend: PlainBackend, descriptor: TimerDescriptor) -> None:
        self._backend = backend
        self._name, self._data = descriptor.name, descriptor.serializer.dumps(True)
        self.held: set[Timer] = set()
        self.committed: set[Timer] = set()

    def add(self, timer: Timer) -> None:
        admit_time(timer.time)
        self.held.add(timer)

    def remove(self, timer: Timer) -> None:
        admit_time(timer.time)
        self.held.discard(timer)

    def take(self, upto: int, limit: int) -> list[Timer]:
        due = [timer for timer in self.held if timer.time <= upto]
        due.sort(key=lambda timer: (timer.time, encode_key(timer.namespace), encode_key(timer.key)))
        self.held.difference_update(due[:limit])
        return due[:limit]

    def first(self) -> int | None:
        return min((timer.time for timer in self.held), default=None)

    def changes(self) -> Iterator[Change]:
        for timer in self.held - self.committed:
            yield self._told(ChangeOp.MAP_PUT, timer)
        for timer in self.committed - self.held:
            yield self._told(ChangeOp.MAP_REMOVE, timer)

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        for timer in list(self.committed):
            change = self._told(ChangeOp.MAP_PUT, timer)
            if change.group in key_groups:
                yield change

    def load(self, change: Change) -> None:
        time: Any = decode_key(change.map_key)
        key: Any = decode_key(change.key)
        timer = Timer(time, decode_key(change.namespace), key)
        (self.held.add if change.op is ChangeOp.MAP_PUT else self.held.discard)(timer)

    def _told(self, op: ChangeOp, timer: Timer) -> Change:
        time, namespace, key = map(encode_key, timer)
        group = key_group(timer.key, self._backend.max_parallelism)
        return Change(op, self._name, group, namespace, key, time, self._data if op is ChangeOp.MAP_PUT else b"")


class PlainReader(StateReader):
    def __init__(self, backend: PlainBackend) -> None:
        self._backend = backend

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        self._backend.check_open()
        live, epoch = self._backend.live, self._backend.running
        found = [live.get((descriptor.name, encode_key(namespace), encode_key(key))) for key in keys]
        answers = (None if value is None else self._answer(descriptor, value) for value in found)
        return ReadResult(epoch, bounded(answers, most_bytes))

    def _answer(self, descriptor: StateDescriptor, value: Any) -> bytes | FailureCode:
        try:
            return live_answer(descriptor, descriptor.dump_result, value)
        except Exception:
            return FailureCode.CONCURRENT_MODIFICATION


class PlainBackend(StateBackend):
    """Live objects in one dict, deep copies of it for the last commit, and no capability."""

    name = "plain"
    caught_by: ClassVar[str] = ""

    def __init__(self, context: BackendContext) -> None:
        self._context = context
        self.max_parallelism = context.max_parallelism
        self._states: dict[str, StateDescriptor] = {}
        self._timers: dict[str, PlainTimers] = {}
        self.live: dict[tuple[str, bytes, bytes], Any] = {}
        self.committed: dict[tuple[str, bytes, bytes], Any] = {}
        self.touched: dict[tuple[str, bytes, bytes], None] = {}
        self.running = self.sealed = -1
        self._closed = False

    def check_open(self) -> None:
        if self._closed:
            raise ClosedError("the plain backend was closed")

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> StateTable:
        self.check_open()
        admit_descriptor(descriptor, held=self._states.setdefault(descriptor.name, descriptor))
        if namespace is not None:
            check_key(namespace)
        return PlainTable(self, descriptor, namespace)

    def timers(self, descriptor: TimerDescriptor) -> PlainTimers:
        self.check_open()
        if descriptor.name not in self._timers:
            admit_timers(descriptor, self._states)
            self._states[descriptor.name] = descriptor
            self._timers[descriptor.name] = PlainTimers(self, descriptor)
        return self._timers[descriptor.name]

    def begin(self, epoch: int) -> None:
        self._check_epoch(epoch)
        self.running = epoch

    def commit(self, epoch: int) -> list[Change]:
        self._check_epoch(epoch)
        changes = [change for place in self.touched for change in self._changes(place)]
        for queue in self._timers.values():
            changes += queue.changes()
            queue.committed = set(queue.held)
        self.committed, self.touched = self.copied(self.live), {}
        self.running = self.sealed = epoch
        return changes

    def copied(self, entries: dict[tuple[str, bytes, bytes], Any]) -> dict[tuple[str, bytes, bytes], Any]:
        return deepcopy(entries)

    def _check_epoch(self, epoch: int) -> None:
        self.check_open()
        if epoch <= self.sealed:
            raise JobError(f"epoch {self.sealed} is committed already, so epoch {epoch} cannot be")

    def _changes(self, place: tuple[str, bytes, bytes]) -> Iterator[Change]:
        state, namespace, key = place
        group = key_group(decode_key(key), self._context.max_parallelism)  # type: ignore[arg-type]
        kind, found = self._states[state].kind, self.live.get(place)
        if place in self.committed and (found is None or kind is StateKind.MAP):
            yield Change(ChangeOp.DELETE, state, group, namespace, key, b"", b"")
        if found is not None:
            for op, map_key, data in self._told(self._states[state], found):
                yield Change(op, state, group, namespace, key, map_key, data)

    def _told(self, descriptor: StateDescriptor, value: Any) -> list[tuple[ChangeOp, bytes, bytes]]:
        dump = descriptor.serializer.dumps
        try:
            if descriptor.kind is StateKind.LIST:
                return [(ChangeOp.PUT, b"", pack_elements(map(dump, value)))]
            if descriptor.kind is StateKind.MAP:
                return [(ChangeOp.MAP_PUT, encode_key(key), dump(found)) for key, found in value.items()]
            return [(ChangeOp.PUT, b"", dump(value))]
        except Exception as exc:
            raise SerializationError(f"state {descriptor.name!r}: {exc}") from exc

    def finalize(self, epoch: int) -> None:
        self.check_open()

    def rollback(self) -> None:
        self.check_open()
        self.live, self.touched, self.running = self.copied(self.committed), {}, self.sealed
        for queue in self._timers.values():
            queue.held = set(queue.committed)

    def reader(self, isolation: Isolation) -> StateReader:
        self.check_open()
        if isolation is not Isolation.LIVE:
            raise UnsupportedOperation(f"the {self.name} backend has no {isolation.value} reads")
        return PlainReader(self)

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        self.check_open()
        timers = any(queue.held for queue in self._timers.values())
        if timers or self.live or self.touched or self.sealed >= 0:
            raise JobError("only an empty backend can be restored")
        for change in changes:
            if change.state not in self._states:
                raise JobError(f"no function has asked for the state {change.state!r}")
            if change.group in self._context.key_groups:
                self._load(change, self._states[change.state])
        for queue in self._timers.values():
            queue.committed = set(queue.held)
        self.live = {place: value for place, value in self.live.items() if not isinstance(value, dict) or value or
                     self._states[place[0]].kind is not StateKind.MAP}  # fmt: skip
        self.committed, self.touched = self.copied(self.live), {}
        self.running = self.sealed = epoch

    def _load(self, change: Change, descriptor: StateDescriptor) -> None:
        if change.state in self._timers:
            self._timers[change.state].load(change)
            return
        place, load = (change.state, change.namespace, change.key), descriptor.serializer.loads
        if change.op is ChangeOp.DELETE:
            self.live.pop(place, None)
        elif change.op is ChangeOp.MAP_PUT:
            self.live.setdefault(place, {})[decode_key(change.map_key)] = load(change.data)
        elif change.op is ChangeOp.MAP_REMOVE:
            self.live.get(place, {}).pop(decode_key(change.map_key), None)
        elif descriptor.kind is StateKind.LIST:
            old = self.live.get(place, []) if change.op is ChangeOp.LIST_ADD else []
            self.live[place] = [*old, *map(load, unpack_elements(change.data))]
        else:
            self.live[place] = load(change.data)

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        self.check_open()
        for (state, namespace, key), found in list(self.committed.items()):
            group = key_group(decode_key(key), self._context.max_parallelism)  # type: ignore[arg-type]
            if group in key_groups:
                for op, map_key, data in self._told(self._states[state], found):
                    yield Change(op, state, group, namespace, key, map_key, data)
        for queue in self._timers.values():
            yield from queue.entries(key_groups)

    def close(self) -> None:
        self._closed = True


class _StrictTable(TableProxy):
    """Refuses writes outside an epoch."""

    def put(self, key: Key, value: Any) -> None:
        self.backend.check_running()
        super().put(key, value)

    def delete(self, key: Key) -> None:
        self.backend.check_running()
        super().delete(key)

    def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        self.backend.check_running()
        super().put_many(keys, values)

    def list_add(self, key: Key, values: Sequence[Any]) -> None:
        self.backend.check_running()
        super().list_add(key, values)

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        self.backend.check_running()
        super().map_put(key, map_key, value)

    def map_remove(self, key: Key, map_key: Key) -> None:
        self.backend.check_running()
        super().map_remove(key, map_key)


class StrictBackend(WithTables):
    """Enforces the order of the contract: begin, writes, commit of the same epoch or rollback, begin.

    What `entries` gave is of no use after that. It shows that no law does what the contract does not describe.
    """

    proxy = _StrictTable

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        self.epoch: int | None = None
        self.ended = 0

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        return self._entries_until(self.ended, super().entries(key_groups))

    def _entries_until(self, ended: int, entries: Iterator[Change]) -> Iterator[Change]:
        for change in entries:
            if ended != self.ended:
                raise AssertionError("entries are read beyond the end of the epoch")
            yield change

    def check_running(self) -> None:
        if not self._closed and self.epoch is None:
            raise AssertionError("a write outside an epoch")

    def begin(self, epoch: int) -> None:
        super().begin(epoch)
        if self.epoch is not None:
            raise AssertionError(f"epoch {epoch} begins while epoch {self.epoch} runs")
        self.epoch = epoch

    def commit(self, epoch: int) -> Iterator[Change]:
        changes = super().commit(epoch)
        if epoch != self.epoch:
            raise AssertionError(f"epoch {epoch} is committed while epoch {self.epoch} runs")
        return self._sealed(changes)

    def _sealed(self, changes: Iterator[Change]) -> Iterator[Change]:
        yield from changes
        self.epoch = None
        self.ended += 1

    def finalize(self, epoch: int) -> None:
        if epoch > self._committed.epoch:
            raise AssertionError(f"epoch {epoch} becomes final, and {self._committed.epoch} is the last committed one")
        super().finalize(epoch)

    def rollback(self) -> None:
        super().rollback()
        self.epoch = None
        self.ended += 1


class ClaimingBackend(PlainBackend):
    """The plain backend with a capability that it does not have."""

    capabilities = frozenset({Capability.SNAPSHOT_READS})
