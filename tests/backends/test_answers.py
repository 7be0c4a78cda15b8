"""Query answers: the same bytes from live objects and from stored ones, framed as the protocol says."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from qstate.backends import Isolation, StateBackend
from qstate.backends.answers import list_answer, map_answer
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import FailureCode
from qstate.serializers import Serializer
from tests.backends.states import AGGREGATING, DESCRIPTORS, LIST, MAP, REDUCING, VALUE, committed, live


class Reversed(Serializer):
    """A serializer whose bytes are not MessagePack."""

    name = "reversed"

    def dumps(self, value: str) -> bytes:
        return value[::-1].encode()

    def loads(self, data: bytes) -> str:
        return data.decode()[::-1]


OWN_VALUE = ValueStateDescriptor("own value", serializer=Reversed())
OWN_LIST = ListStateDescriptor("own list", serializer=Reversed())
OWN_MAP = MapStateDescriptor("own map", serializer=Reversed())


@pytest.mark.parametrize(
    ("descriptor", "contents", "expected"),
    [
        (VALUE, {"a": [1, 2]}, {"a": [1, 2]}),
        (LIST, [1, "a", [2]], [1, "a", [2]]),
        (LIST, list(range(70_000)), list(range(70_000))),
        (MAP, {"a": 1, 2: [3], b"b": "c", ("d", 4): 5.0}, {"a": 1, 2: [3], b"b": "c", ("d", 4): 5.0}),
        (MAP, {f"m{number}": number for number in range(70_000)}, {f"m{number}": number for number in range(70_000)}),
        (AGGREGATING, [6.0, 4], 1.5),
    ],
    ids=["value", "list", "long list", "map", "large map", "aggregating"],
)
def test_live_and_committed_answers_have_the_contents(
    backend: StateBackend, descriptor: StateDescriptor, contents: Any, expected: Any
) -> None:
    backend.table(descriptor).put("k", contents)
    assert live(backend, descriptor, "k") == expected
    assert committed(backend, descriptor, "k") is None
    list(backend.commit(0))
    assert committed(backend, descriptor, "k") is None
    backend.finalize(0)
    assert committed(backend, descriptor, "k") == live(backend, descriptor, "k") == expected


@pytest.mark.parametrize("isolation", list(Isolation))
def test_a_serializer_that_is_not_messagepack_travels_in_bins(backend: StateBackend, isolation: Isolation) -> None:
    backend.table(OWN_VALUE).put("k", "abc")
    backend.table(OWN_LIST).list_add("k", ["abc", ""])
    backend.table(OWN_MAP).map_put("k", "m", "abc")
    list(backend.commit(0))
    backend.finalize(0)
    reader = backend.reader(isolation)
    assert reader.get(OWN_VALUE, None, ["k"]).values == [b"cba"]
    assert reader.get(OWN_LIST, None, ["k"]).values == [msgpack.packb([b"cba", b""])]
    assert reader.get(OWN_MAP, None, ["k"]).values == [msgpack.packb({"m": b"cba"})]


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_headers_are_those_of_messagepack(count: int) -> None:
    assert list_answer(LIST, [b"\x01"] * count) == msgpack.packb([1] * count)
    assert map_answer(MAP, {msgpack.packb(number): b"\x01" for number in range(count)}) == msgpack.packb(
        dict.fromkeys(range(count), 1)
    )


def test_answers_come_in_the_order_of_the_keys(backend: StateBackend) -> None:
    backend.table(VALUE).put_many(["a", "b"], [1, 2])
    backend.publish()
    result = backend.reader(Isolation.LIVE).get(VALUE, None, ["b", "missing", "a", "b"])
    assert result.values == [b"\x02", None, b"\x01", b"\x02"]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.kind.value)
@pytest.mark.parametrize("isolation", list(Isolation))
def test_no_keys_have_no_values(backend: StateBackend, descriptor: StateDescriptor, isolation: Isolation) -> None:
    contents = {VALUE: 1, LIST: [1], MAP: {"a": 1}, REDUCING: 1, AGGREGATING: [1.0, 1]}[descriptor]
    backend.table(descriptor).put("k", contents)
    list(backend.commit(0))
    backend.finalize(0)
    assert backend.reader(isolation).get(descriptor, None, []) == (0, [])


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"a": 1},
        {"a": 1, "b": 2},
        {"a": 1, "b": 2.5, "c": "x"},
        {"a": 1, "b": None},
        {"a": None, "b": None},
        {"a": [1], "b": [2]},
        {"a": [1], "b": 2, "c": None},
    ],
    ids=repr,
)
def test_values_of_one_type_of_several_and_of_none_are_answered_alike(
    backend: StateBackend, found: dict[str, Any]
) -> None:
    for key, value in found.items():
        if value is not None:
            backend.table(VALUE).put(key, value)
    backend.publish()
    values = backend.reader(Isolation.LIVE).get(VALUE, None, list(found)).values
    assert list(values) == [None if value is None else msgpack.packb(value) for value in found.values()]


def test_an_unopened_state_or_namespace_has_no_values(backend: StateBackend) -> None:
    for isolation in Isolation:
        assert backend.reader(isolation).get(LIST, ("w", 1), ["a"]).values == [None]


def test_the_epoch_of_an_answer_is_the_one_it_shows(backend: StateBackend) -> None:
    def epochs() -> list[int]:
        return [backend.reader(isolation).get(VALUE, None, []).epoch for isolation in Isolation]

    assert epochs() == [-1, -1]
    backend.begin(4)
    assert epochs() == [4, -1]
    list(backend.commit(4))
    assert epochs() == [4, -1]
    backend.finalize(4)
    backend.finalize(4)
    assert epochs() == [4, 4]
    backend.begin(5)
    assert epochs() == [5, 4]
    backend.rollback()
    assert epochs() == [4, 4]


def test_a_result_that_cannot_be_computed_fails_that_key_alone(backend: StateBackend) -> None:
    table = backend.table(AGGREGATING)
    table.put("bad", [1.0, 0])
    table.put("good", [1.0, 1])
    list(backend.commit(0))
    backend.finalize(0)
    values = backend.reader(Isolation.COMMITTED).get(AGGREGATING, None, ["bad", "good"]).values
    assert values == [FailureCode.INTERNAL, msgpack.packb(1.0)]
    values = backend.reader(Isolation.LIVE).get(AGGREGATING, None, ["bad", "good"]).values
    assert values[0] in (FailureCode.INTERNAL, FailureCode.CONCURRENT_MODIFICATION)
    assert values[1] == msgpack.packb(1.0)
