"""The results of queries: read-only views of the five kinds of state, and the read-only containers in them.

Rules of this module: it decodes the bytes of an answer into read-only values, on first access, because callers only
count or compare many answers. It knows serializers and kinds; it must not know where the bytes came from.

A view is a copy of the state at one moment. A change of the view could never change the state, so every mutator of the
job's own handles exists here and raises `UnsupportedOperation`, and so does every mutator of the lists and dicts
inside. (`list.append(view, 1)` bypasses that, as with any subclass; it changes only the copy.)

The bytes of an answer, by kind: value and reducing, the serializer's bytes; aggregating, MessagePack; list, a
MessagePack array of elements; map, a MessagePack map of values. With the serializer `msgpack`, elements and values are
plain MessagePack; with any other, each is a bin of the serializer's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from msgspec import Struct

from qstate.descriptors import StateKind
from qstate.errors import ConfigError, SerializationError, UnsupportedOperation
from qstate.evolution.declared_values import DeclaredValues
from qstate.serializers import MessagePackSerializer, Serializer, unpacker
from qstate.values.html_tables import html_table

__all__ = [
    "VIEW_OF",
    "ReadOnlyAggregatingState",
    "ReadOnlyDict",
    "ReadOnlyList",
    "ReadOnlyListState",
    "ReadOnlyMapState",
    "ReadOnlyReducingState",
    "ReadOnlyState",
    "ReadOnlyValueState",
    "ViewMaker",
    "freeze",
    "serializers_by_name",
]

Result = TypeVar("Result")
Item = TypeVar("Item")
Name = TypeVar("Name")
Value = TypeVar("Value")
MapKey = TypeVar("MapKey")


def _refuser(name: str, remedy: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise UnsupportedOperation(f"{type(self).__name__}.{name}: results of queries are read-only; {remedy}")

    refuse.__name__ = refuse.__qualname__ = name
    return refuse


#: The most characters of a view that IPython shows as text.
MOST_TEXT = 10_000
_COPY_LIST = "list(value) gives a copy that can be changed"
_COPY_DICT = "dict(value) gives a copy that can be changed"
_JOB_ONLY = "only the job's own functions change its state"


class ReadOnlyList(list[Item]):
    """A list that refuses every change. Equal to the list of the same elements; made by `freeze`.

    Slices, `+`, `*` and `copy()` give plain lists.
    """

    __slots__ = ()

    append = _refuser("append", _COPY_LIST)
    clear = _refuser("clear", _COPY_LIST)
    extend = _refuser("extend", _COPY_LIST)
    insert = _refuser("insert", _COPY_LIST)
    pop = _refuser("pop", _COPY_LIST)
    remove = _refuser("remove", _COPY_LIST)
    reverse = _refuser("reverse", _COPY_LIST)
    sort = _refuser("sort", _COPY_LIST)
    __delitem__ = _refuser("__delitem__", _COPY_LIST)
    __iadd__ = _refuser("__iadd__", _COPY_LIST)
    __imul__ = _refuser("__imul__", _COPY_LIST)
    # A second call of list.__init__ would empty the list, so it is refused; `freeze` bypasses it.
    __init__ = _refuser("__init__", "freeze(value) makes one")
    __setitem__ = _refuser("__setitem__", _COPY_LIST)

    def __reduce__(self) -> tuple[Callable[[list[Any]], ReadOnlyList[Any]], tuple[list[Any]]]:
        return _read_only_list, (list(self),)


class ReadOnlyDict(dict[Name, Item]):
    """A dict that refuses every change. Equal to the dict of the same entries; made by `freeze`.

    `|` and `copy()` give plain dicts.
    """

    __slots__ = ()

    clear = _refuser("clear", _COPY_DICT)
    pop = _refuser("pop", _COPY_DICT)
    popitem = _refuser("popitem", _COPY_DICT)
    setdefault = _refuser("setdefault", _COPY_DICT)
    update = _refuser("update", _COPY_DICT)
    __delitem__ = _refuser("__delitem__", _COPY_DICT)
    __init__ = _refuser("__init__", "freeze(value) makes one")
    __ior__ = _refuser("__ior__", _COPY_DICT)
    __setitem__ = _refuser("__setitem__", _COPY_DICT)

    def __reduce__(self) -> tuple[Callable[[dict[Any, Any]], ReadOnlyDict[Any, Any]], tuple[dict[Any, Any]]]:
        return _read_only_dict, (dict(self),)


_new_list: Callable[[type[ReadOnlyList[Any]]], ReadOnlyList[Any]] = list.__new__
_new_dict: Callable[[type[ReadOnlyDict[Any, Any]]], ReadOnlyDict[Any, Any]] = dict.__new__


def _read_only_list(elements: Iterable[Any]) -> ReadOnlyList[Any]:
    made = _new_list(ReadOnlyList)
    list.extend(made, elements)
    return made


def _read_only_dict(entries: dict[Any, Any]) -> ReadOnlyDict[Any, Any]:
    made = _new_dict(ReadOnlyDict)
    dict.update(made, entries)
    return made


def _read_only_pairs(pairs: list[tuple[Any, Any]]) -> ReadOnlyDict[Any, Any]:
    made = _new_dict(ReadOnlyDict)
    try:
        dict.update(made, pairs)
    except TypeError:
        # A map key of several columns arrives as an array, which cannot be a key of a dict.
        dict.update(made, [(_hashable(key), value) for key, value in pairs])
    return made


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if type(key) is ReadOnlyList else key


def freeze(value: Any) -> Any:
    """A copy of the value with read-only lists, dicts, sets and bytearrays, at every depth.

    Tuples are rebuilt around frozen elements; objects of other classes stay as they are.
    """
    if isinstance(value, ReadOnlyList | ReadOnlyDict):
        return value
    if isinstance(value, list):
        return _read_only_list(map(freeze, value))
    if isinstance(value, dict):
        return _read_only_dict({freeze(key): freeze(entry) for key, entry in value.items()})
    if type(value) is tuple:
        return tuple(map(freeze, value))
    if isinstance(value, set):
        return frozenset(map(freeze, value))
    if isinstance(value, bytearray):
        return bytes(value)
    return value


_unpack_frozen = unpacker(list_hook=_read_only_list, object_pairs_hook=_read_only_pairs)


def _thaw(value: Any) -> Any:
    """The inverse of `freeze` for what MessagePack gives: plain lists and dicts, at every depth."""
    if isinstance(value, list):
        return list(map(_thaw, value))
    if isinstance(value, dict):
        return {key: _thaw(entry) for key, entry in value.items()}
    return tuple(map(_thaw, value)) if type(value) is tuple else value


@dataclass(slots=True)
class _Reading:
    """The part that the views of one epoch share. `own` is the state's serializer, None for `msgpack`. Immutable.

    `declared` and `declared_keys`: what reads the values, and the keys of maps, as the types that the caller declares.
    """

    own: Serializer | None
    isolation: str
    epoch: int
    declared: DeclaredValues | None = None
    declared_keys: DeclaredValues | None = None
    #: Whether values are as MessagePack gives them.
    plain: bool = field(init=False)

    def __post_init__(self) -> None:
        self.plain = self.own is None and self.declared is None

    def value(self, stored: Any) -> Any:
        """The value of what is stored: of bytes of the state's own serializer, or of what MessagePack gives."""
        found = stored if self.own is None else self._loads(self.own, stored)
        return found if self.declared is None else self.declared.read(_thaw(found))

    def _loads(self, own: Serializer, data: Any) -> Any:
        if type(data) is not bytes:
            raise SerializationError(f"expected bytes of the serializer {own.name!r}, got {type(data).__name__}")
        try:
            return freeze(own.loads(data))
        except SerializationError:
            raise
        except Exception as exc:
            raise SerializationError(f"the serializer {own.name!r} cannot read the answer: {exc}") from exc


#: Marks contents that are not decoded yet. (A test for an unset slot costs three times as much.)
_UNREAD: Any = object()


class ReadOnlyState(Struct, eq=False):
    """The part that the views of all kinds share: epoch and isolation, equality and text.

    Views are equal when they have the same kind and equal contents; epoch and isolation do not count. A view can be
    pickled if its serializer can. Bytes that cannot be decoded raise `SerializationError` on first access, not when the
    view is made.
    """

    # Requests of many keys make hundreds of views: a struct of msgspec is made in a third of the time of other classes.
    kind: ClassVar[StateKind]
    _data: bytes
    _reading: _Reading
    _decoded: Any = _UNREAD

    @property
    def epoch(self) -> int:
        """The epoch of the value."""
        return self._reading.epoch

    @property
    def isolation(self) -> str:
        """The isolation of the query: `live` or `committed`."""
        return self._reading.isolation

    clear = _refuser("clear", _JOB_ONLY)

    _unpack = staticmethod(_unpack_frozen)

    def _framed(self) -> Any:
        """The MessagePack part of the answer, decoded once."""
        decoded = self._decoded
        if decoded is _UNREAD:
            decoded = self._decoded = self._unpack(self._data)
        return decoded

    def contents(self) -> Any:
        """The value, whatever the kind: of a list view the elements, of a map view its entries as a dict."""
        # A serializer of the user's may make mutable objects, so each access decodes again,
        # and so it does for the values of declared classes.
        reading = self._reading
        if reading.plain:
            return self._framed()
        return reading.value(self._framed() if reading.own is None else self._data)

    def read_as(self, values: DeclaredValues, keys: DeclaredValues | None = None) -> ReadOnlyState:
        """The same view, whose values, and the keys of a map, are read as declared types."""
        reading = self._reading
        return type(self)(self._data, _Reading(reading.own, reading.isolation, reading.epoch, values, keys))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ReadOnlyState):
            return NotImplemented
        return type(self) is type(other) and bool(self.contents() == other.contents())

    # Contents may be lists and dicts, which are not hashable.
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.contents()!r}, epoch={self.epoch}, isolation={self.isolation!r})"

    def _repr_html_(self) -> str:
        """The view as a table, for notebooks: escaped, and cut to a few rows."""
        caption = f"{type(self).__name__}, epoch {self.epoch}, {self.isolation}"
        try:
            found = self.contents()
        except SerializationError as error:
            return html_table(caption, ["error"], [[str(error)]])
        if isinstance(found, dict):
            return html_table(caption, ["key", "value"], found.items())
        if isinstance(found, list):
            return html_table(caption, ["", "element"], enumerate(found))
        return html_table(caption, [], [[found]])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The view as text, for IPython and for notebooks, which also keep it beside the table: cut, unlike `repr`."""
        text = repr(self)
        printer.text(text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}...")

    def __reduce__(self) -> tuple[type[ReadOnlyState], tuple[bytes, _Reading]]:
        return type(self), (self._data, self._reading)


class ReadOnlyValueState(ReadOnlyState, Generic[Value]):
    """The value of a `ValueState`. A record (dataclass) reads as a read-only dict of its fields."""

    kind = StateKind.VALUE

    def value(self) -> Value:
        """The value."""
        found: Value = self.contents()
        return found

    update = _refuser("update", _JOB_ONLY)


class ReadOnlyReducingState(ReadOnlyState, Generic[Value]):
    """The value of a `ReducingState`."""

    kind = StateKind.REDUCING

    def get(self) -> Value:
        """The reduced value."""
        found: Value = self.contents()
        return found

    add = _refuser("add", _JOB_ONLY)


class ReadOnlyAggregatingState(ReadOnlyState, Generic[Value]):
    """The result of an `AggregatingState`; the accumulator stays in the job."""

    kind = StateKind.AGGREGATING

    def get(self) -> Value:
        """The aggregate's result."""
        found: Value = self.contents()
        return found

    add = _refuser("add", _JOB_ONLY)


class ReadOnlyListState(ReadOnlyState, Generic[Value]):
    """The elements of a `ListState`."""

    kind = StateKind.LIST

    def get(self) -> ReadOnlyList[Value]:
        """The elements, in order."""
        return self.contents()

    def elements(self) -> Iterator[Value]:
        """The elements one by one, in order."""
        return iter(self.contents())

    @staticmethod
    def _unpack(data: bytes) -> Any:
        return _of_type(ReadOnlyList, _unpack_frozen(data))

    def contents(self) -> ReadOnlyList[Value]:
        elements: ReadOnlyList[Value] = self._framed()
        return elements if self._reading.plain else _read_only_list(map(self._reading.value, elements))

    add = _refuser("add", _JOB_ONLY)
    add_all = _refuser("add_all", _JOB_ONLY)
    update = _refuser("update", _JOB_ONLY)


class ReadOnlyMapState(ReadOnlyState, Generic[MapKey, Value]):
    """The entries of a `MapState`."""

    kind = StateKind.MAP

    def get(self, map_key: MapKey) -> Value | None:
        """The value of one entry, which may be None, or None without one: `contains` distinguishes them."""
        found: Value | None = self._framed().get(map_key)
        if found is not None and not self._reading.plain:
            found = self._reading.value(found)
        return found

    def contains(self, map_key: MapKey) -> bool:
        """Whether the map has an entry of that key."""
        return map_key in self._framed()

    def entries(self) -> tuple[tuple[MapKey, Value], ...]:
        """All (key, value) pairs."""
        return tuple(self.contents().items())

    def keys(self) -> tuple[MapKey, ...]:
        """The keys of all entries."""
        return tuple(self._framed())

    def values(self) -> tuple[Value, ...]:
        """The values of all entries, in the order of `keys`."""
        return tuple(self.contents().values())

    def is_empty(self) -> bool:
        """Whether the map has no entries."""
        return not self._framed()

    def _framed(self) -> Any:
        """The entries as they are stored, by the keys as they are declared, decoded once."""
        keys = self._reading.declared_keys
        if keys is not None and self._decoded is _UNREAD:
            stored = self._unpack(self._data)
            self._decoded = _read_only_dict(dict(zip(map(keys.read, stored), stored.values(), strict=True)))
        return super()._framed()

    @staticmethod
    def _unpack(data: bytes) -> Any:
        return _of_type(ReadOnlyDict, _unpack_frozen(data))

    def contents(self) -> ReadOnlyDict[MapKey, Value]:
        entries: ReadOnlyDict[MapKey, Value] = self._framed()
        if self._reading.plain:
            return entries
        return _read_only_dict({key: self._reading.value(stored) for key, stored in entries.items()})

    put = _refuser("put", _JOB_ONLY)
    put_all = _refuser("put_all", _JOB_ONLY)
    remove = _refuser("remove", _JOB_ONLY)


#: The class of each kind of state, by the kind's name on the wire.
VIEW_OF: dict[str, type[ReadOnlyState]] = {
    view.kind.value: view
    for view in (
        ReadOnlyValueState,
        ReadOnlyListState,
        ReadOnlyMapState,
        ReadOnlyReducingState,
        ReadOnlyAggregatingState,
    )
}


def _of_type(expected: type[Result], found: Any) -> Result:
    if isinstance(found, expected):
        return found
    raise SerializationError(f"expected an answer with a {expected.__name__}, got a {type(found).__name__}")


def serializers_by_name(serializers: Iterable[Serializer]) -> dict[str, Serializer]:
    """The serializers of a client by name. Raises `ConfigError` for other objects and for duplicate names."""
    found: dict[str, Serializer] = {}
    if isinstance(serializers, str) or not isinstance(serializers, Iterable):
        raise ConfigError(f"serializers= takes a list of serializers, as in [MySerializer()], got {serializers!r}")
    for serializer in serializers:
        if not isinstance(serializer, Serializer):
            raise ConfigError(f"serializers= takes instances of qstate Serializer, got {serializer!r}")
        if serializer.name == MessagePackSerializer.name or serializer.name in found:
            raise ConfigError(f"the serializer name {serializer.name!r} is taken; give each serializer its own")
        found[serializer.name] = serializer
    return found


class ViewMaker:
    """Makes the views of one state from its description on the wire (`kind`, `serializer`).

    Raises `SerializationError` when the description names an unknown kind, or a serializer that is not in
    `serializers`.
    """

    __slots__ = ("_own", "_readings", "_view")

    def __init__(self, description: Mapping[str, Any], serializers: Mapping[str, Serializer]) -> None:
        kind, name = description.get("kind"), description.get("serializer")
        state = description.get("name")
        if kind not in VIEW_OF:
            raise SerializationError(
                f"state {state!r} is of the kind {kind!r}, which this client does not know; use a newer version of it"
            )
        if name != MessagePackSerializer.name and name not in serializers:
            raise SerializationError(
                f"the values of state {state!r} need the serializer {name!r}, which this client does not have; "
                f"pass it: serializers=[...]. It has: {', '.join(sorted({'msgpack', *serializers}))}"
            )
        self._view = VIEW_OF[kind]
        self._own = serializers.get(name) if isinstance(name, str) else None
        self._readings: dict[str, _Reading] = {}

    def view(self, data: bytes, epoch: int, isolation: str) -> ReadOnlyState:
        """The view of one value."""
        return self._view(data, self._reading(epoch, isolation))

    def views(
        self, results: Sequence[bytes | None], epochs: Sequence[int], isolation: str
    ) -> list[ReadOnlyState | None]:
        """The view, or None, for each result."""
        view = self._view
        if epochs and len(results) == epochs.count(epochs[0]) == len(epochs):
            reading = self._reading(epochs[0], isolation)
            if None not in results:
                return list(map(view, results, repeat(reading)))
            return [None if data is None else view(data, reading) for data in results]
        return [
            None if data is None else view(data, self._reading(epoch, isolation))
            for data, epoch in zip(results, epochs, strict=True)
        ]

    def changed(self, data: Sequence[bytes], epoch: int) -> Iterable[ReadOnlyState]:
        """The views of the values of changes: of whole values, elements of lists, or entries of maps."""
        view = ReadOnlyListState if self._view is ReadOnlyListState else ReadOnlyValueState
        return map(view, data, repeat(self._reading(epoch, "committed")))

    def _reading(self, epoch: int, isolation: str) -> _Reading:
        # One for each isolation, because an epoch has many queries.
        reading = self._readings.get(isolation)
        if reading is None or reading.epoch != epoch:
            reading = self._readings[isolation] = _Reading(self._own, isolation, epoch)
        return reading
