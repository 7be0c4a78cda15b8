"""Which changes of a declared type are allowed, what becomes of the values, and what is refused."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import JobError, SerializationError
from qstate.evolution import Converted, StateSchema, Unchanged, plan_evolution
from qstate.serializers import DeclaredSerializer, MessagePackSerializer, Serializer
from tests.evolution.declared import (
    annotations,
    conforms,
    equal_as_numbers,
    ints_in,
    no_float_is,
    taken_over,
    values_of,
    widened,
)
from tests.evolution.test_types import Count


def record(*declared: tuple[str, Any] | tuple[str, Any, Any], name: str = "Reading") -> type:
    """A dataclass: of each field the name, the type and perhaps the default."""
    return make_dataclass(name, [(*one[:2], field(default=one[2])) if len(one) > 2 else one for one in declared])


OLD = record(("a", int), ("b", str))
GOOD_AS_THEY_ARE: dict[str, tuple[Any, Any, Any]] = {
    "the same": (int, int, 5),
    "optional": (int, int | None, 5),
    "one of more": (int | str, str | bytes | int, "x"),
    "anything": (int, object, 5),
    "list of anything": (list[int], list, [5]),
    "dict of anything": (dict[str, int], dict, {"a": 5}),
    "tuple of any length": (tuple[int, int], tuple[int, ...], (5, 6)),
    "optional items": (list[int], list[int | None], [5]),
    "float takes ints already": (int, int | float, 5),
    "record to dict": (OLD, dict, {"a": 5, "b": "x"}),
    "record to dict of some types": (OLD, dict[str, int | str], {"a": 5, "b": "x"}),
}
REWRITTEN: dict[str, tuple[Any, Any, Any, Any]] = {
    "int to float": (int, float, 5, 5.0),
    "a float that was stored as int": (int, float, 5.5, 5.5),
    "optional int to optional float": (int | None, float | None, 5, 5.0),
    "None of an optional int": (int | None, float | None, None, None),
    "undeclared float in an optional int": (int | None, float | None, 5.5, 5.5),
    "list": (list[int], list[float], [5, 6], [5.0, 6.0]),
    "dict": (dict[str, int], dict[str, float], {"a": 5}, {"a": 5.0}),
    "keys of a dict": (dict[int, str], dict[float, str], {5: "a"}, {5.0: "a"}),
    "tuple": (tuple[int, str], tuple[float, str], (5, "a"), (5.0, "a")),
    "tuple of any length": (tuple[int, ...], tuple[float, ...], (5, 6), (5.0, 6.0)),
    "within": (dict[str, list[int]], dict[str, list[float]], {"a": [5]}, {"a": [5.0]}),
    "one of two": (list[int] | str, list[float] | str, [5], [5.0]),
    "first that fits": (int, str | float, 5, 5.0),
    "anything to float": (object, float, 5, 5.0),
    "anything to list": (object, list[str], ["a"], ["a"]),
    "anything to one of two": (object, str | None, "a", "a"),
    "an int stays when it may": (object, float | int, 5, 5),
    "list of anything": (list, list[float], [5, 6.5], [5.0, 6.5]),
}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "narrower number": (float, int, "float cannot become int"),
    "text to number": (str, int, "str cannot become int"),
    "number to text": (int, str, "int cannot become str"),
    "truth to number": (bool, int, "bool cannot become int"),
    "no longer optional": (int | None, int, "None cannot become int"),
    "one of less": (int | str, int, "str cannot become int"),
    "none of several": (bytes, int | str, r"bytes cannot become any of int \| str"),
    "items": (list[str], list[int], "str cannot become int"),
    "values of a dict": (dict[str, str], dict[str, int], "str cannot become int"),
    "keys of a dict": (dict[str, int], dict[int, int], "str cannot become int"),
    "list to tuple": (list[int], tuple[int, ...], r"list\[int\] cannot become tuple\[int, ...\]"),
    "another length": (tuple[int, int], tuple[int, int, int], "cannot become"),
    "a length at all": (tuple[int, ...], tuple[int, int], "cannot become"),
    "new field": (OLD, record(("a", int), ("b", str), ("c", int)), "new field 'c' without a default"),
    "field": (OLD, record(("a", int), ("b", int)), "field 'b': str cannot become int"),
    "record to scalar": (OLD, int, "cannot become int"),
    "record to dict of others": (OLD, dict[str, int], "str cannot become int"),
    "dict of something to record": (dict[str, int], record(("a", int)), "cannot become Reading"),
}


@pytest.mark.parametrize("name", GOOD_AS_THEY_ARE)
def test_bytes_that_need_no_conversion_stay(name: str) -> None:
    stored, wanted, value = GOOD_AS_THEY_ARE[name]
    value_as_stored = OLD(**value) if stored is OLD else value
    assert taken_over(stored, wanted, value_as_stored) == (value, False)


@pytest.mark.parametrize("name", REWRITTEN)
def test_values_are_rewritten(name: str) -> None:
    stored, wanted, value, expected = REWRITTEN[name]
    found, rewritten = taken_over(stored, wanted, value)
    assert rewritten
    assert (found, repr(found)) == (expected, repr(expected))


@pytest.mark.parametrize("name", REFUSED)
def test_other_changes_are_refused_before_there_is_a_value(name: str) -> None:
    stored, wanted, reason = REFUSED[name]
    before = StateSchema.of(ValueStateDescriptor("s", stored))
    with pytest.raises(JobError, match=reason) as caught:
        plan_evolution(before, ValueStateDescriptor("s", wanted))
    for schema in (before, StateSchema.of(ValueStateDescriptor("s", wanted))):
        assert str(schema) in str(caught.value)
    assert "a higher schema_version and a migration" in str(caught.value)


def test_the_message_of_a_refusal() -> None:
    with pytest.raises(JobError) as caught:
        plan_evolution(StateSchema.of(ValueStateDescriptor("last", str)), ValueStateDescriptor("last", int))
    assert str(caught.value) == (
        "state 'last' cannot be used as it was stored: str cannot become int; declare it as it was, give the "
        "descriptor a higher schema_version and a migration that makes new values of the old ones, or declare the new "
        "state under another name. Stored: value state of str, schema_version 1, serializer 'msgpack' version "
        "1. Wanted: value state of int, schema_version 1, serializer 'msgpack' version 1. No state was changed and no "
        "row was processed"
    )


ALLOWED_RECORDS: dict[str, tuple[type, dict[str, Any]]] = {
    "new field with a default": (record(("a", int), ("b", str), ("c", int, 7)), {"a": 5, "b": "x", "c": 7}),
    "dropped field": (record(("a", int)), {"a": 5}),
    "wider field": (record(("a", float), ("b", str | None)), {"a": 5.0, "b": "x"}),
    "all at once": (record(("a", float), ("c", str, "new")), {"a": 5.0, "c": "new"}),
}


@pytest.mark.parametrize("name", ALLOWED_RECORDS)
def test_records_are_rewritten_so_that_queries_see_the_new_fields(name: str) -> None:
    wanted, expected = ALLOWED_RECORDS[name]
    found, rewritten = taken_over(OLD, wanted, OLD(5, "x"))
    assert rewritten
    assert type(found) is wanted
    assert dataclasses.asdict(found) == expected
    before = ValueStateDescriptor("s", OLD)
    plan = plan_evolution(StateSchema.of(before), ValueStateDescriptor("s", wanted))
    assert isinstance(plan, Converted)
    stored = msgpack.unpackb(plan.convert(before.serializer.dumps(OLD(5, "x"))))
    assert (stored, {name: type(value) for name, value in stored.items()}) == (
        expected,
        {name: type(value) for name, value in expected.items()},
    )


@pytest.mark.parametrize(
    "wanted",
    [
        record(("b", str), ("a", int)),
        record(("a", int, 1), ("b", str, "")),
        record(("a", int), ("b", str), name="Measurement"),
        record(("a", int | None), ("b", object)),
    ],
    ids=["another order", "defaults", "another name", "wider fields"],
)
def test_records_that_are_stored_the_same_way_stay(wanted: type) -> None:
    found, rewritten = taken_over(OLD, wanted, OLD(5, "x"))
    assert not rewritten
    assert (found.a, found.b) == (5, "x")


def test_each_record_gets_a_default_of_its_own() -> None:
    new = make_dataclass("New", [("a", int), ("seen", list, field(default_factory=list))])
    old = record(("a", int))
    one, other = (taken_over(old, new, old(value))[0] for value in (1, 2))
    assert one.seen == other.seen == []
    assert one.seen is not other.seen


def test_conversion_does_not_check_unchanged_fields() -> None:
    """No type is enforced when a value is written, so a change elsewhere must not make it a fault."""
    found, _ = taken_over(OLD, record(("a", int), ("b", str), ("c", int, 7)), OLD("no int", None))
    assert (found.a, found.b, found.c) == ("no int", None, 7)


def test_a_dict_becomes_a_record_if_it_has_its_fields() -> None:
    wanted = record(("a", float), ("b", str, "default"))
    for stored in (object, dict, dict[str, Any]):
        assert taken_over(stored, wanted, {"a": 5, "other": 1})[0] == wanted(5.0, "default")
        with pytest.raises(SerializationError, match=r"expected Reading with 'a', got \{'b': 'x'\}"):
            taken_over(stored, wanted, {"b": "x"})
        with pytest.raises(SerializationError, match=r"at \['b'\]: expected str, got 5"):
            taken_over(stored, wanted, {"a": 5, "b": 5})


MISFITS: dict[str, tuple[Any, Any, Any, str]] = {
    "declared as int": (int, float, "x", "expected float, got 'x'"),
    "truth": (int, float, True, "expected float, got True"),
    "no float is it": (int, float, 2**53 + 1, "expected an int that a float can hold exactly, got 9007199254740993"),
    "anything": (object, float, "x", "expected float, got 'x'"),
    "anything, but a truth": (object, int, True, "expected int, got True"),
    "anything, but a subclass": (object, date, datetime(2013, 1, 1), r"expected date, got datetime"),
    "item": (list, list[float], [1, "x"], r"at \[1\]: expected float, got 'x'"),
    "within": (object, dict[str, list[int]], {"a": [1, None]}, r"at \['a'\]\[1\]: expected int, got None"),
    "length": (object, tuple[int, int], (1, 2, 3), r"expected tuple\[int, int\], got \(1, 2, 3\)"),
    "none of several": (object, int | None, "x", r"expected int \| None, got 'x'"),
    "not a list at all": (list[int], list[float], {"a": 1}, "expected list, got {'a': 1}"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_value_of_another_type_is_refused_with_its_place(name: str) -> None:
    stored, wanted, value, message = MISFITS[name]
    with pytest.raises(SerializationError, match=message):
        taken_over(stored, wanted, value)


KINDS: list[Callable[..., StateDescriptor]] = [
    ValueStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    lambda *args, **more: ReducingStateDescriptor(*args, reduce_function=max, **more),
    lambda *args, **more: AggregatingStateDescriptor(*args, aggregate_function=Count(), **more),
]


@pytest.mark.parametrize("stored", KINDS)
@pytest.mark.parametrize("wanted", KINDS)
def test_the_kind_must_stay(stored: Callable[..., StateDescriptor], wanted: Callable[..., StateDescriptor]) -> None:
    before, after = StateSchema.of(stored("s", int)), wanted("s", int, migration=lambda value, _: value)
    if stored is wanted:
        assert plan_evolution(before, after) == Unchanged()
        return
    with pytest.raises(JobError, match=f"its kind was {before.kind.value} and is {after.kind.value}; .* another name"):
        plan_evolution(before, after)


def test_the_queryable_name_may_change() -> None:
    before = StateSchema.of(ValueStateDescriptor("s", int).queryable("old"))
    assert plan_evolution(before, ValueStateDescriptor("s", int).queryable("new")) == Unchanged()
    assert plan_evolution(before, ValueStateDescriptor("s", int)) == Unchanged()


@pytest.mark.parametrize("wanted", [int, tuple, tuple[str, int]])
def test_the_map_key_type_must_stay(wanted: Any) -> None:
    before = StateSchema.of(MapStateDescriptor("s", int))
    with pytest.raises(JobError, match="its map key type was str and is "):
        plan_evolution(before, MapStateDescriptor("s", int, map_key_type=wanted))


class Old(MessagePackSerializer):
    """Version 1 of a serializer: the bytes as they are, behind a mark."""

    name = "marked"
    mark = b"1"

    def dumps(self, value: Any) -> bytes:
        return self.mark + super().dumps(value)

    def loads(self, data: bytes) -> Any:
        if data[:1] != self.mark:
            raise SerializationError(f"{data!r} is not of version {self.version}")
        return super().loads(data[1:])


class New(Old):
    """Version 2, which reads version 1."""

    version = 2
    mark = b"2"

    def loads_version(self, data: bytes, version: int) -> Any:
        return Old().loads(data) if version == 1 else super().loads_version(data, version)


class NewOnly(Old):
    version = 2
    mark = b"2"


def own(serializer: Serializer, kind: Any = int, **more: Any) -> ValueStateDescriptor:
    return ValueStateDescriptor("s", kind, serializer=serializer, **more)


def test_an_older_version_of_a_serializer_is_read_and_rewritten() -> None:
    plan = plan_evolution(StateSchema.of(own(Old())), own(New()))
    assert isinstance(plan, Converted)
    assert plan.convert(Old().dumps(5)) == New().dumps(5)
    both = plan_evolution(StateSchema.of(own(Old())), own(New(), float))
    assert isinstance(both, Converted)
    assert repr(New().loads(both.convert(Old().dumps(5)))) == "5.0"


def test_the_same_version_of_a_serializer_needs_nothing() -> None:
    assert plan_evolution(StateSchema.of(own(New())), own(New())) == Unchanged()


def test_a_serializer_that_cannot_read_the_older_version_is_refused_at_once() -> None:
    with pytest.raises(JobError, match="NewOnly is version 2 and has no loads_version to read bytes of version 1"):
        plan_evolution(StateSchema.of(own(Old())), own(NewOnly()))
    with pytest.raises(SerializationError, match="cannot read bytes of version 1; override loads_version"):
        NewOnly().loads_version(Old().dumps(5), 1)
    assert NewOnly().loads_version(NewOnly().dumps(5), 2) == 5


def test_newer_versions_are_refused() -> None:
    with pytest.raises(JobError, match="serializer version 2, which is newer than this program's 1; run the program"):
        plan_evolution(StateSchema.of(own(New())), own(Old()))
    newer = StateSchema.of(ValueStateDescriptor("s", int, schema_version=3))
    for migration in (None, lambda value, version: value):
        with pytest.raises(JobError, match="schema version 3, which is newer than this program's 2; run the program"):
            plan_evolution(newer, ValueStateDescriptor("s", int, schema_version=2, migration=migration))


def test_another_serializer_is_refused() -> None:
    with pytest.raises(JobError, match="its serializer was msgpack and is marked"):
        plan_evolution(StateSchema.of(ValueStateDescriptor("s", int)), own(Old()))


def test_only_the_default_serializer_stores_a_record_as_a_dict() -> None:
    for stored, wanted in ((OLD, dict), (dict, OLD)):
        with pytest.raises(JobError, match="cannot become"):
            plan_evolution(StateSchema.of(own(Old(), stored)), own(Old(), wanted))


@dataclass
class Position:
    x: float
    y: float


class ObjectSerializer(Serializer):
    """A serializer of the user's own that reads and writes objects."""

    name = "objects"

    def dumps(self, value: Any) -> bytes:
        return MessagePackSerializer().dumps([value.x, value.y])

    def loads(self, data: bytes) -> Any:
        return Position(*MessagePackSerializer().loads(data))


def test_records_of_a_serializer_of_the_users_own_are_objects() -> None:
    for stored in (object, make_dataclass("Position", [("x", int), ("y", float)])):
        plan = plan_evolution(StateSchema.of(own(ObjectSerializer(), stored)), own(ObjectSerializer(), Position))
        assert isinstance(plan, Converted)
        found = ObjectSerializer().loads(plan.convert(ObjectSerializer().dumps(Position(1, 2.0))))  # type: ignore[arg-type]
        assert repr(found) == repr(Position(1.0, 2.0))
    with pytest.raises(JobError, match="int cannot become Position"):
        plan_evolution(StateSchema.of(own(ObjectSerializer(), int)), own(ObjectSerializer(), Position))


class Opaque:
    pass


def test_class_known_only_by_name_converts_only_to_itself() -> None:
    before = StateSchema.of(own(ObjectSerializer(), Opaque))
    assert plan_evolution(before, own(ObjectSerializer(), Opaque)) == Unchanged()
    with pytest.raises(JobError, match="Opaque cannot become Position"):
        plan_evolution(before, own(ObjectSerializer(), Position))
    plan = plan_evolution(StateSchema.of(own(ObjectSerializer(), object)), own(ObjectSerializer(), Opaque))
    assert isinstance(plan, Converted)
    with pytest.raises(SerializationError, match=r"expected Opaque, got Position\(x=1.0, y=2.0\)"):
        plan.convert(ObjectSerializer().dumps(Position(1.0, 2.0)))


@given(st.data())
def test_a_wider_type_is_never_refused_and_keeps_the_values(data: st.DataObject) -> None:
    stored = data.draw(annotations, "stored")
    wanted = data.draw(widened(stored), "wanted")
    value = data.draw(values_of(stored), "value")
    try:
        found, _ = taken_over(stored, wanted, value)
    except SerializationError:
        assert any(map(no_float_is, ints_in(value)))
        assert not conforms(value, wanted, loosely=True)
        return
    assert equal_as_numbers(value, found)
    assert conforms(found, wanted)


@given(st.data())
def test_a_narrower_type_is_refused_or_keeps_the_values(data: st.DataObject) -> None:
    wanted = data.draw(annotations, "wanted")
    stored = data.draw(widened(wanted) | annotations, "stored")
    value = data.draw(values_of(stored), "value")
    try:
        found, _ = taken_over(stored, wanted, value)
    except (JobError, SerializationError) as exc:
        assert isinstance(exc, JobError) or not conforms(value, wanted, loosely=True)
        return
    assert equal_as_numbers(value, found)
    assert conforms(found, wanted)


@given(annotations, st.data())
def test_values_of_an_undeclared_type_are_taken_if_they_fit(wanted: Any, data: st.DataObject) -> None:
    value = data.draw(values_of(wanted) | values_of(object))
    try:
        found, _ = taken_over(object, wanted, value)
    except SerializationError:
        assert not conforms(value, wanted, loosely=True)
        return
    assert conforms(value, wanted, loosely=True)
    assert conforms(found, wanted)
    assert equal_as_numbers(value, found)
    if conforms(value, wanted):
        assert repr(found) == repr(value)


class Narrow(enum.Enum):
    LOW = 1
    HIGH = 2


Wide = enum.Enum("Wide", ["MIDDLE", "LOW", "HIGH"])  # type: ignore[misc]  # the type has its own name


class Pair(NamedTuple):
    a: int
    b: str = ""


WITHIN = record(("pair", Pair), ("kind", Narrow))
FORMS: dict[str, tuple[Any, Any, Any, Any, bool]] = {
    "an enum with more members": (Narrow, Wide, Narrow.LOW, Wide.LOW, False),  # type: ignore[attr-defined]
    "an enum with fewer members": (Wide, Narrow, Wide.LOW, Narrow.LOW, True),  # type: ignore[attr-defined]
    "an enum to text": (Narrow, str, Narrow.HIGH, "HIGH", False),
    "text to an enum": (str, Narrow, "HIGH", Narrow.HIGH, True),
    "a named tuple to a dataclass": (Pair, OLD, Pair(5, "x"), OLD(5, "x"), False),
    "a dataclass to a named tuple": (OLD, Pair, OLD(5, "x"), Pair(5, "x"), False),
    "fields of a named tuple": (record(("a", int)), record(("a", float)), None, None, True),
    "anything to records": (object, list[Pair], [{"a": 5}], [Pair(5)], True),
    "nested": (
        list[WITHIN],  # type: ignore[valid-type]
        list[record(("pair", record(("a", float), ("c", int, 7))), ("kind", Wide))],  # type: ignore[misc]
        [WITHIN(Pair(5, "x"), Narrow.LOW)],
        None,
        True,
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_records_and_enums_at_any_depth_are_taken_over(name: str) -> None:
    stored, wanted, value, expected, rewrites = FORMS[name]
    found, rewritten = taken_over(stored, wanted, stored(5) if value is None else value)
    assert rewritten is rewrites
    if expected is not None:
        assert repr(found) == repr(expected)
    elif name == "nested":
        assert repr(found) == "[Reading(pair=Reading(a=5.0, c=7), kind=<Wide.LOW: 2>)]"
    else:
        assert repr(found) == "Reading(a=5.0)"


def test_the_name_of_a_member_that_is_gone_fails_the_restore() -> None:
    with pytest.raises(SerializationError, match="expected a Narrow: LOW, HIGH, got 'MIDDLE'"):
        taken_over(Wide, Narrow, Wide.MIDDLE)  # type: ignore[attr-defined]
    with pytest.raises(JobError, match="int cannot become Narrow"):
        taken_over(int, Narrow, 1)


def test_a_class_that_was_stored_by_its_name_may_be_known_in_detail_now() -> None:
    """A serializer of the user's own stored such classes before qstate knew their members and fields."""
    for name, wanted in (("Narrow", Narrow), ("Pair", Pair), ("timedelta", timedelta)):
        before = StateSchema.of(own(Old(), wanted)).to_plain() | {"value_type": {"class": name}}
        assert plan_evolution(StateSchema.from_plain(before), own(Old(), wanted)) == Unchanged()


names = st.sampled_from("abcdef")
numbers = st.integers(-9, 9)


@given(st.dictionaries(names, annotations, max_size=4), st.dictionaries(names, numbers, max_size=4), st.data())
def test_records_keep_what_both_have(declared: dict[str, Any], added: dict[str, int], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(sorted(declared)), unique=True)) if declared else []
    wider = {name: data.draw(widened(declared[name])) for name in kept}
    added = {name: default for name, default in added.items() if name not in declared}
    stored = record(*declared.items())
    wanted = record(*wider.items(), *((name, int, default) for name, default in added.items()))
    values = {name: data.draw(values_of(kind)) for name, kind in declared.items()}
    try:
        found, rewritten = taken_over(stored, wanted, stored(**values))
    except SerializationError:
        assert any(no_float_is(number) for value in values.values() for number in ints_in(value))
        return
    assert type(found) is wanted
    assert rewritten or set(declared) == {*kept, *added}
    for name, kind in wider.items():
        assert equal_as_numbers(values[name], getattr(found, name))
        assert conforms(getattr(found, name), kind)
    for name, default in added.items():
        assert getattr(found, name) == default


def test_custom_record_serializer_reads_its_own_bytes() -> None:
    class Backwards(DeclaredSerializer):
        name = "backwards"

        def dumps(self, value: Any) -> bytes:
            return super().dumps(value)[::-1]

        def loads(self, data: bytes) -> Any:
            return super().loads(data[::-1])

    wanted = record(("a", float), ("b", str), ("c", int, 7))
    plan = plan_evolution(StateSchema.of(own(Backwards(OLD), OLD)), own(Backwards(wanted), wanted))
    assert isinstance(plan, Converted)
    found = Backwards(wanted).loads(plan.convert(Backwards(OLD).dumps(OLD(5, "x"))))
    assert repr(found) == repr(wanted(5.0, "x", 7))
