"""What a backend holds, read through its tables and through its readers, in the model's form.

Rules of this module: answers are taken apart here with MessagePack alone, by what `StateReader.get` says of them, not
with the code that made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgpack

from qstate.backends import Isolation, StateBackend
from qstate.descriptors import StateDescriptor, StateKind, TimerDescriptor
from qstate.errors import FailureCode
from qstate.keys import Key, Namespace
from qstate.serializers import MessagePackSerializer
from qstate_conformance.backend.model import Model, Place, check_same
from qstate_conformance.backend.states import AGGREGATING, KINDS, STATES
from qstate_conformance.backend.timers import check_first_timers
from qstate_conformance.packing import extension_column

__all__ = ["all_places", "answered", "check_reads", "check_tables", "query", "query_one", "read_answer"]

#: A map key that no law writes.
_NO_ENTRY = "never an entry"


def read_answer(descriptor: StateDescriptor, answer: bytes) -> Any:
    """The contents of a query's answer."""
    if descriptor.kind is StateKind.AGGREGATING:
        return MessagePackSerializer().loads(answer)
    if descriptor.kind not in (StateKind.LIST, StateKind.MAP):
        return descriptor.serializer.loads(answer)
    unpacker = msgpack.Unpacker(
        use_list=False, strict_map_key=False, max_buffer_size=2**31 - 1, timestamp=3, ext_hook=extension_column
    )
    unpacker.feed(answer)
    if descriptor.kind is StateKind.LIST:
        found: Any = [_item(unpacker, descriptor, answer) for _ in range(unpacker.read_array_header())]
    else:
        # One pair per round, the key before its value.
        found = {}
        for _ in range(unpacker.read_map_header()):
            map_key = unpacker.unpack()
            assert map_key not in found, f"the map key {map_key!r} is in the answer twice"
            found[map_key] = _item(unpacker, descriptor, answer)
    assert unpacker.tell() == len(answer), f"{len(answer) - unpacker.tell()} bytes after the answer's end"
    return found


def _item(unpacker: Any, descriptor: StateDescriptor, answer: bytes) -> Any:
    """An element or a map's value: as it is when the serializer is `msgpack`, a bin otherwise."""
    start = unpacker.tell()
    if descriptor.serializer.name == MessagePackSerializer.name:
        unpacker.skip()
        return descriptor.serializer.loads(answer[start : unpacker.tell()])
    data = unpacker.unpack()
    assert isinstance(data, bytes), f"expected a bin, got {data!r}"
    return descriptor.serializer.loads(data)


def query(
    backend: StateBackend,
    isolation: Isolation,
    descriptor: StateDescriptor,
    keys: Sequence[Key],
    namespace: Namespace = None,
) -> tuple[int, list[Any]]:
    """The epoch, and for each key its contents, None or a failure code."""
    epoch, answers = backend.reader(isolation).get(descriptor, namespace, keys)
    assert len(answers) == len(keys), f"{len(answers)} answers for {len(keys)} keys"
    return epoch, [read_answer(descriptor, answer) if isinstance(answer, bytes) else answer for answer in answers]


def query_one(
    backend: StateBackend,
    isolation: Isolation,
    descriptor: StateDescriptor,
    key: Key,
    namespace: Namespace = None,
) -> Any:
    """The contents of one key, None or a failure code."""
    return query(backend, isolation, descriptor, [key], namespace)[1][0]


def all_places(places: Iterable[Place]) -> list[Place]:
    """The places, and everywhere else that their keys, namespaces and states could be confused with them."""
    given = list(places)
    keys = {(type(key), key): key for _, _, key in given}.values()
    spaces = {(type(space), space): space for space in [None, *(space for _, space, _ in given)]}.values()
    names = {state.name: None for state in KINDS} | {name: None for name, _, _ in given}
    return [(name, space, key) for name in names for space in spaces for key in keys]


def check_tables(backend: StateBackend, model: Model, places: Iterable[Place]) -> None:
    """The tables hold what the model holds, at these places, and the earliest timers are the model's."""
    check_first_timers(backend, model)
    for place in places:
        name, namespace, key = place
        if isinstance(STATES[name], TimerDescriptor):
            continue
        table, expected = backend.table(STATES[name], namespace), model.get(place)
        found = table.get(key)
        check_same(found, expected, place)
        if STATES[name].kind is StateKind.LIST:
            check_same(list(table.list_items(key)), expected or [], f"list_items of {place}")
        if STATES[name].kind is StateKind.MAP:
            items = dict(table.map_items(key))
            check_same(items, expected or {}, f"map_items of {place}")
            for map_key, value in (expected or {}).items():
                entry = table.map_get(key, map_key)
                check_same(entry, value, f"map_get({map_key!r}) of {place}")
                assert table.map_contains(key, map_key), f"map_contains({map_key!r}) of {place}"
            assert not table.map_contains(key, _NO_ENTRY), f"map_contains of a missing entry of {place}"


def check_reads(backend: StateBackend, isolation: Isolation, model: Model, places: Iterable[Place]) -> None:
    """A query of many keys answers what the model holds, at these places."""
    by_table: dict[tuple[str, type, Namespace], list[Key]] = {}
    for name, namespace, key in places:
        if isinstance(STATES[name], TimerDescriptor):  # no query reads them
            continue
        by_table.setdefault((name, type(namespace), namespace), []).append(key)
    for (name, _, namespace), keys in by_table.items():
        _, found = query(backend, isolation, STATES[name], keys, namespace)
        for key, contents in zip(keys, found, strict=True):
            expected = answered(model.get((name, namespace, key)), STATES[name])
            check_same(contents, expected, f"{isolation.value} query of {(name, namespace, key)}")


def answered(contents: Any, descriptor: StateDescriptor) -> Any:
    """What a query gives of these contents: an accumulator is answered with its result."""
    if contents is None or isinstance(contents, FailureCode) or descriptor is not AGGREGATING:
        return contents
    return AGGREGATING.aggregate_function.get_result(contents)
