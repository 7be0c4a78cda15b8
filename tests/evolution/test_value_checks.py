"""What a state takes in: values of the declared type, and such as come back from storage as they were."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.descriptors import ListStateDescriptor, ValueStateDescriptor
from qstate.errors import ConfigError, SerializationError
from qstate.evolution.value_checks import DEEPEST, DEEPEST_TUPLES, PLAIN, Misfit, rule_of
from qstate.evolution.write_checks import WriteChecks, checked
from qstate.serializers import MessagePackSerializer, Serializer
from qstate.values.value_types import value_type_of
from tests.evolution.declared import annotations, conforms, values_of


class Colour(enum.IntEnum):
    RED = 1


class Pickled(Serializer):
    """A serializer of the user's own: what it keeps is its own affair."""

    name = "own"

    def dumps(self, value: Any) -> bytes:
        return repr(value).encode()

    def loads(self, data: bytes) -> Any:
        return data


@dataclass
class Place:
    latitude: float
    name: str = ""


@dataclass
class Flight:
    number: int
    at: datetime
    gate: str | None = None
    delays: list[float] = field(default_factory=list)
    origin: Place | None = None


Pair = namedtuple("Pair", "one two")  # as rows are

#: Values that Python takes for plain ones, or MessagePack does, and that would come back as something else.
STRANGE: dict[str, tuple[Any, str]] = {
    "bytearray": (bytearray(b"x"), r"give bytes\(value\)"),
    "memoryview": (memoryview(b"x"), r"give bytes\(value\)"),
    "numpy float": (np.float64(1.5), r"give value.tolist\(\)"),
    "numpy int": (np.int64(1), r"give value.tolist\(\)"),
    "numpy bool": (np.bool_(True), r"give value.tolist\(\)"),
    "numpy text": (np.str_("x"), r"give value.tolist\(\)"),
    "numpy array": (np.zeros(2), r"give value.tolist\(\)"),
    "enum": (Colour.RED, "give value.value"),
    "ordered dict": (OrderedDict(a=1), r"give dict\(value\)"),
    "default dict": (defaultdict(int, a=1), r"give dict\(value\)"),
    "named tuple": (Pair(1, 2), r"give tuple\(value\)"),
    "set": ({1}, r"give list\(value\)"),
    "frozen set": (frozenset({1}), r"give list\(value\)"),
    "dataclass": (Place(1.0), "declare its class, or give dataclasses.asdict"),
    "offset": (datetime(2013, 1, 1, tzinfo=timezone(timedelta(hours=5))), r"give value.astimezone\(timezone.utc\)"),
    "zone of UTC": (datetime(2013, 1, 1, tzinfo=ZoneInfo("UTC")), r"give value.astimezone\(timezone.utc\)"),
    "zone": (datetime(2013, 1, 1, tzinfo=ZoneInfo("Europe/London")), r"give value.astimezone\(timezone.utc\)"),
    "MessagePack's timestamp": (msgpack.Timestamp(1), "give a plain value"),
    "MessagePack's extension": (msgpack.ExtType(1, b"\x90"), r"give tuple\(value\)"),
    "complex": (1j, "give a plain value"),
    "object": (object(), "give a plain value"),
}


def admits(declared: Any, value: Any) -> bool:
    rule = rule_of(value_type_of(declared), PLAIN)
    assert rule is not None
    if type(value) in rule.exact:
        return True
    try:
        rule.check(value)
    except Misfit:
        return False
    return True


@given(data=st.data(), declared=annotations, written=annotations)
def test_a_value_is_taken_when_it_is_of_the_declared_type(data: st.DataObject, declared: Any, written: Any) -> None:
    value = data.draw(values_of(data.draw(st.sampled_from([declared, written]))))
    assert admits(declared, value) is conforms(value, declared)


@given(data=st.data(), written=annotations)
def test_anything_plain_is_taken_where_no_type_is_declared(data: st.DataObject, written: Any) -> None:
    assert admits(object, data.draw(values_of(written)))


@pytest.mark.parametrize("wrapped", [False, True], ids=["by itself", "within"])
@pytest.mark.parametrize("name", STRANGE)
def test_value_that_would_be_read_as_another_is_refused_with_a_remedy(name: str, wrapped: bool) -> None:
    value, remedy = STRANGE[name]
    part = [{"a": (1, value)}] if wrapped else value
    with pytest.raises(SerializationError, match=remedy) as caught:
        checked(ValueStateDescriptor("s")).serializer.dumps(part)
    assert ("at [0]['a'][1]: " in str(caught.value)) is wrapped


@pytest.mark.parametrize("name", STRANGE)
def test_declared_type_refuses_such_a_value_too(name: str) -> None:
    value, _ = STRANGE[name]
    for kind in (float, int, str, bytes, dict, list, tuple, datetime):
        with pytest.raises(SerializationError):
            checked(ValueStateDescriptor("s", kind)).serializer.dumps(value)


@pytest.mark.parametrize(
    ("declared", "value", "message"),
    [
        (float, "hot", "declared as float: expected float, got 'hot' of type str; write what is declared"),
        (float, 1, r"expected float, got 1 of type int; give float\(value\), or declare int \| float"),
        (int, True, r"expected int, got True of type bool; give int\(value\), or declare bool"),
        (int, 1.0, "expected int, got 1.0 of type float"),
        (int | None, "x", r"declared as int \| None: expected int \| None, got 'x'"),
        (str, b"x", "expected str, got b'x' of type bytes"),
        (date, datetime(2013, 1, 1), "expected date, got .* of type datetime"),
        (list[float], [1.0, "x"], r"declared as list\[float\]: at \[1\]: expected float, got 'x'"),
        (list[float], (1.0,), r"expected list\[float\], got .* of type tuple"),
        (dict[str, int], {"a": {"b": 1}}, r"at \['a'\]: expected int, got {'b': 1} of type dict"),
        (dict[str, int], {7: 1}, r"at \[7\]: expected str, got 7 of type int"),
        (tuple[int, str], (1, 2), r"at \[1\]: expected str, got 2"),
        (tuple[int, str], (1,), r"expected tuple\[int, str\], got \(1,\)"),
        (Place, Place("x"), r"at \['latitude'\]: expected float, got 'x'"),  # type: ignore[arg-type]
        (Place, {"latitude": 1.0}, r"expected Place, got .* of type dict; give Place\(\*\*value\)"),
        (list[Place], [{"latitude": 1.0}], r"at \[0\]: expected Place, got .* of type dict; give Place\(\*\*value\)"),
        (Colour, 1, "expected Colour, got 1 of type int"),
        (Flight, Flight(1, datetime(2013, 1, 1), delays=[1.0, 2]), r"at \['delays'\]\[1\]: expected float, got 2"),
        (Flight, Flight(1, datetime(2013, 1, 1), gate=b"B"), r"at \['gate'\]: expected str \| None"),  # type: ignore[arg-type]
        (
            Flight,
            Flight(1, datetime(2013, 1, 1), origin=Place("x")),  # type: ignore[arg-type]
            r"at \['origin'\]\['latitude'\]: expected float, got 'x'",
        ),
        (str | dict[str, int], {"a": 1.5}, r"at \['a'\]: expected int, got 1.5"),
        (list[int] | None, [1, "x"], r"at \[1\]: expected int, got 'x'"),
        (list[int] | None, "x", r"expected list\[int\] \| None, got 'x'"),
        (list[int] | tuple[str, ...], [1.5], r"at \[0\]: expected int, got 1.5"),
        (list[int] | list[str], [1, "x"], r"expected list\[int\] \| list\[str\], got \[1, 'x'\]"),
    ],
)
def test_the_error_says_what_was_declared_what_came_and_where(declared: Any, value: Any, message: str) -> None:
    with pytest.raises(SerializationError, match=message):
        checked(ValueStateDescriptor("s", declared)).serializer.dumps(value)


def test_a_dataclass_is_taken_with_what_its_fields_declare() -> None:
    serializer = checked(ValueStateDescriptor("s", Flight)).serializer
    for flight in (
        Flight(1, datetime(2013, 1, 1)),
        Flight(1, datetime(2013, 1, 1, tzinfo=timezone.utc), "B7", [1.0, 2.0], Place(1.5, "JFK")),
    ):
        assert serializer.loads(serializer.dumps(flight)) == flight


def test_every_way_of_writing_is_checked_and_reading_is_not() -> None:
    plain = ListStateDescriptor("s", float)
    serializer = checked(plain).serializer
    for write in (serializer.dumps, serializer.dumper(), lambda value: serializer.dump_all([1.0, value])):
        write(1.5)
        with pytest.raises(SerializationError, match="declared as float"):
            write("hot")
    stored = plain.serializer.dumps("hot")
    assert (serializer.loads(stored), serializer.load_all([stored])) == ("hot", ["hot"])
    assert (serializer.name, serializer.version) == (plain.serializer.name, plain.serializer.version)


def test_custom_serializer_decides_what_it_stores_and_the_declared_type_still_holds() -> None:
    anything = ValueStateDescriptor("s", serializer=Pickled())
    assert checked(anything) is anything
    declared = checked(ValueStateDescriptor("s", bytearray, serializer=Pickled())).serializer
    assert declared.dumps(bytearray(b"x")) == b"bytearray(b'x')"
    with pytest.raises(SerializationError, match="expected bytearray, got b'x' of type bytes"):
        declared.dumps(b"x")


def test_values_are_not_checked_before_the_checks_begin() -> None:
    checks = WriteChecks()
    serializer = checks.of(ValueStateDescriptor("s", float)).serializer
    assert serializer.dumps("hot") == b"\xa3hot"
    checks.on = True
    with pytest.raises(SerializationError):
        serializer.dumps("hot")


UTC_ZONES = [timezone.utc, timezone(timedelta(0), "GMT"), ZoneInfo("UTC"), ZoneInfo("Etc/GMT")]
_scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.binary(max_size=3), st.dates(),
    st.datetimes(), st.datetimes(timezones=st.sampled_from([*UTC_ZONES, timezone(timedelta(hours=-3))])),
    st.decimals(), st.sampled_from(list(STRANGE)).map(lambda name: STRANGE[name][0]),
    st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63) - 1, -0.0, float("nan"), "\ud800", Decimal("sNaN12")]),
)  # fmt: skip


def _hashable(value: Any) -> bool:
    try:
        hash(value)
    except (TypeError, ValueError):
        return False
    return True


_anything = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(inner.filter(_hashable), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(value=_anything)
@example(value=[datetime.max.replace(tzinfo=timezone.utc), datetime.min.replace(tzinfo=timezone.utc)])
@example(value=(((),),))
def test_what_is_stored_comes_back_equal_in_every_part_and_of_equal_classes(value: Any) -> None:
    serializer = checked(ValueStateDescriptor("s")).serializer
    try:
        stored = serializer.dumps(value)
    except SerializationError:
        return
    assert exactly(serializer.loads(stored)) == exactly(value)


def exactly(value: Any) -> Any:
    """What two values have in common when they are equal in every part, their classes included."""
    if type(value) is dict:
        return dict, [(exactly(key), exactly(part)) for key, part in value.items()]
    if type(value) in (list, tuple):
        return type(value), list(map(exactly, value))
    if type(value) is datetime:
        return datetime, value.isoformat(), type(value.tzinfo)
    return type(value), repr(value)


@pytest.mark.parametrize(("container", "most"), [(list, DEEPEST), (tuple, DEEPEST_TUPLES)])
def test_deepest_allowed_value_can_be_read(container: Any, most: int) -> None:
    def nested(depth: int) -> Any:
        value: Any = container()
        for _ in range(depth - 1):
            value = container((value,))
        return value

    serializer = checked(ValueStateDescriptor("s")).serializer
    assert serializer.loads(serializer.dumps(nested(most))) == nested(most)
    for depth in (most + 1, 10_000):
        with pytest.raises(SerializationError, match=f"{DEEPEST} deep at most, tuples {DEEPEST_TUPLES}"):
            serializer.dumps(nested(depth))


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(SerializationError, match="deep at most"):
        checked(ValueStateDescriptor("s")).serializer.dumps(value)


def test_endless_tuples_do_not_end_the_process() -> None:
    data = msgpack.packb([])
    for _ in range(5_000):
        data = msgpack.packb([msgpack.ExtType(1, data)])
    with pytest.raises(SerializationError, match="tuples are in each other"):
        MessagePackSerializer().loads(data)


@dataclass
class Scaled:
    value: float
    factor: InitVar[float]


@dataclass(init=False)
class Made:
    value: float

    def __init__(self) -> None:
        self.value = 1.0


@pytest.mark.parametrize("record", [Scaled, Made])
def test_a_dataclass_that_cannot_be_made_of_its_fields_is_refused_before_it_is_stored(record: type) -> None:
    with pytest.raises(ConfigError, match=f"state 's': {record.__name__}: .* cannot be made of its fields"):
        ValueStateDescriptor("s", record)


@dataclass
class Interval:
    start: int
    stop: int = 0

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError("before the beginning")
        self.stop = max(self.stop, self.start)


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value]], ids=["alone", "in a list"])
def test_a_dataclass_is_refused_whose_post_init_would_not_give_it_back(wrap: Any) -> None:
    declared: Any = Interval if wrap(1) == 1 else list[Interval]
    serializer = checked(ValueStateDescriptor("s", declared)).serializer
    sound = Interval(3, 5)
    assert serializer.loads(serializer.dumps(wrap(sound))) == wrap(sound)
    changed, refused = Interval(3, 5), Interval(3, 5)
    changed.stop, refused.start = 1, -1
    with pytest.raises(SerializationError, match=r"\['stop'\]: expected 3, which __post_init__ makes of it, got 1"):
        serializer.dumps(wrap(changed))
    with pytest.raises(SerializationError, match=r"that Interval accepts .*before the beginning"):
        serializer.dumps(wrap(refused))
