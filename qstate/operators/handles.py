"""State handles: a user's function reads and writes state through them.

Rules of this module: a handle knows the backend's table and the current key; it must not know how the table stores
values, nor its operator. A function calls handles for every row, so each handle binds the table's methods when it is
made, and adds only one attribute look-up and one call to the backend's own cost.

None is not a value, except in a map whose declared type takes it. `ValueState.update(None)` clears, as in Flink; all
other methods raise `JobError` for None. What a handle writes has the form that is read back
(`qstate.evolution.admission`): a NumPy scalar becomes a Python number.

A handle may return the stored object itself: treat it as read-only, or change it and put it again.

A method whose name ends with `_many` takes the keys instead, for functions over whole batches. Where there is a current
key it raises `JobError`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import lru_cache
from operator import itemgetter
from typing import Any, NoReturn, TypeVar

from qstate.backends.contract import StateTable
from qstate.descriptors import (
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)
from qstate.errors import JobError, SerializationError
from qstate.evolution.admission import admission_of
from qstate.evolution.value_checks import Misfit, Rule, rule_of
from qstate.evolution.write_checks import null_refusal
from qstate.keys import ColumnType, Key, Namespace, check_key, key_identity
from qstate.operators.many_keys import (
    Namespaces,
    Part,
    Tables,
    Values,
    check_many,
    fold,
    gathered,
    listed,
    parts,
    put_or_delete,
)
from qstate.operators.no_key import NO_KEY
from qstate.operators.time.timers import NO_TIMERS, TimeDomain, TimerService
from qstate.values.value_types import value_type_of

__all__ = [
    "AggregatingState",
    "DefaultingValueState",
    "ElementContext",
    "ListState",
    "MapState",
    "ReducingState",
    "StateHandle",
    "ValueState",
    "check_map_key",
]

Self = TypeVar("Self", bound="StateHandle")

_NONE = type(None)
_FIRST, _SECOND = itemgetter(0), itemgetter(1)
#: Handles that `in_namespace` caches. A new handle costs about a microsecond, and there may be many namespaces.
KEPT_NAMESPACES = 256


class ElementContext:
    """The second argument of `process_element`: the key and the time of the row. Only the operator sets them.

    Times are milliseconds since 1970-01-01 UTC. The watermark and the processing time are those of the epoch: the same
    for all its rows and subtasks, and the same when the epoch is processed again.
    """

    __slots__ = (
        "current_key",
        "key_types",
        "namespace",
        "processing_time",
        "send",
        "time_domain",
        "timers",
        "timestamp",
        "visit",
        "watermark",
    )

    #: The key of the row being processed: a bare value for one key column, a tuple for several.
    current_key: Any
    #: The types of the stream's keys; None where they are not known.
    key_types: Sequence[ColumnType] | None
    #: The event time of the row. None if its event-time column is null, or the stream has no watermark. The row is late
    #: if this is not above the watermark.
    timestamp: int | None
    #: The watermark of the epoch; None while no row has had an event time.
    watermark: int | None
    #: The time of the driver when the epoch began.
    processing_time: int
    #: Registers and deletes timers: of the current key, or of the keys of a batch.
    timers: TimerService
    #: In `on_timer`, the namespace that the timer was registered in; else None.
    namespace: Namespace
    #: In `on_timer`, the time that the timer waited for; else None.
    time_domain: TimeDomain | None
    #: What `output` calls.
    send: Callable[[str, Any], None]
    #: What `apply_to_keyed_state` calls.
    visit: Callable[[StateDescriptor, Callable[[Key, Any], object]], None]

    def __init__(self) -> None:
        self.current_key, self.key_types = NO_KEY, None
        self.timestamp = self.watermark = self.namespace = self.time_domain = None
        self.processing_time = 0
        self.timers = NO_TIMERS
        self.send = _no_side_outputs
        self.visit = _no_visit

    def output(self, name: str, row: Any) -> None:
        """Send a row to a side output. Its form is that of the rows that the function returns.

        Raises `JobError` for a name that `side_outputs` of the operator does not declare, and outside of
        `process_element` and `on_timer`. A row that does not have the columns of the output fails the epoch later.
        """
        self.send(name, row)

    def apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Key, Any], object]) -> None:
        """In `process_broadcast_element`: call `function(key, state)` for every key that has a value of a keyed state.

        Each subtask visits its own keys, one after the other, in no particular order. `state` is the handle of that
        key's state: valid during the call, and in the void namespace. The function may change and clear it; it reaches
        no other state. What it does to the rows must not depend on the order. The visit alone reads no value, so it
        prolongs no time-to-live.

        Raises `JobError` elsewhere, for a function that returns something, such as a generator, and for a state that
        the function did not ask for in `open`.
        """
        self.visit(descriptor, function)


def _no_visit(descriptor: StateDescriptor, function: Callable[[Key, Any], object]) -> NoReturn:
    raise JobError("context.apply_to_keyed_state() is for process_broadcast_element of a keyed stream only")


def _no_side_outputs(name: str, row: Any) -> NoReturn:
    raise JobError(f"no side output is called {name!r}: the operator is declared without side_outputs")


class StateHandle(ABC):
    """One state of the current key, in one namespace."""

    __slots__ = ("_admit", "_cursor", "_delete", "_descriptor", "_kept", "_namespace", "_tables", "_unchanged")

    def __init__(
        self, descriptor: StateDescriptor, cursor: ElementContext, tables: Tables, namespace: Namespace = None
    ) -> None:
        self._descriptor = descriptor
        self._cursor = cursor
        self._tables = tables
        self._namespace = namespace
        self._kept: dict[Any, Any] = {}
        self._unchanged, self._admit = admission_of(descriptor.value_type)
        table = tables(namespace)
        self._delete = table.delete
        self._bind(table)

    @abstractmethod
    def _bind(self, table: StateTable) -> None:
        """Keep the table's methods that this kind of state uses."""

    def in_namespace(self: Self, namespace: Namespace) -> Self:
        """The same state in another namespace, such as a window. None is the void namespace, that of a new handle."""
        if namespace is not None:
            check_key(namespace)
        place = key_identity(namespace)
        handle: Self | None = self._kept.get(place)
        if handle is None:
            if len(self._kept) >= KEPT_NAMESPACES:
                self._kept.clear()
            handle = self._kept[place] = type(self)(self._descriptor, self._cursor, self._tables, namespace)
        return handle

    def clear(self) -> None:
        """Remove the state of the current key."""
        self._delete(self._cursor.current_key)

    def clear_many(self, keys: Sequence[Key], namespaces: Namespaces = None) -> None:
        """Remove the state of each key."""
        for part in self._parts("clear_many()", keys, namespaces):
            for key in part.keys:
                part.table.delete(key)

    def _parts(
        self, operation: str, keys: Sequence[Key], namespaces: Namespaces, *columns: Sequence[Any]
    ) -> Iterator[Part]:
        """The parts of a call by namespace. Raises `JobError` for a call that `check_many` refuses."""
        of_each_key = columns if namespaces is None else (*columns, namespaces)
        check_many(f"state {self._descriptor.name!r}: {operation}", self._cursor, keys, of_each_key)
        return parts(self._tables, self._namespace, namespaces, keys, *columns)

    def _read_many(self, keys: Sequence[Key], namespaces: Namespaces) -> list[Any]:
        found = self._parts("get_many()", keys, namespaces)
        return gathered(((part, part.table.get_many(part.keys)) for part in found), len(keys))

    def _admitted(self, values: Values) -> Sequence[Any]:
        """The values as plain objects, in the form that is read back; a None stays."""
        found, unchanged, admit = listed(values), self._unchanged, self._admit
        if unchanged.issuperset(map(type, found)):
            return found
        return [one if one is None or type(one) in unchanged else admit(one) for one in found]

    def _stored(self, value: Any) -> Any:
        """One computed value in the form that is read back; a None stays, and is refused later."""
        return value if value is None or type(value) in self._unchanged else self._admit(value)

    def _added(self, keys: Sequence[Key], values: Sequence[Any], namespaces: Namespaces) -> Iterator[Part]:
        """The parts of an `add_many` by namespace. Raises `JobError` for None, and as `_parts`."""
        # By type, because `None in values` would call the values' own `__eq__`.
        for place, kind in enumerate(map(type, values)):
            if kind is _NONE:
                raise JobError(
                    f"state {self._descriptor.name!r}, key {keys[place]!r}: add_many() got None, which is not a value"
                )
        return self._parts("add_many()", keys, namespaces, values)

    def _refuse_none(self, operation: str) -> NoReturn:
        raise JobError(f"state {self._descriptor.name!r}: {operation} got None, which is not a value")


class ValueState(StateHandle):
    """One value per key."""

    __slots__ = ("_get", "_put", "_table")
    _get: Callable[[Key], Any]

    def _bind(self, table: StateTable) -> None:
        self._table = table
        self._put = table.put

    def __getattr__(self, name: str) -> Any:
        """Bind `_get` when it is first used: a table of the heap that is never read by key writes batches faster."""
        if name != "_get":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        self._get = self._table.get
        return self._get

    def value(self) -> Any:
        """The value, or None when there is none."""
        return self._get(self._cursor.current_key)

    def get_many(self, keys: Sequence[Key], namespaces: Namespaces = None) -> list[Any]:
        """The value of each key, in their order; None for a key without one. A key may come several times."""
        return self._read_many(keys, namespaces)

    def put_many(self, keys: Sequence[Key], values: Values, namespaces: Namespaces = None) -> None:
        """Set the value of each key; None clears it. Of equal keys, the last one counts."""
        for part in self._parts("put_many()", keys, namespaces, self._admitted(values)):
            put_or_delete(part.table, part.keys, part.given[0])

    def update(self, value: Any) -> None:
        """Set the value; None clears it."""
        if value is None:
            self._delete(self._cursor.current_key)
        else:
            self._put(self._cursor.current_key, value if type(value) in self._unchanged else self._admit(value))


class DefaultingValueState(ValueState):
    """A value state whose descriptor has a default."""

    __slots__ = ()

    def value(self) -> Any:
        """The value, or a copy of the descriptor's default when there is none."""
        return self._with_default(self._get(self._cursor.current_key))

    def get_many(self, keys: Sequence[Key], namespaces: Namespaces = None) -> list[Any]:
        """The value of each key, in their order; a copy of the descriptor's default for a key without one."""
        return list(map(self._with_default, self._read_many(keys, namespaces)))

    def _with_default(self, found: Any) -> Any:
        return deepcopy(self._descriptor.default) if found is None else found  # type: ignore[attr-defined]


class ListState(StateHandle):
    """A list per key. An empty list and no list are the same."""

    __slots__ = ("_add", "_get", "_items", "_put")

    def _bind(self, table: StateTable) -> None:
        self._get = table.get
        self._put = table.put
        self._add = table.list_add
        self._items = table.list_items

    def get(self) -> list[Any]:
        """The elements in the order they were added; an empty list when there are none."""
        return self._get(self._cursor.current_key) or []

    def elements(self) -> Iterator[Any]:
        """The elements one by one, in their order: on RocksDB, a list that is larger than memory.

        It gives the elements as they are now: what is written while it is read does not show. To be read once.
        """
        return self._items(self._cursor.current_key)

    def add(self, value: Any) -> None:
        """Add one element at the end."""
        if value is None:
            self._refuse_none("add()")
        self._add(self._cursor.current_key, (value if type(value) in self._unchanged else self._admit(value),))

    def add_all(self, values: Iterable[Any]) -> None:
        """Add elements at the end, in their order."""
        added = self._checked(values, "add_all()")
        if added:
            self._add(self._cursor.current_key, added)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the elements; an empty iterable clears the list."""
        kept = self._checked(values, "update()")
        if kept:
            self._put(self._cursor.current_key, kept)
        else:
            self._delete(self._cursor.current_key)

    def get_many(self, keys: Sequence[Key], namespaces: Namespaces = None) -> list[list[Any]]:
        """The elements of each key, in the order of the keys; an empty list for a key without any."""
        return [found or [] for found in self._read_many(keys, namespaces)]

    def add_many(self, keys: Sequence[Key], values: Values, namespaces: Namespaces = None) -> None:
        """Add one element for each key at the end of its list. A key may come several times."""
        for part in self._added(keys, self._admitted(values), namespaces):
            lists: dict[Key, list[Any]] = {}
            for key, value in zip(part.keys, part.given[0], strict=True):
                lists.setdefault(key, []).append(value)
            for key, own in lists.items():
                part.table.list_add(key, own)

    def _checked(self, values: Iterable[Any], operation: str) -> list[Any]:
        if values is None:
            self._refuse_none(operation)
        copied = list(values)  # the table keeps this list, and the caller may change its own
        kinds = set(map(type, copied))
        if _NONE in kinds:
            self._refuse_none(operation)
        return copied if kinds <= self._unchanged else list(map(self._admit, copied))


class MapState(StateHandle):
    """A map per key. An empty map and no map are the same.

    `entries`, `keys` and `values` give the map as it is when they are called, one entry at a time: on RocksDB, a map
    that is larger than memory. What is written while they are read does not show. Each result is to be read once.

    The value of an entry can be None if the state is declared so, as in `MapStateDescriptor("m", int | None)` or with
    `object`, and its serializer writes None. Otherwise a write of None raises `JobError`.
    """

    __slots__ = (
        "_items",
        "_key_classes",
        "_map_contains",
        "_map_get",
        "_map_put",
        "_map_remove",
        "_takes_null",
    )
    _descriptor: MapStateDescriptor

    def _bind(self, table: StateTable) -> None:
        self._key_classes = _rule_of_map_keys(self._descriptor.map_key_type).exact
        self._takes_null = False  # until it is known
        self._map_contains = table.map_contains
        self._map_get = table.map_get
        self._map_put = table.map_put
        self._map_remove = table.map_remove
        self._items = table.map_items

    def get(self, map_key: Key) -> Any:
        """The value of an entry, or None when there is none; `contains` distinguishes that from an entry with None."""
        return self._map_get(self._cursor.current_key, map_key)

    def put(self, map_key: Key, value: Any) -> None:
        """Set the value of an entry. Raises `SerializationError` for a map key that is not of the declared type."""
        if value is None:
            self._check_null("put()")
        if type(map_key) not in self._key_classes:
            check_map_key(self._descriptor, map_key)
        self._map_put(
            self._cursor.current_key, map_key, value if type(value) in self._unchanged else self._admit(value)
        )

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set the values of several entries. Raises as `put`, before any entry is set."""
        for map_key, value in entries.items():
            if value is None:
                self._check_null("put_all()")
            if type(map_key) not in self._key_classes:
                check_map_key(self._descriptor, map_key)
        key = self._cursor.current_key
        for map_key, value in entries.items():
            self._map_put(key, map_key, value if type(value) in self._unchanged else self._admit(value))

    def remove(self, map_key: Key) -> None:
        """Remove an entry, if it exists."""
        self._map_remove(self._cursor.current_key, map_key)

    def contains(self, map_key: Key) -> bool:
        """Whether there is an entry."""
        return self._map_contains(self._cursor.current_key, map_key)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """The current entries, in no particular order."""
        return self._items(self._cursor.current_key)

    def keys(self) -> Iterator[Any]:
        """The current map keys, in no particular order."""
        return map(_FIRST, self._items(self._cursor.current_key))

    def values(self) -> Iterator[Any]:
        """The current values, in no particular order."""
        return map(_SECOND, self._items(self._cursor.current_key))

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return next(self._items(self._cursor.current_key), None) is None

    def get_many(self, keys: Sequence[Key], map_keys: Sequence[Key], namespaces: Namespaces = None) -> list[Any]:
        """The value of one entry of each key's map, in the order of the keys; None when there is none."""
        found = self._parts("get_many()", keys, namespaces, map_keys)
        return gathered(((part, list(map(part.table.map_get, part.keys, *part.given))) for part in found), len(keys))

    def put_many(self, keys: Sequence[Key], map_keys: Values, values: Values, namespaces: Namespaces = None) -> None:
        """Set the value of one entry of each key's map. Of equal entries, the last one counts. Raises as `put_all`."""
        names, new = listed(map_keys), self._admitted(values)
        for key, value in zip(keys, new, strict=False):
            if value is None:
                self._check_null("put_many()", f", key {key!r}")
        for map_key in names:
            if type(map_key) not in self._key_classes:
                check_map_key(self._descriptor, map_key)
        for part in self._parts("put_many()", keys, namespaces, names, new):
            for key, map_key, value in zip(part.keys, *part.given, strict=True):
                part.table.map_put(key, map_key, value)

    def remove_many(self, keys: Sequence[Key], map_keys: Values, namespaces: Namespaces = None) -> None:
        """Remove one entry of each key's map, if it exists."""
        for part in self._parts("remove_many()", keys, namespaces, listed(map_keys)):
            for key, map_key in zip(part.keys, *part.given, strict=True):
                part.table.map_remove(key, map_key)

    def _check_null(self, operation: str, where: str = "") -> None:
        """Raises `JobError` unless the value of an entry can be None."""
        if not self._takes_null:
            refusal = null_refusal(self._descriptor)
            if refusal is not None:
                raise JobError(
                    f"state {self._descriptor.name!r}{where}: {operation} got None, which is not a value of this "
                    f"state: {refusal}, or remove the entry"
                )
            self._takes_null = True


class ReducingState(StateHandle):
    """One value per key: all values added so far, combined by the descriptor's reduce function."""

    __slots__ = ("_get", "_put", "_reduce")
    _descriptor: ReducingStateDescriptor

    def _bind(self, table: StateTable) -> None:
        self._get = table.get
        self._put = table.put
        self._reduce = self._descriptor.reduce_function

    def get(self) -> Any:
        """The combined value, or None when nothing was added."""
        return self._get(self._cursor.current_key)

    def add(self, value: Any) -> None:
        """Combine one more value into the state."""
        if value is None:
            self._refuse_none("add()")
        key = self._cursor.current_key
        old = self._get(key)
        if old is not None:
            value = self._reduce(old, value)
            if value is None:
                raise JobError(f"state {self._descriptor.name!r}: the reduce function returned None")
        self._put(key, value if type(value) in self._unchanged else self._admit(value))

    def get_many(self, keys: Sequence[Key], namespaces: Namespaces = None) -> list[Any]:
        """The combined value of each key, in their order; None for a key to which nothing was added."""
        return self._read_many(keys, namespaces)

    def add_many(self, keys: Sequence[Key], values: Values, namespaces: Namespaces = None) -> None:
        """Combine one more value into the state of each key. Values of equal keys are combined in their order."""
        reduce = self._reduce
        for part in self._added(keys, listed(values), namespaces):
            fold(
                part,
                self._descriptor.name,
                "the reduce function",
                lambda old, value: self._stored(value if old is None else reduce(old, value)),
            )


class AggregatingState(StateHandle):
    """An accumulator per key, updated by `add` and read through the descriptor's aggregate function."""

    __slots__ = ("_function", "_get", "_put")
    _descriptor: AggregatingStateDescriptor

    def _bind(self, table: StateTable) -> None:
        self._get = table.get
        self._put = table.put
        self._function = self._descriptor.aggregate_function

    def get(self) -> Any:
        """The aggregate function's result for all values added so far, or None when there are none."""
        accumulator = self._get(self._cursor.current_key)
        return None if accumulator is None else self._function.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add one more value to the accumulator."""
        if value is None:
            self._refuse_none("add()")
        key = self._cursor.current_key
        accumulator = self._get(key)
        if accumulator is None:
            accumulator = self._function.create_accumulator()
        accumulator = self._function.add(value, accumulator)
        if accumulator is None:
            raise JobError(f"state {self._descriptor.name!r}: the aggregate function's add() returned None")
        self._put(key, accumulator if type(accumulator) in self._unchanged else self._admit(accumulator))

    def get_many(self, keys: Sequence[Key], namespaces: Namespaces = None) -> list[Any]:
        """The aggregate function's result for each key, in their order; None for a key to which nothing was added."""
        result = self._function.get_result
        return [None if one is None else result(one) for one in self._read_many(keys, namespaces)]

    def add_many(self, keys: Sequence[Key], values: Values, namespaces: Namespaces = None) -> None:
        """Add one more value to the accumulator of each key. Values of equal keys are added in their order."""
        function = self._function

        def combine(old: Any, value: Any) -> Any:
            return self._stored(function.add(value, function.create_accumulator() if old is None else old))

        for part in self._added(keys, listed(values), namespaces):
            fold(part, self._descriptor.name, "the aggregate function's add()", combine)


def check_map_key(descriptor: MapStateDescriptor, map_key: Any) -> None:
    """Raise `SerializationError` for a map key that does not have the declared type."""
    rule = _rule_of_map_keys(descriptor.map_key_type)
    try:
        if type(map_key) not in rule.exact:
            rule.check(map_key)
    except Misfit as exc:
        raise SerializationError(f"state {descriptor.name!r}, map_key_type: {exc}") from None


@lru_cache(maxsize=256)
def _rule_of_map_keys(map_key_type: Any) -> Rule:
    """The rule for a declared type, cached because each namespace has a handle. Without a type, the table checks."""
    return rule_of(value_type_of(map_key_type), None) or Rule(frozenset(), lambda map_key: None)
