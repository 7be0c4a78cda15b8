"""The laws of tables: readable examples of what the state machine checks at random, and what tables refuse."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from qstate.backends import ChangeOp, Isolation, StateBackend
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from qstate.errors import ClosedError, JobError, SerializationError, WrongKeyType
from tests.backends.conftest import OpenBackend
from tests.backends.factories import ALL_GROUPS, open_named
from tests.backends.states import DESCRIPTORS, LIST, MAP, VALUE, committed, live


@dataclass(frozen=True)
class Flight:
    carrier: str
    delays: list[int]


EXAMPLES = [0, -1, 2**63 - 1, 1.5, True, "", "text", b"", b"\x00", [], [1, [2]], {}, {"a": {"b": 1}}, (), (1, "a")]
EXAMPLES += [date(2013, 1, 1), datetime(2013, 1, 1, 5, 30), Decimal("1.10"), datetime(2013, 1, 1, tzinfo=timezone.utc)]


@pytest.mark.parametrize("value", EXAMPLES, ids=repr)
def test_get_gives_what_was_put_before_and_after_a_commit(backend: StateBackend, value: Any) -> None:
    table = backend.table(VALUE)
    table.put("k", value)
    assert (table.get("k"), type(table.get("k"))) == (value, type(value))
    list(backend.commit(0))
    assert (table.get("k"), type(table.get("k"))) == (value, type(value))


def test_records_come_back_as_their_class(backend: StateBackend) -> None:
    descriptor = ValueStateDescriptor("flight", Flight)
    backend.table(descriptor).put("N1", Flight("UA", [3]))
    list(backend.commit(0))
    backend.table(descriptor).get("N1").delays.append(4)  # not put, so not kept
    backend.rollback()
    assert backend.table(descriptor).get("N1") == Flight("UA", [3])


def test_keys_of_other_types_are_other_keys(backend: StateBackend) -> None:
    table = backend.table(VALUE)
    for key in ("1", 1, b"1", ("1", 1), (1, "1")):
        table.put(key, repr(key))
    list(backend.commit(0))
    assert [table.get(key) for key in ("1", 1, b"1", ("1", 1), (1, "1"))] == [
        "'1'",
        "1",
        "b'1'",
        "('1', 1)",
        "(1, '1')",
    ]


def test_an_equal_table_gives_the_same_entries(backend: StateBackend) -> None:
    backend.table(VALUE, "w").put("k", 1)
    assert backend.table(ValueStateDescriptor(VALUE.name), "w").get("k") == 1


def test_a_name_that_comes_again_with_another_kind_is_refused(backend: StateBackend) -> None:
    backend.table(VALUE)
    with pytest.raises(JobError, match=r"a value.*value state.*list state"):
        backend.table(ListStateDescriptor(VALUE.name))


@pytest.mark.parametrize("namespace", [1.5, True, (), ("a",), 2**63], ids=repr)
def test_a_namespace_that_cannot_be_a_key_is_refused(backend: StateBackend, namespace: Any) -> None:
    with pytest.raises(WrongKeyType):
        backend.table(VALUE, namespace)


@pytest.mark.parametrize("map_key", [True, 1.5, None, 2**63, ("a",), ("a", True), ["a"], "\ud800"], ids=repr)
def test_a_map_key_that_cannot_come_back_is_refused(backend: StateBackend, map_key: Any) -> None:
    table = backend.table(MAP)
    with pytest.raises(SerializationError):
        table.map_put("k", map_key, 1)
        list(backend.commit(0))
    backend.rollback()
    with pytest.raises((SerializationError, TypeError)):
        table.put("k", {map_key: 1})
        list(backend.commit(0))


def test_none_is_refused_everywhere(backend: StateBackend) -> None:
    with pytest.raises(SerializationError, match="None"):
        backend.table(VALUE).put("k", None)
    with pytest.raises(SerializationError, match="None"):
        backend.table(VALUE).put_many(["j", "k"], [1, None])
    with pytest.raises(SerializationError, match="None"):
        backend.table(LIST).put("k", [None])
    with pytest.raises(SerializationError, match="None"):
        backend.table(LIST).list_add("k", [1, None])
    with pytest.raises(SerializationError, match="None"):
        backend.table(MAP).map_put("k", "m", None)
    with pytest.raises(SerializationError, match="None"):
        backend.table(MAP).put("k", {"m": None})
    assert not list(backend.commit(0))


def test_put_many_of_unequal_lengths_changes_nothing(backend: StateBackend) -> None:
    with pytest.raises(ValueError, match="2 keys for 1 values"):
        backend.table(VALUE).put_many(["j", "k"], [1])
    assert backend.table(VALUE).get("j") is None


def test_of_equal_keys_put_many_keeps_the_last(backend: StateBackend) -> None:
    table = backend.table(VALUE)
    table.put("j", 0)
    table.put_many(["k", "j", "k"], [1, 2, 3])
    assert (table.get("j"), table.get("k")) == (2, 3)
    backend.rollback()
    assert (table.get("j"), table.get("k")) == (None, None)


def test_an_emptied_list_or_map_is_no_value(backend: StateBackend) -> None:
    lists, maps = backend.table(LIST), backend.table(MAP)
    lists.list_add("k", [])
    assert lists.get("k") is None
    lists.list_add("k", [1])
    lists.put("k", [])
    maps.map_put("k", "m", 1)
    maps.map_remove("k", "m")
    assert (lists.get("k"), maps.get("k"), maps.map_items("k")) == (None, None, [])
    assert (live(backend, LIST, "k"), live(backend, MAP, "k")) == (None, None)
    list(backend.commit(0))
    assert (lists.get("k"), maps.get("k")) == (None, None)


def test_map_items_do_not_show_later_writes(backend: StateBackend) -> None:
    table = backend.table(MAP)
    table.put("k", {"a": 1})
    items = table.map_items("k")
    table.map_put("k", "b", 2)
    table.map_remove("k", "a")
    assert list(items) == [("a", 1)]


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.kind.value)
def test_a_value_that_does_not_fit_is_named_and_can_be_rolled_back(backend: StateBackend, descriptor: Any) -> None:
    good, bad = {"list": ([1], [object()]), "map": ({"m": 1}, {"m": object()})}.get(
        descriptor.kind.value, ([1.0, 1], object())
    )
    table = backend.table(descriptor)
    table.put("k", good)
    list(backend.commit(0))
    backend.begin(1)
    table.put("j", good)
    with pytest.raises(SerializationError, match=f"{descriptor.name}.*'k'.*object"):
        table.put("k", bad)
        list(backend.commit(1))
    backend.rollback()
    assert (table.get("k"), table.get("j")) == (good, None)
    table.put("j", good)
    assert [change.op for change in backend.commit(1)] == [ChangeOp.MAP_PUT if descriptor is MAP else ChangeOp.PUT]


def test_a_commit_tells_only_what_changed(backend: StateBackend) -> None:
    values, lists, maps = backend.table(VALUE), backend.table(LIST), backend.table(MAP)
    values.put_many(["j", "k"], [1, 1])
    lists.list_add("k", list(range(100)))
    maps.put("k", {f"m{number}": number for number in range(100)})
    list(backend.commit(0))
    backend.begin(1)
    values.put("k", 2)
    lists.list_add("k", [100])
    maps.map_put("k", "m7", 8)
    maps.map_remove("k", "m8")
    changes = sorted(backend.commit(1), key=lambda change: change.op.value)
    assert [(change.op, change.map_key, change.data) for change in changes] == [
        (ChangeOp.PUT, b"", b"\x02"),
        (ChangeOp.MAP_PUT, b"\xa2m7", b"\x08"),
        (ChangeOp.MAP_REMOVE, b"\xa2m8", b""),
        (ChangeOp.LIST_ADD, b"", b"\x91\xc4\x01\x64"),
    ]


def test_what_came_and_went_within_an_epoch_is_no_change(backend: StateBackend) -> None:
    for descriptor in (VALUE, LIST, MAP):
        table = backend.table(descriptor)
        table.put("k", {"m": 1} if descriptor is MAP else [1])
        table.delete("k")
    assert list(backend.commit(0)) == []


def test_a_namespace_that_was_emptied_can_be_filled_again(backend: StateBackend) -> None:
    table = backend.table(VALUE, "w")
    for epoch, value in enumerate((1, None, 2)):
        backend.begin(epoch)
        if value is None:
            table.delete("k")
        else:
            table.put("k", value)
        list(backend.commit(epoch))
        backend.finalize(epoch)
        assert committed(backend, VALUE, "k", "w") == value
        assert backend.table(VALUE, "w").get("k") == value


def test_epochs_go_forward(backend: StateBackend) -> None:
    backend.begin(3)
    list(backend.commit(3))
    with pytest.raises(JobError, match="epoch 3"):
        backend.begin(3)
    with pytest.raises(JobError, match="epoch 2"):
        backend.commit(2)


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


def test_additions_of_a_sealed_epoch_do_not_show_before_it_is_final(backend: StateBackend) -> None:
    lists, maps = backend.table(LIST), backend.table(MAP)
    for epoch in range(2):
        backend.begin(epoch)
        lists.list_add("k", [epoch])
        maps.map_put("k", epoch, "new")
        maps.map_put("k", "last", epoch)
        list(backend.commit(epoch))
    assert committed(backend, LIST, "k") == [0]
    assert committed(backend, MAP, "k") == {0: "new", "last": 0}
    backend.begin(2)
    maps.map_remove("k", 0)
    list(backend.commit(2))
    assert committed(backend, LIST, "k") == [0, 1]
    assert committed(backend, MAP, "k") == {0: "new", 1: "new", "last": 1}


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


def test_restore_takes_an_empty_backend_and_known_states(open_backend: OpenBackend) -> None:
    source, unknowing, used = open_backend(), open_backend(), open_backend()
    source.table(VALUE).put("k", 1)
    changes = list(source.commit(0))
    with pytest.raises(JobError, match="'a value'"):
        unknowing.restore(0, changes)
    used.table(VALUE).put("k", 1)
    with pytest.raises(JobError, match="empty"):
        used.restore(0, changes)


def test_a_restored_backend_goes_on_after_its_epoch(open_backend: OpenBackend) -> None:
    source, target = open_backend(), open_backend()
    for descriptor in (VALUE, LIST, MAP):
        source.table(descriptor, "w").put("k", {"m": [1]} if descriptor is MAP else [[1]])
        target.table(descriptor)
    target.restore(7, source.commit(0))
    for descriptor, expected in ((VALUE, [[1]]), (LIST, [[1]]), (MAP, {"m": [1]})):
        assert committed(target, descriptor, "k", "w") == expected
    with pytest.raises(JobError, match="epoch 7"):
        target.begin(7)
    target.begin(8)
    target.table(LIST, "w").list_add("k", [2])
    assert [change.op for change in target.commit(8)] == [ChangeOp.LIST_ADD]
    assert len(list(target.entries(ALL_GROUPS))) == 3


def test_after_close_nothing_crashes_and_close_is_idempotent(backend: StateBackend) -> None:
    table = backend.table(VALUE)
    table.put("k", 1)
    list(backend.commit(0))
    readers = [backend.reader(isolation) for isolation in Isolation]
    backend.close()
    backend.close()
    for reader in readers:
        with pytest.raises(ClosedError):
            reader.get(VALUE, None, ["k"])
    for attempt in (
        lambda: backend.table(VALUE),
        lambda: backend.begin(1),
        lambda: backend.commit(1),
        lambda: backend.finalize(1),
        backend.rollback,
        lambda: backend.reader(Isolation.LIVE),
        lambda: backend.restore(1, []),
        lambda: list(backend.entries(ALL_GROUPS)),
    ):
        with pytest.raises(ClosedError):
            attempt()


def test_a_descriptor_of_a_map_with_its_own_key_type_reads_tuples_back_as_tuples(backend: StateBackend) -> None:
    table = backend.table(MapStateDescriptor("visits", map_key_type=tuple))
    table.map_put("k", ("JFK", 1), (1, (2,)))
    list(backend.commit(0))
    backend.begin(1)
    backend.rollback()
    assert table.get("k") == {("JFK", 1): (1, (2,))}
    assert table.map_get("k", ("JFK", 1)) == (1, (2,))
