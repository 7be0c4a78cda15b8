"""The laws of read-only views: they decode every kind, and refuse every mutator at every depth."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import ConfigError, SerializationError, UnsupportedOperation
from qstate.operators.handles import AggregatingState, ListState, MapState, ReducingState, ValueState
from qstate.serializers import DeclaredSerializer, MessagePackSerializer, Serializer
from qstate.views import (
    ReadOnlyAggregatingState,
    ReadOnlyDict,
    ReadOnlyList,
    ReadOnlyListState,
    ReadOnlyMapState,
    ReadOnlyReducingState,
    ReadOnlyState,
    ReadOnlyValueState,
    ViewMaker,
    freeze,
    serializers_by_name,
)
from tests.runtime.client.record import Reading

PACK = MessagePackSerializer().dumps


class ReversedText(Serializer):
    """A serializer of a user's own: text, backwards."""

    name = "reversed-text"

    def dumps(self, value: Any) -> bytes:
        return str(value)[::-1].encode()

    def loads(self, data: bytes) -> Any:
        return data.decode()[::-1]


class Listing(Serializer):
    """A serializer whose values are mutable."""

    name = "listing"

    def dumps(self, value: Any) -> bytes:
        return ",".join(value).encode()

    def loads(self, data: bytes) -> Any:
        return [data.decode().split(","), {"set": {1}}, bytearray(b"x")]


def view_of(kind: str, data: bytes, serializer: Serializer | None = None) -> Any:
    own = {} if serializer is None else {serializer.name: serializer}
    name = "msgpack" if serializer is None else serializer.name
    return ViewMaker({"name": "state", "kind": kind, "serializer": name}, own).view(data, 7, "live")


# The methods that a read needs. Every other method of list or dict is a mutator.
READING_LIST = {"copy", "count", "index", *dir(tuple)} | {"__reversed__"}
READING_DICT = {"copy", "get", "items", "keys", "values", "fromkeys", "__or__", "__ror__", "__reversed__", *dir(tuple)}
LIST_MUTATORS = sorted({name for name in dir(list) if name not in READING_LIST} | {"__init__"})
DICT_MUTATORS = sorted({name for name in dir(dict) if name not in READING_DICT} | {"__init__"})


def test_the_mutators_found_are_those_we_know() -> None:
    assert set(LIST_MUTATORS) >= {"append", "sort", "__iadd__", "__imul__", "__delitem__", "__setitem__", "__init__"}
    assert set(DICT_MUTATORS) >= {"update", "setdefault", "popitem", "__ior__", "__delitem__", "__setitem__"}


ARGUMENTS = [(), (0,), (0, 9), ([9],), ({9: 9},), (9, 9)]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("name", LIST_MUTATORS)
def test_every_mutator_of_a_list_refuses(name: str, arguments: tuple[Any, ...]) -> None:
    value = freeze([1, 2, 3])
    with pytest.raises(UnsupportedOperation, match=name):
        getattr(value, name)(*arguments)
    assert value == [1, 2, 3]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("name", DICT_MUTATORS)
def test_every_mutator_of_a_dict_refuses(name: str, arguments: tuple[Any, ...]) -> None:
    value = freeze({1: 2})
    with pytest.raises(UnsupportedOperation, match=name):
        getattr(value, name)(*arguments)
    assert value == {1: 2}


def assign_slice(value: Any) -> None:
    value[0:1] = [9]


def delete_slice(value: Any) -> None:
    del value[:]


def add_in_place(value: Any) -> None:
    value += [9]


def multiply_in_place(value: Any) -> None:
    value *= 2


@pytest.mark.parametrize("change", [assign_slice, delete_slice, add_in_place, multiply_in_place])
def test_the_statements_that_change_a_list_refuse(change: Callable[[Any], None]) -> None:
    value = freeze([1, 2])
    with pytest.raises(UnsupportedOperation):
        change(value)
    assert value == [1, 2]


def merge_in_place(value: Any) -> None:
    value |= {9: 9}


def assign_item(value: Any) -> None:
    value[9] = 9


def delete_item(value: Any) -> None:
    del value[1]


@pytest.mark.parametrize("change", [merge_in_place, assign_item, delete_item])
def test_the_statements_that_change_a_dict_refuse(change: Callable[[Any], None]) -> None:
    value = freeze({1: 2})
    with pytest.raises(UnsupportedOperation):
        change(value)
    assert value == {1: 2}


def test_containers_have_no_attributes_to_set() -> None:
    for value in (freeze([1]), freeze({1: 2})):
        with pytest.raises(AttributeError):
            value.note = 1


VIEWS: dict[str, Any] = {
    "value": view_of("value", PACK(1)),
    "list": view_of("list", PACK([1])),
    "map": view_of("map", PACK({"a": 1})),
    "reducing": view_of("reducing", PACK(1)),
    "aggregating": view_of("aggregating", PACK(1)),
}
HANDLES = {
    "value": ValueState,
    "list": ListState,
    "map": MapState,
    "reducing": ReducingState,
    "aggregating": AggregatingState,
}
READING_HANDLE = {"value", "get", "contains", "elements", "entries", "keys", "values", "is_empty", "in_namespace"}
#: What the job's handles have and does not read is a mutator.
#: A view is of one key: it has none of the methods that take keys.
STATE_MUTATORS = {
    kind: sorted(
        name
        for name in dir(handle)
        if not name.startswith("_") and not name.endswith("_many") and name not in READING_HANDLE
    )
    for kind, handle in HANDLES.items()
}


def test_the_mutators_of_the_handles_are_those_we_know() -> None:
    assert STATE_MUTATORS == {
        "value": ["clear", "update"],
        "list": ["add", "add_all", "clear", "update"],
        "map": ["clear", "put", "put_all", "remove"],
        "reducing": ["add", "clear"],
        "aggregating": ["add", "clear"],
    }


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in STATE_MUTATORS.items() for name in names])
def test_every_mutator_of_every_kind_refuses(kind: str, name: str) -> None:
    for arguments in ARGUMENTS:
        with pytest.raises(UnsupportedOperation, match=name):
            getattr(VIEWS[kind], name)(*arguments)


def test_each_kind_reads_with_its_own_operations() -> None:
    assert VIEWS["value"].value() == 1
    assert VIEWS["list"].get() == [1]
    assert VIEWS["reducing"].get() == 1
    assert VIEWS["aggregating"].get() == 1
    entries = VIEWS["map"]
    assert entries.get("a") == 1
    assert entries.get("b") is None
    assert entries.contains("a")
    assert not entries.contains("b")
    assert (entries.entries(), entries.keys(), entries.values()) == ((("a", 1),), ("a",), (1,))
    assert not entries.is_empty()
    assert view_of("map", PACK({})).is_empty()
    assert {kind: view.contents() for kind, view in VIEWS.items()} == {
        "value": 1,
        "list": [1],
        "map": {"a": 1},
        "reducing": 1,
        "aggregating": 1,
    }


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_has_a_read_only_epoch_and_isolation(kind: str) -> None:
    view = VIEWS[kind]
    assert (view.epoch, view.isolation) == (7, "live")
    assert "epoch=7" in repr(view)
    with pytest.raises(AttributeError):
        view.epoch = 8
    with pytest.raises(AttributeError):
        view.isolation = "committed"


@pytest.mark.parametrize("kind", VIEWS)
def test_views_survive_pickling_and_copying(kind: str) -> None:
    view = VIEWS[kind]
    for other in (pickle.loads(pickle.dumps(view)), copy.copy(view), copy.deepcopy(view)):
        assert type(other) is type(view)
        assert other == view
        assert (other.epoch, other.isolation) == (7, "live")


def test_views_are_equal_by_kind_and_contents() -> None:
    maker = ViewMaker({"name": "s", "kind": "value", "serializer": "msgpack"}, {})
    assert maker.view(PACK([1, {"a": 2}]), 1, "live") == maker.view(PACK([1, {"a": 2}]), 9, "committed")
    assert maker.view(PACK(1), 1, "live") != maker.view(PACK(2), 1, "live")
    assert VIEWS["value"] != VIEWS["reducing"]
    assert VIEWS["value"] != 1
    with pytest.raises(TypeError):
        hash(VIEWS["value"])


def test_the_class_of_each_kind() -> None:
    assert {kind: type(view) for kind, view in VIEWS.items()} == {
        "value": ReadOnlyValueState,
        "list": ReadOnlyListState,
        "map": ReadOnlyMapState,
        "reducing": ReadOnlyReducingState,
        "aggregating": ReadOnlyAggregatingState,
    }
    assert all(isinstance(view, ReadOnlyState) for view in VIEWS.values())


def test_a_record_reads_as_a_read_only_dict() -> None:
    view = view_of("value", DeclaredSerializer(Reading).dumps(Reading("JFK", [1.5])))
    assert view.value() == {"airport": "JFK", "degrees": [1.5]}
    assert_frozen(view.value())


def test_map_keys_of_several_columns_are_tuples() -> None:
    view = view_of("map", msgpack.packb({("JFK", 1): 2, "plain": 3}))
    assert view.get(("JFK", 1)) == 2
    assert set(view.keys()) == {("JFK", 1), "plain"}


def test_times_tuples_and_decimals_come_back_as_they_were_written() -> None:
    value = {
        "tuple": (1, [2], {"three": (4,)}),
        "utc": datetime(2013, 1, 1, tzinfo=timezone.utc),
        "local": datetime(2013, 1, 1, 5),
        "day": date(2013, 1, 1),
        "money": Decimal("1.10"),
    }
    found = view_of("value", PACK(value)).value()
    assert found == value
    assert_frozen(found)


def test_elements_and_entries_of_an_own_serializer_are_read_with_it() -> None:
    own = ReversedText()
    assert view_of("value", own.dumps("abc"), own).value() == "abc"
    assert view_of("reducing", own.dumps("abc"), own).get() == "abc"
    assert view_of("list", msgpack.packb([own.dumps("ab"), own.dumps("cd")]), own).get() == ["ab", "cd"]
    entries = view_of("map", msgpack.packb({"k": own.dumps("ab"), 1: own.dumps("cd")}), own)
    assert entries.get("k") == "ab"
    assert entries.get("none") is None
    assert entries.entries() == (("k", "ab"), (1, "cd"))
    assert entries.values() == ("ab", "cd")


def test_containers_of_an_own_serializer_are_frozen_too() -> None:
    own = Listing()
    for view in (view_of("value", b"a", own), view_of("list", msgpack.packb([b"a"]), own)):
        assert_frozen(view.get() if isinstance(view, ReadOnlyListState) else view.value())
    assert view_of("value", b"a,b", own).value() == [["a", "b"], {"set": frozenset({1})}, b"x"]


def test_an_unknown_serializer_is_an_error_that_names_the_remedy() -> None:
    with pytest.raises(SerializationError, match=r"'avro'.*serializers=\[...\].*msgpack, reversed-text"):
        ViewMaker({"name": "s", "kind": "value", "serializer": "avro"}, {"reversed-text": ReversedText()})


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(SerializationError, match="'graph'"):
        ViewMaker({"name": "s", "kind": "graph", "serializer": "msgpack"}, {})


@pytest.mark.parametrize("kind", ["value", "list", "map", "reducing", "aggregating"])
def test_bytes_that_cannot_be_read_raise_on_access_not_before(kind: str) -> None:
    view = view_of(kind, b"\xc1")
    with pytest.raises(SerializationError):
        repr(view)


@pytest.mark.parametrize(("kind", "data"), [("list", PACK({"a": 1})), ("map", PACK([1])), ("list", PACK(5))])
def test_an_answer_of_another_shape_is_a_serialization_error(kind: str, data: bytes) -> None:
    view = view_of(kind, data)
    with pytest.raises(SerializationError, match="expected an answer with"):
        view.get() if kind == "list" else view.keys()


def test_an_own_serializer_that_fails_is_a_serialization_error() -> None:
    with pytest.raises(SerializationError, match="reversed-text"):
        view_of("value", b"\xff", ReversedText()).value()
    with pytest.raises(SerializationError, match="expected bytes"):
        view_of("list", msgpack.packb([5]), ReversedText()).get()


def test_serializers_need_names_of_their_own() -> None:
    assert set(serializers_by_name([ReversedText(), Listing()])) == {"reversed-text", "listing"}
    for wrong in ([ReversedText(), ReversedText()], [MessagePackSerializer()], ["text"], [ReversedText]):
        with pytest.raises(ConfigError):
            serializers_by_name(wrong)  # type: ignore[arg-type]


def test_views_of_many_results_keep_their_order_and_the_missing_keys() -> None:
    maker = ViewMaker({"name": "s", "kind": "value", "serializer": "msgpack"}, {})
    views = maker.views([PACK(1), None, PACK(2)], (3, 3, 4), "committed")
    assert [view and (view.epoch, view.isolation) for view in views] == [(3, "committed"), None, (4, "committed")]


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text()
VALUES = st.recursive(
    SCALARS | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(0, 9), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


def assert_frozen(value: Any) -> None:
    assert not isinstance(value, set | bytearray)
    if isinstance(value, list):
        assert type(value) is ReadOnlyList
    if isinstance(value, dict):
        assert type(value) is ReadOnlyDict
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for element in value:
            assert_frozen(element)


@given(VALUES)
def test_a_value_is_read_back_equal_and_frozen_at_every_depth(value: Any) -> None:
    found = view_of("value", PACK(value)).value()
    assert found == value
    assert_frozen(found)


@given(st.lists(VALUES))
def test_a_list_is_read_back_equal_and_frozen_at_every_depth(elements: list[Any]) -> None:
    found = view_of("list", PACK(elements)).get()
    assert found == elements
    assert_frozen(found)


@given(st.dictionaries(st.text() | st.integers(0, 9), VALUES))
def test_a_map_is_read_back_equal_and_frozen_at_every_depth(entries: dict[Any, Any]) -> None:
    view = view_of("map", PACK(entries))
    assert dict(view.entries()) == entries
    assert_frozen(view.entries())


@given(VALUES)
def test_freezing_gives_an_equal_value_that_pickles_and_copies_frozen(value: Any) -> None:
    frozen = freeze(value)
    assert frozen == value
    for other in (frozen, pickle.loads(pickle.dumps(frozen)), copy.copy(frozen), copy.deepcopy(frozen), freeze(frozen)):
        assert other == value
        assert_frozen(other)


@given(st.binary(max_size=64), st.sampled_from(["value", "list", "map"]))
def test_any_bytes_give_a_value_or_a_serialization_error(data: bytes, kind: str) -> None:
    view = view_of(kind, data)
    try:
        text = repr(view)
    except SerializationError:
        return
    assert text.startswith(type(view).__name__)
