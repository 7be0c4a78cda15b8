"""How the heap tells what values take without making them. That it stops in time, the conformance suite proves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import BackendContext, Isolation
from qstate.backends.heap.backend import HeapBackend
from qstate.descriptors import ListStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import TooLarge
from qstate.keys import KeyGroupRange
from qstate.serializers import MessagePackSerializer


class Counting(MessagePackSerializer):
    """Counts what it serializes."""

    dumped = 0

    def dumps(self, value: Any) -> bytes:
        self.dumped += 1
        return super().dumps(value)


class Compressing(MessagePackSerializer):
    """Values take less than they are long."""

    name = "compressing"

    def dumps(self, value: Any) -> bytes:
        return b"z"


def held(tmp_path: Path, descriptor: StateDescriptor, values: list[Any]) -> HeapBackend:
    backend = HeapBackend(BackendContext(KeyGroupRange(0, 128), 128, tmp_path))
    table = backend.table(descriptor)
    backend.begin(0)
    for number, value in enumerate(values):
        table.put(f"key {number}", value)
    return backend


@pytest.mark.parametrize("value", ["x" * 1000, b"x" * 1000, ["x"] * 1000, {f"{n}": n for n in range(1000)}])
def test_a_value_that_is_longer_than_allowed_is_not_serialized(tmp_path: Path, value: Any) -> None:
    descriptor = ValueStateDescriptor("state")
    serializer = descriptor.serializer
    assert type(serializer) is MessagePackSerializer
    reader = held(tmp_path, descriptor, [value] * 3).reader(Isolation.LIVE)
    for keys in (["key 0"], ["key 0", "key 1"]):
        with pytest.raises(TooLarge):
            reader.get(descriptor, None, keys, 999)
    assert reader.get(descriptor, None, ["missing"], 0).values == [None]


def test_a_list_that_has_more_elements_than_bytes_are_allowed_is_not_serialized(tmp_path: Path) -> None:
    serializer = Counting()
    descriptor = ListStateDescriptor("state", serializer=serializer)
    backend = held(tmp_path, descriptor, [[1] * 1000, [2]])
    with pytest.raises(TooLarge):
        backend.reader(Isolation.LIVE).get(descriptor, None, ["key 1", "key 0"], 999)
    assert serializer.dumped == 1


def test_what_a_serializer_of_the_users_own_makes_of_a_value_is_what_counts(tmp_path: Path) -> None:
    descriptor = ValueStateDescriptor("state", serializer=Compressing())
    reader = held(tmp_path, descriptor, ["x" * 1000] * 5).reader(Isolation.LIVE)
    keys = [f"key {number}" for number in range(5)]
    assert reader.get(descriptor, None, keys, 5).values == [b"z"] * 5
    with pytest.raises(TooLarge):
        reader.get(descriptor, None, keys, 4)


@pytest.mark.parametrize("value", [1, 1 << 62, -1, 1.5, True, "", "é" * 50, "\U0001f600" * 50, b"", b"x" * 300, None])
def test_values_that_fit_exactly_are_given_and_refused_with_a_byte_less(tmp_path: Path, value: Any) -> None:
    descriptor = ValueStateDescriptor("state")
    values = [value, value] if value is not None else [1, 1]
    backend = held(tmp_path, descriptor, values)
    keys = ["key 0", "key 1"] if value is not None else ["key 0", "missing"]
    reader = backend.reader(Isolation.LIVE)
    found = reader.get(descriptor, None, keys).values
    size = sum(len(data) for data in found if isinstance(data, bytes))
    assert reader.get(descriptor, None, keys, size).values == found
    with pytest.raises(TooLarge):
        reader.get(descriptor, None, keys, size - 1)
