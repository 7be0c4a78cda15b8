"""The heap backend: live Python objects in dicts, copy-free, with a committed view beside them.

Rules of this module: it knows epochs, threads and which tables exist; only the tables know what they hold (`table`
explains the layers). The operator's thread writes without a lock. `_lock` protects committed readers while layers
change (seal, finalize, the end of a rollback). They hold it while they collect the images of one answer's keys, and
not while they serialize. So all keys of a committed answer are of one epoch.

Live readers take no lock: they serialize the operator's objects while the operator may be changing them. That is the
documented hazard, and this module contains it: a reader only reads such an object, and answers for its key with the
value it read, which may be torn, or with `CONCURRENT_MODIFICATION`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import msgpack

from qstate.backends.admission import admit_descriptor, admit_timers
from qstate.backends.answers import IMMUTABLE, Answer, bounded, live_answer, too_large
from qstate.backends.change_blocks import ChangeBlock, ChangeBlocks, blocks_of
from qstate.backends.contract import (
    UNBOUNDED,
    BackendContext,
    Capability,
    Change,
    Isolation,
    ReadResult,
    StateBackend,
    StateReader,
    StateScan,
    StateSizes,
    Wanted,
)
from qstate.backends.heap.lists import HeapListTable
from qstate.backends.heap.maps import HeapMapTable
from qstate.backends.heap.parts import HeapParts
from qstate.backends.heap.scans import HeapScan
from qstate.backends.heap.table import HeapState, HeapTable, Place
from qstate.backends.heap.timers import HeapTimers
from qstate.backends.heap.values import HeapValueTable
from qstate.backends.heap.write_ahead import WriteAheadTable
from qstate.backends.key_index import KeyIndex
from qstate.backends.value_parts import ValueParts, whole_value
from qstate.descriptors import StateDescriptor, StateKind, TimerDescriptor
from qstate.errors import ClosedError, FailureCode, JobError, TooLarge
from qstate.host.line_limit import limited
from qstate.keys import Key, KeyGroupRange, Namespace, check_key, decode_key, key_encoder, key_grouper, key_identity
from qstate.serializers import MessagePackSerializer

__all__ = ["HeapBackend"]

_LOG = limited(logging.getLogger(__name__))

#: Before the first epoch.
NO_EPOCH = -1

_TABLE_CLASSES: dict[StateKind, Callable[[HeapState, Namespace], HeapTable]] = {
    StateKind.VALUE: WriteAheadTable,
    StateKind.REDUCING: HeapValueTable,
    StateKind.AGGREGATING: HeapValueTable,
    StateKind.LIST: HeapListTable,
    StateKind.MAP: HeapMapTable,
}
#: When user code empties one in place, there is no value (rule T5). A set would hash the enum members in Python.
_CONTAINERS = (StateKind.LIST, StateKind.MAP)
#: Values that cannot change in place. None stands for no value.
_UNCHANGING = IMMUTABLE - {type(None)}
#: Values that have a length.
_SIZED = frozenset((str, bytes, list, dict, tuple))
#: The most bytes of MessagePack that a value of these types takes.
_FIXED_SIZES = {bool: 1, int: 9, float: 9}
#: The most bytes of the header of a text or bytes, and of a character.
_HEADER_BYTES, _UTF8_BYTES = 5, 4
#: The most bytes of values that are serialized in one step. By itself, a serializer copies a large one less often.
_AT_ONCE_BYTES = 1 << 20


class HeapBackend(StateBackend):
    """Keeps state as Python objects; `docs/explanation/heap-hazard.md` says what live queries may return."""

    name: ClassVar[str] = "heap"
    capabilities = frozenset({Capability.COMMITTED_READS, Capability.SCANS, Capability.PARTS})

    def __init__(self, context: BackendContext) -> None:
        self._key_groups = context.key_groups
        self._group_of = key_grouper(context.max_parallelism)
        self._encode = key_encoder()
        self._states: dict[str, HeapState] = {}
        # A table exists while it has entries (`_held`) or a handle refers to it: there may be ever new namespaces.
        self._tables: WeakValueDictionary[Place, HeapTable] = WeakValueDictionary()
        self._held: dict[Place, HeapTable] = {}
        self._timers: dict[str, HeapTimers] = {}
        #: By state, the keys with a value, as of the newest final epoch.
        self._keys: dict[str, int] = {}
        self._touched: dict[HeapTable, None] = {}
        self._sealed: dict[HeapTable, None] = {}
        self._lock = Lock()
        #: By state: the epoch and the keys of committed scans that are open.
        self._frozen: WeakValueDictionary[str, KeyIndex[HeapTable]] = WeakValueDictionary()
        self._running = self._committed = self._final = NO_EPOCH
        self._closed = False

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> HeapTable:
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

    def _state(self, descriptor: StateDescriptor) -> HeapState:
        state = self._states.get(descriptor.name)
        if state is None:
            dump = descriptor.serializer.dumper()
            state = HeapState(descriptor, dump, self._group_of, self._encode, self._touch)
            self._states[descriptor.name] = state
        admit_descriptor(descriptor, held=state.descriptor)
        return state

    def timers(self, descriptor: TimerDescriptor) -> HeapTimers:
        self._check_open()
        found = self._timers.get(descriptor.name)
        if found is None:
            admit_timers(descriptor, self._states)
            found = self._timers[descriptor.name] = HeapTimers(self._state(descriptor))
        return found

    def _touch(self, table: HeapTable) -> None:
        self._touched[table] = None
        self._held[table.place] = table

    def begin(self, epoch: int) -> None:
        self._check_open()
        if epoch <= self._committed:
            raise JobError(f"epoch {epoch} cannot begin: epoch {self._committed} is committed already")
        self.finalize(self._committed)
        self._running = epoch

    def commit(self, epoch: int) -> ChangeBlocks:
        self._check_open()
        if epoch <= self._committed:
            raise JobError(f"epoch {epoch} cannot be committed: epoch {self._committed} is already")
        return ChangeBlocks(self._commit(epoch))

    def _commit(self, epoch: int) -> Iterator[ChangeBlock]:
        touched = list(self._touched)
        for table in touched:
            yield from table.blocks()
        for queue in self._timers.values():
            yield from blocks_of(queue.changes())
        with self._lock:
            for table in touched:
                table.seal()
            self._sealed.update(self._touched)
            self._running = self._committed = epoch
        self._touched = {}
        for queue in self._timers.values():
            queue.seal()

    def finalize(self, epoch: int) -> None:
        self._check_open()
        if not self._final < self._committed <= epoch:
            return
        with self._lock:
            for table in self._sealed:
                table.finalize()
            self._final = self._committed
        for table in self._sealed:
            table.settle()
            self._count(table)
        self._release(self._sealed)
        self._sealed = {}

    def rollback(self) -> None:
        self._check_open()
        for table in self._held.values():
            table.rollback()
        with self._lock:
            for table in self._touched:
                table.forget_epoch()
        self._release(self._touched)
        self._touched = {}
        for queue in self._timers.values():
            queue.rollback()
        self._running = self._committed

    def _release(self, tables: Iterable[HeapTable]) -> None:
        for table in tables:
            if table.is_empty():
                self._held.pop(table.place, None)

    def _count(self, table: HeapTable) -> None:
        """Add what has changed in the number of a table's keys: there may be too many tables to count them all."""
        name, counted = table.state.descriptor.name, table.counted
        table.counted = len(table.live)
        self._keys[name] = self._keys.get(name, 0) + table.counted - counted

    def sizes(self) -> StateSizes:
        timers = sum(queue.count for queue in self._timers.values()) if self._timers else None
        return StateSizes(dict(self._keys), timers)

    def reader(self, isolation: Isolation) -> StateReader:
        self._check_open()
        return _LiveReader(self) if isolation is Isolation.LIVE else _CommittedReader(self)

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        self._check_open()
        filled = self._held or not all(queue.is_empty() for queue in self._timers.values())
        if filled or self._committed != NO_EPOCH:
            raise JobError("only an empty backend can be restored")
        for block in blocks_of(changes):
            wanted = block.within(self._key_groups)
            if wanted.state in self._timers:
                self._timers[wanted.state].load(wanted)
            elif wanted.keys:
                if wanted.state not in self._states:
                    raise JobError(f"the changes contain a state {wanted.state!r} that no function has declared")
                table = self.table(self._states[wanted.state].descriptor, decode_key(wanted.namespace))
                self._held[table.place] = table
                table.load(wanted)
        for queue in self._timers.values():
            queue.order()
        for table in self._held.values():
            self._count(table)
        self._release(list(self._held.values()))
        self._running = self._committed = self._final = epoch
        self._frozen.clear()

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        self._check_open()
        for table in list(self._held.values()):
            yield from table.entries(key_groups)
        for queue in self._timers.values():
            yield from queue.entries(key_groups)

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        self._check_open()
        for table in list(self._held.values()):
            name = table.state.descriptor.name
            if name in wanted:
                yield from table.walk(key_groups, wanted[name])

    def close(self) -> None:
        self._closed = True
        for table in list(self._tables.values()):
            table.live.clear()
        self._held, self._touched, self._sealed, self._timers = {}, {}, {}, {}

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the heap backend was closed")

    # For the readers, from any thread.

    def find(self, descriptor: StateDescriptor, namespace: Namespace) -> HeapTable | None:
        """The table of a namespace; None when it has no entries."""
        self._check_open()
        return self._held.get((descriptor.name, key_identity(namespace)))

    @property
    def running_epoch(self) -> int:
        return self._running

    def images(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int
    ) -> tuple[int, HeapTable | None, list[Any]]:
        """The final epoch and the images of the keys, all of one moment: so it looks up the table under the lock."""
        with self._lock:
            table = self.find(descriptor, namespace)
            if table is None:
                return self._final, None, []
            return self._final, table, table.images(keys, most_bytes)

    def frozen_keys(self, descriptor: StateDescriptor) -> KeyIndex[HeapTable]:
        """The keys and the state of the final epoch, which writes do not change."""
        with self._lock:
            self._check_open()
            found = self._frozen.get(descriptor.name)
            if found is None or found.epoch != self._final:
                frozen = [table.frozen() for table in self._tables_of(descriptor)]
                found = KeyIndex(self._final, ((table, table.final_keys) for table in frozen))
                self._frozen[descriptor.name] = found
            return found

    def live_keys(self, descriptor: StateDescriptor) -> KeyIndex[HeapTable]:
        """The keys that the operator has written so far."""
        self._check_open()
        return KeyIndex(self._running, ((table, table.live_keys) for table in self._tables_of(descriptor)))

    def _tables_of(self, descriptor: StateDescriptor) -> list[HeapTable]:
        return [table for table in list(self._held.values()) if table.state.descriptor.name == descriptor.name]


class _LiveReader(StateReader):
    """Serializes the operator's own objects."""

    def __init__(self, backend: HeapBackend) -> None:
        self._backend = backend

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        epoch = self._backend.running_epoch
        table = self._backend.find(descriptor, namespace)
        if table is None:
            return ReadResult(epoch, [None] * len(keys))
        values = table.values(keys)
        found = _dumped(descriptor, values, most_bytes)
        if found is None:
            dump = _dumper(descriptor, keys)
            found = bounded((_answer(descriptor, dump, value, most_bytes) for value in values), most_bytes)
        return ReadResult(epoch, found)

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        container = descriptor.kind in _CONTAINERS
        dump = descriptor.result_dumper()

        def find(table: HeapTable, key: Key) -> Any:
            value = table.values((key,))[0]
            return None if container and not value else value

        def answer_of(table: HeapTable, value: Any, most_bytes: int) -> Answer:
            return _of_most(most_bytes, lambda: _answer(descriptor, dump, value, most_bytes))

        return HeapScan(self._backend.live_keys(descriptor), find, answer_of)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        if descriptor.kind not in _CONTAINERS:
            return whole_value(descriptor, self.get(descriptor, namespace, (key,)))
        epoch = self._backend.running_epoch
        table = self._backend.find(descriptor, namespace)
        value = None if table is None else table.values((key,))[0]
        return _parts(descriptor, epoch, descriptor.result_dumper(), value)


class _CommittedReader(StateReader):
    """Collects images under the lock and serializes those that are not bytes already outside it."""

    def __init__(self, backend: HeapBackend) -> None:
        self._backend = backend

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        epoch, table, images = self._backend.images(descriptor, namespace, keys, most_bytes)
        if table is None:
            return ReadResult(epoch, [None] * len(keys))
        found = _dumped(descriptor, images, most_bytes)
        if found is None:
            dump = _dumper(descriptor, keys)
            found = bounded((_image_answer(table, descriptor, dump, image) for image in images), most_bytes)
        return ReadResult(epoch, found)

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        dump = descriptor.result_dumper()

        def find(table: HeapTable, key: Key) -> Any:
            return table.images((key,), UNBOUNDED)[0]

        def answer_of(table: HeapTable, image: Any, most_bytes: int) -> Answer:
            return _of_most(most_bytes, lambda: _image_answer(table, descriptor, dump, image))

        return HeapScan(self._backend.frozen_keys(descriptor), find, answer_of)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        if descriptor.kind not in _CONTAINERS:
            return whole_value(descriptor, self.get(descriptor, namespace, (key,)))
        epoch, table, images = self._backend.images(descriptor, namespace, (key,), UNBOUNDED)
        return _parts(descriptor, epoch, None, None if table is None else images[0])


def _parts(descriptor: StateDescriptor, epoch: int, dump: Callable[[Any], bytes] | None, value: Any) -> ValueParts:
    """The parts of a list or map."""
    if descriptor.kind is StateKind.LIST:
        return HeapParts(epoch, dump, elements=value or ())
    return HeapParts(epoch, dump, entries=value)


def _of_most(most_bytes: int, answer_of: Callable[[], Answer]) -> Answer:
    """The answer, or `TOO_LARGE` in its place."""
    try:
        answer = answer_of()
    except TooLarge as exc:
        return exc.code
    return FailureCode.TOO_LARGE if isinstance(answer, bytes) and len(answer) > most_bytes else answer


def _image_answer(table: HeapTable, descriptor: StateDescriptor, dump: Callable[[Any], bytes], image: Any) -> Answer:
    if image is None:
        return None
    try:
        return table.image_answer(descriptor, dump, image)
    except Exception:
        _LOG.exception("state %r: a committed value cannot be serialized", descriptor.name)
        return FailureCode.INTERNAL


def _dumped(descriptor: StateDescriptor, values: Sequence[Any], most_bytes: int) -> Sequence[Answer] | None:
    """The answers for values that cannot change: made all at once if they certainly fit.

    None when there are other values, or one that cannot be serialized: then each answer is made by itself.
    """
    types = set(map(type, values))
    if not types <= _UNCHANGING:
        return None
    try:
        most = _most_bytes(descriptor, types, values)
        if most is not None and most <= most_bytes and most <= _AT_ONCE_BYTES:
            return descriptor.dump_results(values)
        if sum(_least_bytes(descriptor, value) for value in values) > most_bytes:
            raise too_large(most_bytes)
        return bounded(map(descriptor.result_dumper(), values), most_bytes)
    except TooLarge:
        raise
    except Exception as exc:
        _LOG.debug("state %r: each value is serialized by itself", descriptor.name, exc_info=exc)
        return None


def _most_bytes(descriptor: StateDescriptor, types: set[type], values: Sequence[Any]) -> int | None:
    """The most bytes that the values can have together, None if that is unknown without serializing them."""
    plain = type(descriptor.serializer) is MessagePackSerializer and descriptor.kind is not StateKind.AGGREGATING
    if not plain or len(types) != 1:
        return None
    (kind,) = types
    if kind in _FIXED_SIZES:
        return _FIXED_SIZES[kind] * len(values)
    if kind is str or kind is bytes:
        return len(values) * _HEADER_BYTES + _UTF8_BYTES * sum(map(len, values))
    return None


def _dumper(descriptor: StateDescriptor, keys: Sequence[Key]) -> Callable[[Any], bytes]:
    """The function that serializes results. For one value, which may be missing, a dumper costs more than it saves."""
    single = len(keys) == 1 and descriptor.kind not in _CONTAINERS
    return descriptor.dump_result if single else descriptor.result_dumper()


def _answer(descriptor: StateDescriptor, dump: Callable[[Any], bytes], value: Any, most_bytes: int) -> Answer:
    """The answer for one live object, even if it is changing.

    Raises `TooLarge` if the answer is certainly too large before it is made. It may turn out larger: the caller counts.
    """
    if value is None:
        return None
    immutable = type(value) in IMMUTABLE
    if _least_bytes(descriptor, value) > most_bytes:
        raise too_large(most_bytes)
    try:
        if immutable:
            return dump(value)
        if not value and descriptor.kind in _CONTAINERS:
            return None
        answer = live_answer(descriptor, dump, value)
        if len(answer) <= most_bytes:
            _check_whole(descriptor, answer)
    except Exception as exc:
        # User code serializes an object that user code may be changing, so it may raise any exception.
        if immutable:
            _LOG.exception("state %r: a value cannot be serialized", descriptor.name)
            return FailureCode.INTERNAL
        _LOG.debug("state %r: a value changed while it was read", descriptor.name, exc_info=exc)
        return FailureCode.CONCURRENT_MODIFICATION
    return answer


def _least_bytes(descriptor: StateDescriptor, value: Any) -> int:
    """The fewest bytes of a value's answer: in MessagePack each character, element and entry has a byte or more."""
    if type(value) not in _SIZED:
        return 0
    plain = descriptor.kind in _CONTAINERS or type(descriptor.serializer) is MessagePackSerializer
    return len(value) if plain and descriptor.kind is not StateKind.AGGREGATING else 0


def _check_whole(descriptor: StateDescriptor, answer: bytes) -> None:
    """Raise unless the answer is one MessagePack object.

    msgpack writes a list's length first and its elements after: when the list changes in between (it can, while
    a tuple or date inside runs Python code), the bytes are not MessagePack, and no client could read them.
    """
    if descriptor.query_serializer_name == MessagePackSerializer.name:
        msgpack.unpackb(answer, raw=True, strict_map_key=False, use_list=False)
