"""States of every kind, and answers read back without the code under test."""

from __future__ import annotations

from typing import Any

import msgpack

from qstate.backends import Isolation, StateBackend
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from qstate.errors import FailureCode
from qstate.keys import Key, Namespace
from qstate.serializers import MessagePackSerializer
from tests.functions import Mean

VALUE = ValueStateDescriptor("a value")
LIST = ListStateDescriptor("a list")
MAP = MapStateDescriptor("a map")
REDUCING = ReducingStateDescriptor("a sum", int, reduce_function=int.__add__)
AGGREGATING = AggregatingStateDescriptor("a mean", list, aggregate_function=Mean())
DESCRIPTORS: tuple[StateDescriptor, ...] = (VALUE, LIST, MAP, REDUCING, AGGREGATING)


def canonical(value: Any) -> Any:
    """Equal for equal values of equal types only: True is not 1 here, and a tuple is not a list."""
    if isinstance(value, dict):
        return "dict", sorted((repr(canonical(key)), canonical(found)) for key, found in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, [canonical(element) for element in value]
    return type(value).__name__, repr(value)


def read_answer(descriptor: StateDescriptor, answer: bytes) -> Any:
    """The contents of a query answer whose serializer is MessagePack."""
    if descriptor.kind is not StateKind.MAP:
        return MessagePackSerializer().loads(answer)
    unpacker = msgpack.Unpacker(use_list=False)
    unpacker.feed(answer)
    entries = {}
    for _ in range(unpacker.read_map_header()):
        map_key = unpacker.unpack()
        start = unpacker.tell()
        unpacker.skip()
        entries[map_key] = MessagePackSerializer().loads(answer[start : unpacker.tell()])
    assert unpacker.tell() == len(answer)
    return entries


def query(
    backend: StateBackend,
    descriptor: StateDescriptor,
    key: Key,
    isolation: Isolation = Isolation.LIVE,
    namespace: Namespace = None,
) -> Any:
    """What a query of one key gives: contents, None, or a failure code."""
    answer = backend.reader(isolation).get(descriptor, namespace, [key]).values[0]
    return answer if answer is None or isinstance(answer, FailureCode) else read_answer(descriptor, answer)


def committed(backend: StateBackend, descriptor: StateDescriptor, key: Key, namespace: Namespace = None) -> Any:
    return query(backend, descriptor, key, Isolation.COMMITTED, namespace)


def live(backend: StateBackend, descriptor: StateDescriptor, key: Key, namespace: Namespace = None) -> Any:
    backend.publish()
    return query(backend, descriptor, key, Isolation.LIVE, namespace)
