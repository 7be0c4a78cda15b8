"""State descriptors: the name, kind, types and queryable name of a state.

Rules of this module: a descriptor is a plain value that can be pickled and compared. It knows its serializer
and its function; it must not know where or how the state is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from qstate.errors import ConfigError
from qstate.serializers import MessagePackSerializer, Serializer, serializer_for
from qstate.values.ttl import StateTtl

__all__ = [
    "PATH_STEPS",
    "AggregateFunction",
    "AggregatingStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReducingStateDescriptor",
    "StateDescriptor",
    "StateKind",
    "StateTtl",
    "TimerDescriptor",
    "ValueStateDescriptor",
]

In = TypeVar("In")
Acc = TypeVar("Acc")
Out = TypeVar("Out")
Self = TypeVar("Self", bound="StateDescriptor")


#: No client can name these in a URL: it takes them for steps in the path, also percent-encoded.
PATH_STEPS = (".", "..")


class StateKind(Enum):
    """The five kinds of keyed state."""

    VALUE = "value"
    LIST = "list"
    MAP = "map"
    REDUCING = "reducing"
    AGGREGATING = "aggregating"


class AggregateFunction(ABC, Generic[In, Acc, Out]):
    """How an aggregating state folds its inputs. The operator calls it; queries call `get_result`, too."""

    @abstractmethod
    def create_accumulator(self) -> Acc:
        """A new, empty accumulator."""

    @abstractmethod
    def add(self, value: In, accumulator: Acc) -> Acc:
        """The accumulator with one more input; the function may change and return the same object."""

    @abstractmethod
    def get_result(self, accumulator: Acc) -> Out:
        """The result so far. It must not change the accumulator."""

    @abstractmethod
    def merge(self, one: Acc, other: Acc) -> Acc:
        """Two accumulators as one."""


@dataclass(frozen=True, kw_only=True)
class StateDescriptor:
    """The fields of all kinds of state. Use the class of the kind.

    `name` is unique in the operator. `queryable(name)` makes the state visible outside the job under a name that is
    unique in the job; it cannot be `.` or `..`. `serializer` replaces the default serializer of the declared type, for
    each value of a value state, element of a list, value of a map, and accumulator of an aggregating state.

    `value_type` is a class or a generic such as `list[int]` or `float | None`: the type of a value, of a list's
    element, of a map's value, of an accumulator. It decides the default serializer; without a `serializer`, a type
    that qstate cannot store raises `ConfigError`, which names the field. A function must write values of that type, or
    the commit raises `SerializationError`; `object` admits any value that can be read back unchanged.

    The type is stored with the state. A program that declares another type gets the state only if qstate can convert
    the values. If it cannot, increase `schema_version` and give a `migration`. It is called once for each stored value
    (element, map value, accumulator), with the old value (a record as a dict of its fields) and the schema version that
    it was stored with, and returns the new value.

    With `ttl`, the values of the state expire. A program may add, change or remove it: values that were stored without
    one count as written when the state is opened with it.
    """

    kind: ClassVar[StateKind]

    name: str = field(kw_only=False)
    value_type: Any = field(default=object, kw_only=False)
    serializer: Serializer = field(default=None, compare=False)  # type: ignore[assignment]
    queryable_name: str | None = None
    schema_version: int = 1
    migration: Callable[[Any, int], Any] | None = field(default=None, compare=False)
    ttl: StateTtl | None = None

    def __post_init__(self) -> None:
        for what, name in (("state name", self.name), ("queryable name", self.queryable_name)):
            if name is not None and (not isinstance(name, str) or not 1 <= len(name) <= 255):
                raise ConfigError(f"a {what} is a text of 1 to 255 characters, got {name!r}")
        if self.queryable_name in PATH_STEPS:
            raise ConfigError(
                f"the queryable name {self.queryable_name!r} is a step in the path of a URL, in which clients of the "
                "gateway name states: choose another name"
            )
        if self.serializer is None:
            object.__setattr__(self, "serializer", self._default_serializer())
        elif not isinstance(self.serializer, Serializer):
            raise ConfigError(f"state {self.name!r}: serializer must be a qstate Serializer, got {self.serializer!r}")
        for what, version in (("schema_version", self.schema_version), ("serializer.version", self.serializer.version)):
            if type(version) is not int or version < 1:
                raise ConfigError(f"state {self.name!r}: {what} must be an integer of at least 1, got {version!r}")
        if self.migration is not None and not callable(self.migration):
            raise ConfigError(f"state {self.name!r}: migration must be callable, got {self.migration!r}")
        if self.ttl is not None and not isinstance(self.ttl, StateTtl):
            raise ConfigError(
                f"state {self.name!r}: ttl must be a StateTtl, as in ttl=StateTtl(timedelta(hours=1)), got {self.ttl!r}"
            )

    def _default_serializer(self) -> Serializer:
        try:
            return serializer_for(self.value_type)
        except ConfigError as exc:
            raise ConfigError(f"state {self.name!r}: {exc}") from None

    @property
    def query_serializer_name(self) -> str:
        """The serializer that a client needs to read an answer."""
        return self.serializer.name

    def queryable(self: Self, name: str) -> Self:
        """The same descriptor, visible to queries as `name`. Raises `ConfigError` when it has a queryable name."""
        if self.queryable_name is not None:
            raise ConfigError(
                f"state {self.name!r} is queryable as {self.queryable_name!r} already: one state has one queryable name"
            )
        return replace(self, queryable_name=name)

    def dump_result(self, value: Any) -> bytes:
        """The bytes of a stored value as a query returns them (for a list or map: of one element or entry)."""
        return self.serializer.dumps(value)

    def result_dumper(self) -> Callable[[Any], bytes]:
        """`dump_result` for one thread: faster for many values."""
        return self.serializer.dumper()

    def dump_results(self, values: Iterable[Any]) -> list[bytes]:
        """`dump_result` of each value, the fastest way."""
        return self.serializer.dump_all(values)


@dataclass(frozen=True, kw_only=True)
class ValueStateDescriptor(StateDescriptor):
    """One value per key: `ValueStateDescriptor("lastTemp", float)`.

    The function reads `default` for a key without a value: each time a new copy. The default is not stored, so a query
    finds no value. It must have the declared type, or `get_state` raises `SerializationError`.
    """

    default: Any = None

    kind = StateKind.VALUE


class ListStateDescriptor(StateDescriptor):
    """A list per key; `value_type` is the type of an element."""

    kind = StateKind.LIST


@dataclass(frozen=True, kw_only=True)
class MapStateDescriptor(StateDescriptor):
    """A map per key; `map_key_type` is str, bytes, int, a tuple of those, or object for all of them.

    A value may be None if `value_type` admits it: `int | None` or `object`.
    """

    map_key_type: type = str

    kind = StateKind.MAP


class TimerDescriptor(MapStateDescriptor):
    """The timers of an operator, in one time domain. They are stored as a map state: a key's map from time to True."""

    def __init__(self, name: str) -> None:
        super().__init__(name, bool, map_key_type=int)


@dataclass(frozen=True, kw_only=True)
class ReducingStateDescriptor(StateDescriptor):
    """One value per key, combined by `reduce_function(old, new)`."""

    reduce_function: Callable[[Any, Any], Any] = None  # type: ignore[assignment]

    kind = StateKind.REDUCING

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_no_class(self.name, "reduce_function", self.reduce_function)
        if not callable(self.reduce_function):
            raise ConfigError(f"state {self.name!r}: reduce_function must be callable, got {self.reduce_function!r}")


@dataclass(frozen=True, kw_only=True)
class AggregatingStateDescriptor(StateDescriptor):
    """An accumulator per key (of `value_type`); queries and `get()` return the function's result."""

    aggregate_function: AggregateFunction[Any, Any, Any] = None  # type: ignore[assignment]

    kind = StateKind.AGGREGATING

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_no_class(self.name, "aggregate_function", self.aggregate_function)
        if not isinstance(self.aggregate_function, AggregateFunction):
            raise ConfigError(
                f"state {self.name!r}: aggregate_function must be an AggregateFunction, got {self.aggregate_function!r}"
            )

    @property
    def query_serializer_name(self) -> str:
        return MessagePackSerializer.name

    def dump_result(self, value: Any) -> bytes:
        return MessagePackSerializer().dumps(self.aggregate_function.get_result(value))

    def result_dumper(self) -> Callable[[Any], bytes]:
        dump, get_result = MessagePackSerializer().dumper(), self.aggregate_function.get_result
        return lambda accumulator: dump(get_result(accumulator))

    def dump_results(self, values: Iterable[Any]) -> list[bytes]:
        return MessagePackSerializer().dump_all(map(self.aggregate_function.get_result, values))


def _check_no_class(state: str, what: str, function: object) -> None:
    if isinstance(function, type):
        raise ConfigError(
            f"state {state!r}: {what} needs a function object, got the class: write {function.__name__}(...)"
        )
