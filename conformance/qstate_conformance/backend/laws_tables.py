"""Laws of tables: the five kinds of state, within one epoch and across its end."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from itertools import islice
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.descriptors import StateDescriptor
from qstate.keys import Key, Namespace
from qstate_conformance.backend.contents import all_places, check_tables
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.states import FRAMED, FRAMED_MAP, KINDS, LIST, MAP, VALUE, numbered
from qstate_conformance.backend.strategies import (
    contents_of,
    elements,
    key_lists,
    keys,
    map_keys,
    map_values,
    namespaces,
    programs,
    values,
)
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject


@law("T1")
@given(key=keys, value=values)
@example(key="k", value=float("nan"))
@example(key="", value=2**63 - 1)
@example(key=b"", value=-(2**63))
@example(key="k", value=2**64 - 1)
@example(key="e\u0301", value="e\u0301")
def test_get_gives_what_was_put(subject: BackendSubject, key: Key, value: Any) -> None:
    """A value reads as it was put, before and after the commit, and from the changes in another instance."""
    with Instances(subject) as instances:
        backend, changes = instances.open(), []
        for epoch, descriptor in enumerate((VALUE, FRAMED)):
            backend.begin(epoch)
            table = backend.table(descriptor)
            table.put(key, deepcopy(value))
            check_same(table.get(key), value, "before the commit")
            changes += sealed(backend, epoch)
            check_same(table.get(key), value, "after the commit")
            found = instances.restored(epoch, changes).table(descriptor).get(key)
            check_same(found, value, "restored")


@law("T1")
@given(data=st.data(), descriptor=st.sampled_from(KINDS), key=keys)
def test_the_last_put_counts(
    subject: BackendSubject, data: st.DataObject, descriptor: StateDescriptor, key: Key
) -> None:
    """Of two puts the last one counts, within an epoch and in the next one, for every kind of state."""
    contents = data.draw(st.lists(contents_of[descriptor.kind], min_size=3, max_size=3))
    with opened(subject) as backend:
        table = backend.table(descriptor)
        for number, expected in enumerate(contents):
            table.put(key, deepcopy(expected))
            check_same(table.get(key), expected)
            if number == 1:
                sealed(backend, 0)
                backend.begin(1)
        sealed(backend, 1)
        check_same(backend.table(descriptor).get(key), contents[-1])


@law("T2")
@given(key=keys, namespace=namespaces, descriptor=st.sampled_from(KINDS))
def test_a_key_without_a_value_reads_as_none(
    subject: BackendSubject, key: Key, namespace: Namespace, descriptor: StateDescriptor
) -> None:
    """A key that was never written, and one that was deleted, has no value."""
    with opened(subject) as backend:
        table = backend.table(descriptor, namespace)
        assert table.get(key) is None
        table.delete(key)  # nothing to delete, nothing to complain about
        table.put(key, numbered(descriptor, 1))
        table.delete(key)
        assert table.get(key) is None
        sealed(backend, 0)
        assert table.get(key) is None


@law("T2")
@given(key=keys, descriptor=st.sampled_from(KINDS))
def test_delete_removes_a_committed_value(subject: BackendSubject, key: Key, descriptor: StateDescriptor) -> None:
    """A committed value that is deleted is gone at once, after the commit, and in an instance restored from it."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        table = backend.table(descriptor)
        table.put(key, numbered(descriptor, 1))
        changes = sealed(backend, 0)
        backend.begin(1)
        table.delete(key)
        assert table.get(key) is None
        changes += sealed(backend, 1)
        assert table.get(key) is None
        assert instances.restored(1, changes).table(descriptor).get(key) is None


@law("T4")
@given(value=st.lists(values, max_size=3), element=values)
def test_a_value_changed_in_place_counts_when_it_is_put_again(
    subject: BackendSubject, value: list[Any], element: Any
) -> None:
    """A value that `get` returned may be changed and put again; the change is then part of the epoch."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        table = backend.table(VALUE)
        table.put("k", deepcopy(value))
        changes = sealed(backend, 0)
        backend.begin(1)
        found = table.get("k")
        found.append(deepcopy(element))
        table.put("k", found)
        changes += sealed(backend, 1)
        expected = [*value, element]
        check_same(table.get("k"), expected)
        check_same(instances.restored(1, changes).table(VALUE).get("k"), expected)


@law("T4")
@given(value=st.lists(st.integers(), min_size=1, max_size=3))
def test_a_value_changed_in_place_and_not_put_is_undone_by_rollback(subject: BackendSubject, value: list[int]) -> None:
    """A change in place without a put is not part of the state: a rollback restores the old value."""
    value = [number % 100 for number in value]
    with opened(subject) as backend:
        table = backend.table(VALUE)
        table.put("k", list(value))
        sealed(backend, 0)
        backend.begin(1)
        table.get("k").append("not put")
        table.put("other", 1)
        backend.rollback()
        check_same(table.get("k"), value)


@law("T5")
@given(key=keys, before=st.booleans())
def test_an_empty_list_and_an_empty_map_are_no_value(subject: BackendSubject, key: Key, before: bool) -> None:
    """A list without elements and a map without entries read as None, however they became empty."""
    with opened(subject) as backend:
        lists, maps = backend.table(LIST), backend.table(MAP)
        if before:
            lists.put(key, [1])
            maps.put(key, {"m": 1})
            sealed(backend, 0)
            backend.begin(1)
        for emptied in (lambda: (lists.put(key, []), maps.put(key, {})), lambda: _fill_and_empty(lists, maps, key)):
            emptied()
            assert (lists.get(key), maps.get(key), maps.map_get(key, "m")) == (None, None, None)
            assert list(maps.map_items(key)) == []
        lists.list_add(key, [])
        assert lists.get(key) is None
        sealed(backend, int(before))
        assert (lists.get(key), maps.get(key), list(maps.map_items(key))) == (None, None, [])


@law("T7")
@given(chosen=key_lists(1, 4), data=st.data())
def test_of_equal_keys_put_many_keeps_the_last(subject: BackendSubject, chosen: list[Key], data: st.DataObject) -> None:
    """`put_many` is `put` of one pair after the other, repeated keys included."""
    pairs = data.draw(st.lists(st.tuples(st.sampled_from(chosen), st.integers(0, 99)), max_size=8))
    expected: dict[tuple[type, Key], int] = {}
    with opened(subject) as backend:
        table = backend.table(VALUE)
        table.put(chosen[0], -1)
        expected[type(chosen[0]), chosen[0]] = -1
        table.put_many([key for key, _ in pairs], [value for _, value in pairs])
        expected.update({(type(key), key): value for key, value in pairs})
        assert [table.get(key) for key in chosen] == [expected.get((type(key), key)) for key in chosen]
        sealed(backend, 0)
        assert [table.get(key) for key in chosen] == [expected.get((type(key), key)) for key in chosen]


@law("T7")
@given(chosen=key_lists(1, 6), wanted=st.data(), descriptor=st.sampled_from(KINDS))
def test_get_many_is_get_of_each_key(
    subject: BackendSubject, chosen: list[Key], wanted: st.DataObject, descriptor: StateDescriptor
) -> None:
    """`get_many` returns what `get` does: committed, new, changed and deleted values, None, repeated keys, in order."""
    asked = wanted.draw(st.lists(st.sampled_from([*chosen, "never written"]), max_size=12))
    with opened(subject) as backend:
        table = backend.table(descriptor)

        def check(when: str) -> None:
            check_same(list(table.get_many(asked)), [table.get(key) for key in asked], when)

        check("before the first write")
        for number, key in enumerate(chosen):
            table.put(key, numbered(descriptor, number))
        check("in the epoch that wrote them")
        sealed(backend, 0)
        backend.begin(1)
        check("committed")
        for key in chosen[::2]:
            table.delete(key)
        table.put_many(chosen[1::3], [numbered(descriptor, 50 + number) for number in range(len(chosen[1::3]))])
        check("changed")
        backend.rollback()
        check("rolled back")


@law("T7")
def test_put_many_takes_many_keys_at_once(subject: BackendSubject) -> None:
    """A `put_many` of ten thousand keys, among them committed ones, arrives whole."""
    with opened(subject) as backend:
        table, many = backend.table(VALUE), list(range(10_000))
        table.put_many(many[::2], ["old"] * 5_000)
        sealed(backend, 0)
        backend.begin(1)
        table.put_many(many, [str(number) for number in many])
        assert not [key for key in many if table.get(key) != str(key)][:5]
        assert len(sealed(backend, 1)) == len(many)
        assert not [key for key in many if table.get(key) != str(key)][:5]


@law("T8")
@given(parts=st.lists(st.lists(values, max_size=3), min_size=1, max_size=6), commits=st.sets(st.integers(0, 5)))
def test_list_add_adds_at_the_end_in_order(subject: BackendSubject, parts: list[list[Any]], commits: set[int]) -> None:
    """Elements stay in the order in which they were added, each once, across commits."""
    with Instances(subject) as instances:
        backend, changes, epoch = instances.open(), [], 0
        backend.begin(0)
        table, expected = backend.table(LIST), []
        for number, part in enumerate(parts):
            table.list_add("k", deepcopy(part))
            expected += part
            if number in commits:
                changes += sealed(backend, epoch)
                epoch += 1
                backend.begin(epoch)
            if number % 2:
                check_same(table.get("k"), expected or None)
        changes += sealed(backend, epoch)
        check_same(table.get("k"), expected or None)
        check_same(instances.restored(epoch, changes).table(LIST).get("k"), expected or None)


@law("T8")
def test_a_long_list_keeps_its_order(subject: BackendSubject) -> None:
    """A list that grew by single elements over many epochs has them in the order in which they came."""
    with Instances(subject) as instances:
        backend, changes = instances.open(), []
        for epoch in range(40):
            backend.begin(epoch)
            for number in range(10):
                backend.table(LIST).list_add("k", [epoch * 10 + number])
            changes += sealed(backend, epoch)
        assert backend.table(LIST).get("k") == list(range(400))
        assert instances.restored(39, changes).table(LIST).get("k") == list(range(400))


@law("T9")
@given(
    start=st.dictionaries(map_keys, map_values, max_size=4), map_key=map_keys, value=map_values, committed=st.booleans()
)
def test_a_map_entry_changes_alone(
    subject: BackendSubject, start: dict[Key, Any], map_key: Key, value: Any, committed: bool
) -> None:
    """`map_put` and `map_remove` change their entry and leave the others, in a committed map and in a new one."""
    model = Model()
    place = (MAP.name, None, "k")
    with opened(subject) as backend:
        writes = [Write("put", MAP.name, None, "k", (start,))]
        apply(writes, backend, model)
        if committed:
            sealed(backend, 0)
            backend.begin(1)
        for operation, arguments in (("map_put", (map_key, value)), ("map_remove", (map_key,))):
            apply([Write(operation, MAP.name, None, "k", arguments)], backend, model)
            check_tables(backend, model, [place])
            check_same(backend.table(MAP).map_get("k", "other"), model.entries.get(place, {}).get("other"))
        sealed(backend, int(committed))
        check_tables(backend, model, [place])


@law("T9")
@pytest.mark.parametrize("descriptor", [MAP, FRAMED_MAP], ids=["msgpack", "own serializer"])
@pytest.mark.parametrize("whole", [False, True], ids=["map_put", "put"])
@pytest.mark.parametrize("end", ["none", "publish", "commit", "rollback"])
def test_a_null_in_a_map_is_an_entry(
    subject: BackendSubject, descriptor: StateDescriptor, whole: bool, end: str
) -> None:
    """An entry whose value is None is there, in the epoch that wrote it and later, until it is removed."""
    with opened(subject) as backend:
        table = backend.table(descriptor)
        if whole:
            table.put("k", {"null": None})
        else:
            table.map_put("k", "null", None)
        if end == "publish":
            backend.publish()
        elif end != "none":
            sealed(backend, 0)
            backend.begin(1)
        if end == "rollback":
            table.map_remove("k", "null")
            backend.rollback()
            backend.begin(1)
        for _ in range(2):  # the first read may be kept
            assert table.map_contains("k", "null") and not table.map_contains("k", "other")
            assert table.map_get("k", "null") is None
            check_same(dict(table.map_items("k")), {"null": None})
            check_same(table.get("k"), {"null": None})
        table.map_put("k", "null", 1)
        check_same(table.get("k"), {"null": 1})
        table.map_put("k", "null", None)
        table.map_remove("k", "null")
        assert not table.map_contains("k", "null") and table.get("k") is None


@law("T9")
@given(start=st.dictionaries(map_keys, st.integers(0, 9), min_size=1, max_size=4), committed=st.booleans())
def test_map_items_do_not_show_later_writes(subject: BackendSubject, start: dict[Key, int], committed: bool) -> None:
    """The result of `map_items` does not change with the map, so a function may change the map in a loop over it."""
    with opened(subject) as backend:
        table = backend.table(MAP)
        table.put("k", dict(start))
        if committed:
            sealed(backend, 0)
            backend.begin(1)
        seen = {}
        for map_key, value in table.map_items("k"):
            seen[map_key] = value
            for later in start:  # those that come next, too
                table.map_put("k", later, "new")
            table.map_remove("k", next(iter(start)))
            table.map_put("k", ("added", len(seen)), 1)
        check_same(seen, start)


#: A container of many elements may be read in another way than one of a few.
SIZES = [50, 3000]


@law("T9")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("end", ["put", "delete", "commit", "rollback"])
def test_map_items_outlive_the_map(subject: BackendSubject, end: str, size: int) -> None:
    """The result of `map_items` can be read to its end after a put, a delete, a commit or a rollback."""
    start: dict[Key, int] = {f"m{number}": number for number in range(size)}
    with opened(subject) as backend:
        table = backend.table(MAP)
        table.put("k", dict.fromkeys(start, -1))
        sealed(backend, 0)
        backend.begin(1)
        for map_key, value in start.items():
            table.map_put("k", map_key, value)
        items = iter(table.map_items("k"))
        seen = [next(items)]
        ends: dict[str, Callable[[], object]] = {
            "put": lambda: table.put("k", {"m1": "new"}),
            "delete": lambda: table.delete("k"),
            "commit": lambda: sealed(backend, 1),
            "rollback": backend.rollback,
        }
        ends[end]()
        seen += items
        check_same(dict(seen), start)


@law("T9")
@pytest.mark.parametrize("known", [False, True], ids=["not read before", "read before"])
def test_the_items_of_a_large_map_agree_with_it(subject: BackendSubject, known: bool) -> None:
    """Committed, changed, added and removed entries of a large map are each in the result of `map_items`, as it is."""
    expected: dict[Key, int] = dict.fromkeys(range(2000), 0)
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        table = backend.table(MAP)
        table.put("k", dict(expected))
        table.put("other", {"o": 1})
        changes = sealed(backend, 0)
        for holder in (backend, instances.restored(0, changes)):
            found = dict(expected)
            holder.begin(1)
            table = holder.table(MAP)
            for number in range(0, 3000, 7):
                if known:
                    table.map_get("k", number)
                found[number] = number
                table.map_put("k", number, number)
            for number in range(0, 2000, 5):
                del found[number]
                table.map_remove("k", number)
            check_same(dict(table.map_items("k")), found)
            seen = {}
            for map_key, value in islice(table.map_items("k"), len(found) + 1):
                seen[map_key] = value
                if not len(seen) % 10:  # a backend may write a whole map with each entry
                    table.map_put("k", map_key, "later")
                    table.map_put("k", ("added", len(seen)), 1)
                    table.map_remove("k", 1999 - len(seen))
            check_same(seen, found)
            check_same(dict(table.map_items("other")), {"o": 1})


@law("T8")
@given(start=elements, added=elements, committed=st.booleans())
def test_list_items_are_the_list_as_it_was(
    subject: BackendSubject, start: list[Any], added: list[Any], committed: bool
) -> None:
    """The result of `list_items` has the elements in their order, and none that is added while it is read."""
    with opened(subject) as backend:
        table = backend.table(LIST)
        assert list(table.list_items("k")) == []
        table.put("k", deepcopy(start))
        if committed:
            sealed(backend, 0)
            backend.begin(1)
        table.list_add("k", deepcopy(added))
        seen = []
        for element in islice(table.list_items("k"), len(start) + len(added) + 1):
            seen.append(element)
            table.list_add("k", ["later"])
        check_same(seen, [*start, *added])
        check_same(list(table.list_items("k")), [*start, *added, *(["later"] * len(seen))])


@law("T8")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("end", ["put", "delete", "commit", "rollback"])
def test_list_items_outlive_the_list(subject: BackendSubject, end: str, size: int) -> None:
    """The result of `list_items` can be read to its end after a put, a delete, a commit or a rollback."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        backend.table(LIST).put("k", list(range(size)))
        for holder in (backend, instances.restored(0, sealed(backend, 0))):
            holder.begin(1)
            table = holder.table(LIST)
            table.list_add("k", [size])
            items = iter(table.list_items("k"))
            seen = [next(items)]
            ends: dict[str, Callable[[], object]] = {
                "put": partial(table.put, "k", ["new"]),
                "delete": partial(table.delete, "k"),
                "commit": partial(sealed, holder, 1),
                "rollback": holder.rollback,
            }
            ends[end]()
            seen += items
            check_same(seen, list(range(size + 1)))


@law("T1", "T2", "T6", "T8", "T9")
@given(program=programs(epochs=2))
def test_programs_of_writes_leave_what_a_dict_would(subject: BackendSubject, program: list[list[Write]]) -> None:
    """After any writes in an epoch or two, the tables hold what a plain dict holds."""
    model = Model()
    with opened(subject) as backend:
        places = all_places(write.place for epoch in program for write in epoch)
        for number, epoch in enumerate(program):
            if number:
                backend.begin(number)
            apply(epoch, backend, model)
            check_tables(backend, model, places)
            sealed(backend, number)
            check_tables(backend, model, places)


def _fill_and_empty(lists: Any, maps: Any, key: Key) -> None:
    lists.list_add(key, [1])
    lists.delete(key)
    maps.map_put(key, "m", 1)
    maps.map_remove(key, "m")
