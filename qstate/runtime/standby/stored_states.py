"""States as a checkpoint describes them, made ready to be queried without the job's code.

Rules of this module: schemas in, descriptors and readers out; it knows neither files nor sockets. What is stored is
served as it is stored: the serializer of such a descriptor passes bytes through under the name of the job's serializer,
so that answers are byte for byte those of the job, whatever serializer that is, and nothing is decoded to be encoded
again. One thing needs the job's own code: the result of an aggregating state is what its function makes of the
accumulator. Without a descriptor that has the function, queries of it are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qstate.backends.contract import UNBOUNDED, ReadResult, StateReader
from qstate.checkpoint.log.chain import States
from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from qstate.errors import CheckpointError, ClosedError, JobError, UnknownStateId, UnsupportedQuery
from qstate.evolution import StateSchema, Unchanged, plan_evolution
from qstate.evolution.value_types import RecordType, ValueType
from qstate.keys import ColumnType, Key, Namespace
from qstate.serializers import Serializer

__all__ = ["RefusingReader", "RetiringReader", "StoredState", "stored_states"]

_NEEDS_FUNCTION = (
    "an aggregating state's result is made by the job's aggregate function: give the state's descriptor to the standby"
)


@dataclass(frozen=True, slots=True)
class StoredState:
    """One queryable state: `form` is what its stored bytes are, `refusal` why no query of it can be answered."""

    descriptor: StateDescriptor
    key_types: tuple[ColumnType, ...]
    form: StateSchema
    refusal: str | None = None

    @property
    def name(self) -> str:
        """The name within its operator."""
        return self.descriptor.name


def stored_states(states: States, given: Iterable[StateDescriptor] = ()) -> list[StoredState]:
    """The queryable ones of an operator's stored states. `given` are descriptors of the job's own, for what needs them.

    Raises `CheckpointError` for schemas that cannot be read.
    """
    descriptors = list(given)
    return [
        _stored(StateSchema.from_plain(plain), _key_types(plain), descriptors)
        for plain in states
        if plain.get("queryable_name") is not None
    ]


def _key_types(plain: Any) -> tuple[ColumnType, ...]:
    try:
        return tuple(map(ColumnType, plain["key_types"]))
    except (KeyError, TypeError, ValueError):
        raise CheckpointError(f"state {plain.get('name')!r} is stored without the types of its keys") from None


def _stored(schema: StateSchema, key_types: tuple[ColumnType, ...], given: Sequence[StateDescriptor]) -> StoredState:
    form = replace(schema, queryable_name=None)
    if not schema.needs_function:
        return StoredState(_pass_through(schema), key_types, form)
    for descriptor in given:
        names = (schema.name, descriptor.queryable_name and schema.queryable_name)
        if (descriptor.name, descriptor.queryable_name) == names:
            own = replace(descriptor, queryable_name=schema.queryable_name)
            return StoredState(own, key_types, form, _misfit(form, own))
    return StoredState(_pass_through(schema), key_types, form, _NEEDS_FUNCTION)


def _misfit(form: StateSchema, descriptor: StateDescriptor) -> str | None:
    try:
        fits = isinstance(plan_evolution(form, descriptor), Unchanged)
    except JobError as exc:
        return str(exc)
    return None if fits else "the descriptor given for the state declares another form than is stored"


def _pass_through(schema: StateSchema) -> StateDescriptor:
    """A descriptor by which stored bytes are values. Its types are texts, as the state's description has them."""
    common: dict[str, Any] = {
        "value_type": _type_text(schema.value_type),
        "serializer": _serializer(schema.serializer),
        "queryable_name": schema.queryable_name,
    }
    if schema.kind is StateKind.MAP:
        assert schema.map_key_type is not None  # `from_plain` checks it
        key_type: Any = _type_text(schema.map_key_type)
        return MapStateDescriptor(schema.name, map_key_type=key_type, **common)
    if schema.kind is StateKind.REDUCING:
        return ReducingStateDescriptor(schema.name, reduce_function=_never, **common)
    if schema.kind is StateKind.AGGREGATING:
        return AggregatingStateDescriptor(schema.name, aggregate_function=_NoFunction(), **common)
    kinds = {StateKind.VALUE: ValueStateDescriptor, StateKind.LIST: ListStateDescriptor}
    return kinds[schema.kind](schema.name, **common)


def _type_text(kind: ValueType) -> str:
    return kind.name if isinstance(kind, RecordType) else str(kind)


class _StoredBytes(Serializer):
    """Takes bytes for values, under the name that a subclass has."""

    def dumps(self, value: Any) -> bytes:
        data: bytes = value
        return data

    def loads(self, data: bytes) -> Any:
        return data

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        return list(values)


def _serializer(name: str) -> Serializer:
    own_class: type[_StoredBytes] = type("StoredBytes", (_StoredBytes,), {"name": name})
    return own_class()


def _never(one: Any, other: Any) -> Any:
    raise AssertionError("a state that is only read is never reduced")


class _NoFunction(AggregateFunction[Any, Any, Any]):
    """In the place of a function that is not known; queries are refused before they come here."""

    def create_accumulator(self) -> Any:
        raise AssertionError(_NEEDS_FUNCTION)

    def add(self, value: Any, accumulator: Any) -> Any:
        raise AssertionError(_NEEDS_FUNCTION)

    def get_result(self, accumulator: Any) -> Any:
        raise AssertionError(_NEEDS_FUNCTION)

    def merge(self, one: Any, other: Any) -> Any:
        raise AssertionError(_NEEDS_FUNCTION)


class RefusingReader(StateReader):
    """Answers every query with UNSUPPORTED and a reason."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        raise UnsupportedQuery(state=descriptor.queryable_name, reason=self._reason)


class RetiringReader(StateReader):
    """A reader of a backend that will be closed while others may still be reading.

    From `retire` on, and for a read that was under way then, the answer is UNKNOWN_STATE_ID: whoever asked looks the
    state up again, and finds what took this one's place.
    """

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self._retired = False

    def retire(self) -> None:
        """To be called before the backend is closed."""
        self._retired = True

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        try:
            found = self._reader.get(descriptor, namespace, keys, most_bytes)
        except ClosedError:
            if not self._retired:
                raise
        if self._retired:
            raise UnknownStateId(state=descriptor.queryable_name)
        return found
