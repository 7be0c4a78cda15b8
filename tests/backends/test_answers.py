"""The bytes of query answers: headers, and the short ways for values of one type."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from qstate.backends import Isolation, StateBackend
from qstate.backends.answers import list_answer, map_answer
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
