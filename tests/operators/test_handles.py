"""State handles on the heap backend: Flink's operations, one key at a time, one namespace at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from qstate.backends.contract import StateBackend
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import ConfigError, JobError, QueryError, SerializationError
from qstate.operators.context import RuntimeContext
from tests.functions import Mean
from tests.operators.running import SUBTASK, heap


class Handles:
    """One handle of each kind, and the cursor that says whose state they show."""

    def __init__(self, backend: StateBackend) -> None:
        context = RuntimeContext("job", "operator", SUBTASK, backend)
        self.cursor = context.element_context
        self.value = context.get_state(ValueStateDescriptor("value", int))
        self.list = context.get_list_state(ListStateDescriptor("list", int))
        self.map = context.get_map_state(MapStateDescriptor("map", int))
        self.reducing = context.get_reducing_state(
            ReducingStateDescriptor("sum", int, reduce_function=lambda a, b: a + b)
        )
        self.aggregating = context.get_aggregating_state(
            AggregatingStateDescriptor("mean", list, aggregate_function=Mean())
        )
        self.cursor.current_key = "a"


@pytest.fixture
def handles() -> Iterator[Handles]:
    with heap() as backend:
        yield Handles(backend)


def test_new_state_is_empty(handles: Handles) -> None:
    assert handles.value.value() is None
    assert handles.list.get() == []
    assert handles.map.is_empty()
    assert [*handles.map.entries(), *handles.map.keys(), *handles.map.values(), *handles.list.elements()] == []
    assert handles.map.get("x") is None and not handles.map.contains("x")
    assert handles.reducing.get() is None
    assert handles.aggregating.get() is None


def test_a_value_state_with_a_default_reads_it_where_there_is_no_value() -> None:
    with heap() as backend:
        context = RuntimeContext("job", "operator", SUBTASK, backend)
        count = context.get_state(ValueStateDescriptor("count", int, default=0))
        seen = context.get_state(ValueStateDescriptor("seen", list[str], default=["first"]))
        context.element_context.current_key = "a"
        assert count.value() == 0
        count.update(count.value() + 5)
        assert count.value() == 5
        assert count.in_namespace("w").value() == 0
        count.clear()
        assert count.value() == 0
        seen.value().append("lost")
        assert seen.value() == ["first"], "each read gives a copy, and a default is not stored"
        assert backend.table(ValueStateDescriptor("seen", list[str])).get("a") is None


@pytest.mark.parametrize(
    ("value_type", "default"),
    [(int, "0"), (float, True), (list[int], ["a"]), (object, object())],
    ids=["text", "boolean", "list", "object"],
)
def test_a_default_of_another_type_is_refused_when_the_handle_is_made(value_type: Any, default: Any) -> None:
    with heap() as backend:
        context = RuntimeContext("job", "operator", SUBTASK, backend)
        with pytest.raises(SerializationError):
            context.get_state(ValueStateDescriptor("count", value_type, default=default))


def test_a_state_has_one_queryable_name() -> None:
    descriptor = ValueStateDescriptor("last", float).queryable("lastTemperature")
    with pytest.raises(ConfigError, match="'last' is queryable as 'lastTemperature' already"):
        descriptor.queryable("other")


@pytest.mark.parametrize("name", [".", ".."])
def test_a_name_that_no_url_can_have_is_not_queryable(name: str) -> None:
    with pytest.raises(ConfigError, match="a step in the path of a URL"):
        ValueStateDescriptor("last", float).queryable(name)
    assert ValueStateDescriptor(name, float).queryable("..." + name)


def test_value_updates_and_none_clears(handles: Handles) -> None:
    handles.value.update(0)
    assert handles.value.value() == 0
    handles.value.update(None)
    assert handles.value.value() is None


def test_list_adds_at_the_end_and_updates_replace(handles: Handles) -> None:
    handles.list.add(1)
    handles.list.add_all(iter([2, 3]))
    handles.list.add_all([])
    assert list(handles.list.get()) == [1, 2, 3]
    handles.list.update((9,))
    assert list(handles.list.get()) == [9]
    handles.list.update([])
    assert handles.list.get() == []


def test_list_does_not_keep_the_callers_list(handles: Handles) -> None:
    mine = [1]
    handles.list.update(mine)
    mine.append(2)
    assert list(handles.list.get()) == [1]


def test_map_puts_gets_and_removes_entries(handles: Handles) -> None:
    handles.map.put("x", 1)
    handles.map.put_all({"y": 2, "z": 3})
    handles.map.remove("x")
    handles.map.remove("never there")
    assert sorted(handles.map.entries()) == [("y", 2), ("z", 3)]
    assert sorted(handles.map.keys()) == ["y", "z"]
    assert sorted(handles.map.values()) == [2, 3]
    assert handles.map.contains("y") and handles.map.get("y") == 2
    assert not handles.map.is_empty()


def test_map_entries_are_those_of_the_moment(handles: Handles) -> None:
    handles.map.put_all({"x": 1, "y": 2})
    for map_key, _ in handles.map.entries():
        handles.map.remove(map_key)
    assert handles.map.is_empty()


def test_map_keys_are_checked(handles: Handles) -> None:
    with pytest.raises(SerializationError, match=r"expected str, got 1\.5 of type float"):
        handles.map.put(1.5, 1)  # type: ignore[arg-type]  # the point of the test


def test_reducing_combines(handles: Handles) -> None:
    for number in (1, 2, 3):
        handles.reducing.add(number)
    assert handles.reducing.get() == 6


def test_aggregating_shows_the_result(handles: Handles) -> None:
    for number in (1.0, 2.0, 6.0):
        handles.aggregating.add(number)
    assert handles.aggregating.get() == 3.0


def test_clear_empties_every_kind(handles: Handles) -> None:
    handles.value.update(1)
    handles.list.add(1)
    handles.map.put("x", 1)
    handles.reducing.add(1)
    handles.aggregating.add(1.0)
    for handle in (handles.value, handles.list, handles.map, handles.reducing, handles.aggregating):
        handle.clear()
        handle.clear()
    test_new_state_is_empty(handles)


@pytest.mark.parametrize(
    "act",
    [
        lambda handles: handles.list.add(None),
        lambda handles: handles.list.add_all([1, None]),
        lambda handles: handles.list.add_all(None),
        lambda handles: handles.list.update([None]),
        lambda handles: handles.list.update(None),
        lambda handles: handles.map.put("x", None),
        lambda handles: handles.map.put_all({"x": 1, "y": None}),
        lambda handles: handles.reducing.add(None),
        lambda handles: handles.aggregating.add(None),
    ],
)
def test_none_is_refused_and_nothing_changes(handles: Handles, act: Callable[[Handles], None]) -> None:
    with pytest.raises(JobError, match=r"state '\w+': \w+\(\) got None, which is not a value"):
        act(handles)
    test_new_state_is_empty(handles)


def test_reduce_function_must_not_return_none() -> None:
    with heap() as backend:
        context = RuntimeContext("job", "operator", SUBTASK, backend)
        state = context.get_reducing_state(ReducingStateDescriptor("s", int, reduce_function=lambda a, b: None))
        context.element_context.current_key = "a"
        state.add(1)
        with pytest.raises(JobError, match="state 's': the reduce function returned None"):
            state.add(2)
        assert state.get() == 1


def test_keys_do_not_see_each_other(handles: Handles) -> None:
    handles.value.update(1)
    handles.cursor.current_key = ("a", 1)
    assert handles.value.value() is None
    handles.value.update(2)
    handles.cursor.current_key = "a"
    assert handles.value.value() == 1


def test_namespaces_do_not_see_each_other(handles: Handles) -> None:
    handles.value.update(1)
    for namespace in (5, "5", b"5", ("w", 5)):
        assert handles.value.in_namespace(namespace).value() is None
        handles.value.in_namespace(namespace).update(namespace)
    assert [handles.value.in_namespace(one).value() for one in (5, "5", b"5", ("w", 5))] == [5, "5", b"5", ("w", 5)]
    assert handles.value.in_namespace(None).value() == handles.value.in_namespace(5).in_namespace(None).value() == 1


@pytest.mark.parametrize("namespace", [1.0, datetime(2013, 1, 1), (), (1,), ("a", None)])
def test_unsound_namespace_is_refused_even_when_an_equal_one_is_known(handles: Handles, namespace: Any) -> None:
    handles.value.in_namespace(1).update(1)
    with pytest.raises(QueryError):
        handles.value.in_namespace(namespace)


def test_namespaces_that_are_equal_in_python_are_told_apart(handles: Handles) -> None:
    equal: list[Any] = [1, True, Decimal(1), Decimal("1.0"), ("a", 1), ("a", True), ("a", Decimal(1))]
    for number, namespace in enumerate(equal):
        handles.value.in_namespace(namespace).update(number)
    assert [handles.value.in_namespace(namespace).value() for namespace in equal] == list(range(len(equal)))


def test_a_moment_is_one_namespace_in_any_time_zone(handles: Handles) -> None:
    noon = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)
    handles.value.in_namespace((noon, noon)).update(1)
    elsewhere = noon.astimezone(timezone(timedelta(hours=9)))
    assert handles.value.in_namespace((elsewhere, noon)).value() == 1


def test_many_namespaces_keep_their_state(handles: Handles) -> None:
    for number in range(600):
        handles.value.in_namespace(number).update(number)
    assert [handles.value.in_namespace(number).value() for number in range(600)] == list(range(600))


def test_handles_of_namespaces_are_cached_up_to_a_bound(handles: Handles) -> None:
    first = handles.value.in_namespace(0)
    assert handles.value.in_namespace(0) is first
    for number in range(1, 600):
        handles.value.in_namespace(number)
    assert handles.value.in_namespace(0) is not first


def test_state_used_outside_a_row_is_an_error_that_says_so() -> None:
    with heap() as backend:
        context = RuntimeContext("job", "operator", SUBTASK, backend)
        state = context.get_state(ValueStateDescriptor("v", int))
        for act in (state.value, lambda: state.update(1), state.clear):
            with pytest.raises(JobError, match="no current key; use it inside process_element"):
                act()


KEYS = st.sampled_from(["a", "b", 1, (b"c", 2)])
NAMESPACES = st.sampled_from([None, 1, "w"])
NUMBERS = st.integers(-5, 5)


class HandlesAgainstDicts(RuleBasedStateMachine):
    """All five kinds against plain dicts, over keys, namespaces, commits and rollbacks."""

    def __init__(self) -> None:
        super().__init__()
        self._scope = heap()
        self.backend = self._scope.__enter__()
        self.handles = Handles(self.backend)
        self.epoch = 0
        self.model: dict[Any, Any] = {}
        self.committed: dict[Any, Any] = {}

    def teardown(self) -> None:
        self._scope.__exit__(None, None, None)

    def at(self, kind: str, key: Any, namespace: Any) -> tuple[Any, Any]:
        self.handles.cursor.current_key = key
        return getattr(self.handles, kind).in_namespace(namespace), (kind, key, namespace)

    @rule(key=KEYS, namespace=NAMESPACES, number=st.none() | NUMBERS)
    def update_value(self, key: Any, namespace: Any, number: int | None) -> None:
        handle, slot = self.at("value", key, namespace)
        assert handle.value() == self.model.get(slot)
        handle.update(number)
        self.model = {**self.model, slot: number}
        assert handle.value() == number

    @rule(key=KEYS, namespace=NAMESPACES, numbers=st.lists(NUMBERS, max_size=3), replace=st.booleans())
    def change_list(self, key: Any, namespace: Any, numbers: list[int], replace: bool) -> None:
        handle, slot = self.at("list", key, namespace)
        before = self.model.get(slot) or []
        (handle.update if replace else handle.add_all)(numbers)
        self.model = {**self.model, slot: numbers if replace else [*before, *numbers]}
        assert list(handle.get()) == self.model[slot]

    @rule(key=KEYS, namespace=NAMESPACES, map_key=st.sampled_from("xyz"), number=st.none() | NUMBERS)
    def change_map(self, key: Any, namespace: Any, map_key: str, number: int | None) -> None:
        handle, slot = self.at("map", key, namespace)
        entries = {**(self.model.get(slot) or {}), map_key: number}
        if number is None:
            handle.remove(map_key)
            del entries[map_key]
        else:
            handle.put(map_key, number)
        self.model = {**self.model, slot: entries}
        assert dict(handle.entries()) == entries
        assert handle.is_empty() == (not entries)

    @rule(key=KEYS, namespace=NAMESPACES, number=NUMBERS)
    def add_to_reducing(self, key: Any, namespace: Any, number: int) -> None:
        handle, slot = self.at("reducing", key, namespace)
        handle.add(number)
        self.model = {**self.model, slot: (self.model.get(slot) or 0) + number}
        assert handle.get() == self.model[slot]

    @rule(key=KEYS, namespace=NAMESPACES, number=NUMBERS)
    def add_to_aggregating(self, key: Any, namespace: Any, number: int) -> None:
        handle, slot = self.at("aggregating", key, namespace)
        handle.add(float(number))
        total, count = self.model.get(slot) or (0.0, 0)
        self.model = {**self.model, slot: (total + number, count + 1)}
        assert handle.get() == (total + number) / (count + 1)

    @rule(key=KEYS, namespace=NAMESPACES, kind=st.sampled_from(["value", "list", "map", "reducing", "aggregating"]))
    def clear(self, key: Any, namespace: Any, kind: str) -> None:
        handle, slot = self.at(kind, key, namespace)
        handle.clear()
        self.model = {**self.model, slot: None}

    @rule()
    def commit(self) -> None:
        list(self.backend.commit(self.epoch))
        self.committed = self.model
        self.epoch += 1
        self.backend.begin(self.epoch)

    @rule()
    def roll_back(self) -> None:
        self.backend.rollback()
        self.model = self.committed


TestHandlesAgainstDicts = HandlesAgainstDicts.TestCase


def test_a_class_in_place_of_a_function_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'n': reduce_function needs a function object.*write int\(\.\.\.\)"):
        ReducingStateDescriptor("n", int, reduce_function=int)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'m': aggregate_function needs a function object.*write Mean\(\.\.\.\)"):
        AggregatingStateDescriptor("m", list, aggregate_function=Mean)  # type: ignore[arg-type]
