"""The fixture as qstate's descriptors and backend writes.

Rules of this module: it turns the fixture's data into what a `StateBackend` takes. Nothing else of the suite's
server area knows qstate's descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import add
from typing import Any

from qstate.backends.contract import StateBackend
from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.keys import KeyGroupRange, key_group
from qstate.serializers import MessagePackSerializer, Serializer
from qstate_conformance.server import fixture
from qstate_conformance.server.fixture import Before, Entry, State

__all__ = ["Latest", "ReversedText", "descriptor_of", "load"]

_VALUE_TYPES: Mapping[str, type] = {"object": object, "str": str, "int": int, "float": float, "bytes": bytes}


class ReversedText(Serializer):
    """The fixture's own serializer: text as its UTF-8 bytes in reverse order."""

    name = fixture.OWN_SERIALIZER

    def dumps(self, value: Any) -> bytes:
        return bytes(value.encode()[::-1])

    def loads(self, data: bytes) -> str:
        return data[::-1].decode()


class Latest(AggregateFunction[Any, list[Any], Any]):
    """Keeps the latest input. Its accumulator is a list, so that an answer with the accumulator is a wrong one."""

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        return [value]

    def get_result(self, accumulator: list[Any]) -> Any:
        return accumulator[0]

    def merge(self, one: list[Any], other: list[Any]) -> list[Any]:
        return other


def descriptor_of(found: State) -> StateDescriptor:
    """The descriptor of a state of the fixture, queryable by its name."""
    serializer = ReversedText() if found.serializer == fixture.OWN_SERIALIZER else MessagePackSerializer()
    return _DESCRIPTORS[found.kind](found.name, _VALUE_TYPES[found.value_type], serializer).queryable(found.name)


_DESCRIPTORS: Mapping[str, Callable[[str, type, Serializer], StateDescriptor]] = {
    "value": lambda name, kind, serializer: ValueStateDescriptor(name, kind, serializer=serializer),
    "list": lambda name, kind, serializer: ListStateDescriptor(name, kind, serializer=serializer),
    "map": lambda name, kind, serializer: MapStateDescriptor(name, kind, serializer=serializer),
    "reducing": lambda name, kind, serializer: ReducingStateDescriptor(
        name, kind, serializer=serializer, reduce_function=add
    ),
    # The declared type is the accumulator's.
    "aggregating": lambda name, kind, serializer: AggregatingStateDescriptor(
        name, list, serializer=serializer, aggregate_function=Latest()
    ),
}


def load(backend: StateBackend, key_groups: KeyGroupRange) -> None:
    """Write the entries of these key groups: in an epoch that is final, and in one after it that is not."""
    backend.begin(fixture.COMMITTED_EPOCH)
    for found in fixture.STATES:
        backend.table(descriptor_of(found))
        for entry in found.committed:
            _write(backend, key_groups, found, entry)
    _seal(backend, fixture.COMMITTED_EPOCH)
    backend.finalize(fixture.COMMITTED_EPOCH)
    backend.begin(fixture.LIVE_EPOCH)
    for found in fixture.STATES:
        for before in found.before:
            _delete(backend, key_groups, found, before)
        changed = {(before.namespace, before.key) for before in found.before}
        for entry in found.entries:
            if (entry.namespace, entry.key) in changed:
                _write(backend, key_groups, found, entry)
    _seal(backend, fixture.LIVE_EPOCH)


def _seal(backend: StateBackend, epoch: int) -> None:
    for _ in backend.commit(epoch):
        pass


def _delete(backend: StateBackend, key_groups: KeyGroupRange, found: State, before: Before) -> None:
    if key_group(before.key, fixture.MAX_PARALLELISM) in key_groups:
        backend.table(descriptor_of(found), before.namespace).delete(before.key)


def _write(backend: StateBackend, key_groups: KeyGroupRange, found: State, entry: Entry) -> None:
    if key_group(entry.key, fixture.MAX_PARALLELISM) not in key_groups:
        return
    contents: Any = entry.contents
    descriptor = descriptor_of(found)
    table, loads = backend.table(descriptor, entry.namespace), descriptor.serializer.loads
    if found.kind == "list":
        table.list_add(entry.key, [loads(element) for element in contents])
    elif found.kind == "map":
        for map_key, data in contents:
            table.map_put(entry.key, map_key, loads(data))
    elif found.kind == "aggregating":
        table.put(entry.key, [loads(contents)])
    else:
        table.put(entry.key, loads(contents))
