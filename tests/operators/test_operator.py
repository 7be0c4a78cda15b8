"""The operator of a function on the heap backend: keys, order, output, errors that name the cause."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.descriptors import MapStateDescriptor, ValueStateDescriptor
from qstate.errors import ClosedError, JobError
from qstate.keys import ColumnType
from qstate.operators.context import RuntimeContext, Subtask
from qstate.operators.functions import FlatMapWithState, KeyedProcessFunction
from qstate.operators.handles import ElementContext
from qstate.operators.operator import OUTPUT_BATCH_ROWS, SORTED_BATCH_ROWS
from tests.operators.running import INPUT, Calls, batch, heap, opened, operator_of, rows_of, spec


class TemperatureAlert(KeyedProcessFunction):
    """Tells when a reading is more than twice the one before."""

    def open(self, context: RuntimeContext) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", float).queryable("lastTemperature"))
        self.closed = 0

    def process_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        before = self.last.value()
        self.last.update(row.temp)
        return [(row.key, f"{before} to {row.temp}")] if before is not None and row.temp > 2 * before else None

    def close(self) -> None:
        self.closed += 1


def test_state_follows_the_key_of_the_row() -> None:
    with opened(TemperatureAlert()) as operator:
        assert rows_of(operator.process(batch([("a", 1.0, 0), ("b", 9.0, 1), ("a", 3.0, 2), ("b", 10.0, 3)]))) == [
            ("a", "1.0 to 3.0")
        ]
        assert rows_of(operator.process(batch([("b", 30.0, 4)]))) == [("b", "10.0 to 30.0")]
        assert list(operator.finish()) == []


def test_output_has_exactly_the_declared_schema() -> None:
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), ("text", pa.large_string())])
    with opened(Calls(lambda self, row, context: [(row.key, None)]), output_schema=schema) as operator:
        (found,) = operator.process(batch([("a", 1.0, 0)]))
        assert found.schema == schema


def test_generators_and_empty_results_are_accepted() -> None:
    def each(self: Any, row: Any, context: ElementContext) -> Iterable[Any]:
        for number in range(int(row.temp)):
            yield context.current_key, str(number)

    with opened(Calls(each)) as operator:
        assert rows_of(operator.process(batch([("a", 2.0, 0), ("b", 0.0, 1), ("c", 1.0, 2)]))) == [
            ("a", "0"),
            ("a", "1"),
            ("c", "0"),
        ]
        assert operator.process(batch([("a", 0.0, 0)])) == []
        assert operator.process(batch([])) == []


def test_large_output_comes_in_batches_and_loses_no_row() -> None:
    def each(self: Any, row: Any, context: ElementContext) -> Iterable[Any]:
        return [(row.key, str(number)) for number in range(7_000)]

    with opened(Calls(each)) as operator:
        found = operator.process(batch([("a", 0.0, 0), ("b", 0.0, 0), ("c", 0.0, 0)]))
    assert [one.num_rows for one in found] == [14_000, 7_000]
    assert found[0].num_rows >= OUTPUT_BATCH_ROWS
    assert rows_of(found) == [(key, str(number)) for key in "abc" for number in range(7_000)]


@pytest.mark.parametrize(
    ("types", "values", "key"),
    [
        ([pa.string()], ["a"], "a"),
        ([pa.large_string()], ["a"], "a"),
        ([pa.binary()], [b"a"], b"a"),
        ([pa.int8()], [-5], -5),
        ([pa.int64()], [2**62], 2**62),
        ([pa.string(), pa.int32(), pa.binary()], ["a", 7, b"x"], ("a", 7, b"x")),
    ],
)
def test_key_is_bare_for_one_column_and_a_tuple_for_several(types: list[Any], values: list[Any], key: Any) -> None:
    schema = pa.schema([(f"k{number}", kind) for number, kind in enumerate(types)])
    seen = []
    function = Calls(lambda self, row, context: seen.append(context.current_key))
    with opened(function, input_schema=schema, key_columns=tuple(schema.names)) as operator:
        operator.process(batch([tuple(values)], schema))
    assert seen == [key] and type(seen[0]) is type(key)


def test_key_types_are_those_that_queries_give() -> None:
    schema = pa.schema([("a", pa.large_string()), ("b", pa.int16()), ("c", pa.binary())])
    assert spec(TemperatureAlert(), input_schema=schema, key_columns=("c", "a", "b")).key_types == (
        ColumnType.BINARY,
        ColumnType.STRING,
        ColumnType.BIGINT,
    )


def test_null_key_is_refused_before_any_row_is_processed() -> None:
    seen: list[Any] = []
    with (
        opened(Calls(lambda self, row, context: seen.append(row))) as operator,
        pytest.raises(JobError, match="operator 'alerts': column 'key' is null in 1 of 2 rows"),
    ):
        operator.process(batch([("a", 1.0, 0), (None, 1.0, 1)]))
    assert seen == []


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key_columns": ()}, "needs at least one key column"),
        ({"key_columns": ("nope",)}, "key_columns names 'nope', which the input does not have; its columns are key"),
        ({"key_columns": ("key", "key")}, "key_columns names a column twice"),
        (
            {
                "key_columns": tuple(f"k{number}" for number in range(65)),
                "input_schema": pa.schema([(f"k{number}", pa.string()) for number in range(65)]),
            },
            "key_columns names 65 columns, at most 64 can be",
        ),
        ({"order_by": ("when",)}, "order_by names 'when'"),
        ({"namespace_columns": ("at",)}, "namespace columns are for queryable sinks"),
        ({"function": print}, "the function must be one of the function classes"),
        ({"input_schema": pa.schema([("key", pa.string()), ("key", pa.string())])}, "more than one column named 'key'"),
        (
            {"input_schema": pa.schema([("key", pa.string()), ("s", pa.list_(pa.int8()))]), "order_by": ("s",)},
            "order_by column 's' is list<item: int8>, which has no order",
        ),
    ],
)
def test_unsound_spec_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=re.escape(message)):
        spec(**{"function": TemperatureAlert(), **changed})


def test_batch_with_other_columns_is_refused() -> None:
    with opened(TemperatureAlert()) as operator, pytest.raises(JobError, match="expected the columns"):
        operator.process(batch([("a",)], pa.schema([("key", pa.string())])))


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 3), st.none() | st.integers(0, 2)))


@given(batches=st.lists(ROWS, max_size=4))
def test_order_by_sorts_the_epoch_stably_with_nulls_last(batches: list[list[tuple[Any, ...]]]) -> None:
    schema = pa.schema([("key", pa.string()), ("at", pa.int64()), ("then", pa.int64()), ("number", pa.int64())])
    numbered, count = [], 0
    for rows in batches:
        numbered.append([(*row, count + position) for position, row in enumerate(rows)])
        count += len(rows)
    seen: list[tuple[Any, ...]] = []
    function = Calls(lambda self, row, context: seen.append(tuple(row)))
    with opened(function, input_schema=schema, order_by=("at", "then")) as operator:
        for rows in numbered:
            assert operator.process(batch(rows, schema)) == []
        assert seen == []
        assert list(operator.finish()) == []
        assert list(operator.finish()) == []

    def rank(row: tuple[Any, ...]) -> tuple[Any, ...]:
        return row[1] is None, row[1] or 0, row[2] is None, row[2] or 0

    assert seen == sorted((row for rows in numbered for row in rows), key=rank)


@pytest.mark.parametrize("name", [".at", "a.t", "[at", "at AS key"])
def test_hidden_columns_are_key_and_order_and_no_part_of_the_row(name: str) -> None:
    schema = pa.schema([("text", pa.string()), ("a key", pa.int64()), (name, pa.int64())])
    seen: list[Any] = []
    function = Calls(lambda self, row, context: seen.append((context.current_key, row._asdict())))
    changed = {"input_schema": schema, "key_columns": ("a key",), "order_by": (name,), "inputs": (("text",),)}
    with opened(function, **changed) as operator:
        operator.process(batch([("late", 7, 2), ("early", 8, 1)], schema))
        list(operator.finish())
    assert seen == [(8, {"text": "early"}), (7, {"text": "late"})]


def test_sorted_epoch_gives_output_while_it_is_processed() -> None:
    rows = [("a", 0.0, number) for number in range(2 * SORTED_BATCH_ROWS)]
    seen: list[int] = []

    def each(self: Any, row: Any, context: ElementContext) -> Iterable[Any]:
        seen.append(row.at)
        return [(row.key, str(row.at))]

    with opened(Calls(each), order_by=("at",)) as operator:
        operator.process(batch(rows))
        output = operator.finish()
        assert next(output).num_rows == SORTED_BATCH_ROWS
        assert len(seen) == SORTED_BATCH_ROWS
        list(output)
    assert seen == sorted(seen) and len(seen) == len(rows)


def test_discarded_epoch_leaves_no_rows_behind() -> None:
    seen: list[Any] = []
    with opened(Calls(lambda self, row, context: seen.append(row.at)), order_by=("at",)) as operator:
        operator.process(batch([("a", 0.0, 7)]))
        operator.discard()
        operator.process(batch([("a", 0.0, 8)]))
        list(operator.finish())
    assert seen == [8]


def test_error_of_the_function_names_operator_function_key_and_cause() -> None:
    def each(self: Any, row: Any, context: ElementContext) -> None:
        assert row.at // (row.at - 2) < 0

    with opened(Calls(each)) as operator, pytest.raises(JobError) as caught:
        operator.process(batch([("a", 0.0, 1), ("b", 0.0, 2)]))
    assert str(caught.value).startswith("operator 'alerts', function Calls, key 'b': ZeroDivisionError: ")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_error_of_a_generator_names_its_row_too() -> None:
    def each(self: Any, row: Any, context: ElementContext) -> Iterable[Any]:
        yield row.key, "x"
        raise ValueError(row.key)

    with opened(Calls(each)) as operator, pytest.raises(JobError, match="key 'a': ValueError: a"):
        operator.process(batch([("a", 0.0, 1), ("b", 0.0, 2)]))


def test_unknown_column_names_the_key_and_the_attribute() -> None:
    with (
        opened(Calls(lambda self, row, context: row.tmp)) as operator,
        pytest.raises(JobError, match=r"key 'a': AttributeError: .*'tmp'"),
    ):
        operator.process(batch([("a", 0.0, 1)]))


def test_wrong_output_names_operator_function_column_and_row() -> None:
    with (
        opened(Calls(lambda self, row, context: [(row.key, row.temp)])) as operator,
        pytest.raises(JobError, match=r"operator 'alerts', function Calls: column 'text' of output row 0 .* 1\.5"),
    ):
        operator.process(batch([("a", 1.5, 1)]))


@pytest.mark.parametrize("output", [("a", "b"), "text", {"key": "a", "text": "b"}])
def test_single_row_instead_of_rows_is_refused(output: Any) -> None:
    with (
        opened(Calls(lambda self, row, context: output)) as operator,
        pytest.raises(JobError, match=r"so a single row is \[row\]"),
    ):
        operator.process(batch([("a", 1.5, 1)]))


def test_value_instead_of_rows_is_refused() -> None:
    with (
        opened(Calls(lambda self, row, context: 5)) as operator,
        pytest.raises(JobError, match=r"key 'a': .* an iterable of rows or None, got 5"),
    ):
        operator.process(batch([("a", 1.5, 1)]))


def test_function_is_opened_and_closed_once() -> None:
    with heap() as backend:
        function = TemperatureAlert()
        operator = operator_of(function, backend)
        operator.open()
        operator.close()
        operator.close()
        assert function.closed == 1


def test_operator_is_used_between_open_and_close_only() -> None:
    with heap() as backend:
        operator = operator_of(TemperatureAlert(), backend)
        with pytest.raises(ClosedError, match="not open"):
            operator.process(batch([]))
        operator.open()
        operator.close()
        with pytest.raises(ClosedError, match="closed"):
            operator.process(batch([]))
        with pytest.raises(ClosedError):
            list(operator.finish())


def test_failing_open_and_close_name_the_function() -> None:
    def fail(self: Any, context: Any) -> None:
        raise OSError("no route")

    class FailsToClose(TemperatureAlert):
        def close(self) -> None:
            raise OSError("no route")

    with heap() as backend:
        with pytest.raises(JobError, match=r"function Calls, open\(\): OSError: no route"):
            operator_of(Calls(fail, fail), backend).open()
        operator = operator_of(FailsToClose(), backend)
        operator.open()
        with pytest.raises(JobError, match=r"close\(\): OSError: no route"):
            operator.close()
        operator.close()


def test_descriptors_are_known_after_open() -> None:
    with opened(TemperatureAlert()) as operator:
        assert [one.queryable_name for one in operator.descriptors] == ["lastTemperature"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (ValueStateDescriptor("s"), ValueStateDescriptor("s"), "two states named 's'"),
        (
            ValueStateDescriptor("s").queryable("q"),
            MapStateDescriptor("t").queryable("q"),
            "the states 's' and 't' have the same queryable name 'q'",
        ),
    ],
)
def test_two_states_of_one_name_are_refused(first: Any, second: Any, message: str) -> None:
    def opening(self: Any, context: RuntimeContext) -> None:
        context.get_state(first)
        context.get_map_state(second) if isinstance(second, MapStateDescriptor) else context.get_state(second)

    with heap() as backend, pytest.raises(JobError, match=f"operator 'alerts'.*{message}"):
        operator_of(Calls(print, opening), backend).open()


def test_descriptor_of_another_kind_is_refused() -> None:
    with heap() as backend, pytest.raises(JobError, match="expected a ValueStateDescriptor, got MapStateDescriptor"):
        operator_of(Calls(print, lambda self, context: context.get_state(MapStateDescriptor("m"))), backend).open()


def test_handle_after_open_is_refused() -> None:
    def opening(self: Any, context: RuntimeContext) -> None:
        self.context = context

    function = Calls(lambda self, row, context: self.context.get_state(ValueStateDescriptor("late")), opening)
    with opened(function) as operator, pytest.raises(JobError, match=r"'late' was asked for after open\(\)"):
        operator.process(batch([("a", 1.5, 1)]))


def test_context_says_where_the_function_runs() -> None:
    with heap() as backend:
        context = RuntimeContext("weather", "alerts", Subtask(1, 2, 128), backend)
        assert (context.job, context.operator_uid, context.subtask, context.parallelism) == ("weather", "alerts", 1, 2)


def test_state_used_after_the_batch_is_an_error_that_says_so() -> None:
    function = TemperatureAlert()
    with opened(function) as operator:
        operator.process(batch([("a", 1.0, 0)]))
        with pytest.raises(JobError, match="no current key"):
            function.last.update(2.0)


def test_flat_map_with_state_gives_and_takes_the_value() -> None:
    def count(row: Any, value: int | None) -> tuple[Any, int | None]:
        seen = (value or 0) + 1
        return ([(row.key, str(seen))], seen) if seen < 3 else (None, None)

    with opened(FlatMapWithState(count, ValueStateDescriptor("seen", int))) as operator:
        rows = [("a", 0.0, number) for number in range(4)] + [("b", 0.0, 0)]
        assert rows_of(operator.process(batch(rows))) == [("a", "1"), ("a", "2"), ("a", "1"), ("b", "1")]


@pytest.mark.parametrize("returned", [None, [1, 2], (1,), (1, 2, 3)])
def test_flat_map_that_returns_no_pair_is_refused_by_name(returned: Any) -> None:
    def broken(row: Any, value: Any) -> Any:
        return returned

    with (
        opened(FlatMapWithState(broken, ValueStateDescriptor("seen", int))) as operator,
        pytest.raises(JobError, match=r"FlatMapWithState\(.*broken\), key 'a': .*expected a pair"),
    ):
        operator.process(batch([("a", 0.0, 0)]))


def test_spec_can_be_pickled() -> None:
    original = spec(TemperatureAlert(), order_by=("at",))
    copy = pickle.loads(pickle.dumps(original))
    assert copy.input_schema == INPUT and copy.key_types == original.key_types
    with heap() as backend:
        operator = operator_of(copy.function, backend)
        operator.open()
        assert operator.process(batch([("a", 1.0, 0)])) == []


def test_subtask_knows_its_key_groups() -> None:
    groups = [Subtask(index, 3, 10).key_groups for index in range(3)]
    assert [group for one in groups for group in range(one.start, one.stop)] == list(range(10))
