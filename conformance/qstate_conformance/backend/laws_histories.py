"""Laws of short histories: every sequence of three operations on one key in one epoch, each on a key of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest

from qstate.backends import Isolation, StateBackend, StateTable
from qstate.descriptors import StateDescriptor
from qstate_conformance.backend.contents import query
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import canonical
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import LIST, MAP, VALUE
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

_LENGTH = 3


class _Step(NamedTuple):
    """One operation: on a table, and on plain contents (None for nothing)."""

    on_table: Callable[[StateTable, str], object]
    on_model: Callable[[Any], Any]


def _without(entries: dict[str, Any] | None, map_key: str) -> dict[str, Any] | None:
    return {name: value for name, value in (entries or {}).items() if name != map_key} or None


def _change_in_place(table: StateTable, key: str) -> None:
    found = table.get(key)
    if found is not None:
        found.append(8)
        table.put(key, found)


_DELETE = _Step(lambda table, key: table.delete(key), lambda old: None)
_GET = _Step(lambda table, key: table.get(key), lambda old: old)
_PUT = _Step(lambda table, key: table.put(key, [7]), lambda old: [7])
_IN_PLACE = _Step(_change_in_place, lambda old: None if old is None else [*old, 8])
_STEPS: dict[str, list[_Step]] = {
    VALUE.name: [_PUT, _IN_PLACE, _DELETE, _GET],
    LIST.name: [
        _PUT, _IN_PLACE, _DELETE, _GET,
        _Step(lambda table, key: table.list_add(key, [9]), lambda old: [*(old or []), 9]),
    ],
    MAP.name: [
        _Step(lambda table, key: table.put(key, {"c": [7]}), lambda old: {"c": [7]}),
        _DELETE, _GET,
        _Step(lambda table, key: table.map_put(key, "a", [8]), lambda old: {**(old or {}), "a": [8]}),
        _Step(lambda table, key: table.map_remove(key, "a"), lambda old: _without(old, "a")),
        _Step(lambda table, key: table.map_get(key, "b"), lambda old: old),
    ],
}  # fmt: skip
_START: dict[str, Any] = {VALUE.name: [1, 2], LIST.name: [1, 2], MAP.name: {"a": [1], "b": [2]}}

_of_kinds = pytest.mark.parametrize("descriptor", [VALUE, LIST, MAP], ids=lambda descriptor: descriptor.kind.value)


class _History(NamedTuple):
    """`published`: the step that the first publishing follows."""

    key: str
    present: bool
    steps: tuple[_Step, ...]
    published: int


def _histories(descriptor: StateDescriptor) -> Iterator[_History]:
    numbered = enumerate(product([True, False], product(_STEPS[descriptor.name], repeat=_LENGTH), range(_LENGTH)))
    for number, (present, steps, published) in numbered:
        yield _History(f"k{number}", present, steps, published)


def _start_of(descriptor: StateDescriptor) -> dict[str, Any]:
    return {each.key: _START[descriptor.name].copy() if each.present else None for each in _histories(descriptor)}


def _begun(backend: StateBackend, descriptor: StateDescriptor) -> None:
    """Commit what every history starts with, and begin the next epoch."""
    for key, contents in _start_of(descriptor).items():
        if contents is not None:
            backend.table(descriptor).put(key, contents)
    sealed(backend, 0)
    backend.begin(1)


def _run(backend: StateBackend, descriptor: StateDescriptor) -> dict[str, Any]:
    """Run every history on its own key; gives the contents expected in the end."""
    table, expected = backend.table(descriptor), _start_of(descriptor)
    # One round for each step: in round n each history runs up to its own nth point, then all is published.
    for point in range(_LENGTH):
        for key, _, steps, published in _histories(descriptor):
            first, last = (0, published + 1) if point == 0 else (published + point, published + point + 1)
            for step in steps[first : min(last, _LENGTH)]:
                step.on_table(table, key)
                expected[key] = step.on_model(expected[key])
        backend.publish()
    return expected


def _check(backend: StateBackend, descriptor: StateDescriptor, expected: dict[str, Any], what: str) -> None:
    """The table and live queries give the expected contents. The message names the first histories that differ."""
    table = backend.table(descriptor)
    backend.publish()
    answers = query(backend, Isolation.LIVE, descriptor, list(expected))[1]
    for (key, contents), answer in zip(expected.items(), answers, strict=True):
        found = table.get(key)
        assert canonical(found) == canonical(contents), f"{what}, {key}: expected {contents!r}, got {found!r}"
        assert canonical(answer) == canonical(contents), f"{what}, {key}: expected {contents!r}, answered {answer!r}"


@law("B4", "T6", "R6")
@_of_kinds
def test_every_history_is_undone_by_a_rollback(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """Whatever three operations did to a key, committed before or not, a rollback leaves what was committed."""
    with opened(subject) as backend:
        _begun(backend, descriptor)
        _check(backend, descriptor, _run(backend, descriptor), "before the rollback")
        backend.rollback()
        _check(backend, descriptor, _start_of(descriptor), "after the rollback")
        backend.begin(1)
        assert sealed(backend, 1) == []


@law("B3", "T6", "B9", "B10")
@_of_kinds
def test_every_history_is_told_by_its_commit(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """Whatever three operations did to a key, the changes of the commit rebuild it, here and in a plain dict."""
    with Instances(subject) as instances:
        backend, replica = instances.open(), Replica()
        backend.begin(0)
        _begun(backend, descriptor)
        start = list(backend.entries(ALL))
        expected = _run(backend, descriptor)
        changes = sealed(backend, 1)
        _check(backend, descriptor, expected, "after the commit")
        _check(instances.restored(1, [*start, *changes]), descriptor, expected, "rebuilt from the changes")
        _check(instances.restored(1, list(backend.entries(ALL))), descriptor, expected, "rebuilt from the entries")
        replica.load([*start, *changes])
        found = replica.model()
        for key, contents in expected.items():
            told = found.get((descriptor.name, None, key))
            assert canonical(told) == canonical(contents), f"{key}: expected {contents!r}, told {told!r}"


@law("B4", "T6")
@_of_kinds
def test_histories_of_two_epochs_add_up(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """Operations of a second epoch are undone to what the first one sealed, also before that one is final."""
    with opened(subject) as backend:
        _begun(backend, descriptor)
        expected = _run(backend, descriptor)
        sealed(backend, 1)
        backend.begin(2)
        table = backend.table(descriptor)
        for key, _, steps, _ in _histories(descriptor):
            steps[0].on_table(table, key)
        backend.publish()
        backend.rollback()
        _check(backend, descriptor, expected, "after the rollback")
