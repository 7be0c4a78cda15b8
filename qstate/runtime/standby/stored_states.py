"""Makes the states of a checkpoint queryable without the job's code.

Rules of this module: schemas in, descriptors and readers out; it knows neither files nor sockets. Stored bytes are
served unchanged: the serializer of such a descriptor passes bytes through under the name of the job's serializer. So
answers are byte for byte those of the job, whatever its serializer, and nothing is decoded and encoded again. Only
aggregating states need the job's code, because their function computes the result from the accumulator. Without a
descriptor that has the function, their queries are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from qstate.backends.contract import UNBOUNDED, ReadResult, StateReader, StateScan, ValueParts
from qstate.checkpoint.log.chain import States
from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    StateTtl,
    ValueStateDescriptor,
)
from qstate.errors import ClosedError, JobError, UnknownStateId, UnsupportedQuery
from qstate.evolution import StateSchema, Unchanged, plan_evolution
from qstate.evolution.schema import key_types_in
from qstate.keys import ColumnType, Key, Namespace
from qstate.values.stored_bytes import stored_bytes

__all__ = ["RefusingReader", "RetiringReader", "StoredState", "stored_states"]

_NEEDS_FUNCTION = (
    "the job's aggregate function computes an aggregating state's result: give the state's descriptor to the standby"
)


@dataclass(frozen=True, slots=True)
class StoredState:
    """One queryable state: `form` is the schema of its stored bytes, `refusal` why no query can be answered."""

    descriptor: StateDescriptor
    key_types: tuple[ColumnType, ...]
    form: StateSchema
    refusal: str | None = None

    @property
    def name(self) -> str:
        """The name within its operator."""
        return self.descriptor.name


def stored_states(states: States, given: Iterable[StateDescriptor] = ()) -> list[StoredState]:
    """The queryable states among an operator's stored states. `given` are descriptors of the job, if needed.

    Raises `CheckpointError` for schemas that cannot be read.
    """
    descriptors = list(given)
    return [
        _stored(StateSchema.from_plain(plain), key_types_in(plain), descriptors)
        for plain in states
        if plain.get("queryable_name") is not None
    ]


def _stored(schema: StateSchema, key_types: tuple[ColumnType, ...], given: Sequence[StateDescriptor]) -> StoredState:
    form = replace(schema, queryable_name=None)
    if not schema.needs_function:
        return StoredState(_pass_through(schema), key_types, form)
    for descriptor in given:
        names = (schema.name, descriptor.queryable_name and schema.queryable_name)
        if (descriptor.name, descriptor.queryable_name) == names:
            own = replace(descriptor, queryable_name=schema.queryable_name)
            if own.ttl is not None and schema.ttl_ms is not None:  # the job's duration, if it has changed, counts
                own = replace(own, ttl=StateTtl(timedelta(milliseconds=schema.ttl_ms)))
            return StoredState(own, key_types, form, _misfit(form, own))
    return StoredState(_pass_through(schema), key_types, form, _NEEDS_FUNCTION)


def _misfit(form: StateSchema, descriptor: StateDescriptor) -> str | None:
    try:
        fits = isinstance(plan_evolution(form, descriptor), Unchanged)
    except JobError as exc:
        return str(exc)
    return None if fits else "the descriptor given for the state declares another form than is stored"


def _pass_through(schema: StateSchema) -> StateDescriptor:
    """A descriptor whose values are the stored bytes. Its types are those of the stored schema."""
    common: dict[str, Any] = {
        "value_type": schema.value_type,
        "serializer": stored_bytes(schema.serializer),
        "queryable_name": schema.queryable_name,
        "ttl": None if schema.ttl_ms is None else StateTtl(timedelta(milliseconds=schema.ttl_ms)),
    }
    if schema.kind is StateKind.MAP:
        assert schema.map_key_type is not None  # `from_plain` checks it
        key_type: Any = schema.map_key_type
        return MapStateDescriptor(schema.name, map_key_type=key_type, **common)
    if schema.kind is StateKind.REDUCING:
        return ReducingStateDescriptor(schema.name, reduce_function=_never, **common)
    if schema.kind is StateKind.AGGREGATING:
        return AggregatingStateDescriptor(schema.name, aggregate_function=_NoFunction(), **common)
    kinds: dict[StateKind, type[StateDescriptor]] = {
        StateKind.VALUE: ValueStateDescriptor,
        StateKind.LIST: ListStateDescriptor,
    }
    return kinds[schema.kind](schema.name, **common)


def _never(one: Any, other: Any) -> Any:
    raise AssertionError("a state that is only read is never reduced")


class _NoFunction(AggregateFunction[Any, Any, Any]):
    """Replaces an unknown function. Queries are refused before they call it."""

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

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        raise UnsupportedQuery(state=descriptor.queryable_name, reason=self._reason)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        raise UnsupportedQuery(state=descriptor.queryable_name, reason=self._reason)


class RetiringReader(StateReader):
    """A reader of a backend that will be closed while others may still be reading.

    After `retire`, and for a read that was running then, the answer is UNKNOWN_STATE_ID: the client looks the state up
    again and finds its successor.
    """

    def __init__(self, reader: StateReader) -> None:
        self._reader = reader
        self._retired = False

    def retire(self) -> None:
        """Call this before the backend is closed."""
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

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        if self._retired:
            raise UnknownStateId(state=descriptor.queryable_name)
        return self._reader.scan(descriptor)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        if self._retired:
            raise UnknownStateId(state=descriptor.queryable_name)
        return self._reader.parts(descriptor, namespace, key)
