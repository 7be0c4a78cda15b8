"""Side outputs in the operator: which rows come out, in which order and form, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from qstate.errors import JobError
from qstate.operators.handles import ElementContext
from qstate.operators.operator import OUTPUT_BATCH_ROWS
from tests.operators.running import OUTPUT, Calls, batch, opened, rows_of, spec

LATE = pa.schema([pa.field("temp", pa.float64(), nullable=False)])
SIDES = {"late": LATE, "odd": pa.schema([("at", pa.int64())])}


def rows_by_output(batches: Iterable[pa.RecordBatch]) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of each output. Each row of the batches is of one output."""
    found: dict[str, list[tuple[Any, ...]]] = {"main": [], "late": [], "odd": []}
    for one in batches:
        for row in one.to_pylist():
            ((name, values),) = [(name, values) for name, values in row.items() if values is not None]
            found[name].append(tuple(values.values()))
    return found


def test_rows_come_out_of_the_output_that_they_were_sent_to_in_their_order() -> None:
    def each(self: Any, row: Any, context: ElementContext) -> Iterable[Any]:
        context.output("late", (row.temp,))
        yield row.key, "one"
        context.output("late", {"temp": row.temp + 0.5})
        yield row.key, "two"
        if row.at % 2:
            context.output("odd", [row.at])

    with opened(Calls(each), side_outputs=SIDES) as operator:
        found = operator.process(batch([("a", 1.0, 1), ("b", 2.0, 2)]))
        assert all(one.schema == operator.spec.result_schema for one in found)
        assert rows_by_output(found) == {
            "main": [("a", "one"), ("a", "two"), ("b", "one"), ("b", "two")],
            "late": [(1.0,), (1.5,), (2.0,), (2.5,)],
            "odd": [(1,)],
        }


def test_function_that_returns_nothing_sends_rows_in_bounded_batches() -> None:
    def each(self: Any, row: Any, context: ElementContext) -> None:
        for number in range(7_000):
            context.output("late", (float(number),))

    with opened(Calls(each), side_outputs=SIDES) as operator:
        found = operator.process(batch([("a", 0.0, 0), ("b", 0.0, 0), ("c", 0.0, 0)]))
    assert [one.num_rows for one in found] == [14_000, 7_000]
    assert found[0].num_rows >= OUTPUT_BATCH_ROWS
    assert rows_by_output(found)["late"] == [(float(number),) for _ in "abc" for number in range(7_000)]


def test_without_side_outputs_the_result_has_the_output_schema() -> None:
    with opened(Calls(lambda self, row, context: [(row.key, "x")])) as operator:
        assert operator.spec.result_schema == OUTPUT
        assert rows_of(operator.process(batch([("a", 1.0, 0)]))) == [("a", "x")]


@pytest.mark.parametrize(
    ("sides", "sent", "message"),
    [
        (
            SIDES,
            ("later", (1.0,)),
            r"function Calls, key 'b': JobError: no side output is called 'later'; .*'late', 'odd'",
        ),
        (SIDES, ("main", ("b", "x")), "'main'.*return or yield the rows of the main output"),
        ({}, ("late", (1.0,)), "'late': the operator is declared without side_outputs"),
        (
            SIDES,
            ("late", (1.0, 2.0)),
            "operator 'alerts', function Calls, key 'b', output 'late': output row 0 has 2 col",
        ),
        (SIDES, ("late", (None,)), "key 'b', output 'late': column 'temp' of output row 0 must be double and not null"),
        (SIDES, ("late", 1.0), "key 'b', output 'late': output row 0 is 1.0, expected a tuple"),
    ],
)
def test_row_that_cannot_be_sent_names_function_key_and_output(sides: Any, sent: Any, message: str) -> None:
    def each(self: Any, row: Any, context: ElementContext) -> None:
        if row.key == "b":
            context.output(*sent)
        elif sides:
            context.output("late", (0.0,))

    with opened(Calls(each), side_outputs=sides) as operator, pytest.raises(JobError, match=message):
        operator.process(batch([("a", 1.0, 0), ("b", 1.0, 0)]))


def test_result_that_is_no_iterable_is_refused_as_without_side_outputs() -> None:
    with (
        opened(Calls(lambda self, row, context: 7), side_outputs=SIDES) as operator,
        pytest.raises(JobError, match="key 'a': expected an iterable of rows or None, got 7"),
    ):
        operator.process(batch([("a", 1.0, 0)]))


def test_output_outside_of_a_call_is_refused() -> None:
    kept: list[ElementContext] = []
    with opened(Calls(lambda self, row, context: kept.append(context)), side_outputs=SIDES) as operator:
        operator.process(batch([("a", 1.0, 0)]))
        with pytest.raises(JobError, match="outside of process_element and on_timer"):
            kept[0].output("late", (1.0,))


def test_rows_of_a_failed_call_do_not_come_out_later() -> None:
    def each(self: Any, row: Any, context: ElementContext) -> None:
        context.output("late", (row.temp,))
        if row.temp < 0:
            raise ValueError("below zero")

    with opened(Calls(each), side_outputs=SIDES) as operator:
        with pytest.raises(JobError, match="below zero"):
            operator.process(batch([("a", -1.0, 0)]))
        operator.discard()
        assert rows_by_output(operator.process(batch([("a", 1.0, 0)])))["late"] == [(1.0,)]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["main"], "'main' is the output of returned rows"),
        (["Main"], "no side output is called 'Main'"),
        (["late", "Late"], "'late' and 'Late' are the same column for Spark"),
        (["too late"], "like that of a Python variable, got 'too late'"),
        ([""], "like that of a Python variable, got ''"),
        ([7], "like that of a Python variable, got 7"),
    ],
)
def test_names_that_side_outputs_cannot_have(names: list[Any], message: str) -> None:
    with pytest.raises(JobError, match=f"operator 'alerts': .*{message}"):
        spec(Calls(lambda self, row, context: None), side_outputs=dict.fromkeys(names, LATE))
