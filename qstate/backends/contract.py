"""The backend contract: what a state backend promises, and what a third party has to write.

Rules of this module: the server, the proxy and the operators know nothing else of a backend. It contains no storage.
Every MUST has an id; each test of the conformance suite cites one.

Five objects, and the threads that may use them:

    StateBackend   one per operator subtask; owns a key-group range      the operator's thread only
    StateTable     one state in one namespace; reads and writes by key   the operator's thread only
    TimerQueue     the timers of one time domain, in order of time       the operator's thread only
    StateReader    answers queries with serialized values                any other thread

The life of a backend, epoch by epoch (an epoch is one Spark micro-batch):

    begin(n) -> writes ... -> commit(n) -> [Spark commits the batch] -> finalize(n) -> begin(n + 1) ...
                   |              |
                   +--rollback()--+-- back to the last commit; commit(n) itself cannot be undone: a caller that
                                      fails to make the changes durable discards the backend and restores a new one

None is not a value: a table has a value for a key or it has none. Only an entry of a map can have the value None.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from qstate.backends.value_parts import LARGEST_WHOLE, ValueParts, whole_value
from qstate.descriptors import StateDescriptor, TimerDescriptor
from qstate.errors import FailureCode, UnsupportedOperation
from qstate.keys import Key, KeyGroupRange, Namespace

__all__ = [
    "UNBOUNDED",
    "BackendContext",
    "BackendOption",
    "Capability",
    "Change",
    "ChangeOp",
    "Isolation",
    "ReadResult",
    "Scanned",
    "Selection",
    "StateBackend",
    "StateReader",
    "StateScan",
    "StateSizes",
    "StateTable",
    "Timer",
    "TimerQueue",
    "ValueParts",
    "Wanted",
]

#: A test of an entry's data, as in `Change`.
Wanted = Callable[[bytes], bool]

#: The `most_bytes` of a read whose answer may be of any size.
UNBOUNDED = (1 << 63) - 1


class Capability(Enum):
    """What a backend declares on its class. The server refuses the rest; the suite proves what is declared."""

    SNAPSHOT_READS = "guarantee: a live read never shows a torn value or a map or list mixed from two moments"
    LARGER_THAN_MEMORY = "guarantee: memory stays bounded while the state grows"
    COMMITTED_READS = "operation: reader(Isolation.COMMITTED)"
    SCANS = "operation: StateReader.scan"
    PARTS = "guarantee: StateReader.parts reads a value of any size, one entry or element at a time"


class Isolation(Enum):
    """What a query sees: the running epoch's writes, or only epochs that Spark has committed."""

    LIVE = "live"
    COMMITTED = "committed"


class ChangeOp(Enum):
    """How an entry changed. The numbers are those of the epoch log and never change."""

    PUT = 1
    DELETE = 2
    MAP_PUT = 3
    MAP_REMOVE = 4
    LIST_ADD = 5


class Change(NamedTuple):
    """One changed entry, in the form that every backend writes and reads.

    `key`, `namespace` and `map_key` are encoded by `qstate.keys.encode_key`. By `op`:

        PUT         the whole value. `data`: the serializer's bytes; for a list, a MessagePack array of the
                    elements' bytes (each a bin). A map has no PUT: a whole map is a DELETE and then MAP_PUTs.
        DELETE      the key has no value any more (for a map: no entries). `data` is empty.
        MAP_PUT     one entry of a map was set. `data`: the serializer's bytes.
        MAP_REMOVE  one entry of a map was removed. `data` is empty.
        LIST_ADD    elements were added at a list's end, encoded as for PUT.
    """

    op: ChangeOp
    state: str
    group: int
    namespace: bytes
    key: bytes
    map_key: bytes
    data: bytes


class ReadResult(NamedTuple):
    """The answer to one read: its epoch and, for each key, the value's bytes, None (no value) or a failure code."""

    epoch: int
    values: Sequence[bytes | FailureCode | None]


class Scanned(NamedTuple):
    """A key that a scan visits, encoded by `qstate.keys.encode_key`, as its namespace is.

    `value` is what `StateReader.get` answers for the key, or None when the scan visits keys only.
    """

    namespace: bytes
    key: bytes
    value: bytes | FailureCode | None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which keys a scan visits, and what it says of them.

    `namespace`: the only namespace, encoded; None: every one. `prefix`: the bytes that an encoded key begins with.
    `values`: whether to read the values. A value of more than `most_bytes` bytes is the failure `TOO_LARGE`.
    """

    namespace: bytes | None = None
    prefix: bytes = b""
    values: bool = True
    most_bytes: int = UNBOUNDED


@dataclass(frozen=True, slots=True)
class StateSizes:
    """How large a subtask's state is, as of the newest final epoch. What a backend cannot tell cheaply is missing.

    `keys` has the number of keys with a value for each state, over all namespaces. `entries` (of all states and timers)
    and `bytes` (of memory and disk) may be estimates.
    """

    keys: Mapping[str, int] = field(default_factory=dict)
    timers: int | None = None
    entries: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class BackendOption:
    """An option that a backend takes from the job config: its type (bool, int, float or str), default and meaning."""

    type: type
    default: Any
    doc: str
    minimum: float | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BackendContext:
    """What a backend is opened with.

    `directory` is an empty directory for this backend alone, and for scratch files only: the epoch log outlives the
    process, the directory does not. `options` are complete, and checked against the class's `options`.
    """

    key_groups: KeyGroupRange
    max_parallelism: int
    directory: Path
    options: Mapping[str, Any] = field(default_factory=dict)


class StateTable(ABC):
    """The entries of one state in one namespace, by key. Only the operator's thread may use it.

    T1: `get` after `put` MUST return an equal value of equal types, as the descriptor's serializer reads it back, in
        this epoch and in every later one, until `delete`, another `put` or a rollback. So a function sees no difference
        between a backend that keeps the object and one that keeps its bytes.
    T2: `get` MUST return None for a key that has no value.
    T3: The entries of different namespaces, states and keys MUST NOT be confused, however long or similar these are.
        The keys of one table have the same types. Namespaces and map keys may have different ones: namespaces that
        equal each other in Python, such as True and 1, are different (`qstate.keys.key_identity`).
    T4: A value that was passed to `put` belongs to the backend: the caller may mutate it only if it puts it again.
        A value that `get` returned may be the stored object itself; the same holds for it.
    T5: An empty list and an empty map MUST read as no value (None from `get`).
    T6: `put`, `delete`, `list_add`, `map_put` and `map_remove` MUST be covered by the next `commit` or undone by
        the next `rollback`.
    T7: `put_many` MUST do what `put` of each pair does, in their order: of equal keys the last one counts. `get_many`
        MUST return what `get` of each key returns, in their order; a key may come several times.
    T8: `list_add` MUST keep the list's elements and their order and add the new ones at the end, each element once.
        The order is the job's: `get`, `list_items`, answers, changes, entries and restored backends of any kind MUST
        have it. A result of `list_items` MUST NOT change through later writes, a commit or a rollback.
    T9: `map_put` and `map_remove` MUST change their entry and no other; `map_get`, `map_contains` and `map_items` MUST
        agree with `get`. A result of `map_items` MUST NOT change through later writes, a commit or a rollback. A map
        has no order: a backend MAY return its entries, in reads, answers, changes and `entries`, in any order. A null,
        an entry whose value is None, MUST NOT be treated as a missing entry: reads, answers, changes, `entries` and
        restored backends of any kind MUST have it, and `map_remove` MUST remove it.
    T10: A value that could not be read back unchanged MUST raise `SerializationError`, from the write or from the
        commit: None as a value or an element; a map key that is not a key; a value that the serializer refuses. The
        serializer also decides whether a map's value may be None, and writes it as it writes any value.
    T11: Each entry that an epoch changed MUST be written by the serializer of the descriptor that was passed to
        `table`, before the epoch is sealed. The serializer refuses a value that does not have the declared type or
        could not be read back unchanged; the backend need not check that itself.
    T12: Restored values MUST be read and kept unchanged, even if the serializer would refuse to write them: a program
        may have declared its types, or had them enforced, only after the state was stored.
    T13: With LARGER_THAN_MEMORY, memory MUST stay bounded while the results of `map_items` and `list_items` are read,
        however large the map or the list is.
    T14: The values of a state with a time-to-live are pairs (time, value), which the serializer of the descriptor
        (`qstate.backends.expiry.stored_form`) writes together. A backend MUST keep them as it keeps any value: no
        commit, rollback or restore changes a time, and a value that differs only in its time is another value.

    A table needs three methods. The list and map operations have defaults that rewrite the whole value; a backend that
    can append or address entries overrides them.
    """

    @abstractmethod
    def get(self, key: Key) -> Any:
        """The value of a key, or None: for a list state a list, for a map state a dict."""

    @abstractmethod
    def put(self, key: Key, value: Any) -> None:
        """Set the value of a key; `value` is not None. Raises `SerializationError` now or at commit."""

    @abstractmethod
    def delete(self, key: Key) -> None:
        """Remove the value of a key, if it has one."""

    def get_many(self, keys: Sequence[Key]) -> Sequence[Any]:
        """`get` for many keys: a value or None for each, in their order."""
        return list(map(self.get, keys))

    def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        """`put` for many keys; of equal keys the last one counts."""
        for key, value in zip(keys, values, strict=True):
            self.put(key, value)

    def list_add(self, key: Key, values: Sequence[Any]) -> None:
        """Add elements at the end of the key's list."""
        found = self.get(key)
        self.put(key, [*found, *values] if found else list(values))

    def list_items(self, key: Key) -> Iterator[Any]:
        """The elements of the key's list as they are now, one by one; later writes do not change the result."""
        return iter(list(self.get(key) or ()))

    def map_get(self, key: Key, map_key: Key) -> Any:
        """The value of one entry of the key's map, which may be None, or None without one."""
        found = self.get(key)
        return found.get(map_key) if found else None

    def map_contains(self, key: Key, map_key: Key) -> bool:
        """Whether the key's map has an entry. The default reads the whole map unless `map_get` gives a value."""
        return self.map_get(key, map_key) is not None or map_key in (self.get(key) or ())

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        """Set one entry of the key's map."""
        self.put(key, {**(self.get(key) or {}), map_key: value})

    def map_remove(self, key: Key, map_key: Key) -> None:
        """Remove one entry of the key's map, if it is there."""
        found = self.get(key)
        if found and map_key in found:
            rest = {name: value for name, value in found.items() if name != map_key}
            self.put(key, rest) if rest else self.delete(key)

    def map_items(self, key: Key) -> Iterator[tuple[Key, Any]]:
        """The entries of the key's map as they are now, one by one, in any order; later writes do not change the
        result. Raises `SerializationError` for an earlier write whose value does not fit."""
        return iter(list((self.get(key) or {}).items()))


class Timer(NamedTuple):
    """A timer: its time in milliseconds since 1970-01-01 UTC, and the namespace and key that it was registered for."""

    time: int
    namespace: Namespace
    key: Key


class TimerQueue(ABC):
    """The timers of one time domain of a subtask, for all namespaces and keys. Only the operator's thread may use it.

    Q1: `add` of a timer that the queue holds, and `remove` of one that it does not hold, MUST change nothing. Timers of
        equal time, namespace and key are one timer.
    Q2: `take` MUST return the earliest timers first, however they were added, and timers of one time in the order of
        the encoded namespaces, then of the encoded keys. It MUST leave none out up to `upto`, unless `limit` ends it.
    Q3: A timer that `take` returned is removed, as by `remove`.
    Q4: `add`, `remove` and `take` MUST be covered by the next `commit` or undone by the next `rollback`. A timer that
        was added and removed in one epoch MAY be a change of it (a `MAP_REMOVE`) only if it was there before.
    Q5: A time MUST be any integer of 64 bits. Times outside raise `SerializationError`, and change nothing.
    Q6: In changes, a timer is the entry of a map: `MAP_PUT` with the time as map key and True as value when it was
        added, `MAP_REMOVE` when it was removed. `entries` and `restore` MUST use the same form.
    """

    @abstractmethod
    def add(self, timer: Timer) -> None:
        """Hold a timer. Raises `SerializationError` for a time that is not an integer of 64 bits."""

    @abstractmethod
    def remove(self, timer: Timer) -> None:
        """Hold the timer no longer, if it is held."""

    @abstractmethod
    def take(self, upto: int, limit: int) -> list[Timer]:
        """Remove and return at most `limit` timers of a time up to and including `upto`, earliest first."""

    @abstractmethod
    def first(self) -> int | None:
        """The time of the earliest timer, None when there is none."""


class StateReader(ABC):
    """Answers queries from any thread, while the operator's thread writes.

    R1: `get` MUST answer for each key, in order. Apart from R8, it MUST NOT raise because of the value of one key.
    R2: With SNAPSHOT_READS, no answer is torn. Without, the answer for a torn value is what was read, or
        `CONCURRENT_MODIFICATION`; in both cases the stored state MUST be unharmed. The answers for the keys of one live
        `get` MAY be of different moments.
    R3: A committed reader MUST show exactly the last finalized epoch, the same one for all keys of a `get`, however
        many, and its epoch number MUST NOT decrease. Before the first finalized epoch its epoch MUST be -1, and it
        shows the state that was restored as of epoch -1, or no values. (If the backend was not restored, epoch -1 means
        that no epoch has been committed, and the server refuses the query.)
    R4: After `close` of the backend, `get` MUST raise `ClosedError` or answer as before, never crash.
    R5: An answer MUST have the form that `get` describes, which is the same for every backend.
    R6: A live reader MUST show every write that came before a `publish`, `commit` or `restore`, even if the reader was
        opened earlier. Its epoch MUST be that of the last `begin`, `commit` or `restore`; after `rollback`, that of the
        last `commit` or `restore`.
    R7: The answer for a key without a value, and for a state or namespace without values, MUST be None.
    R8: `get` MUST raise `TooLarge` when the values of `keys` are together larger than `most_bytes`; a key that `keys`
        contains several times counts each time. It MUST raise before it reads or serializes another value: it holds no
        more than `most_bytes` and one value at a time.
    """

    @abstractmethod
    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        """The serialized values of `keys`, as the wire carries them. `qstate.backends.answers.bounded` counts them.

        Value and reducing states: the serializer's bytes. Aggregating: the result's bytes. List: a MessagePack
        array of the elements; map: a MessagePack map from map key to value. The array or map contains the bytes of an
        element or value directly if the serializer is `msgpack`, otherwise as a bin (`qstate.backends.answers`).
        """

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        """Begin to visit all keys of a state, for a backend that declares SCANS. The caller closes the result.

        There is no default that works: `get` finds the keys that it is given, and no others.
        """
        raise UnsupportedOperation("this backend does not declare SCANS")

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        """The value of one key, to be read part by part. The caller closes the result.

        The default reads the value whole, and raises `TooLarge` if it has more than `LARGEST_WHOLE` bytes. A backend
        that declares PARTS has one of its own, for lists and maps at least. Raises what `get` raises, and the
        `QueryError` of a failure that `get` answers.
        """
        return whole_value(descriptor, self.get(descriptor, namespace, (key,), LARGEST_WHOLE))


class StateScan(ABC):
    """Visits the keys of one state that have a value, one key group at a time. Any thread; several at the same time.

    N1: `entries` MUST visit each key of the group that has a value and is selected, once, in the order of the encoded
        namespaces, and within one namespace in the order of the encoded keys; with `after`, only the keys that come
        after this place, at which nothing need be stored. So a scan can go on at another backend.
    N2: The value MUST be what `StateReader.get` of the same isolation answers for the key.
    N3: A committed scan MUST show the last epoch that was final when it began, `epoch`, until `close`, whatever is
        written, committed, rolled back or finalized meanwhile.
    N4: A live scan MUST visit every key that has a value from the beginning of the scan to the end of `entries`; it MAY
        visit those that come or go meanwhile. Its values MAY be of different moments, each as in a live `get`. `epoch`
        MUST be the one that a live `get` would have had at the beginning. Writes that are neither published nor
        committed MAY be missing.
    N5: A value of more than `most_bytes` MUST be `TOO_LARGE`, and the visit MUST go on with the next key. A visit holds
        no more than that and one element of a list, entry of a map or value at a time.
    N6: After `close` of the backend, `entries` MUST raise `ClosedError`, end early or visit as before, never crash.
    N7: With LARGER_THAN_MEMORY, memory MUST stay bounded while the state is scanned.
    """

    #: The epoch that the scan shows.
    epoch: int

    def prepare(self) -> Iterator[None]:
        """What takes long before the first entries, in parts of about a millisecond. `entries` works without it."""
        return iter(())

    @abstractmethod
    def entries(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Scanned]:
        """The selected keys of a key group of the backend, after the place (encoded namespace, encoded key)."""

    @abstractmethod
    def close(self) -> None:
        """Free what the scan holds. Idempotent. Results of `entries` may end early or raise `ClosedError` then."""


class StateBackend(ABC):
    """Holds the keyed state of one operator subtask.

    B1: Opening MUST NOT touch anything outside `context.directory`, and MUST work with any name of that directory.
    B2: `table` MUST return the same entries for equal descriptor names and namespaces, and raise `JobError` when a
        name is used again with another kind.
    B3: Replaying the changes of every `commit`, in order, into an empty backend MUST give the same state.
    B4: After `rollback` every table and live reader MUST show the state of the last `commit` (or `restore`), whether
        anything was written since or not.
    B5: `entries` MUST yield the committed state of exactly the requested key groups, as changes that build it. The
        caller MAY read them while the next epoch writes, and they MUST NOT show these writes. The caller finishes
        before the next `commit`, `rollback` or `close`.
    B6: `close` MUST be idempotent and free every resource. Afterwards tables may raise `ClosedError` or not, but MUST
        NOT crash the process; the methods of this class, except `close` and `publish`, MUST raise `ClosedError`.
    B7: An operation that is not declared in `capabilities` MUST raise `UnsupportedOperation`.
    B8: `begin` and `commit` MUST raise `JobError` for an epoch that is not later than the last committed one.
    B9: `commit` MUST yield each entry that the epoch changed once, with its last value, and no entry that was not
        written. A map's DELETE MUST come before its MAP_PUTs; all other changes of an epoch MAY come in any order. An
        entry that was written without a change of its value MAY be yielded, and a list or map that was written MAY be
        yielded whole: a list by PUT, a map by DELETE and MAP_PUTs.
    B10: Every backend MUST encode a change as `Change` says, so that any other can load it.
    B11: When `commit` raises `SerializationError`, nothing MUST be sealed, the backend MUST keep the epoch's writes,
        and `rollback` MUST work.
    B12: `begin` MUST make the epoch before final. `finalize` MUST be idempotent, and do nothing for an epoch earlier
        than the last committed one.
    B13: `restore` MUST leave out the changes of other key groups, and accept the changes of several backends one after
        the other.
    B14: Restored state MUST be committed and final as of the given epoch, which is -1 for state from before epoch 0.
    B15: `restore` MUST raise `JobError` when the backend is not empty or has committed, and for a change of a state
        that was not passed to `table` or `timers`.
    B16: `table` MUST raise `WrongKeyType` for a namespace that cannot be a key.
    B17: With LARGER_THAN_MEMORY, memory MUST stay bounded while the state grows.
    B18: A process that was killed at any moment MUST NOT prevent a new instance from opening in another directory and
        being restored.
    B19: Values of any size, and any number of states, namespaces, keys and changes in an epoch MUST be kept, yielded
        and restored whole, as far as memory (with LARGER_THAN_MEMORY, disk) suffices.
    B20: The resources of a backend (memory, disk, open files, threads) MUST be bounded by its state and by the writes
        of its last epochs, however many epochs, writes and reads came before.

    B21: `walk` MUST visit, once, every entry of the given states and key groups that is committed from its beginning to
        its end, as of one of the commits in between; it MAY visit entries that come or go meanwhile. The caller MAY
        read it in small pieces, with writes, commits and rollbacks between them. Without a commit or rollback in
        between, the entries of one map MUST come one after another. Apart from the default, each piece
        MUST take time and memory by its own size, and an unread rest MUST hold no resource of an earlier epoch.

    A third party with an ordered key-value store subclasses `qstate.backends.ByteStore` instead of this class.
    """

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[Capability]] = frozenset()
    options: ClassVar[Mapping[str, BackendOption]] = {}

    @abstractmethod
    def __init__(self, context: BackendContext) -> None:
        """Open an empty backend."""

    @abstractmethod
    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> StateTable:
        """The table of one state and namespace; each call returns the same object or an equal view."""

    @abstractmethod
    def timers(self, descriptor: TimerDescriptor) -> TimerQueue:
        """The queue of the timers that are stored under the descriptor's name; each call returns the same object.

        Raises `JobError` for the name of a state that `table` was asked for.
        """

    @abstractmethod
    def begin(self, epoch: int) -> None:
        """Start an epoch. This makes the epoch before final: an earlier `commit` cannot be rolled back any more."""

    @abstractmethod
    def commit(self, epoch: int) -> Iterable[Change]:
        """Seal the epoch and yield the entries that it changed, each with its last value.

        The caller exhausts the result before it calls anything else: the epoch is sealed when the result ends. Live
        readers show the changes at once; committed readers show them after `finalize`. Raises `SerializationError`, at
        once or during the iteration, when a value does not fit; the backend then still holds the unsealed epoch and
        `rollback` works.

        A backend that can make its changes a column at a time returns `qstate.backends.change_blocks.ChangeBlocks`,
        which the epoch log writes faster than single changes.
        """

    @abstractmethod
    def finalize(self, epoch: int) -> None:
        """Record that Spark has committed the epoch: committed readers now show it. Idempotent."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo every write since the last `commit` (or `restore`)."""

    def publish(self) -> None:
        """Show all writes so far to live readers. For a backend that buffers writes.

        The operator's thread calls it when it is about to wait for input; without buffered writes it costs nothing.
        Raises `SerializationError` when a value does not fit; `rollback` works then.
        """
        return

    @abstractmethod
    def reader(self, isolation: Isolation) -> StateReader:
        """A reader for other threads. Raises `UnsupportedOperation` for an isolation that is not declared."""

    @abstractmethod
    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        """Fill an empty backend with changes up to and including `epoch` (-1: from before epoch 0); then it is final.

        Changes of key groups outside `context.key_groups` are left out. The caller has passed every state name in
        `changes` to `table` before.

        A backend that can load a column at a time reads `qstate.backends.change_blocks.blocks_of(changes)`, which the
        epoch log yields faster than single changes.
        """

    @abstractmethod
    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        """The last committed state of these key groups as PUT and MAP_PUT changes, each entry once, in any order."""

    def walk(self, wanted: Mapping[str, Wanted], key_groups: KeyGroupRange) -> Iterator[Change | None]:
        """Visit the committed entries of some states, for a caller that reads a few of them in each epoch.

        `wanted` has the states by name, each with a test of an entry's `data`. For each entry the result has the
        change, as in `entries`, if its data is wanted, else None. Of entries that are not wanted it may make nothing.

        The default reads the entries of a key group at once, each group by itself.
        """
        for group in range(key_groups.start, key_groups.stop):
            for change in list(self.entries(KeyGroupRange(group, group + 1))):
                if change.state in wanted:
                    yield change if wanted[change.state](change.data) else None

    def sizes(self) -> StateSizes:
        """What the backend knows about the size of its state, for metrics.

        The operator's thread calls it about once an epoch, so it must not take longer with more state. The default
        knows nothing.
        """
        return StateSizes()

    @abstractmethod
    def close(self) -> None:
        """Free every resource; the backend may leave the scratch directory to the caller."""

    def __enter__(self) -> StateBackend:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
