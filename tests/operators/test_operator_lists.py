"""Operator state handles: lists of a subtask, kept as objects while an epoch runs."""

from __future__ import annotations

from typing import Any

import pytest

from qstate.backends.contract import StateBackend
from qstate.checkpoint.log.operator_state import LARGEST_OPERATOR_STATE, Distribution, OperatorList
from qstate.descriptors import ListStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.evolution import StateSchema
from qstate.operators import OperatorListState, RuntimeContext
from qstate.operators.operator_lists import OperatorLists
from tests.operators.running import SUBTASK, heap

NAMES = ListStateDescriptor("names", list)


@pytest.fixture
def context() -> Any:
    with heap() as backend:
        yield context_on(backend)


def context_on(backend: StateBackend) -> RuntimeContext:
    return RuntimeContext("weather", "alerts", SUBTASK, backend)


def filled(context: RuntimeContext, *elements: Any) -> tuple[OperatorListState, OperatorLists]:
    handle = context.get_operator_list_state(NAMES)
    schema = StateSchema.of(NAMES).to_plain()
    packed = tuple(map(NAMES.serializer.dumps, elements))
    context.operator_lists.fill([OperatorList(schema, Distribution.SPLIT, packed)])
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


def test_rollback_brings_the_sealed_elements_back_though_they_were_changed_in_place(context: RuntimeContext) -> None:
    handle, lists = filled(context, ["a"])
    handle.get()[0].append("changed")
    sealed = lists.packed()
    lists.sealed(sealed)
    handle.get()[0].append("not sealed")
    handle.add(["nor this"])
    lists.rollback()
    assert handle.get() == [["a", "changed"]]
    handle.get()[0].append("again")
    lists.rollback()
    assert handle.get() == [["a", "changed"]]


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


def test_operator_list_cannot_be_used_in_open(context: RuntimeContext) -> None:
    handle = context.get_operator_list_state(NAMES)
    for use in (handle.get, handle.clear, lambda: handle.add(["a"])):
        with pytest.raises(JobError, match=r"'names' was used in open\(\), before it was restored"):
            use()


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
