"""Operator state handles: lists of a subtask, kept as objects while an epoch runs."""

from __future__ import annotations

from typing import Any

import pytest

from qstate.backends.contract import StateBackend
from qstate.checkpoint.log.operator_state import LARGEST_OPERATOR_STATE, Distribution, OperatorList, OperatorState
from qstate.descriptors import ListStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.evolution import StateSchema
from qstate.operators.context import RuntimeContext
from qstate.operators.operator_lists import OperatorLists, OperatorListState
from tests.operators.running import SUBTASK, heap

NAMES = ListStateDescriptor("names", list)


@pytest.fixture
def context() -> Any:
    with heap() as backend:
        yield context_on(backend)


def context_on(backend: StateBackend, stored: OperatorState = ()) -> RuntimeContext:
    return RuntimeContext("weather", "alerts", SUBTASK, backend, stored=stored)


def stored(*elements: Any) -> OperatorState:
    packed = tuple(map(NAMES.serializer.dumps, elements))
    return [OperatorList(StateSchema.of(NAMES).to_plain(), Distribution.SPLIT, packed)]


def filled(context: RuntimeContext, *elements: Any) -> tuple[OperatorListState, OperatorLists]:
    handle = context.get_operator_list_state(NAMES)
    handle.update(elements)
    return handle, context.operator_lists


def test_list_holds_what_the_function_wrote(context: RuntimeContext) -> None:
    handle, _ = filled(context, ["a"])
    handle.add(["b"])
    handle.add_all([["c"], ["d"]])
    assert handle.get() == [["a"], ["b"], ["c"], ["d"]]
    handle.update(one for one in handle.get() if one != ["b"])
    assert handle.get() == [["a"], ["c"], ["d"]]
    handle.get().clear()
    assert len(handle.get()) == 3, "the list is the caller's, the elements are not"
    handle.clear()
    assert handle.get() == []


def test_list_has_the_stored_elements_at_once(context: RuntimeContext) -> None:
    with heap() as backend:
        restored = context_on(backend, stored(["a"], ["b"]))
        handle = restored.get_operator_list_state(NAMES)
        assert handle.get() == [["a"], ["b"]]
        assert restored.operator_lists.restored == tuple(stored(["a"], ["b"]))


def test_change_of_an_element_in_place_is_stored_and_the_sealed_lists_keep_theirs(context: RuntimeContext) -> None:
    handle, lists = filled(context, ["a"])
    lists.sealed(lists.packed())
    handle.get()[0].append("changed")
    assert lists.packed() == tuple(stored(["a", "changed"]))
    assert lists.restored == tuple(stored(["a"]))


def test_stored_element_that_cannot_be_read_is_refused(context: RuntimeContext) -> None:
    with heap() as backend:
        (one,) = stored(["a"])
        broken = OperatorList(one.schema, one.distribution, (b"\xc1",))
        with pytest.raises(JobError, match="'alerts' subtask 0: an element of operator state 'names' cannot be read"):
            context_on(backend, [broken]).get_operator_list_state(NAMES)


def test_an_element_that_cannot_be_stored_is_named(context: RuntimeContext) -> None:
    handle, lists = filled(context)
    handle.add([object()])
    with pytest.raises(JobError, match="'alerts' subtask 0: an element of operator state 'names' cannot be stored"):
        lists.packed()
    handle.update([["x" * LARGEST_OPERATOR_STATE]])
    with pytest.raises(JobError, match=r"its operator state has .* bytes, .* of them in 'names'"):
        lists.packed()


@pytest.mark.parametrize(("call", "value"), [("add", None), ("add_all", [["a"], None]), ("update", [None])])
def test_none_is_refused_and_the_list_is_unchanged(context: RuntimeContext, call: str, value: Any) -> None:
    handle, _ = filled(context, ["a"])
    with pytest.raises(JobError, match=f"'names': {call}.* got None"):
        getattr(handle, call)(value)
    assert handle.get() == [["a"]]


def test_queryable_name_is_refused(context: RuntimeContext) -> None:
    with pytest.raises(JobError, match="'names' cannot be queried, it belongs to no key; leave the queryable name 'q'"):
        context.get_union_list_state(NAMES.queryable("q"))


def test_name_is_taken_once(context: RuntimeContext) -> None:
    context.get_operator_list_state(NAMES)
    context.get_state(ValueStateDescriptor("last", int))
    for ask in (context.get_operator_list_state, context.get_union_list_state, context.get_list_state):
        with pytest.raises(JobError, match="two states named 'names'"):
            ask(NAMES)
    with pytest.raises(JobError, match="two states named 'last'"):
        context.get_union_list_state(ListStateDescriptor("last", int))


def test_operator_list_needs_a_list_descriptor_and_is_declared_in_open(context: RuntimeContext) -> None:
    with pytest.raises(JobError, match="expected a ListStateDescriptor"):
        context.get_operator_list_state(ValueStateDescriptor("v", int))  # type: ignore[arg-type]
    context.seal()
    with pytest.raises(JobError, match="asked for after open"):
        context.get_operator_list_state(NAMES)
