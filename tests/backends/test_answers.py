"""The bytes of query answers: headers, and the short ways for values of one type."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from qstate.backends import Isolation, StateBackend
from qstate.backends.answers import list_answer, map_answer
from qstate.descriptors import AggregateFunction, AggregatingStateDescriptor
from qstate.errors import FailureCode
from qstate.host.line_limit import MOST_LINES, count_again
from tests.backends.states import LIST, MAP, VALUE


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_headers_are_those_of_messagepack(count: int) -> None:
    assert list_answer(LIST, [b"\x01"] * count) == msgpack.packb([1] * count)
    assert map_answer(MAP, {msgpack.packb(number): b"\x01" for number in range(count)}) == msgpack.packb(
        dict.fromkeys(range(count), 1)
    )


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


class Spiteful(AggregateFunction[int, int, int]):
    """Its results cannot be computed."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        raise ValueError("as the test wants")

    def merge(self, one: int, other: int) -> int:
        return one + other


def test_clients_that_ask_for_what_cannot_be_read_fill_no_log(
    backend: StateBackend, caplog: pytest.LogCaptureFixture
) -> None:
    count_again()
    spiteful = AggregatingStateDescriptor("spiteful", int, aggregate_function=Spiteful())
    backend.begin(0)
    backend.table(spiteful).put("a", 1)
    list(backend.commit(0))
    backend.finalize(0)
    for isolation in (Isolation.LIVE, Isolation.COMMITTED):
        for _ in range(2 * MOST_LINES):
            assert list(backend.reader(isolation).get(spiteful, None, ["a"]).values) == [FailureCode.INTERNAL]
    assert 0 < len(caplog.records) <= 2 * MOST_LINES and "as the test wants" in caplog.text
