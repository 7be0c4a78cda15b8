"""The clock of a subtask: what a function sees of time, and what the subtask stores of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from qstate.errors import JobError
from qstate.operators.operator import FunctionOperator
from qstate.operators.time.epoch_time import EpochTime, EventTime, Reached
from tests.operators.running import Calls, batch, heap, operator_of, spec

SCHEMA = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC"))])
START = datetime(1970, 1, 1, tzinfo=timezone.utc)


def at(ms: float) -> datetime:
    return START + timedelta(milliseconds=ms)


@contextmanager
def timed(each: Any, **changed: Any) -> Iterator[FunctionOperator]:
    with heap() as backend:
        settings = {"input_schema": SCHEMA, "event_times": (EventTime("at", 10),), **changed}
        operator = operator_of(Calls(each), backend, **settings)
        operator.open()
        yield operator
        operator.close()


def run(operator: FunctionOperator, epoch: int, time: EpochTime, *rows: tuple[str, datetime | None]) -> Reached | None:
    """Process and seal an epoch."""
    operator.begin(epoch, time)
    operator.process(batch(rows, SCHEMA))
    list(operator.finish())
    operator.sealed(operator.snapshot(epoch))
    return operator.reached


def test_function_sees_the_time_of_the_row_and_of_the_epoch() -> None:
    seen: list[Any] = []

    def each(self: Any, row: Any, context: Any) -> None:
        seen.append((context.timestamp, context.watermark, context.processing_time))

    with timed(each) as operator:
        run(operator, 0, EpochTime(None, 500), ("a", at(12.9)), ("a", at(-0.1)), ("b", None))
        run(operator, 1, EpochTime(2, 501), ("a", at(1)))
    assert seen == [(12, None, 500), (-1, None, 500), (None, None, 500), (1, 2, 501)]


def test_times_of_sorted_rows_are_those_of_their_rows() -> None:
    seen: list[Any] = []
    with timed(lambda self, row, context: seen.append((row.key, context.timestamp)), order_by=("at",)) as operator:
        run(operator, 0, EpochTime(None, 500), ("late", at(9)), ("none", None), ("early", at(3)))
    assert seen == [("early", 3), ("late", 9), ("none", None)]


def test_subtask_stores_the_greatest_time_and_the_watermarks_of_two_epochs() -> None:
    with timed(lambda self, row, context: None) as operator:
        assert run(operator, 0, EpochTime(None, 500), ("a", at(30)), ("a", at(20))) == (0, None, None, 500, (30,))
        assert run(operator, 1, EpochTime(20, 501)) == (1, None, 20, 501, (30,))
        assert run(operator, 2, EpochTime(21, 502), ("a", at(40))) == (2, 20, 21, 502, (40,))


def test_rolled_back_epoch_leaves_no_time() -> None:
    with timed(lambda self, row, context: None) as operator:
        before = run(operator, 0, EpochTime(None, 500), ("a", at(30)))
        operator.begin(1, EpochTime(20, 501))
        operator.process(batch([("a", at(90))], SCHEMA))
        list(operator.finish())
        operator.discard()
        operator.restart(operator.spec)
        assert operator.reached == before
        assert run(operator, 1, EpochTime(20, 501), ("a", at(40))) == (1, None, 20, 501, (40,))


def test_another_parallelism_begins_with_what_all_subtasks_reached() -> None:
    with timed(lambda self, row, context: None) as operator:
        run(operator, 3, EpochTime(20, 501), ("a", at(30)))
        (one,) = operator.lists.packed()
        run(operator, 3, EpochTime(20, 501), ("a", at(80)))
        (other,) = operator.lists.packed()
    joined = type(one)(one.schema, one.distribution, (*one.elements, *other.elements))
    with timed(lambda self, row, context: None, stored=(joined,)) as operator:
        assert operator.reached == (3, 20, 20, 501, (80,))


def test_operator_without_event_time_stores_no_time() -> None:
    with timed(lambda self, row, context: None, event_times=()) as operator:
        assert run(operator, 0, EpochTime(None, 500), ("a", at(30))) is None
        assert operator.lists.packed() == ()


def test_event_time_of_a_missing_column_is_refused() -> None:
    with pytest.raises(JobError, match="event_time names 'when'"):
        spec(Calls(lambda self, row, context: None), event_times=(EventTime("when", 10),))
