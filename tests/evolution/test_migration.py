"""The user's migration: when it is called, with what, and what may come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from qstate.descriptors import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import JobError, SerializationError
from qstate.evolution import Converted, StateSchema, Unchanged, plan_evolution
from qstate.serializers import MessagePackSerializer


@dataclass
class Celsius:
    place: str
    degrees: int


@dataclass
class Kelvin:
    place: str
    kelvin: float


def migrated(before: StateDescriptor, after: StateDescriptor, value: Any) -> Any:
    plan = plan_evolution(StateSchema.of(before), after)
    assert isinstance(plan, Converted)
    return after.serializer.loads(plan.convert(before.serializer.dumps(value)))


def to_kelvin(old: dict[str, Any], version: int) -> Kelvin:
    assert (type(old), version) == (dict, 1)
    return Kelvin(old["place"], old["degrees"] + 273.15)


OLD = ValueStateDescriptor("temperature", Celsius)
NEW = ValueStateDescriptor("temperature", Kelvin, schema_version=2, migration=to_kelvin)


def test_migration_gets_a_record_as_a_dict_and_returns_a_record() -> None:
    assert migrated(OLD, NEW, Celsius("JFK", 27)) == Kelvin("JFK", 300.15)


def test_migration_may_return_a_record_as_a_dict() -> None:
    as_dict = ValueStateDescriptor(
        "temperature", Kelvin, schema_version=2, migration=lambda old, _: {**old, "kelvin": old["degrees"]}
    )
    found = migrated(OLD, as_dict, Celsius("JFK", 27))
    assert repr(found) == repr(Kelvin("JFK", 27.0))


def test_migration_replaces_the_rules_for_types() -> None:
    after = ValueStateDescriptor("s", int, schema_version=2, migration=lambda old, _: int(old))
    assert migrated(ValueStateDescriptor("s", str), after, "5") == 5


def test_migration_gets_the_version_of_the_value() -> None:
    after = ValueStateDescriptor("s", list, schema_version=5, migration=lambda old, version: [old, version])
    for version in (1, 4):
        assert migrated(ValueStateDescriptor("s", int, schema_version=version), after, 7) == [7, version]


def test_migration_is_not_called_for_the_current_version() -> None:
    again = ValueStateDescriptor("temperature", Kelvin, schema_version=2)
    assert plan_evolution(StateSchema.of(again), NEW) == Unchanged()
    celsius = StateSchema.of(ValueStateDescriptor("temperature", Celsius, schema_version=2))
    with pytest.raises(JobError, match="new field 'kelvin' without a default"):
        plan_evolution(celsius, NEW)


def test_higher_version_without_a_migration_follows_the_rules() -> None:
    before = StateSchema.of(ValueStateDescriptor("s", int))
    assert plan_evolution(before, ValueStateDescriptor("s", int, schema_version=2)) == Unchanged()
    with pytest.raises(JobError, match="int cannot become str"):
        plan_evolution(before, ValueStateDescriptor("s", str, schema_version=2))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "the migration made None of 7; a state cannot hold None"),
        ("x", "the stored value 7 does not fit: expected float, got 'x'"),
    ],
)
def test_result_of_a_migration_must_have_the_declared_type(result: Any, message: str) -> None:
    after = ValueStateDescriptor("s", float, schema_version=2, migration=lambda old, _: result)
    with pytest.raises(SerializationError, match=message):
        migrated(ValueStateDescriptor("s", int), after, 7)


def test_migration_cannot_change_map_keys_or_the_serializer() -> None:
    before = StateSchema.of(MapStateDescriptor("s", int))

    class Own(MessagePackSerializer):
        name = "own"

    for after in (
        MapStateDescriptor("s", int, map_key_type=int, schema_version=2, migration=lambda old, _: old),
        MapStateDescriptor("s", int, serializer=Own(), schema_version=2, migration=lambda old, _: old),
    ):
        with pytest.raises(JobError, match="declare the new state under another name"):
            plan_evolution(before, after)


def test_migration_is_ignored_when_descriptors_are_compared() -> None:
    assert ValueStateDescriptor("temperature", Kelvin, schema_version=2) == NEW
    assert ValueStateDescriptor("temperature", Kelvin) != NEW
