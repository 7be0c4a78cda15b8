"""The base class of the heap's tables: live objects in dicts, and the layers to restore or read an older epoch.

Rules of this module: it knows epochs only as layers of one table. It takes no lock; the heap does (see `backend`).
The layers of a table, newest first:

    ahead       in value tables that are not read by key: written values that `live` lacks (see `write_ahead`)
    live        the objects that user code changes in place; `get` is this dict's own `get`
    before      keys written since the last commit (S); a value table keeps the old object of each
    committed   bytes as of S; in value tables only of mutable values, in lists and maps of every element
    sealed      the entries that S changed, as of the last final epoch (F); empty when S is final

A mutable object cannot be its own before-image, because user code changes it in place. So every mutable value has
its committed bytes, and only values of immutable types are kept by reference.

Another thread reads F under the lock that seal, finalize and rollback take. It uses `sealed`, else the committed bytes,
else the live object, which it reads *before* `before`. The operator writes `before` first and `live` second, so when
`before` has nothing for the key, the object read earlier was S's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from qstate.backends.admission import refused_write
from qstate.backends.answers import too_large
from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import Change, ChangeOp, StateTable, Wanted
from qstate.descriptors import StateDescriptor
from qstate.errors import SerializationError
from qstate.keys import Key, KeyGroupRange, Namespace, decode_keys, key_identity

_NEW = tuple.__new__

__all__ = ["HeapState", "HeapTable", "Place", "find_all", "sized"]

#: The name of a state, and a namespace as `key_identity` has it.
Place = tuple[str, Any]


def find_all(live: dict[Key, Any], keys: Sequence[Key]) -> Sequence[Any]:
    """The object in `live` for each key, or None, in one step of the interpreter.

    The processor waits for memory at each look-up in a dict that is larger than the caches. If all keys are hashed
    beforehand and one loop in C does only look-ups, it starts the next ones while it waits: 100 keys of 20,000 took
    59 us instead of 85, of a million 138 instead of 184.
    """
    if len(keys) > 1:
        hash(tuple(keys))  # text caches its hash; text that was just received has none yet
        try:
            found: tuple[Any, ...] = itemgetter(*keys)(live)
        except KeyError:
            return list(map(live.get, keys))
        return found
    return list(map(live.get, keys))


def sized(images: Iterable[Any], most_bytes: int) -> list[Any]:
    """Images of lists or maps. Raises `TooLarge`, and makes no further one, once they have more elements than bytes."""
    found: list[Any] = []
    elements = 0
    for image in images:
        found.append(image)
        elements += len(image) if image is not None else 0
        if elements > most_bytes:
            raise too_large(most_bytes)
    return found


class HeapState(NamedTuple):
    """What the tables of one state share, in all namespaces."""

    descriptor: StateDescriptor
    dump: Callable[[Any], bytes]
    group_of: Callable[[Key], int]
    encode: Callable[[Namespace], bytes]
    #: Called with a table when the first key of an epoch is written: the heap then holds it.
    touched: Callable[[HeapTable], None]


class HeapTable(StateTable):
    """What the heap needs from a table of any kind."""

    # `get` is the live dict's own `get`: no Python frame between operator and state.
    __slots__ = ("get",)
    get: Callable[[Key], Any]  # type: ignore[assignment]  # mypy wants a method where a method was

    def __init__(self, state: HeapState, namespace: Namespace) -> None:
        self.state = state
        self.namespace = namespace
        self.place: Place = (state.descriptor.name, key_identity(namespace))
        self.live: dict[Key, Any] = {}
        #: How many keys `live` had when the heap counted them last.
        self.counted = 0
        self._name = state.descriptor.name
        self._dump = state.dump
        self._encode = state.encode
        self._group_of = state.group_of
        self._dump_all = state.descriptor.serializer.dump_all
        self._load = state.descriptor.serializer.loads
        self._load_all = state.descriptor.serializer.load_all
        self.encoded_namespace = state.encode(namespace)
        # The layers, and what `blocks` has serialized for the next `seal`. Each kind of table says what it has in them.
        self._before: dict[Key, Any] = {}
        self._committed: dict[Key, Any] = {}
        self._staged: dict[Key, Any] = {}
        self._sealed: dict[Key, Any] = {}

    def get_many(self, keys: Sequence[Key]) -> Sequence[Any]:
        return find_all(self.live, keys)

    def values(self, keys: Sequence[Key]) -> Sequence[Any]:
        """The live object, or None, of each key. Any thread."""
        return find_all(self.live, keys)

    @abstractmethod
    def blocks(self) -> Iterator[ChangeBlock]:
        """The serialized changes of the running epoch. No layer changes until `seal`, so a failure has no effect."""

    @abstractmethod
    def seal(self) -> None:
        """Make the running epoch, whose `blocks` were exhausted, the committed one."""

    @abstractmethod
    def finalize(self) -> None:
        """Forget the layer below the committed one."""

    def settle(self) -> None:
        """The second step of finalizing, for slow work outside the lock: readers must not see a difference."""
        return

    @abstractmethod
    def rollback(self) -> None:
        """Restore the committed values of the live objects, even of those that user code changed without a write."""

    def forget_epoch(self) -> None:
        """The second step of a rollback: drop the running epoch's writes."""
        self._before, self._staged = {}, {}

    @abstractmethod
    def image(self, key: Key) -> Any:
        """The key's value in F, in a form that later epochs cannot change; None without a value."""

    def images(self, keys: Sequence[Key], most_bytes: int) -> list[Any]:
        """`image` of each key. Raises `TooLarge` when their answers are certainly larger than `most_bytes`."""
        return [self.image(key) for key in keys]

    @abstractmethod
    def image_answer(self, descriptor: StateDescriptor, dump: Callable[[Any], bytes], image: Any) -> bytes:
        """The query answer of an image that is not None; needs no lock."""

    @abstractmethod
    def frozen(self) -> HeapTable:
        """A table of its own that has the state in F, for `image` and `final_keys`. Needs the lock.

        It shares the objects and copies the dicts, at the speed of `dict.copy`.
        """

    @abstractmethod
    def final_keys(self) -> Iterable[Key]:
        """The keys of a frozen table that may have a value in F, each once."""

    def live_keys(self) -> Iterable[Key]:
        """A copy of the keys that live readers see, each once. Any thread."""
        return list(self.live)

    def entries(self, groups: KeyGroupRange) -> Iterator[Change]:
        """The committed state of these key groups, as changes."""
        for key in self.committed_keys():
            group = self._group_of(key)
            data = self.committed_data(key) if group in groups else None
            if data is not None:
                yield self.change(ChangeOp.PUT, group, self._encode(key), data)

    def walk(self, groups: KeyGroupRange, wanted: Wanted) -> Iterator[Change | None]:
        """See `StateBackend.walk`. A dict has no position to continue from, so a walk keeps a copy of the keys."""
        for key in self.committed_keys():
            data = self.committed_data(key)
            if data is not None:
                # The key group last: to compute it costs more than the rest.
                found = wanted(data) and (group := self._group_of(key)) in groups
                yield self.change(ChangeOp.PUT, group, self._encode(key), data) if found else None

    @abstractmethod
    def committed_keys(self) -> list[Key]:
        """A copy of the keys that may have a committed value."""

    @abstractmethod
    def committed_data(self, key: Key) -> bytes | None:
        """The data of a PUT of the committed value, None without one. Not for maps, which have no PUT."""

    def load(self, block: ChangeBlock) -> None:
        """Apply changes that are committed and final already."""
        keys: Sequence[Any] = decode_keys(block.keys)
        if block.op is not ChangeOp.DELETE:
            self._load_data(block, keys)
            return
        for key in keys:
            self.live.pop(key, None)
            self._committed.pop(key, None)

    @abstractmethod
    def _load_data(self, block: ChangeBlock, keys: Sequence[Any]) -> None:
        """Apply changes of these keys that are no DELETE."""

    def is_empty(self) -> bool:
        """Whether all layers are empty, so that the heap need not keep the table."""
        return not (self.live or self._before or self._sealed)

    def change(self, op: ChangeOp, group: int, key: bytes, data: bytes = b"", map_key: bytes = b"") -> Change:
        # The named tuple's own `__new__` is a Python function around this call: without it commits are a fifth faster.
        return _NEW(Change, (op, self._name, group, self.encoded_namespace, key, map_key, data))

    def _failure(self, key: Any, exc: Exception, map_key: Key | None = None) -> SerializationError:
        return refused_write(self._name, self.namespace, key, exc, map_key)
