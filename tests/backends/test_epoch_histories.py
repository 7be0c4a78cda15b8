"""Every short history of one key within an epoch: undone by a rollback, told by a commit, rebuilt from the changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from qstate.backends import StateBackend, StateTable
from qstate.descriptors import StateDescriptor
from tests.backends.conftest import OpenBackend
from tests.backends.factories import ALL_GROUPS
from tests.backends.states import LIST, MAP, VALUE, committed, live

LENGTH = 3


class Step(NamedTuple):
    """One operation: on a table, and on plain contents (None for nothing)."""

    on_table: Callable[[StateTable, str], object]
    on_model: Callable[[Any], Any]


def _without(entries: dict[str, Any] | None, map_key: str) -> dict[str, Any] | None:
    return {name: value for name, value in (entries or {}).items() if name != map_key} or None


def _change_in_place_and_put(table: StateTable, key: str) -> None:
    found = table.get(key)
    if found is not None:
        found.append(8)
        table.put(key, found)


DELETE = Step(lambda table, key: table.delete(key), lambda old: None)
GET = Step(lambda table, key: table.get(key), lambda old: old)
PUT_LIST = Step(lambda table, key: table.put(key, [7]), lambda old: [7])
IN_PLACE = Step(_change_in_place_and_put, lambda old: None if old is None else [*old, 8])
STEPS: dict[str, list[Step]] = {
    VALUE.name: [PUT_LIST, IN_PLACE, DELETE, GET],
    LIST.name: [
        PUT_LIST,
        IN_PLACE,
        DELETE,
        GET,
        Step(lambda table, key: table.list_add(key, [9]), lambda old: [*(old or []), 9]),
    ],
    MAP.name: [
        Step(lambda table, key: table.put(key, {"c": [7]}), lambda old: {"c": [7]}),
        DELETE,
        GET,
        Step(lambda table, key: table.map_put(key, "a", [8]), lambda old: {**(old or {}), "a": [8]}),
        Step(lambda table, key: table.map_remove(key, "a"), lambda old: _without(old, "a")),
        Step(lambda table, key: table.map_get(key, "b"), lambda old: old),
    ],
}
START: dict[str, Any] = {VALUE.name: [1, 2], LIST.name: [1, 2], MAP.name: {"a": [1], "b": [2]}}


def histories(descriptor: StateDescriptor) -> Iterator[tuple[str, bool, tuple[Step, ...], int]]:
    """(key, whether it starts with a value, steps, the step that the first publishing follows) of every history."""
    numbered = enumerate(product([True, False], product(STEPS[descriptor.name], repeat=LENGTH), range(LENGTH)))
    for number, (present, steps, published) in numbered:
        yield f"k{number}", present, steps, published


def start_of(descriptor: StateDescriptor) -> dict[str, Any]:
    return {key: START[descriptor.name].copy() if present else None for key, present, _, _ in histories(descriptor)}


def _run(backend: StateBackend, descriptor: StateDescriptor) -> dict[str, Any]:
    """Run every history on its own key; gives the contents expected in the end."""
    table, expected = backend.table(descriptor), start_of(descriptor)

    def step(position: int, key: str, steps: tuple[Step, ...]) -> None:
        steps[position].on_table(table, key)
        expected[key] = steps[position].on_model(expected[key])

    # All is published LENGTH times; before the nth time, each history goes on to its own nth point.
    for point in range(LENGTH):
        for key, _, steps, published in histories(descriptor):
            first, last = (0, published + 1) if point == 0 else (published + point, published + point + 1)
            for position in range(first, min(last, LENGTH)):
                step(position, key, steps)
        backend.publish()
    return expected


@pytest.fixture(params=[VALUE, LIST, MAP], ids=lambda descriptor: descriptor.kind.value)
def descriptor(request: pytest.FixtureRequest) -> StateDescriptor:
    found: StateDescriptor = request.param
    return found


@pytest.fixture
def started(backend: StateBackend, descriptor: StateDescriptor) -> StateBackend:
    for key, contents in start_of(descriptor).items():
        if contents is not None:
            backend.table(descriptor).put(key, contents)
    list(backend.commit(0))
    backend.begin(1)
    return backend


def _contents(backend: StateBackend, descriptor: StateDescriptor) -> dict[str, Any]:
    table = backend.table(descriptor)
    return {key: table.get(key) for key, _, _, _ in histories(descriptor)}


def test_every_history_is_undone_by_a_rollback(started: StateBackend, descriptor: StateDescriptor) -> None:
    expected = _run(started, descriptor)
    assert _contents(started, descriptor) == expected
    started.rollback()
    assert _contents(started, descriptor) == start_of(descriptor)
    for key, contents in start_of(descriptor).items():
        assert live(started, descriptor, key) == contents
    assert list(started.commit(1)) == []


def test_every_history_is_committed_and_rebuilt_from_its_changes(
    started: StateBackend, descriptor: StateDescriptor, open_backend: OpenBackend
) -> None:
    start = list(started.entries(ALL_GROUPS))
    expected = _run(started, descriptor)
    changes = list(started.commit(1))
    assert _contents(started, descriptor) == expected
    for key, contents in start_of(descriptor).items():
        assert committed(started, descriptor, key) == contents
    started.finalize(1)
    rebuilt = open_backend()
    rebuilt.table(descriptor)
    rebuilt.restore(1, [*start, *changes])
    assert _contents(rebuilt, descriptor) == expected
    for key, contents in expected.items():
        assert committed(started, descriptor, key) == committed(rebuilt, descriptor, key) == contents
        assert live(rebuilt, descriptor, key) == contents


def test_histories_of_two_epochs_add_up(started: StateBackend, descriptor: StateDescriptor) -> None:
    """The second epoch is rolled back to the first, which is sealed but not final."""
    expected = _run(started, descriptor)
    list(started.commit(1))
    table = started.table(descriptor)
    for key, _, steps, _ in histories(descriptor):
        steps[0].on_table(table, key)
    started.publish()
    started.rollback()
    assert _contents(started, descriptor) == expected
    for key, contents in start_of(descriptor).items():
        assert committed(started, descriptor, key) == contents
