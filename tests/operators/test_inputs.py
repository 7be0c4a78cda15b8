"""Functions of two inputs: each row comes to the method of its input, with the columns of its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from qstate.errors import JobError
from qstate.operators.columns.inputs import InputNames, UnitedNames
from qstate.operators.functions import KeyedCoProcessFunction
from qstate.operators.operator import FunctionOperator
from qstate.operators.time.epoch_time import EpochTime, EventTime, Reached, next_watermark
from qstate.testing.inputs import HarnessInputs, Input
from tests.operators.running import Calls, opened, rows_of, spec

ORDERS = Input(columns={"id": str, "at": int, "price": float}, key_by="id")
CLICKS = Input(columns={"user": str, "at": int}, key_by="user")
TIMED_ORDERS = Input(columns={"id": str, "at": datetime}, key_by="id", event_time="at")
TIMED_CLICKS = Input(columns={"user": str, "at": datetime}, key_by="user", event_time="at")


def at(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=ms)


class Seen(KeyedCoProcessFunction):
    """Emits (key, input and row) of each row."""

    def process_element1(self, row: Any, context: Any) -> Iterator[Any]:
        yield context.current_key, f"1 {row._asdict()}"

    def process_element2(self, row: Any, context: Any) -> Iterator[Any]:
        yield context.current_key, f"2 {row._asdict()}"


@contextmanager
def two(order_by: Any = (), first: Input = ORDERS, second: Input = CLICKS) -> Iterator[tuple[FunctionOperator, Any]]:
    inputs = HarnessInputs([first, second], order_by)
    with opened(Seen(), **inputs.spec_fields()) as operator:
        yield operator, inputs.batch


def test_row_has_the_columns_of_its_input() -> None:
    with two() as (operator, batch):
        found = operator.process(batch([("a", 1, 0.5), ("b", 2, 0.25)], [("a", 3)]))
    assert rows_of(found) == [
        ("a", "1 {'id': 'a', 'at': 1, 'price': 0.5}"),
        ("b", "1 {'id': 'b', 'at': 2, 'price': 0.25}"),
        ("a", "2 {'user': 'a', 'at': 3}"),
    ]


def test_rows_of_both_inputs_are_sorted_together_and_equal_ones_by_their_input() -> None:
    with two(order_by="at") as (operator, batch):
        operator.process(batch([("a", 5, 0.0)], [("a", 4), ("a", 6)]))
        operator.process(batch([("a", 6, 0.0), ("a", 3, 0.0)], [("a", 5)]))
        found = rows_of(operator.finish())
    places = [(text.partition("'at': ")[2][0], text[0]) for _, text in found]
    assert places == [("3", "1"), ("4", "2"), ("5", "1"), ("5", "2"), ("6", "1"), ("6", "2")]


def test_null_key_of_either_input_is_refused() -> None:
    with two() as (operator, batch), pytest.raises(JobError, match=r"'id' is null in 1 of 2 rows"):
        operator.process(batch([("a", 1, 0.5)], [(None, 3)]))


def test_error_names_the_key_and_the_stack_the_method() -> None:
    class Fails(Seen):
        def process_element2(self, row: Any, context: Any) -> Any:
            raise ValueError("no clicks")

    inputs = HarnessInputs([ORDERS, CLICKS])
    with opened(Fails(), **inputs.spec_fields()) as operator:
        with pytest.raises(JobError, match=r"Fails, key 'u': ValueError: no clicks") as failure:
            operator.process(inputs.batch([("a", 1, 0.5)], [("u", 1)]))
        assert isinstance(failure.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("function", "inputs", "message"),
    [
        (Seen(), [ORDERS], r"Seen is for 2 input.*has 1;"),
        (
            Calls(lambda self, row, context: None),
            [ORDERS, CLICKS],
            r"Calls is for 1 input.*has 2;",
        ),
    ],
)
def test_function_for_another_number_of_inputs_is_refused(function: Any, inputs: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        spec(function, **HarnessInputs(inputs).spec_fields())


def test_united_names_are_unique() -> None:
    one = InputNames(("a", "b", "a (2)"), ("a",), ("b",))
    united = UnitedNames([one, InputNames(("a", "a (key)"), ("a",), ("a (key)",))])
    assert len(set(united.all)) == len(united.all)
    assert united.columns[1] == {"a": "a (3)", "a (key)": "a (key)"}
    assert (united.keys, united.order_by[0]) == (("a (key) (2)",), "b (order)")


def test_each_input_keeps_its_own_greatest_event_time() -> None:
    with two(first=TIMED_ORDERS, second=TIMED_CLICKS) as (operator, batch):
        list(operator.begin(0, EpochTime(None, 500)))
        operator.process(batch([("a", at(30)), ("b", at(20))], []))
        list(operator.finish())
        operator.sealed(operator.snapshot(0))
        assert operator.reached == (0, None, None, 500, (30, None))
        list(operator.begin(1, EpochTime(None, 501)))
        operator.process(batch([("a", at(10))], [("a", at(40))]))
        list(operator.finish())
        assert operator.reached == (1, None, None, 501, (30, 40))


def test_event_time_of_a_row_is_that_of_its_input() -> None:
    class Times(Seen):
        def process_element1(self, row: Any, context: Any) -> Iterator[Any]:
            yield row.id, str(context.timestamp)

        def process_element2(self, row: Any, context: Any) -> Iterator[Any]:
            yield row.user, str(context.timestamp)

    inputs = HarnessInputs([TIMED_ORDERS, TIMED_CLICKS])
    with opened(Times(), **inputs.spec_fields()) as operator:
        found = operator.process(inputs.batch([("a", at(30)), ("b", None)], [("c", at(20))]))
    assert rows_of(found) == [("a", "30"), ("b", "None"), ("c", "20")]


def reached(*greatest: int | None, watermark: int | None = None) -> Reached:
    return Reached(0, None, watermark, 7, greatest)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (reached(70, 90), 60),
        (reached(90, 70), 65),
        (reached(70, None), None),
        (reached(70), None),
        (reached(70, None, watermark=30), 30),
        (reached(None, None), None),
    ],
)
def test_watermark_of_two_inputs_is_the_lesser_one(found: Reached, expected: int | None) -> None:
    inputs = [EventTime("at", 10), EventTime("at (2)", 5)]
    assert next_watermark(inputs, found, lambda _: ()) == expected


def test_watermark_of_an_operator_before_one_input_bounds_it() -> None:
    inputs = [EventTime("at", 10), EventTime("at (2)", 5, ("first",), has_source=False)]
    followed: dict[str, list[int]] = {"at": [], "at (2)": [40]}
    assert next_watermark(inputs, reached(70, 90), lambda one: followed[one.column]) == 40


def test_subtasks_together_have_reached_the_greatest_time_of_each_input() -> None:
    assert Reached.of_all([reached(5, None), reached(3, 9), reached(4)]) == reached(5, 9)
