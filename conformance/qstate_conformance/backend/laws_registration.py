"""Laws of registration: which table a descriptor and a namespace mean, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from qstate.errors import JobError, SerializationError, WrongKeyType
from qstate.keys import Namespace
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import check_same
from qstate_conformance.backend.states import FRAMED, FRAMED_LIST, FRAMED_MAP, KINDS, LIST, MAP, VALUE, Mean
from qstate_conformance.backend.strategies import contents_of, namespaces, values
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject


def _of_kind(kind: StateKind, name: str) -> StateDescriptor:
    """A descriptor of the kind, with nothing but the name in common with those of `states`."""
    if kind is StateKind.REDUCING:
        return ReducingStateDescriptor(name, float, reduce_function=max)
    if kind is StateKind.AGGREGATING:
        return AggregatingStateDescriptor(name, dict, aggregate_function=Mean())
    plain: dict[StateKind, type[StateDescriptor]] = {
        StateKind.VALUE: ValueStateDescriptor,
        StateKind.LIST: ListStateDescriptor,
        StateKind.MAP: MapStateDescriptor,
    }
    return plain[kind](name)


@law("B2")
@given(descriptor=st.sampled_from(KINDS), namespace=namespaces, data=st.data())
def test_equal_descriptors_mean_the_same_entries(
    subject: BackendSubject, descriptor: StateDescriptor, namespace: Namespace, data: st.DataObject
) -> None:
    """A second descriptor of the same name and kind gives a table of the same entries, committed or not."""
    contents = data.draw(contents_of[descriptor.kind])
    again = replace(descriptor, queryable_name="else")
    with opened(subject) as backend:
        backend.table(descriptor, namespace).put("k", contents)
        check_same(backend.table(again, namespace).get("k"), contents)
        sealed(backend, 0)
        check_same(backend.table(again, namespace).get("k"), contents)
        backend.begin(1)
        backend.table(again, namespace).delete("k")
        assert backend.table(descriptor, namespace).get("k") is None


@law("B2")
@given(descriptor=st.sampled_from(KINDS), kind=st.sampled_from(StateKind), held=st.booleans())
def test_a_name_that_comes_again_with_another_kind_is_refused(
    subject: BackendSubject, descriptor: StateDescriptor, kind: StateKind, held: bool
) -> None:
    """A state's name keeps its kind for the life of the backend, in every namespace, with a table in use or not."""
    with opened(subject) as backend:
        table = backend.table(descriptor) if held else None
        if kind is descriptor.kind:
            backend.table(_of_kind(kind, descriptor.name))
            return
        for namespace in (None, "w"):
            with pytest.raises(JobError):
                backend.table(_of_kind(kind, descriptor.name), namespace)
        assert (table or backend.table(descriptor)).get("k") is None


@law("B16")
@pytest.mark.parametrize(
    "namespace",
    [1.5, datetime(2013, 1, 1), Decimal("1E-39"), (), ("a",), 2**63, ("a", None), ("a", 0.5), "\ud800"],
    ids=ascii,
)
def test_a_namespace_that_cannot_be_a_key_is_refused(subject: BackendSubject, namespace: Any) -> None:
    """A namespace is a key or None. Anything else raises `WrongKeyType` and does not change the backend."""
    with opened(subject) as backend:
        with pytest.raises(WrongKeyType):
            backend.table(VALUE, namespace)
        assert sealed(backend, 0) == []


@law("T10")
@pytest.mark.parametrize(
    ("descriptor", "operation", "arguments"),
    [
        (VALUE, "put", ("k", None)),
        (VALUE, "put_many", (["j", "k"], [1, None])),
        (LIST, "put", ("k", [1, None])),
        (LIST, "list_add", ("k", [1, None])),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_none_is_not_a_value(
    subject: BackendSubject, descriptor: StateDescriptor, operation: str, arguments: tuple[Any, ...]
) -> None:
    """None is refused as a value and as an element: it would look like no value."""
    with opened(subject) as backend:
        table = backend.table(descriptor)
        with pytest.raises(SerializationError):
            getattr(table, operation)(*arguments)
            sealed(backend, 0)
        backend.rollback()
        assert (table.get("j"), table.get("k")) == (None, None)


@law("T10")
@pytest.mark.parametrize("map_key", [True, 1.5, None, 2**63, ("a",), ("a", True), (), "\ud800"], ids=ascii)
def test_a_map_key_that_is_no_key_is_refused(subject: BackendSubject, map_key: Any) -> None:
    """A map key that would be read back as another key is refused, in single entries and in whole maps."""
    with opened(subject) as backend:
        table = backend.table(MAP)
        table.put("k", {"good": 1})
        sealed(backend, 0)
        for whole in (False, True):
            backend.begin(1)
            with pytest.raises(SerializationError):
                if whole:
                    table.put("k", {map_key: 1})
                else:
                    table.map_put("k", map_key, 1)
                sealed(backend, 1)
            backend.rollback()
            assert table.get("k") == {"good": 1}


@law("T1")
@given(value=values)
def test_the_descriptors_serializer_is_the_one_that_is_used(subject: BackendSubject, value: Any) -> None:
    """The changes hold values, elements and entries as the descriptor's serializer wrote them."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        backend.table(FRAMED).put("k", value)
        backend.table(FRAMED_LIST).put("k", [value])
        backend.table(FRAMED_MAP).put("k", {"m": value})
        changes = sealed(backend, 0)
        told = {change.state: change.data for change in changes}
        framed = FRAMED.serializer.dumps(value)
        assert told[FRAMED.name] == told[FRAMED_MAP.name] == framed
        assert framed in told[FRAMED_LIST.name]
        other = instances.restored(0, changes)
        check_same(other.table(FRAMED).get("k"), value)
        check_same(other.table(FRAMED_LIST).get("k"), [value])
        check_same(other.table(FRAMED_MAP).get("k"), {"m": value})


@dataclass(frozen=True)
class _Flight:
    carrier: str
    number: int


@dataclass(frozen=True)
class _FlightWithDelays:
    """The same record, a version later: one field is new, one is gone."""

    carrier: str
    delays: list[int] = field(default_factory=list)


@law("T1", "B13")
def test_restored_state_is_read_with_the_new_descriptors_serializer(subject: BackendSubject) -> None:
    """A job whose record type has changed reads restored state as the new type: new fields have their default."""
    old, new = ValueStateDescriptor("flight", _Flight), ValueStateDescriptor("flight", _FlightWithDelays)
    with Instances(subject) as instances:
        source, target = instances.open(), instances.open()
        source.begin(0)
        source.table(old).put("k", _Flight("UA", 1))
        target.table(new)
        target.restore(0, sealed(source, 0))
        assert target.table(new).get("k") == _FlightWithDelays("UA", [])
        target.begin(1)
        target.table(new).put("k", _FlightWithDelays("UA", [7]))
        sealed(target, 1)
        assert target.table(new).get("k") == _FlightWithDelays("UA", [7])
