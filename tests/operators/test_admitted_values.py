"""What a function writes in another form than it is read back: every backend returns the declared type at once."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from qstate.backends.contract import StateBackend
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import SerializationError
from tests.operators.running import Calls, batch, operator_of
from tests.operators.test_declared_types import Sum, backend_in, listed, newest


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    lat: float
    at: datetime


@dataclass
class Reading:
    temp: float
    point: Point
    colour: Colour = Colour.RED
    count: int | None = None


NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)
IN_LONDON, IN_TOKYO = NOON.astimezone(ZoneInfo("Europe/London")), NOON.astimezone(timezone(timedelta(hours=9)))

#: The declared type, what is written, and what is read.
WRITTEN: dict[str, tuple[Any, Any, Any]] = {
    "float64": (float, np.float64(1.5), 1.5),
    "float32": (float, np.float32(1.5), 1.5),
    "int64": (int, np.int64(7), 7),
    "uint8": (int | None, np.uint8(7), 7),
    "bool_": (bool, np.bool_(True), True),
    "str_": (str, np.str_("x"), "x"),
    "datetime64": (datetime, np.datetime64("2013-01-01T00:00:00", "us"), datetime(2013, 1, 1)),
    "another zone": (datetime, IN_TOKYO, NOON),
    "a zone by name": (datetime | str, IN_LONDON, NOON),
    "UTC by name": (datetime, NOON.astimezone(ZoneInfo("UTC")), NOON),
    "fields": (
        Reading,
        Reading(np.float64(1.5), Point(np.float32(2.5), IN_TOKYO), count=np.int16(3)),  # type: ignore[arg-type]
        Reading(1.5, Point(2.5, NOON), count=3),
    ),
    "items of a fixed tuple": (tuple[float, Point], (np.float64(1.5), Point(1.0, IN_TOKYO)), (1.5, Point(1.0, NOON))),
    "one of two": (Reading | None, Reading(np.float64(1.5), Point(1.0, NOON)), Reading(1.5, Point(1.0, NOON))),
    "an enum": (Colour, Colour.RED, Colour.RED),
    "a uuid": (UUID, UUID(int=7), UUID(int=7)),
}
#: What is refused at the end of the epoch: items of containers of any length, and what does not fit.
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "an item of a list": (list[float], [1.5, np.float64(1.5)], r"at \[1\]: expected float.* give value.tolist\(\)"),
    "an int for a float": (float, np.int64(7), "expected float, got .* of type int64"),
    "an array of one": (float, np.zeros(1), "expected float, got .* of type ndarray"),
    "nothing declared": (object, np.float64(1.5), r"give value.tolist\(\)"),
    "beyond UTC": (datetime, datetime.max.replace(tzinfo=timezone(timedelta(hours=-9))), "expected a datetime in UTC"),
    "a field": (Reading, Reading(np.int64(1), Point(1.0, NOON)), r"at \['temp'\]: expected float"),  # type: ignore[arg-type]
}


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateBackend]:
    with backend_in(request.param, tmp_path) as opened:
        yield opened


def states(declared: Any) -> dict[str, tuple[StateDescriptor, str, Any, Any]]:
    """By the operation that writes: the descriptor, how a function gets the handle, writes and reads."""
    reducing = ReducingStateDescriptor("reducing", declared, reduce_function=newest)
    aggregating = AggregatingStateDescriptor("aggregating", declared, aggregate_function=Sum())
    lists, maps = ListStateDescriptor("list", declared), MapStateDescriptor("map", declared)
    return {
        "update": (ValueStateDescriptor("value", declared), "get_state", lambda s, v: s.update(v), lambda s: s.value()),
        "add": (lists, "get_list_state", lambda s, v: s.add(v), lambda s: s.get()[0]),
        "add_all": (lists, "get_list_state", lambda s, v: s.add_all([v]), lambda s: s.get()[0]),
        "update list": (lists, "get_list_state", lambda s, v: s.update([v]), lambda s: s.get()[0]),
        "put": (maps, "get_map_state", lambda s, v: s.put("m", v), lambda s: s.get("m")),
        "put_all": (maps, "get_map_state", lambda s, v: s.put_all({"m": v}), lambda s: s.get("m")),
        "reduce": (reducing, "get_reducing_state", lambda s, v: s.add(v), lambda s: s.get()),
        "aggregate": (aggregating, "get_aggregating_state", lambda s, v: s.add(v), lambda s: s.get()),
    }


class Job:
    """An operator whose function writes to its state at the row `write`, and reads at each row."""

    def __init__(self, backend: StateBackend, declared: Any, operation: str, value: Any) -> None:
        self.backend, self.found = backend, None
        descriptor, get, write, read = states(declared)[operation]
        handle: Any = None

        def opening(function: Any, context: Any) -> None:
            nonlocal handle
            handle = getattr(context, get)(descriptor)

        def each(function: Any, row: Any, context: Any) -> None:
            if row[1] == 1.0:
                write(handle, deepcopy(value))
            self.found = deepcopy(read(handle))

        self.operator = operator_of(Calls(each, opening), backend)
        self.operator.open()

    def row(self, *, write: bool) -> Any:
        self.operator.process(batch([("a", 1.0 if write else 0.0, 1)]))
        return self.found


@pytest.mark.parametrize("operation", states(int))
@pytest.mark.parametrize("name", WRITTEN)
def test_a_value_is_read_as_declared_in_the_same_epoch_and_later(
    name: str, operation: str, backend: StateBackend
) -> None:
    declared, written, expected = WRITTEN[name]
    job = Job(backend, declared, operation, written)
    backend.begin(0)
    assert repr(job.row(write=True)) == repr(expected)
    list(backend.commit(0))
    backend.begin(1)
    assert repr(job.row(write=False)) == repr(expected)
    backend.rollback()
    assert repr(job.row(write=False)) == repr(expected)


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_have_the_declared_type_is_still_refused(name: str, backend: StateBackend) -> None:
    declared, written, message = REFUSED[name]
    job = Job(backend, declared, "update", written)
    backend.begin(0)
    job.row(write=True)
    with pytest.raises(SerializationError, match=message):
        list(backend.commit(0))


def test_the_object_that_was_written_does_not_change(backend: StateBackend) -> None:
    written = Reading(np.float64(1.5), Point(1.0, NOON))
    descriptor = ValueStateDescriptor("s", Reading)

    def opening(function: Any, context: Any) -> None:
        function.state = context.get_state(descriptor)

    operator = operator_of(Calls(lambda function, row, context: function.state.update(written), opening), backend)
    operator.open()
    backend.begin(0)
    operator.process(batch([("a", 1.0, 1)]))
    assert type(written.temp) is np.float64


def test_operator_lists_admit_the_same(backend: StateBackend) -> None:
    operator, held = listed(backend)
    held["next"] = lambda: held["list"].add_all([np.str_("a")])
    backend.begin(0)
    operator.process(batch([("a", 1.0, 1)]))
    assert [type(element) for element in held["list"].get()] == [str]
