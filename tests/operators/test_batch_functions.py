"""Functions over whole batches: what they read, write and return equals what a function over rows does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import JobError, SerializationError
from qstate.operators.context import RuntimeContext
from qstate.operators.keyed_batch import KeyedBatch
from qstate.operators.operator import FunctionOperator
from tests.operators.running import OUTPUT, Batches, Calls, batch, heap, opened, operator_of, rows_of

SCHEMA = pa.schema([("key", pa.string()), ("place", pa.int64()), ("temp", pa.float64())])
ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(-9, 9).map(float)), max_size=12)
BATCHES = st.lists(ROWS, max_size=4)


class Mean(AggregateFunction[float, list[float], float]):
    """Its accumulator changes in place."""

    def create_accumulator(self) -> list[float]:
        return [0.0, 0.0]

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        accumulator[0] = accumulator[0] / 2 + value  # the order shows
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[float]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, one: list[float], other: list[float]) -> list[float]:
        raise NotImplementedError


VALUE = ValueStateDescriptor("value", float)
COUNT = ValueStateDescriptor("count", int, default=7)
LIST = ListStateDescriptor("list", float)
MAP = MapStateDescriptor("map", float, map_key_type=int)
REDUCING = ReducingStateDescriptor("reducing", float, reduce_function=lambda old, new: old / 2 - new)
AGGREGATING = AggregatingStateDescriptor("aggregating", list, aggregate_function=Mean())


def all_handles(function: Any, context: RuntimeContext) -> None:
    function.value, function.count = context.get_state(VALUE), context.get_state(COUNT)
    function.list, function.map = context.get_list_state(LIST), context.get_map_state(MAP)
    function.reducing = context.get_reducing_state(REDUCING)
    function.aggregating = context.get_aggregating_state(AGGREGATING)


def results(operator: FunctionOperator, batches: list[list[Any]], schema: pa.Schema = SCHEMA) -> list[tuple[Any, ...]]:
    found = [output for rows in batches for output in operator.process(batch(rows, schema))]
    return rows_of([*found, *operator.finish()])


@pytest.mark.parametrize("namespaced", [False, True])
@given(batches=BATCHES)
def test_many_keys_are_written_as_one_after_the_other(namespaced: bool, batches: list[list[Any]]) -> None:
    """Every kind of state, in any batches, with repeated keys, with and without namespaces of the rows."""

    def each_row(function: Any, row: Any, context: Any) -> None:
        at = row.place if namespaced else None
        function.value.in_namespace(at).update(row.temp if row.temp > -5 else None)
        function.list.in_namespace(at).add(row.temp)
        if row.temp < -7:
            function.map.in_namespace(at).remove(row.place)
        else:
            function.map.in_namespace(at).put(row.place, row.temp)
        function.reducing.in_namespace(at).add(row.temp)
        function.aggregating.in_namespace(at).add(row.temp)

    def each_batch(function: Any, rows: KeyedBatch, context: Any) -> None:
        keys, places, temps = rows.keys, rows.rows.column("place"), rows.rows.column("temp")
        spaces = rows.namespaces
        function.value.put_many(keys, [temp if temp > -5 else None for temp in temps.to_pylist()], spaces)
        function.list.add_many(keys, temps, spaces)
        function.reducing.add_many(keys, temps.to_numpy(), spaces)
        function.aggregating.add_many(keys, temps, spaces)
        for number, temp in enumerate(temps.to_pylist()):  # puts and removals in their order
            key, place, space = [keys[number]], places.slice(number, 1), spaces and [spaces[number]]
            if temp < -7:
                function.map.remove_many(key, place, space)
            else:
                function.map.put_many(key, place, [temp], space)

    columns = ("place",) if namespaced else ()
    with heap() as by_rows, heap() as by_batches:
        row_operator = operator_of(Calls(each_row, all_handles), by_rows, input_schema=SCHEMA)
        batch_operator = operator_of(
            Batches(each_batch, all_handles), by_batches, input_schema=SCHEMA, namespace_columns=columns
        )
        for operator in (row_operator, batch_operator):
            operator.open()
            assert results(operator, batches) == []
        for descriptor in (VALUE, LIST, MAP, REDUCING, AGGREGATING):
            for space in (None, 0, 1, 2):
                tables = by_rows.table(descriptor, space), by_batches.table(descriptor, space)
                assert [tables[1].get(key) for key in "abc"] == [tables[0].get(key) for key in "abc"]
        assert sorted(by_batches.commit(0), key=repr) == sorted(by_rows.commit(0), key=repr)


@given(batches=BATCHES, asked=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 2)), max_size=9))
def test_many_keys_are_read_in_their_order(batches: list[list[Any]], asked: list[tuple[str, int]]) -> None:
    keys, spaces = [key for key, _ in asked], [space for _, space in asked]
    maps: Any = defaultdict(dict)
    for key, place, temp in (row for rows in batches for row in rows):
        maps[key, place][place] = temp
    found: dict[str, Any] = {}

    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        places, temps = rows.rows.column("place"), rows.rows.column("temp")
        if "asked" in rows.rows.column("key").to_pylist():
            found["value"] = function.value.get_many(keys, spaces)
            found["count"] = function.count.in_namespace(1).get_many(keys)
            found["list"] = function.list.get_many(keys, spaces)
            found["map"] = function.map.get_many(keys, spaces, spaces)
            found["reducing"] = function.reducing.get_many(keys)
            found["aggregating"] = function.aggregating.get_many(keys, spaces)
            return
        function.value.put_many(rows.keys, temps, rows.namespaces)
        function.list.add_many(rows.keys, temps, rows.namespaces)
        function.map.put_many(rows.keys, places, temps, rows.namespaces)

    with opened(Batches(each, all_handles), input_schema=SCHEMA, namespace_columns=("place",)) as operator:
        results(operator, [*batches, [("asked", 0, 0.0)]])
    last = {place: entries.get(place[1]) for place, entries in maps.items()}
    every = defaultdict(list)
    for key, place, temp in (row for rows in batches for row in rows):
        every[key, place].append(temp)
    assert found["value"] == found["map"] == [last.get(place) for place in asked]
    assert found["list"] == [every[place] for place in asked]
    assert found["count"] == [7] * len(asked)
    assert found["reducing"] == found["aggregating"] == [None] * len(asked)


@pytest.mark.parametrize("columns", [("key",), ("place",), ("key", "place")])
@given(rows=ROWS.filter(len))
def test_rows_by_key_keep_their_order(columns: tuple[str, ...], rows: list[Any]) -> None:
    expected: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        parts = tuple(row[SCHEMA.get_field_index(name)] for name in columns)
        expected[parts if len(parts) > 1 else parts[0]].append(row)
    seen: dict[str, Any] = {}

    def each(function: Any, given_batch: KeyedBatch, context: Any) -> None:
        by_key = given_batch.by_key()
        seen["loop"] = {one.key: (context.current_key, one.namespace, rows_of([one.rows])) for one in by_key}
        seen["at once"] = (by_key.keys, by_key.rows.to_pylist(), by_key.first_rows, by_key.last_rows, len(by_key))

    with opened(Batches(each), input_schema=SCHEMA, key_columns=columns) as operator:
        results(operator, [rows])
    assert seen["loop"] == {key: (key, None, own) for key, own in expected.items()}
    keys, ordered, firsts, lasts, count = seen["at once"]
    assert count == len(keys) == len(expected)
    for key, first, last in zip(keys, firsts, lasts, strict=True):
        assert [tuple(row.values()) for row in ordered[first : last + 1]] == expected[key]


def test_rows_by_key_are_by_namespace_too() -> None:
    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        function.seen = [(one.key, one.namespace, one.rows.column("temp").to_pylist()) for one in rows.by_key()]
        assert [(one.key, one.namespace) for one in rows.by_key()] == list(
            zip(rows.by_key().keys, rows.by_key().namespaces or (), strict=True)
        )

    function: Any = Batches(each)
    with opened(function, input_schema=SCHEMA, namespace_columns=("place",)) as operator:
        results(operator, [[("a", 1, 1.0), ("a", 2, 2.0), ("b", 1, 3.0), ("a", 1, 4.0)]])
    assert sorted(function.seen) == [("a", 1, [1.0, 4.0]), ("a", 2, [2.0]), ("b", 1, [3.0])]


class RowAlert(Calls):
    """A reading is an alert when it is higher than the one before it of its key."""

    def __init__(self) -> None:
        super().__init__(self.each, all_handles)

    @staticmethod
    def each(function: Any, row: Any, context: Any) -> Any:
        before = function.value.value()
        function.value.update(row.temp)
        return [(row.key, f"{before} {row.temp}")] if before is not None and row.temp > before else None


def alert_of_batch(function: Any, rows: KeyedBatch, context: Any) -> Any:
    by_key = rows.by_key()
    now = by_key.rows.column("temp").to_numpy()
    before = np.roll(now, 1)
    before[by_key.first_rows] = np.array(function.value.get_many(by_key.keys), float)  # None becomes NaN
    function.value.put_many(by_key.keys, now[by_key.last_rows])
    higher = now > before
    texts = [f"{old} {new}" for old, new in zip(before[higher].tolist(), now[higher].tolist(), strict=True)]
    keys = by_key.rows.column("key").filter(pa.array(higher))
    yield pa.RecordBatch.from_arrays([keys, pa.array(texts, pa.string())], ["key", "text"])


def alert_in_a_loop(function: Any, rows: KeyedBatch, context: Any) -> Any:
    for one in rows.by_key():
        before = function.value.value()
        for now in one.rows.column("temp").to_pylist():
            if before is not None and now > before:
                yield batch([(one.key, f"{before} {now}")], OUTPUT)
            before = now
        function.value.update(before)


@pytest.mark.parametrize("each", [alert_of_batch, alert_in_a_loop])
@given(batches=BATCHES)
def test_a_fold_by_key_gives_what_rows_give(each: Callable[..., Any], batches: list[list[Any]]) -> None:
    with opened(RowAlert(), input_schema=SCHEMA) as by_rows:
        expected = results(by_rows, batches)
    with opened(Batches(each, all_handles), input_schema=SCHEMA) as by_batches:
        assert sorted(results(by_batches, batches)) == sorted(expected)


def test_order_by_orders_the_rows_of_all_batches() -> None:
    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        function.seen = [*getattr(function, "seen", []), *rows.rows.column("temp").to_pylist()]

    function: Any = Batches(each)
    with opened(function, input_schema=SCHEMA, order_by=("place",)) as operator:
        results(operator, [[("a", 2, 3.0), ("b", 0, 1.0)], [("a", 1, 2.0)]])
    assert function.seen == [1.0, 2.0, 3.0]


def test_hidden_columns_are_not_among_the_rows() -> None:
    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        function.seen = (rows.rows.schema.names, rows.keys, rows.namespaces)

    function: Any = Batches(each)
    schema = pa.schema([("temp", pa.float64()), ("place", pa.int64()), ("key", pa.string())])
    with opened(function, input_schema=schema, namespace_columns=("place",), inputs=(("temp",),)) as operator:
        results(operator, [[(1.5, 3, "a")]], schema)
    assert function.seen == (["temp"], ["a"], [3])


def test_errors_name_the_function_and_the_key_of_the_loop() -> None:
    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        for one in rows.by_key():
            if one.key == "b":
                raise ValueError("no good")

    with (
        opened(Batches(each), input_schema=SCHEMA) as operator,
        pytest.raises(
            JobError, match=r"operator 'alerts', function Batches, a batch of 2 rows, key 'b': ValueError: no"
        ),
    ):
        results(operator, [[("a", 0, 1.0), ("b", 0, 2.0)]])


def test_after_a_loop_errors_name_no_key() -> None:
    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        assert len(list(rows.by_key())) == 1
        raise ValueError("no good")

    with (
        opened(Batches(each), input_schema=SCHEMA) as operator,
        pytest.raises(JobError, match="a batch of 1 rows: ValueError: no good"),
    ):
        results(operator, [[("a", 0, 1.0)]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda function: function.value.value(), "there is no current key"),
        (lambda function: function.list.add(1.0), "there is no current key"),
        (lambda function: function.value.put_many(["a", "b"], [1.0]), r"state 'value': put_many\(\) got 2 keys, and 1"),
        (lambda function: function.value.get_many(["a", "b"], [1]), r"state 'value': get_many\(\) got 2 keys, and 1"),
        (lambda function: function.map.get_many(["a"], []), r"state 'map': get_many\(\) got 1 keys, and 0"),
        (
            lambda function: function.list.add_many(["a", "b"], [1.0, None]),
            "state 'list', key 'b': add_many.* got None",
        ),
        (lambda function: function.map.put_many(["a"], [1], [None]), "state 'map', key 'a': put_many.* got None"),
        (lambda function: function.map.put_many(["a"], ["x"], [1.0]), "state 'map', map_key_type: expected int"),
        (lambda function: function.reducing.add_many(["a"], [None]), "state 'reducing', key 'a': add_many.* got None"),
        (
            lambda function: function.reducing.add_many(["b", "a", "a"], [1.0, 1.0, "x"]),
            "state 'reducing', key 'a': the reduce function failed: TypeError",
        ),
        (
            lambda function: function.aggregating.add_many(["a"], ["x"]),
            r"state 'aggregating', key 'a': the aggregate function's add\(\) failed: TypeError",
        ),
    ],
)
def test_what_cannot_be_done_for_many_keys_is_refused(call: Callable[[Any], object], message: str) -> None:
    function = Batches(lambda self, rows, context: call(self) and None, all_handles)
    with (
        opened(function, input_schema=SCHEMA) as operator,
        pytest.raises(JobError, match=rf"operator 'alerts', function Batches, a batch of 1 rows: \w+: .*{message}"),
    ):
        results(operator, [[("a", 0, 1.0)]])


def test_many_keys_are_refused_where_there_is_a_current_key() -> None:
    function = Calls(lambda self, row, context: self.value.get_many(["a"]), all_handles)
    with opened(function) as operator, pytest.raises(JobError, match="there is a current key, 'a'"):
        operator.process(batch([("a", 1.5, 1)]))


def test_a_value_of_another_type_is_refused_at_the_commit() -> None:
    function = Batches(lambda self, rows, context: self.value.put_many(rows.keys, [1]), all_handles)
    with heap() as backend:
        operator = operator_of(function, backend, input_schema=SCHEMA)
        operator.open()
        results(operator, [[("a", 0, 1.0)]])
        with pytest.raises(SerializationError, match="state 'value', key 'a': it is declared as float"):
            list(backend.commit(0))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([("a", "x")], "expected Arrow record batches, found"),
        ([batch([("a", 0.0, 0)])], "output batches have the columns key string, text string; found key string, temp"),
        ([batch([(None, "x")], OUTPUT)], "column 'key' of an output batch must not be null"),
    ],
)
def test_outputs_of_another_schema_are_refused(outputs: list[Any], message: str) -> None:
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), ("text", pa.string())])
    function = Batches(lambda self, rows, context: outputs)
    with opened(function, output_schema=schema) as operator, pytest.raises(JobError, match=message):
        operator.process(batch([("a", 0.0, 0)]))


def test_outputs_get_the_declared_schema() -> None:
    schema = pa.schema([pa.field("key", pa.string(), nullable=False), ("text", pa.string())])
    function = Batches(lambda self, rows, context: [batch([("a", "x")], OUTPUT)])
    with opened(function, output_schema=schema) as operator:
        (output,) = operator.process(batch([("a", 0.0, 0)]))
    assert output.schema == schema and rows_of([output]) == [("a", "x")]


def test_after_a_loop_and_after_a_break_there_is_no_current_key() -> None:
    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        for one in rows.by_key():
            function.value.update(1.5)
            with pytest.raises(JobError, match=f"there is a current key, '{one.key}'"):
                function.value.get_many(["a"])
            break
        assert function.value.get_many(["a", "b"]) == [1.5, None]
        assert [one.key for one in rows.by_key()] == ["a", "b"]
        assert function.value.get_many(["a"]) == [1.5]
        with pytest.raises(JobError, match="there is no current key"):
            function.value.value()

    with opened(Batches(each, all_handles), input_schema=SCHEMA) as operator:
        results(operator, [[("a", 0, 1.0), ("b", 0, 2.0)]])


def test_a_handle_in_a_namespace_keeps_many_keys_there() -> None:
    def each(function: Any, rows: KeyedBatch, context: Any) -> None:
        there = function.value.in_namespace("w")
        there.put_many(["a", "b"], [1.0, 2.0])
        there.clear_many(["b"])
        assert (there.get_many(["a", "b"]), function.value.get_many(["a", "b"])) == ([1.0, None], [None, None])

    with opened(Batches(each, all_handles), input_schema=SCHEMA) as operator:
        results(operator, [[("a", 0, 1.0)]])
