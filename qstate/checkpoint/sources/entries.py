"""Decodes the entries of a checkpoint or savepoint, for people and for programs other than the job.

Rules of this module: changes of the neutral dump in, entries out, one at a time and in the same order. It decodes
without the job's code: all keys, and the values of the default serializer. It must not know where the changes come
from. Of a state with a time-to-live it shows what has not expired by this machine's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgpack

from qstate.backends.answers import container_header, pack_elements, unpack_elements
from qstate.backends.contract import Change
from qstate.backends.expiry import current_elements, current_value, wall_clock_ms
from qstate.checkpoint.log.chain import NO_EPOCH, States
from qstate.checkpoint.log.file_facts import readable
from qstate.checkpoint.log.operator_state import Distribution, OperatorList, OperatorState
from qstate.checkpoint.sources.history import StateSource, StoredOperator, in_one_form
from qstate.descriptors import StateKind
from qstate.errors import CheckpointError
from qstate.evolution.schema import serializer_in
from qstate.keys import Key, KeyGroupRange, Namespace, check_key, decode_key
from qstate.serializers import MessagePackSerializer

__all__ = [
    "Element",
    "Entry",
    "by_name",
    "current_changes",
    "elements_of",
    "packed_element",
    "packed_entry",
    "read_changes",
    "read_entries",
    "read_operator_state",
    "read_operator_states",
    "states_as_of",
    "stored_operator",
    "without_broadcast",
]

_loads = MessagePackSerializer().loads


class Entry(NamedTuple):
    """One entry of a state: a value, a whole list, an accumulator, or one entry of a map.

    `map_key` is None unless the state is a map. If `decoded`, `value` is the stored value: for an aggregating state the
    accumulator, for a record the dict of its fields. Otherwise it is the serializer's bytes, for a list a list of them.
    """

    operator: str
    state: str
    namespace: Namespace
    key: Key
    group: int
    map_key: Key | None
    value: Any
    decoded: bool


class Element(NamedTuple):
    """One element of an operator state: a list that belongs to a subtask and to no key.

    `distribution` is `split` or `union`. `value` is the element if `decoded`, else the serializer's bytes.
    """

    operator: str
    state: str
    subtask: int
    distribution: str
    value: Any
    decoded: bool


def stored_operator(source: StateSource, operator: str) -> StoredOperator:
    """What a source has of an operator. Raises `CheckpointError` for an unknown uid."""
    found = source.operators()
    if operator not in found:
        raise CheckpointError(
            f"{source.location} has no operator {operator!r}; it has {', '.join(map(repr, found)) or 'none'}"
        )
    return found[operator]


def read_entries(
    source: StateSource, operator: str, *, epoch: int | None = None, key_groups: KeyGroupRange | None = None
) -> Iterator[Entry]:
    """The entries of an operator as of an epoch (None: the newest final one), in the order of the neutral dump.

    They are read as the caller iterates. Raises `CheckpointError`, at once for an epoch that the source does not have,
    and during the iteration at the first damage.
    """
    stored = stored_operator(source, operator)
    schemas = by_name(states_as_of(source, stored, epoch))
    changes = read_changes(source, stored, epoch=epoch, key_groups=key_groups)
    return _entries(source.location, stored.uid, changes, schemas)


def _entries(
    location: str, operator: str, changes: Iterable[Change], schemas: Mapping[str, Mapping[str, Any]]
) -> Iterator[Entry]:
    with readable(f"operator {operator!r} in {location}"):
        for change in current_changes(changes, schemas):
            yield _entry(operator, change, schemas.get(change.state, {}))


def read_changes(
    source: StateSource, stored: StoredOperator, *, epoch: int | None = None, key_groups: KeyGroupRange | None = None
) -> Iterator[Change]:
    """The entries that `read_entries` decodes, as stored: PUT and MAP_PUT changes, also of what has expired."""
    groups = key_groups or KeyGroupRange(0, source.max_parallelism)
    wanted = _epoch(source, stored, epoch, groups)
    form = in_one_form(states_as_of(source, stored, epoch), source.location, newest=wanted >= stored.epoch)
    return source.state(stored.uid, groups, wanted, form)


def current_changes(changes: Iterable[Change], schemas: Mapping[str, Mapping[str, Any]]) -> Iterator[Change]:
    """The changes that `read_changes` gives, of what has not expired, as those of states without a time-to-live."""
    now_ms = wall_clock_ms()
    for change in changes:
        schema = schemas.get(change.state, {})
        duration_ms = schema.get("ttl_ms")
        data: bytes | None = change.data
        if duration_ms is not None and schema.get("kind") == StateKind.LIST.value:
            elements = current_elements(unpack_elements(change.data), duration_ms, now_ms)
            data = pack_elements(elements) if elements else None
        elif duration_ms is not None:
            data = current_value(change.data, duration_ms, now_ms)
        if data is not None:
            yield change if duration_ms is None else change._replace(data=data)


def states_as_of(source: StateSource, stored: StoredOperator, epoch: int | None) -> States:
    """The schemas of the operator's states as of an epoch (None: the newest ones)."""
    return stored.states if epoch is None else source.states(stored.uid, epoch)


def read_operator_state(source: StateSource, operator: str, *, epoch: int | None = None) -> Iterator[Element]:
    """The elements of an operator's lists as of an epoch (None: the newest final one), by subtask.

    Broadcast states are not among them: `read_entries` has their entries. Raises what `read_entries` raises.
    """
    states = read_operator_states(source, stored_operator(source, operator), epoch=epoch)
    return elements_of(source.location, operator, states)


def elements_of(location: str, operator: str, states: Iterable[OperatorState]) -> Iterator[Element]:
    """The elements of the lists of all subtasks, with `states` in subtask order; errors name `location`."""
    with readable(f"operator {operator!r} in {location}"):
        yield from _elements(operator, states)


def _elements(operator: str, states: Iterable[OperatorState]) -> Iterator[Element]:
    for subtask, state in enumerate(states):
        for one in without_broadcast(state):
            decoded = _is_msgpack(one.schema)
            for data in one.elements:
                value = _loads(data) if decoded else data
                yield Element(operator, one.name, subtask, one.distribution.value, value, decoded)


def without_broadcast(state: OperatorState) -> list[OperatorList]:
    """The lists of a subtask without broadcast states, whose entries are values of the operator's keyed state, too."""
    return [one for one in state if one.distribution is not Distribution.BROADCAST]


def read_operator_states(
    source: StateSource, stored: StoredOperator, *, epoch: int | None = None
) -> list[OperatorState]:
    """The lists that `read_operator_state` decodes, as stored, for each subtask."""
    wanted = _epoch(source, stored, epoch, KeyGroupRange(0, source.max_parallelism))
    return source.operator_states(stored.uid, wanted)


def _epoch(source: StateSource, stored: StoredOperator, epoch: int | None, groups: KeyGroupRange) -> int:
    wanted = stored.epoch if epoch is None else epoch
    if not NO_EPOCH <= wanted <= stored.sealed or source.epoch(stored.uid, groups, wanted) != wanted:
        raise CheckpointError(
            f"{source.location} has no state of operator {stored.uid!r} as of epoch {wanted}; its newest epoch is "
            f"{stored.sealed}"
        )
    return wanted


def by_name(states: States) -> dict[str, Mapping[str, Any]]:
    """Schemas by the names of their states."""
    return {str(plain.get("name")): plain for plain in states}


def packed_entry(operator: str, change: Change, schema: Mapping[str, Any]) -> bytes:
    """An entry of `current_changes` as a MessagePack map, with the stored bytes spliced in if they are MessagePack.

    Its keys are operator, state, namespace, key, group, map_key (only for a map) and `value`. Another serializer than
    the default one has `bytes` in place of `value`. Both are an array for a list.
    """
    parts = {
        "operator": msgpack.packb(operator),
        "state": msgpack.packb(change.state),
        "namespace": change.namespace,
        "key": change.key,
        "group": msgpack.packb(change.group),
    }
    if schema.get("kind") == StateKind.MAP.value:
        parts["map_key"] = change.map_key
    spliced = _is_msgpack(schema)
    parts["value" if spliced else "bytes"] = _packed_value(change.data, schema, spliced=spliced)
    return _packed_map(parts)


def packed_element(operator: str, subtask: int, stored: OperatorList, data: bytes) -> bytes:
    """An element of an operator state as a MessagePack map, with the stored bytes as in `packed_entry`.

    Its keys are operator, state, subtask, distribution and `value`, or `bytes` for another serializer.
    """
    facts = {"operator": operator, "state": stored.name, "subtask": subtask, "distribution": stored.distribution.value}
    parts = {name: msgpack.packb(fact) for name, fact in facts.items()}
    spliced = _is_msgpack(stored.schema)
    parts["value" if spliced else "bytes"] = data if spliced else msgpack.packb(data)
    return _packed_map(parts)


def _packed_map(parts: Mapping[str, bytes]) -> bytes:
    """A MessagePack map of values that are packed already."""
    header = container_header(StateKind.MAP, len(parts))
    return header + b"".join(msgpack.packb(name) + packed for name, packed in parts.items())


def _packed_value(data: bytes, schema: Mapping[str, Any], *, spliced: bool) -> bytes:
    if schema.get("kind") != StateKind.LIST.value:
        return data if spliced else bytes(msgpack.packb(data))
    if not spliced:
        return data  # an array of bins already
    elements = unpack_elements(data)
    return container_header(StateKind.LIST, len(elements)) + b"".join(elements)


def _entry(operator: str, change: Change, schema: Mapping[str, Any]) -> Entry:
    decoded = _is_msgpack(schema)
    value: Any
    if schema.get("kind") == StateKind.LIST.value:
        value = [_loads(element) if decoded else element for element in unpack_elements(change.data)]
    else:
        value = _loads(change.data) if decoded else change.data
    is_map = schema.get("kind") == StateKind.MAP.value
    map_key: Any = decode_key(change.map_key) if is_map else None
    namespace = decode_key(change.namespace)
    key: Any = decode_key(change.key)
    for found in (key, *((namespace,) if namespace is not None else ()), *((map_key,) if is_map else ())):
        check_key(found)
    return Entry(operator, change.state, namespace, key, change.group, map_key, value, decoded)


def _is_msgpack(schema: Mapping[str, Any]) -> bool:
    return "serializer" in schema and serializer_in(schema) == MessagePackSerializer.name
