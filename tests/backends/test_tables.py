"""What tables refuse in which words, what they tell of an epoch, and what they free.

The laws that every backend keeps are in the conformance suite.
"""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qstate.backends import StateBackend
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError, SerializationError
from tests.backends.factories import open_named
from tests.backends.states import DESCRIPTORS, LIST, MAP, VALUE, committed


@dataclass(frozen=True)
class Flight:
    carrier: str
    delays: list[int]


def test_records_come_back_as_their_class(backend: StateBackend) -> None:
    descriptor = ValueStateDescriptor("flight", Flight)
    backend.table(descriptor).put("N1", Flight("UA", [3]))
    list(backend.commit(0))
    backend.table(descriptor).get("N1").delays.append(4)  # not put, so not kept
    backend.rollback()
    assert backend.table(descriptor).get("N1") == Flight("UA", [3])


def test_a_name_that_comes_again_with_another_kind_is_refused(backend: StateBackend) -> None:
    backend.table(VALUE)
    with pytest.raises(JobError, match=r"a value.*value state.*list state"):
        backend.table(ListStateDescriptor(VALUE.name))


def test_put_many_of_unequal_lengths_changes_nothing(backend: StateBackend) -> None:
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        backend.table(VALUE).put_many(["j", "k"], [1])
    assert backend.table(VALUE).get("j") is None


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.kind.value)
def test_a_value_that_does_not_fit_is_named(backend: StateBackend, descriptor: Any) -> None:
    bad = {"list": [object()], "map": {"m": object()}}.get(descriptor.kind.value, object())
    table = backend.table(descriptor)
    with pytest.raises(SerializationError, match=f"{descriptor.name}.*'k'.*object"):
        table.put("k", bad)
        list(backend.commit(0))


def test_what_came_and_went_within_an_epoch_is_no_change(backend: StateBackend) -> None:
    for descriptor in (VALUE, LIST, MAP):
        table = backend.table(descriptor)
        table.put("k", {"m": 1} if descriptor is MAP else [1])
        table.delete("k")
    assert list(backend.commit(0)) == []


def test_two_commits_without_a_begin_between_them_keep_the_final_epoch(backend: StateBackend) -> None:
    tables = {descriptor: backend.table(descriptor) for descriptor in (VALUE, LIST, MAP)}
    contents: list[dict[Any, Any]] = [
        {VALUE: number if number % 2 else [number], LIST: [number], MAP: {"m": number, number: 0}}
        for number in range(3)
    ]
    for epoch in range(3):
        for descriptor, table in tables.items():
            table.put("k", contents[epoch][descriptor])
        list(backend.commit(epoch))
        if epoch == 0:
            backend.finalize(0)
    for descriptor in tables:
        assert committed(backend, descriptor, "k") == contents[0][descriptor]
    backend.finalize(2)
    for descriptor in tables:
        assert committed(backend, descriptor, "k") == contents[2][descriptor]


def test_a_list_shortened_without_being_put_is_told_as_a_whole_by_the_heap(tmp_path: Path) -> None:
    """Against the rules, but live and durable state must not drift apart for good."""
    with open_named("heap", tmp_path) as backend, open_named("heap", tmp_path) as other:
        table = backend.table(LIST)
        other.table(LIST)
        table.list_add("k", [1, 2])
        changes = list(backend.commit(0))
        del table.get("k")[0]
        table.list_add("k", [3])
        other.restore(1, [*changes, *backend.commit(1)])
        assert other.table(LIST).get("k") == table.get("k") == [2, 3]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.kind.value)
def test_a_table_is_freed_with_its_last_entry_and_handle(backend: StateBackend, descriptor: Any) -> None:
    """Windows are namespaces: a job sees ever new ones."""

    def put(window: int) -> weakref.ref[Any]:
        table = backend.table(descriptor, window)
        table.put("k", {"m": 1} if descriptor is MAP else [1.0, 1])
        return weakref.ref(table)

    undone = put(0)
    backend.rollback()
    gone = put(1)
    list(backend.commit(0))
    backend.begin(1)
    assert backend.table(descriptor, 1).get("k")
    backend.table(descriptor, 1).delete("k")
    list(backend.commit(1))
    backend.begin(2)
    gc.collect()
    assert (undone(), gone()) == (None, None)


def test_a_descriptor_of_a_map_with_its_own_key_type_reads_tuples_back_as_tuples(backend: StateBackend) -> None:
    table = backend.table(MapStateDescriptor("visits", map_key_type=tuple))
    table.map_put("k", ("JFK", 1), (1, (2,)))
    list(backend.commit(0))
    backend.begin(1)
    backend.rollback()
    assert table.get("k") == {("JFK", 1): (1, (2,))}
    assert table.map_get("k", ("JFK", 1)) == (1, (2,))
