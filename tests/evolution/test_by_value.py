"""Dataclasses that cloudpickle sends by value have the same defaults as those of a module."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any

import pytest

from qstate.descriptors import ValueStateDescriptor
from qstate.errors import JobError, SerializationError
from qstate.evolution import StateSchema, plan_evolution
from qstate.evolution.write_checks import checked
from qstate.operators.sinks import QueryableValueSink
from qstate.serializers import DeclaredSerializer, MessagePackSerializer
from qstate.values.value_types import has_default, value_type_of
from tests.evolution.by_value import place_by_value


@pytest.fixture(scope="module")
def place() -> Any:
    return place_by_value()


def test_each_field_has_the_default_that_it_was_given(place: Any) -> None:
    assert fields(place)[0].default is not MISSING, "the class has brought a MISSING of its own"
    assert [has_default(field) for field in fields(place)] == [False, True, True]
    assert str(value_type_of(place)) == "Place(lat: float, alt: float = ..., tags: list = ...)"


def test_record_without_a_required_field_is_refused(place: Any) -> None:
    with pytest.raises(SerializationError, match="the bytes are not a Place"):
        DeclaredSerializer(place).loads(MessagePackSerializer().dumps({"alt": 1.0}))
    assert DeclaredSerializer(place).loads(MessagePackSerializer().dumps({"lat": 1.0})) == place(1.0)
    nested = checked(ValueStateDescriptor("last", list[place])).serializer
    assert nested.loads(nested.dumps([place(1.0)])) == [place(1.0)]


def test_new_field_without_a_default_is_refused_before_anything_is_read(place: Any) -> None:
    @dataclass
    class Place:
        alt: float

    stored = StateSchema.of(ValueStateDescriptor("last", Place))
    with pytest.raises(JobError, match="lat"):
        plan_evolution(stored, ValueStateDescriptor("last", place))


def test_sink_asks_for_the_columns_of_required_fields_only(place: Any) -> None:
    QueryableValueSink(ValueStateDescriptor("last", place).queryable("last"), ["lat"])
    with pytest.raises(JobError, match=r"fields without a column: \['lat'\]"):
        QueryableValueSink(ValueStateDescriptor("last", place).queryable("last"), ["alt"])
