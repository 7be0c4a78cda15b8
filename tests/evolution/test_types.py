"""Declared types as plain data: what is described, and that nothing is lost or let through on the way back."""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar
from uuid import UUID

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from qstate.errors import CheckpointError, ConfigError
from qstate.evolution import StateSchema
from qstate.serializers import MessagePackSerializer
from qstate.values.value_types import MAX_DEPTH, type_from_plain, value_type_of
from tests.evolution.declared import annotations


class Count(AggregateFunction[Any, int, int]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, one: int, other: int) -> int:
        return one + other


@dataclass
class Place:
    latitude: float
    longitude: float


@dataclass
class Flight:
    CARRIERS: ClassVar[int] = 16

    number: int
    origin: Place
    tail: str | None = None
    delays: list[float] = field(default_factory=list)


@dataclass
class Node:
    below: list[Node]


class Colour(Enum):
    RED = 1


class Permissions(Flag):
    READ = 1


class Pair(NamedTuple):
    one: int


class Options(TypedDict):
    one: int


Metres = NewType("Metres", float)
Anything = TypeVar("Anything")

TYPES: list[tuple[Any, str]] = [
    (object, "object"),
    (Any, "object"),
    (None, "None"),
    (bool, "bool"),
    (Decimal, "Decimal"),
    (datetime, "datetime"),
    (date, "date"),
    (list, "list"),
    (typing.List, "list"),  # noqa: UP006
    (list[int], "list[int]"),
    (typing.List[int], "list[int]"),  # noqa: UP006
    (dict, "dict"),
    (dict[str, float], "dict[str, float]"),
    (typing.Dict[str, Any], "dict[str, object]"),  # noqa: UP006
    (tuple, "tuple"),
    (typing.Tuple, "tuple"),  # noqa: UP006
    (tuple[int, ...], "tuple[int, ...]"),
    (tuple[int, str], "tuple[int, str]"),
    (tuple[()], "tuple"),
    (int | None, "int | None"),
    (Optional[int], "int | None"),  # noqa: UP045
    (int | object, "object"),
    (list[int | None] | str, "list[int | None] | str"),
    (Literal["a", 1], "str | int"),
    (Annotated[int, "metres"], "int"),
    (Metres, "float"),
    (Anything, "object"),
    (Sequence[int], "object"),
    (Mapping, "object"),
    (Options, "dict[str, object]"),
    (Colour, "Colour"),
    (Pair, "Pair(one: int)"),
    (timedelta, "timedelta"),
    (UUID, "UUID"),
    (Permissions, "Permissions"),
    (Place, "Place(latitude: float, longitude: float)"),
    (
        Flight,
        "Flight(number: int, origin: Place(latitude: float, longitude: float), tail: str | None = ..., "
        "delays: list[float] = ...)",
    ),
    (list[Place], "list[Place(latitude: float, longitude: float)]"),
    (Node, "Node(below: list)"),
]


@pytest.mark.parametrize(("declared", "text"), TYPES, ids=[text for _, text in TYPES])
def test_a_declared_type_is_described(declared: Any, text: str) -> None:
    found = value_type_of(declared)
    assert str(found) == text
    assert type_from_plain(json.loads(json.dumps(found.to_plain()))) == found


def test_plain_data_of_a_record_is_as_the_module_says() -> None:
    assert value_type_of(Flight).to_plain() == {
        "record": "Flight",
        "fields": [
            {"name": "number", "type": "int", "default": False},
            {
                "name": "origin",
                "type": {
                    "record": "Place",
                    "fields": [
                        {"name": "latitude", "type": "float", "default": False},
                        {"name": "longitude", "type": "float", "default": False},
                    ],
                },
                "default": False,
            },
            {"name": "tail", "type": {"union": ["str", "None"]}, "default": True},
            {"name": "delays", "type": {"list": "float"}, "default": True},
        ],
    }
    assert value_type_of(dict[str, tuple[int, Colour]]).to_plain() == {
        "dict": ["str", {"tuple": ["int", {"enum": "Colour", "members": ["RED"]}]}]
    }
    assert value_type_of(Permissions).to_plain() == {"class": "Permissions"}
    assert value_type_of(Pair).to_plain() == {
        "record": "Pair",
        "fields": [{"name": "one", "type": "int", "default": False}],
    }
    assert value_type_of(tuple[int, ...]).to_plain() == {"tuple_of": "int"}


def test_a_dataclass_resolves_standard_names_without_its_module() -> None:
    """The classes of a program's main module reach the task managers without what the module imports."""
    elsewhere = types.ModuleType("a_program")
    program = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\n"
        "class Reading:\n"
        "    at: datetime\n"
        "    value: Optional[Decimal]\n"
        "    before: Reading | None\n"
        "    raw: its.Own\n"
    )
    sys.modules["a_program"] = elsewhere
    try:
        exec(program, vars(elsewhere))
        found = value_type_of(elsewhere.Reading)
    finally:
        del sys.modules["a_program"]
    assert str(found) == "Reading(at: datetime, value: Decimal | None, before: object, raw: object)"
    assert str(value_type_of(elsewhere.Reading)) == str(found)


def test_inherited_fields_mean_what_they_mean_in_their_own_module() -> None:
    one, other = types.ModuleType("one_module"), types.ModuleType("other_module")
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    sys.modules.update(one_module=one, other_module=other)
    try:
        exec(f"{head}Unit = int\n@dataclass\nclass Old:\n    unit: Unit\n", vars(one))
        other.Old = one.Old  # type: ignore[attr-defined]
        exec(f"{head}Unit = str\n@dataclass\nclass New(Old):\n    name: Unit\n", vars(other))
        assert str(value_type_of(other.New)) == "New(unit: int, name: str)"
    finally:
        del sys.modules["one_module"], sys.modules["other_module"]


def test_a_type_that_is_too_deep_becomes_anything_and_can_be_read_back() -> None:
    deep: Any = int
    for _ in range(2 * MAX_DEPTH):
        deep = list[deep]
    found = value_type_of(deep)
    assert str(found).count("list") == MAX_DEPTH
    assert type_from_plain(found.to_plain()) == found
    plain: Any = "int"
    for _ in range(100_000):
        plain = {"list": plain}
    with pytest.raises(CheckpointError, match="unknown here"):
        type_from_plain(plain)
    while isinstance(plain, dict):  # taken apart in a loop: too deep for the interpreter to do it by recursion
        plain = plain.pop("list")


class Squeezed(MessagePackSerializer):
    name = "squeezed"
    version = 3


SCHEMAS: list[StateDescriptor] = [
    ValueStateDescriptor("s", Flight).queryable("q"),
    ListStateDescriptor("s", int | None, schema_version=7),
    MapStateDescriptor("s", float, map_key_type=tuple[str, int]),
    ReducingStateDescriptor("s", int, reduce_function=max, serializer=Squeezed()),
    AggregatingStateDescriptor("s", int, aggregate_function=Count()),
]


@pytest.mark.parametrize("descriptor", SCHEMAS, ids=lambda descriptor: descriptor.kind.value)
def test_a_schema_is_what_its_descriptor_says(descriptor: StateDescriptor) -> None:
    schema = StateSchema.of(descriptor)
    assert (schema.name, schema.kind, schema.queryable_name) == ("s", descriptor.kind, descriptor.queryable_name)
    assert (schema.serializer, schema.serializer_version) == (descriptor.serializer.name, descriptor.serializer.version)
    assert schema.schema_version == descriptor.schema_version
    assert (schema.map_key_type is not None) == (descriptor.kind is StateKind.MAP)
    assert schema.needs_function == (descriptor.kind is StateKind.AGGREGATING)
    for through in (lambda plain: json.loads(json.dumps(plain)), lambda plain: msgpack.unpackb(msgpack.packb(plain))):
        assert StateSchema.from_plain(through(schema.to_plain())) == schema


def test_the_plain_data_of_a_schema_is_as_the_module_says() -> None:
    assert StateSchema.of(SCHEMAS[2]).to_plain() == {
        "name": "s",
        "kind": "map",
        "queryable_name": None,
        "serializer": "msgpack",
        "serializer_version": 1,
        "schema_version": 1,
        "value_type": "float",
        "map_key_type": {"tuple": ["str", "int"]},
        "needs_function": False,
    }


def test_the_text_of_a_schema_is_one_line() -> None:
    assert str(StateSchema.of(SCHEMAS[2])) == (
        "map state of tuple[str, int] to float, schema_version 1, serializer 'msgpack' version 1"
    )


def test_what_a_newer_version_adds_to_a_schema_is_ignored() -> None:
    schema = StateSchema.of(SCHEMAS[0])
    assert StateSchema.from_plain({**schema.to_plain(), "time_to_live_ms": 5}) == schema


@given(annotations)
def test_any_type_comes_back_from_plain_data(annotation: Any) -> None:
    found = value_type_of(annotation)
    assert type_from_plain(found.to_plain()) == found
    assert type_from_plain(msgpack.unpackb(msgpack.packb(found.to_plain()))) == found


plain_data = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=3)
    | st.sampled_from(["int", "object", "value", "map", "", "unheard-of"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "list",
                    "dict",
                    "tuple",
                    "tuple_of",
                    "union",
                    "record",
                    "fields",
                    "enum",
                    "members",
                    "class",
                    "name",
                    "type",
                ]
            )
            | st.integers(0, 1),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@st.composite
def damaged_schemas(draw: st.DrawFn) -> Any:
    """The plain data of a schema in which something, somewhere, was replaced or is gone."""
    plain: Any = draw(st.sampled_from(SCHEMAS).map(lambda descriptor: StateSchema.of(descriptor).to_plain()))
    place: Any = plain
    while True:
        name = draw(st.sampled_from(list(place) if isinstance(place, dict) else range(len(place))))
        if not isinstance(place[name], dict | list) or not place[name] or draw(st.booleans()):
            break
        place = place[name]
    if draw(st.booleans()):
        del place[name]
    else:
        place[name] = draw(plain_data)
    return plain


@given(plain_data | damaged_schemas())
def test_plain_data_is_a_schema_or_a_checkpoint_error(plain: Any) -> None:
    try:
        found = StateSchema.from_plain(plain)
    except CheckpointError:
        return
    assert StateSchema.from_plain(found.to_plain()) == found
    assert str(found)


SOUND = StateSchema.of(MapStateDescriptor("s", Place)).to_plain()
FIELD = {"name": "a", "type": "int", "default": False}
UNSOUND: dict[str, Any] = {
    "not a map": 5,
    "no name": {**SOUND, "name": ""},
    "name is bytes": {**SOUND, "name": b"s"},
    "unknown kind": {**SOUND, "kind": "queue"},
    "kind is no text": {**SOUND, "kind": ["map"]},
    "map without key type": {**SOUND, "map_key_type": None},
    "value with key type": {**SOUND, "kind": "value"},
    "no type": {name: found for name, found in SOUND.items() if name != "value_type"},
    "unknown type": {**SOUND, "value_type": "set"},
    "unknown generic": {**SOUND, "value_type": {"set": "int"}},
    "dict of one type": {**SOUND, "value_type": {"dict": ["int"]}},
    "union of one type": {**SOUND, "value_type": {"union": ["int"]}},
    "a member that is no text": {**SOUND, "value_type": {"enum": "E", "members": [1]}},
    "a field twice": {**SOUND, "value_type": {"record": "R", "fields": [FIELD, FIELD]}},
    "a field without a type": {**SOUND, "value_type": {"record": "R", "fields": [{"name": "a", "default": True}]}},
    "a field with half a default": {**SOUND, "value_type": {"record": "R", "fields": [{**FIELD, "default": 1}]}},
    "serializer is no text": {**SOUND, "serializer": None},
    "version zero": {**SOUND, "schema_version": 0},
    "version is a truth": {**SOUND, "serializer_version": True},
    "version is text": {**SOUND, "schema_version": "1"},
    "queryable name is no text": {**SOUND, "queryable_name": 5},
}


@pytest.mark.parametrize("name", UNSOUND)
def test_unsound_plain_data_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError):
        StateSchema.from_plain(UNSOUND[name])
    StateSchema.from_plain(SOUND)


def test_versions_and_migrations_of_a_descriptor_are_checked() -> None:
    for wrong in (0, -1, True, 1.0, "2"):
        with pytest.raises(ConfigError, match="state 's': schema_version must be an integer of at least 1"):
            ValueStateDescriptor("s", int, schema_version=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="migration must be callable, got 5"):
        ValueStateDescriptor("s", int, migration=5)  # type: ignore[arg-type]

    class Unversioned(MessagePackSerializer):
        version = 0

    with pytest.raises(ConfigError, match=r"serializer\.version must be an integer of at least 1, got 0"):
        ValueStateDescriptor("s", int, serializer=Unversioned())


def test_schema_of_many_fields_is_accepted() -> None:
    wide = make_dataclass("Wide", [(f"f{number}", int) for number in range(2_000)])
    schema = StateSchema.of(ValueStateDescriptor("s", wide))
    assert StateSchema.from_plain(schema.to_plain()) == schema
