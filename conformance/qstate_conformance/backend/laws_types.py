"""Laws of types: what a function reads in a later epoch is what it wrote, and nothing else than it declared is stored.

The descriptors are as an operator gives them to a backend: their serializers check what they write.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import StateBackend
from qstate.backends.contract import Isolation
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from qstate.errors import SerializationError
from qstate.evolution.write_checks import checked
from qstate.keys import encode_key
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.states import Mean
from qstate_conformance.backend.strategies import contents_of
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

#: One state of each kind, of anything and of numbers with a fraction.
ANYTHING: tuple[StateDescriptor, ...] = (
    ValueStateDescriptor("any value"),
    ListStateDescriptor("any list"),
    MapStateDescriptor("any map"),
)
NUMBERS: tuple[StateDescriptor, ...] = (
    ValueStateDescriptor("number", float),
    ListStateDescriptor("numbers", float),
    MapStateDescriptor("numbers by name", float),
    ReducingStateDescriptor("greatest number", float, reduce_function=max),
    AggregatingStateDescriptor("mean of numbers", float, aggregate_function=Mean()),
)


class Colour(Enum):
    RED = 1
    GREEN = 2


class Point(NamedTuple):
    lat: float
    lon: float = 0.0


@dataclass
class Reading:
    id: UUID
    at: datetime
    points: list[Point] = field(default_factory=list)
    colours: dict[Colour, int] = field(default_factory=dict)
    took: timedelta | None = None


_points = st.builds(Point, st.floats(allow_nan=False))
_readings = st.builds(
    Reading,
    st.uuids(),
    st.datetimes(timezones=st.just(timezone.utc)).map(lambda found: found.replace(fold=0)),
    st.lists(_points, max_size=2),
    st.dictionaries(st.sampled_from(Colour), st.integers(0, 9)),
    st.none() | st.timedeltas(),
)
#: States of declared types, and their contents.
DECLARED: tuple[tuple[StateDescriptor, st.SearchStrategy[Any]], ...] = (
    (ValueStateDescriptor("reading", Reading), _readings),
    (ListStateDescriptor("points", Point), st.lists(_points, min_size=1, max_size=3)),
    (
        MapStateDescriptor("colours", Colour | None),
        st.dictionaries(st.text(), st.none() | st.sampled_from(Colour), min_size=1),
    ),
    (ValueStateDescriptor("by name", dict[str, Reading]), st.dictionaries(st.text(max_size=2), _readings, max_size=2)),
)
#: No number with a fraction, though Python, MessagePack or another language would take some of them for one.
NO_NUMBERS = [None, 1, True, "1.5", b"1.5", [1.5], {"a": 1.5}, (1.5,), bytearray(b"1.5"), 1.5j]
#: What plain bytes would give back as something else.
CHANGELINGS = [bytearray(b"x"), memoryview(b"x"), [bytearray(b"x")], {"a": {1, 2}}, type("Text", (str,), {})("x")]


def _contents(kind: StateKind, value: Any) -> Any:
    return [value] if kind is StateKind.LIST else {"m": value} if kind is StateKind.MAP else value


@law("T1")
@given(data=st.data(), descriptor=st.sampled_from(ANYTHING))
def test_a_later_epoch_reads_what_was_written(
    subject: BackendSubject, data: st.DataObject, descriptor: StateDescriptor
) -> None:
    """An accepted value reads equal, with equal types, in later epochs, after a rollback and after a restore."""
    _reads_as_written(subject, descriptor, data.draw(contents_of[descriptor.kind]))


@law("T1")
@given(data=st.data(), declared=st.sampled_from(DECLARED))
def test_an_object_of_a_declared_type_reads_the_same_in_every_epoch(
    subject: BackendSubject, data: st.DataObject, declared: tuple[StateDescriptor, st.SearchStrategy[Any]]
) -> None:
    """A dataclass, named tuple or enum reads as an equal object of its class, in this epoch and in every later one."""
    descriptor, strategy = declared
    _reads_as_written(subject, descriptor, data.draw(strategy))


def _reads_as_written(subject: BackendSubject, descriptor: StateDescriptor, contents: Any) -> None:
    expected = exactly(contents)
    with Instances(subject) as instances:
        backend = instances.open()
        table = backend.table(checked(descriptor))
        backend.begin(0)
        try:
            table.put("k", deepcopy(contents))
            assert exactly(table.get("k")) == expected, f"in the same epoch: {table.get('k')!r}"
            backend.publish()
            assert exactly(table.get("k")) == expected, f"after a publish: {table.get('k')!r}"
            changes = sealed(backend, 0)
        except SerializationError:
            return
        for epoch in (1, 2):
            backend.begin(epoch)
            assert exactly(table.get("k")) == expected, f"in epoch {epoch}: {table.get('k')!r}"
            table.delete("other")
            sealed(backend, epoch)
        backend.begin(3)
        table.delete("k")
        backend.rollback()
        assert exactly(table.get("k")) == expected, f"after a rollback: {table.get('k')!r}"
        other = instances.open()
        table = other.table(checked(descriptor))
        other.restore(0, changes)
        assert exactly(table.get("k")) == expected, f"restored: {table.get('k')!r}"


@law("T11", "T10", "B11")
@pytest.mark.parametrize("descriptor", NUMBERS, ids=lambda descriptor: descriptor.kind.value)
def test_what_is_not_of_the_declared_type_is_not_stored(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """A value, element or entry of any other type fails the epoch and does not change the state."""
    _refuses(subject, descriptor, NO_NUMBERS)


@law("T11", "T10", "B11")
@pytest.mark.parametrize("descriptor", ANYTHING, ids=lambda descriptor: descriptor.kind.value)
def test_what_would_come_back_as_something_else_is_not_stored(
    subject: BackendSubject, descriptor: StateDescriptor
) -> None:
    """Without a declared type, a value that plain bytes cannot return fails the epoch, at any depth."""
    _refuses(subject, descriptor, CHANGELINGS)


def _refuses(subject: BackendSubject, descriptor: StateDescriptor, strangers: list[Any]) -> None:
    kind = descriptor.kind
    with opened(subject) as backend:
        table = backend.table(checked(descriptor))
        table.put("k", _contents(kind, 1.5))
        assert {change.key for change in sealed(backend, 0)} == {encode_key("k")}
        for stranger in strangers:
            for write in _writes(kind):
                backend.begin(1)
                with pytest.raises(SerializationError):
                    write(table, stranger)
                    sealed(backend, 1)
                backend.rollback()
                assert table.get("k") == _contents(kind, 1.5), f"after {stranger!r}"
                assert table.get("other") is None
        _still_commits(backend, checked(descriptor), "k")


@law("T12")
@pytest.mark.parametrize("descriptor", NUMBERS, ids=lambda descriptor: descriptor.kind.value)
def test_what_was_stored_as_another_type_is_read_and_kept(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """Restored state that the serializer would refuse can be read and queried, and other keys can be committed."""
    stored = _contents(descriptor.kind, "hot")
    with Instances(subject) as instances:
        source, target = instances.open(), instances.open()
        source.begin(0)
        source.table(descriptor).put("k", stored)
        changes = sealed(source, 0)
        table = target.table(checked(descriptor))
        target.restore(0, changes)
        assert table.get("k") == stored
        if descriptor.kind is not StateKind.AGGREGATING:
            (answer,) = target.reader(Isolation.LIVE).get(descriptor, None, ["k"]).values
            assert isinstance(answer, bytes)
            assert b"\xa3hot" in answer
        _still_commits(target, checked(descriptor), "other")
        assert table.get("k") == stored


def _still_commits(backend: StateBackend, descriptor: StateDescriptor, key: str) -> None:
    backend.begin(1)
    backend.table(descriptor).put(key, _contents(descriptor.kind, 2.5))
    assert {change.key for change in sealed(backend, 1)} == {encode_key(key)}
    assert backend.table(descriptor).get(key) == _contents(descriptor.kind, 2.5)


def _writes(kind: StateKind) -> list[Any]:
    """Every way of writing a part of a state of this kind, to a key that has one and to one that has none."""
    if kind is StateKind.LIST:
        return [
            lambda table, part: table.put("k", [1.5, part]),
            lambda table, part: table.list_add("k", [part]),
            lambda table, part: table.list_add("other", [part]),
        ]
    if kind is StateKind.MAP:
        return [
            lambda table, part: table.put("k", {"m": 1.5, "n": part}),
            lambda table, part: table.map_put("k", "m", part),
            lambda table, part: table.map_put("other", "n", part),
        ]
    return [
        lambda table, part: table.put("k", part),
        lambda table, part: table.put_many(["k", "other"], [2.5, part]),
    ]


def exactly(value: Any) -> Any:
    """Equal for contents that are equal in every part, classes and time zones' offsets included."""
    if type(value) is dict:
        return "dict", sorted(((exactly(key), exactly(part)) for key, part in value.items()), key=repr)
    if type(value) in (list, tuple):
        return type(value).__name__, [exactly(part) for part in value]
    # The text of an object of a declared class names its class and those of its parts.
    return type(value).__name__, value.isoformat() if type(value) is datetime else repr(value)
