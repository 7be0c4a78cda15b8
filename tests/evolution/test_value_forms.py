"""Declared types that MessagePack lacks: their objects come back, and readers without their classes see plain data."""

from __future__ import annotations

import enum
import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple
from uuid import UUID

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import ConfigError, SerializationError
from qstate.evolution.write_checks import checked
from qstate.serializers import MessagePackSerializer, Serializer


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    CRIMSON = 1  # noqa: PIE796 - another name of RED


class Level(enum.IntEnum):
    LOW = 1


class Permissions(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    lat: float
    lon: float = 0.0


Bare = namedtuple("Bare", "one two")


@dataclass(frozen=True)
class Place:
    point: Point
    colours: list[Colour] = field(default_factory=list)
    other: Place | None = None


@dataclass
class Reading:
    id: UUID
    place: Place
    by_colour: dict[Colour, tuple[Point, ...]]
    level: Level | None = None
    took: timedelta = timedelta(0)
    best: tuple[int, Point] | None = None


points = st.builds(Point, st.floats(allow_nan=False), st.floats(allow_nan=False))
colours = st.sampled_from(Colour)
places = st.builds(Place, points, st.lists(colours, max_size=3))
readings = st.builds(
    Reading,
    st.uuids(),
    places,
    st.dictionaries(colours, st.lists(points, max_size=2).map(tuple)),
    st.none() | st.just(Level.LOW),
    st.timedeltas(),
    st.none() | st.tuples(st.integers(0, 9), points),
)
DECLARED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Reading, readings),
    (Point, points),
    (Bare, st.builds(Bare, st.integers(0, 9), st.text(max_size=2))),
    (Colour, colours),
    (list[Place], st.lists(places, max_size=2)),
    (dict[str, Reading], st.dictionaries(st.text(max_size=2), readings, max_size=2)),
    (dict[tuple[Colour, int], Point], st.dictionaries(st.tuples(colours, st.integers(0, 9)), points, max_size=2)),
    (tuple[Place, ...], st.lists(places, max_size=2).map(tuple)),
    (Place | int | None, places | st.integers(0, 9) | st.none()),
    (Colour | Point | None, colours | points | st.none()),
    (UUID | timedelta, st.uuids() | st.timedeltas()),
]


@given(data=st.data(), case=st.sampled_from(DECLARED))
def test_a_value_of_a_declared_type_comes_back_equal_and_of_equal_types(data: st.DataObject, case: Any) -> None:
    declared, values = case
    value = data.draw(values)
    serializer = checked(ValueStateDescriptor("s", declared)).serializer
    for stored in (serializer.dumps(value), serializer.dumper()(value), *serializer.dump_all([value])):
        assert repr(serializer.loads(stored)) == repr(value)
        assert repr(serializer.load_all([stored])) == repr([value])


def test_a_reader_without_the_classes_sees_names_and_fields() -> None:
    serializer = ValueStateDescriptor("s", Reading).serializer
    stored = serializer.dumps(Reading(UUID(int=7), Place(Point(1.0, 2.0), [Colour.CRIMSON]), {}, Level.LOW))
    assert MessagePackSerializer().loads(stored) == {
        "id": UUID(int=7),
        "place": {"point": {"lat": 1.0, "lon": 2.0}, "colours": ["RED"], "other": None},
        "by_colour": {},
        "level": "LOW",
        "took": timedelta(0),
        "best": None,
    }


def test_missing_fields_get_their_defaults_at_any_depth_and_unknown_ones_are_ignored() -> None:
    serializer = ListStateDescriptor("s", Place).serializer
    assert serializer.loads(msgpack.packb({"point": {"lat": 1.0, "alt": 5}, "new": 1})) == Place(Point(1.0))
    for wrong in ({}, {"point": {}}, {"point": 1}, {"point": {"lat": 1.0}, "colours": ["BLUE"]}, [1]):
        with pytest.raises(SerializationError, match=r"the bytes are not a P|no member 'BLUE'"):
            serializer.loads(msgpack.packb(wrong))


def test_a_descriptor_of_such_types_can_be_pickled() -> None:
    descriptor = pickle.loads(pickle.dumps(ValueStateDescriptor("s", dict[str, Place])))
    value = {"a": Place(Point(1.0))}
    assert descriptor.serializer.loads(descriptor.serializer.dumps(value)) == value


@dataclass
class Position:
    lat: complex


@dataclass
class Track:
    position: Position


@dataclass
class Tracks:
    by_name: dict[str, list[Track]]


@dataclass
class Made:
    value: float = field(init=False, default=1.0)


@dataclass
class Holder:
    made: Made | None


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        (complex, "complex: complex cannot be stored; declare a dataclass or plain types"),
        (Track, "Track.position.lat: complex cannot be stored"),
        (list[Track], "Track.position.lat: complex cannot be stored"),
        (Tracks, r"Tracks.by_name\[\]\[\].position.lat: complex cannot be stored"),
        (Holder, "Holder.made: Made has fields outside __init__"),
        (Permissions, "Permissions: Permissions cannot be stored; .* int for a flag"),
        (np.float64, "float64: float64 cannot be stored; declare float"),
        (bytearray, "bytearray: bytearray cannot be stored; declare bytes"),
        (set[int] | None, "set: set cannot be stored; declare list"),
        (OrderedDict, "declare dict, or give the descriptor a serializer"),
        (dict[Point, int], "Point: the key of a dict cannot be a Point"),
        (dict[tuple[int, Point], int], "the key of a dict cannot be a Point"),
        (Place | Point, "cannot be told apart when they are read back: two of them are stored as dict"),
        (Colour | str, "two of them are stored as str"),
        (list[Colour] | list[int], "two of them are stored as list"),
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_with_its_descriptor(declared: Any, message: str) -> None:
    for kind in (ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor):
        with pytest.raises(ConfigError, match=message) as caught:
            kind("s", declared)
        assert str(caught.value).startswith("state 's': ")


class Own(Serializer):
    name = "own"

    def dumps(self, value: Any) -> bytes:
        return b"x"

    def loads(self, data: bytes) -> Any:
        return 1j


def test_a_serializer_of_ones_own_stores_any_declared_type() -> None:
    descriptors: list[StateDescriptor] = [
        ValueStateDescriptor("s", Track, serializer=Own()),
        ValueStateDescriptor("s", Place | Point, serializer=Own()),
    ]
    assert [descriptor.serializer.dumps(1j) for descriptor in descriptors] == [b"x", b"x"]


def test_unchecked_values_of_other_types_are_refused_by_the_form() -> None:
    """Before a function's first row there are no checks."""
    for declared, value in (
        (Place, Point(1.0)),
        (Colour, "RED"),
        (list[Colour], (Colour.RED,)),
        (dict[str, Colour], [1]),
        (tuple[Colour, int], (Colour.RED,)),
    ):
        with pytest.raises(SerializationError, match="expected a"):
            ValueStateDescriptor("s", declared).serializer.dumps(value)


def test_moments_in_records_are_stored_in_utc_or_refused() -> None:
    @dataclass
    class At:
        at: datetime

    serializer = checked(ValueStateDescriptor("s", At)).serializer
    with pytest.raises(SerializationError, match="astimezone"):
        serializer.dumps(At(datetime(2013, 1, 1, tzinfo=timezone(timedelta(hours=1)))))
