"""The types in a state's description: written from a descriptor, read from a peer."""

from __future__ import annotations

from dataclasses import dataclass
from operator import add

import pytest

from qstate.demo.functions import Mean
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from qstate.evolution.answer_types import MAP_KEY_SCHEMA, VALUE_SCHEMA, answer_schemas, described_type
from qstate.values.value_types import OBJECT, value_type_of


@dataclass
class Reading:
    temperature: float
    station: str | None = None


def test_the_type_of_an_answer_survives_the_description() -> None:
    for descriptor in (
        ValueStateDescriptor("one", Reading),
        ListStateDescriptor("one", Reading),
        MapStateDescriptor("one", Reading),
        ReducingStateDescriptor("one", Reading, reduce_function=add),
    ):
        assert described_type(answer_schemas(descriptor), VALUE_SCHEMA) == value_type_of(Reading)


def test_a_map_describes_its_keys() -> None:
    described = answer_schemas(MapStateDescriptor("one", int, map_key_type=bytes))
    assert described_type(described, MAP_KEY_SCHEMA) == value_type_of(bytes)


def test_an_aggregate_does_not_describe_its_result() -> None:
    described = answer_schemas(AggregatingStateDescriptor("one", tuple, aggregate_function=Mean()))
    assert described_type(described, VALUE_SCHEMA) == OBJECT


@pytest.mark.parametrize("text", [None, 7, "", "[", '"set"', "[" * 70_000, '{"list":' * 40 + '"int"' + "}" * 40])
def test_what_no_version_writes_is_read_as_object(text: object) -> None:
    assert described_type({VALUE_SCHEMA: text}, VALUE_SCHEMA) == OBJECT
