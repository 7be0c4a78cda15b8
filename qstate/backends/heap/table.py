"""What the heap's tables share: live objects in dicts, and what it takes to go back to, or read, an older epoch.

Rules of this module: it knows epochs only as layers of one table. It takes no lock; the heap does (see there).
What a table tells about one key, newest layer first:

    ahead       value tables that nobody reads by key: what was written and `live` does not have yet (`heap_values`)
    live        the objects that user code works on, in place; `get` is this dict's own `get`
    before      keys written since the last commit (S); a value table keeps the old object of each
    committed   bytes as of S; for value tables only of mutable values, for lists and maps of every element
    sealed      what S changed, as of the last final epoch (F); empty when S is final

A mutable object cannot be its own before-image, because user code changes it in place. So every mutable value has
its committed bytes, and only values of immutable types are kept by reference.

Reading F from another thread, under the lock that seal, finalize and rollback take: `sealed` wins; else the
committed bytes; else the live object, but read *before* looking into `before`. The operator writes `before` first
and `live` second, so when `before` has nothing for the key, the object read earlier was S's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from typing import Any, NamedTuple

from qstate.backends.admission import refused_write
from qstate.backends.answers import too_large
from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import Change, ChangeOp, StateTable
from qstate.descriptors import StateDescriptor
from qstate.errors import SerializationError
from qstate.keys import Key, KeyGroupRange, Namespace

_NEW = tuple.__new__

__all__ = ["IMMUTABLE", "HeapState", "HeapTable", "find_all", "sized"]

#: Values of exactly these types cannot change in place, so a reference is as good as a copy.
IMMUTABLE = frozenset((type(None), bool, int, float, complex, str, bytes, Decimal, date, datetime, timedelta))


def find_all(live: dict[Key, Any], keys: Sequence[Key]) -> Sequence[Any]:
    """What `live` holds for each key, None where it holds nothing, in one step of the interpreter.

    A look-up in a dict that is larger than the caches is a handful of accesses to memory that the processor waits for.
    With all keys hashed beforehand, and nothing but look-ups in one loop in C, it begins the next one while it
    waits: 100 keys of 20,000 took 59 us instead of 85, of a million 138 instead of 184.
    """
    if len(keys) > 1:
        hash(tuple(keys))  # text keeps its hash, and has none yet when it was just received
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
    """What the tables of one state share, whatever their namespace."""

    descriptor: StateDescriptor
    dump: Callable[[Any], bytes]
    dump_all: Callable[[list[Any]], list[bytes]]
    group_of: Callable[[Key], int]
    encode: Callable[[Namespace], bytes]
    #: Called with a table when the first key of an epoch is written: the heap then holds it.
    touched: Callable[[HeapTable], None]


class HeapTable(StateTable):
    """What the heap asks of a table of any kind."""

    # Of each table its live dict's own `get`: no Python frame between operator and state.
    __slots__ = ("get",)
    get: Callable[[Key], Any]  # type: ignore[assignment]  # mypy wants a method where a method was

    def __init__(self, state: HeapState, namespace: Namespace) -> None:
        self.state = state
        self.namespace = namespace
        self.live: dict[Key, Any] = {}
        self._name = state.descriptor.name
        self._dump = state.dump
        self._encode = state.encode
        self._group_of = state.group_of
        self._load = state.descriptor.serializer.loads
        self._load_all = state.descriptor.serializer.load_all
        self._encoded_namespace = state.encode(namespace)

    def values(self, keys: Sequence[Key]) -> Sequence[Any]:
        """The live object, or None, of each key. Any thread."""
        return find_all(self.live, keys)

    @abstractmethod
    def blocks(self) -> Iterator[ChangeBlock]:
        """What the running epoch changed, serialized; nothing moves until `seal`, so a failure leaves no trace."""

    @abstractmethod
    def seal(self) -> None:
        """Make the running epoch, whose `blocks` were exhausted, the committed one."""

    @abstractmethod
    def finalize(self) -> None:
        """Forget the layer below the committed one."""

    def settle(self) -> None:
        """The second step of finalizing, for what takes its time: it must change nothing that readers see."""
        return

    @abstractmethod
    def rollback(self) -> None:
        """Bring the live objects back to the committed ones, even those that user code changed unasked."""

    @abstractmethod
    def forget_epoch(self) -> None:
        """The second step of a rollback: the running epoch has no writes any more."""

    @abstractmethod
    def image(self, key: Key) -> Any:
        """What F has for the key, in a form that later epochs cannot change; None for nothing."""

    def images(self, keys: Sequence[Key], most_bytes: int) -> list[Any]:
        """`image` of each key. Raises `TooLarge` when their answers are surely larger than `most_bytes`."""
        return [self.image(key) for key in keys]

    @abstractmethod
    def image_answer(self, descriptor: StateDescriptor, dump: Callable[[Any], bytes], image: Any) -> bytes:
        """The query answer of an image that is not None; needs no lock."""

    @abstractmethod
    def entries(self, groups: KeyGroupRange) -> Iterator[Change]:
        """The committed state of these key groups, as changes."""

    @abstractmethod
    def load(self, block: ChangeBlock) -> None:
        """Apply changes that are committed and final already."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Nothing is stored, in any layer: the heap need not hold the table."""

    def change(self, op: ChangeOp, group: int, key: bytes, data: bytes = b"", map_key: bytes = b"") -> Change:
        # The named tuple's own `__new__` is a Python function that does this: skipping it makes commits a fifth faster.
        return _NEW(Change, (op, self._name, group, self._encoded_namespace, key, map_key, data))

    def _failure(self, key: Any, exc: Exception, map_key: Key | None = None) -> SerializationError:
        return refused_write(self._name, self.namespace, key, exc, map_key)
