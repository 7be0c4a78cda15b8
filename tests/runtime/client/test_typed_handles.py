"""Views of a declared type: values are objects of the declared class, and checked against it when they are read."""

from __future__ import annotations

import asyncio
import enum
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack
import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import ConfigError, SerializationError
from qstate.protocol.messages import Get, Page, Scan, Values
from qstate.runtime.client.results.typed_views import TypedViews
from qstate.runtime.client.subscriptions import ChangeBatch, ChangeKind, StateChange
from qstate.serializers import MessagePackSerializer, serializer_for
from qstate.views import (
    ReadOnlyAggregatingState,
    ReadOnlyListState,
    ReadOnlyMapState,
    ReadOnlyReducingState,
    ReadOnlyState,
    ReadOnlyValueState,
    ViewMaker,
)
from tests.runtime.client.peer import FINGERPRINT, VALUE_STATE, Peer
from tests.runtime.client.record import Reading
from tests.runtime.client.test_views import ReversedText


class Place(NamedTuple):
    row: int
    column: int = 0


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Strict:
    low: int
    high: int

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low above high")


def view(kind: str, data: bytes, serializer: Any = MessagePackSerializer) -> ReadOnlyState:
    description = {"name": "s", "kind": kind, "serializer": serializer.name}
    own = {} if serializer is MessagePackSerializer else {serializer.name: serializer()}
    return ViewMaker(description, own).view(data, 7, "live")


def typed(declared: Any, found: ReadOnlyState) -> Any:
    return TypedViews(declared, "job", "s").view(found)


def written(declared: Any, value: Any) -> bytes:
    return serializer_for(declared).dumps(value)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (Reading, Reading("JFK", [1.0])),
        (Place, Place(1, 2)),
        (Level, Level.HIGH),
        (list[Place], [Place(1), Place(2)]),
        (dict[str, Level], {"a": Level.LOW}),
        (tuple[Level, int], (Level.LOW, 3)),
        (Reading | None, None),
        (float, 1.5),
    ],
)
def test_a_value_is_read_as_the_declared_type(declared: Any, value: Any) -> None:
    found = typed(ReadOnlyValueState[declared], view("value", written(declared, value)))
    assert found.value() == value
    assert type(found.value()) is type(value)
    assert (found.epoch, found.isolation) == (7, "live")
    copied = pickle.loads(pickle.dumps(found))
    assert copied == found
    assert type(copied.value()) is type(value)


def test_each_kind_of_state_has_values_of_the_declared_type() -> None:
    one = written(Reading, Reading("JFK", [1.0]))
    elements = typed(ReadOnlyListState[Reading], view("list", b"\x92" + one + one))
    assert elements.get() == [Reading("JFK", [1.0])] * 2
    assert [*elements.elements()][1].airport == "JFK"
    entries = typed(ReadOnlyMapState[str, Reading], view("map", b"\x81" + msgpack.packb("a") + one))
    assert entries.get("a") == entries.values()[0] == Reading("JFK", [1.0])
    assert entries.get("b") is None
    assert entries.keys() == ("a",)
    assert typed(ReadOnlyReducingState[Reading], view("reducing", one)).get().degrees == [1.0]
    assert typed(ReadOnlyAggregatingState[float], view("aggregating", msgpack.packb(2.5))).get() == 2.5


def test_a_change_of_a_read_object_changes_no_later_one() -> None:
    found = typed(ReadOnlyValueState[Reading], view("value", written(Reading, Reading("JFK", [1.0]))))
    found.value().degrees.append(2.0)
    assert found.value() == Reading("JFK", [1.0])


def test_missing_fields_take_their_defaults_and_others_are_ignored() -> None:
    found = typed(ReadOnlyValueState[Place], view("value", msgpack.packb({"row": 4, "new": "field"})))
    assert found.value() == Place(4, 0)


@pytest.mark.parametrize(
    ("declared", "stored", "message"),
    [
        (float, 3, r"state 's' of job 'job' has a value that is no float: expected float, got 3 of type int"),
        (Reading, {"airport": 7, "degrees": []}, r"is no Reading.*: at \['airport'\]: expected str, got 7 of type int"),
        (Reading, {"airport": "JFK", "degrees": [1.0, "x"]}, r"at \['degrees'\]\[1\]: expected float, got 'x'"),
        (Reading, {"airport": "JFK"}, r"is no Reading"),
        (Reading, "JFK", r"is no Reading"),
        (Level, "MIDDLE", r"the enum Level has no member 'MIDDLE'"),
        (Strict, {"low": 2, "high": 1}, r"is no Strict.*low above high"),
    ],
)
def test_a_value_of_another_type_is_an_error_when_it_is_read(declared: Any, stored: Any, message: str) -> None:
    found = typed(ReadOnlyValueState[declared], view("value", msgpack.packb(stored)))
    with pytest.raises(SerializationError, match=message):
        found.value()


def test_an_entry_is_found_by_the_declared_key() -> None:
    found = typed(ReadOnlyMapState[Level, float], view("map", msgpack.packb({"HIGH": 1.0})))
    assert found.entries() == ((Level.HIGH, 1.0),)
    assert (found.get(Level.HIGH), found.contains(Level.HIGH)) == (1.0, True)
    assert (found.get(Level.LOW), found.contains(Level.LOW)) == (None, False)


def test_a_change_of_an_entry_has_the_declared_key() -> None:
    views = TypedViews(ReadOnlyMapState[Level, float], "job", "s")
    value = view("value", msgpack.packb(1.0))
    put = StateChange(7, ChangeKind.PUT_ENTRY, "JFK", None, "HIGH", value)
    removed = StateChange(7, ChangeKind.REMOVE_ENTRY, "JFK", None, "LOW", None)
    batch = views.batch(ChangeBatch(7, [put, removed], False, 7, None))
    assert [(change.map_key, change.value) for change in batch] == [(Level.HIGH, 1.0), (Level.LOW, None)]


def test_a_map_key_of_another_type_is_an_error() -> None:
    found = typed(ReadOnlyMapState[int, float], view("map", msgpack.packb({"a": 1.0})))
    with pytest.raises(SerializationError, match="is no int"):
        found.keys()


def test_a_state_of_another_kind_is_an_error_that_names_the_right_view() -> None:
    with pytest.raises(SerializationError, match=r"is a list state, .* ReadOnlyValueState: declare ReadOnlyListState"):
        typed(ReadOnlyValueState[float], view("list", b"\x90"))


def test_values_of_a_serializer_of_ones_own_are_checked_too() -> None:
    assert typed(ReadOnlyValueState[str], view("value", b"cba", ReversedText)).value() == "abc"
    with pytest.raises(SerializationError, match="is no int"):
        typed(ReadOnlyValueState[int], view("value", b"cba", ReversedText)).value()


@pytest.mark.parametrize("declared", [float, Reading, list[float], 7, ReadOnlyValueState[set]])
def test_what_no_view_can_be_is_refused(declared: Any) -> None:
    with pytest.raises((ConfigError, SerializationError)):
        typed(declared, view("value", b"\xc0")).value()


RECORD = written(Reading, Reading("JFK", [1.0]))


@pytest.fixture
def peer() -> Iterator[Peer]:
    """Serves a state of readings."""

    def script(request: Any) -> Any:
        if isinstance(request, Get):
            yield Values(request.id, (1,) * len(request.keys), (RECORD,) * len(request.keys), FINGERPRINT)
        elif isinstance(request, Scan):
            yield Page(request.id, 1, FINGERPRINT, b"", request.stop_group, None, 1, (), ("JFK",), (RECORD,))
        else:
            yield from peer.honest(request)

    with Peer(script, state={**VALUE_STATE, "value_type": "Reading"}) as peer:
        yield peer


def test_all_reads_of_a_typed_handle_have_the_declared_type(peer: Peer) -> None:
    with QueryableStateClient(*peer.address) as client:
        handle = client.state("job", "state", ReadOnlyValueState[Reading])
        assert handle["JFK"].value() == Reading("JFK", [1.0])
        assert handle.get_many(["a", "b"])["b"].value() == Reading("JFK", [1.0])
        assert [entry.view.value() for entry in handle.scan()] == [Reading("JFK", [1.0])]
        assert client.get("job", "state", "JFK").value() == {"airport": "JFK", "degrees": [1.0]}


def test_all_reads_of_a_typed_asyncio_handle_have_the_declared_type(peer: Peer) -> None:
    async def read() -> None:
        async with await AsyncQueryableStateClient.connect(*peer.address) as client:
            handle = client.state("job", "state", ReadOnlyValueState[Reading])
            assert (await handle.get("JFK")).value() == Reading("JFK", [1.0])
            assert (await handle.get_many(["a", "b"]))["b"].value() == Reading("JFK", [1.0])
            assert [entry.view.value() async for entry in handle.scan()] == [Reading("JFK", [1.0])]

    asyncio.run(read())
