"""The queryable state sinks: what is stored after any batches equals a plain loop over their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends.contract import StateBackend
from qstate.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.keys import ColumnType, Namespace
from qstate.operators.sinks import QueryableReducingSink, QueryableStateSink, QueryableValueSink
from tests.operators.running import batch, empty_heap, heap, operator_of, spec

SCHEMA = pa.schema([("key", pa.string()), ("window", pa.int64()), ("temp", pa.float64()), ("note", pa.string())])
ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.none() | st.floats(-9, 9), st.text(max_size=3)), max_size=12
)
SOUND_ROWS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.floats(-9, 9), st.text(max_size=3)), max_size=12
)


@dataclass(frozen=True)
class Reading:
    temp: float | None
    note: str = ""


def last_value_sink(value_columns: list[str]) -> QueryableValueSink:
    return QueryableValueSink(ValueStateDescriptor("last").queryable("last"), value_columns)


def feed(backend: StateBackend, sink: QueryableStateSink, batches: list[list[Any]], **changed: Any) -> list[Any]:
    """Process the batches. Returns the output, which is empty."""
    operator = operator_of(sink, backend, input_schema=SCHEMA, **changed)
    operator.open()
    return [*(out for rows in batches for out in operator.process(batch(rows, SCHEMA))), *operator.finish()]


def stored(backend: StateBackend, descriptor: StateDescriptor, namespace: Namespace = None) -> dict[str, Any]:
    table = backend.table(descriptor, namespace)
    return {key: table.get(key) for key in "abc" if table.get(key) is not None}


@given(batches=st.lists(ROWS, max_size=3))
def test_value_sink_keeps_the_last_value_and_null_clears(batches: list[list[Any]]) -> None:
    expected: dict[str, float] = {}
    for key, _, temp, _ in (row for rows in batches for row in rows):
        if temp is None:
            expected.pop(key, None)
        else:
            expected[key] = temp
    sink = last_value_sink(["temp"])
    with heap() as backend:
        assert feed(backend, sink, batches) == []
        assert stored(backend, ValueStateDescriptor("last").queryable("last")) == expected


@given(batches=st.lists(ROWS, max_size=3))
def test_values_are_kept_per_namespace(batches: list[list[Any]]) -> None:
    descriptor = ValueStateDescriptor("last", str).queryable("last")
    expected: dict[int, dict[str, str]] = {0: {}, 1: {}, 2: {}}
    for key, window, _, note in (row for rows in batches for row in rows):
        expected[window][key] = note
    with heap() as backend:
        feed(backend, QueryableValueSink(descriptor, ["note"]), batches, namespace_columns=("window",))
        assert {window: stored(backend, descriptor, window) for window in expected} == expected
        assert stored(backend, descriptor) == {}


@given(batches=st.lists(SOUND_ROWS, max_size=3))
def test_reducing_sink_folds_from_the_left(batches: list[list[Any]]) -> None:
    """With a function that is not associative: the order in which values are combined shows in the result."""

    def fold(old: float, new: float) -> float:
        return old / 2 - new

    expected: dict[str, float] = {}
    for key, _, temp, _ in (row for rows in batches for row in rows):
        expected[key] = fold(expected[key], temp) if key in expected else temp
    descriptor = ReducingStateDescriptor("folded", float, reduce_function=fold).queryable("folded")
    with heap() as backend:
        assert feed(backend, QueryableReducingSink(descriptor, ["temp"]), batches) == []
        assert stored(backend, descriptor) == expected


def test_opened_sink_can_be_restored_when_all_values_have_namespaces() -> None:
    sink = last_value_sink(["temp"])
    descriptor = ValueStateDescriptor("last").queryable("last")
    with heap() as backend, empty_heap() as restored:
        feed(backend, sink, [[("a", 1, 1.5, "")]], namespace_columns=("window",))
        changes = list(backend.commit(0))
        operator_of(sink, restored, input_schema=SCHEMA, namespace_columns=("window",)).open()
        restored.restore(0, changes)
        assert stored(restored, descriptor, 1) == {"a": 1.5}


def test_order_by_decides_which_value_is_the_last() -> None:
    sink = last_value_sink(["temp"])
    with heap() as backend:
        feed(backend, sink, [[("a", 2, 20.0, "")], [("a", 1, 10.0, ""), ("a", 3, 30.0, "")]], order_by=("window",))
        assert stored(backend, ValueStateDescriptor("last").queryable("last")) == {"a": 30.0}


def test_several_value_columns_make_a_dict_by_name() -> None:
    sink = last_value_sink(["temp", "note"])
    with heap() as backend:
        feed(backend, sink, [[("a", 0, None, "x"), ("b", 0, 1.0, "y")]])
        assert stored(backend, ValueStateDescriptor("last").queryable("last")) == {
            "a": {"temp": None, "note": "x"},
            "b": {"temp": 1.0, "note": "y"},
        }


@pytest.mark.parametrize("columns", [["own"], ["own", "deep"]])
def test_maps_are_stored_as_dicts(columns: list[str]) -> None:
    kind = pa.map_(pa.string(), pa.int64())
    schema = pa.schema([("key", pa.string()), ("own", kind), ("deep", pa.struct([("maps", pa.list_(kind))]))])
    row = {"own": {"x": 1}, "deep": {"maps": [{"y": 2}, None]}}
    sink = last_value_sink(columns)
    with heap() as backend:
        operator = operator_of(sink, backend, input_schema=schema)
        operator.open()
        operator.process(pa.RecordBatch.from_pylist([{"key": "a", **row}, {"key": "b"}], schema))
        found = stored(backend, ValueStateDescriptor("last").queryable("last"))
    assert found["a"] == (row["own"] if columns == ["own"] else row)
    assert found.get("b") == (None if columns == ["own"] else {"own": None, "deep": None})


def test_declared_dataclass_makes_records() -> None:
    descriptor = ValueStateDescriptor("last", Reading).queryable("last")
    with heap() as backend:
        feed(backend, QueryableValueSink(descriptor, ["note", "temp"]), [[("a", 0, 1.5, "x")]])
        assert stored(backend, descriptor) == {"a": Reading(1.5, "x")}
        list(backend.commit(0))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["temp", "window"], "columns without a field: ['window'], fields without a column: []"),
        (["note"], "columns without a field: [], fields without a column: ['temp']"),
    ],
)
def test_columns_that_do_not_fill_the_record_are_refused(columns: list[str], message: str) -> None:
    with pytest.raises(JobError) as caught:
        QueryableValueSink(ValueStateDescriptor("last", Reading).queryable("last"), columns)
    assert message in str(caught.value)


def test_null_for_a_reducing_sink_names_column_and_key() -> None:
    descriptor = ReducingStateDescriptor("max", float, reduce_function=max).queryable("max")
    with heap() as backend, pytest.raises(JobError, match="column 'temp' is null for key 'b'"):
        feed(backend, QueryableReducingSink(descriptor, ["temp"]), [[("a", 0, 1.0, ""), ("b", 0, None, "")]])


def test_failing_reduce_function_names_the_key() -> None:
    def fail(old: float, new: float) -> float:
        raise ValueError("cannot combine")

    descriptor = ReducingStateDescriptor("max", float, reduce_function=fail).queryable("max")
    with heap() as backend:
        with pytest.raises(
            JobError,
            match=r"function QueryableReducingSink\(max\).*key 'a': the reduce function failed: ValueError: cannot",
        ):
            feed(backend, QueryableReducingSink(descriptor, ["temp"]), [[("a", 0, 1.0, ""), ("a", 0, 2.0, "")]])
        assert stored(backend, descriptor) == {}


def test_reduce_function_that_returns_none_names_the_key() -> None:
    descriptor = ReducingStateDescriptor("max", float, reduce_function=lambda old, new: None).queryable("max")
    with heap() as backend, pytest.raises(JobError, match="key 'a': the reduce function returned None"):
        feed(backend, QueryableReducingSink(descriptor, ["temp"]), [[("a", 0, 1.0, ""), ("a", 0, 2.0, "")]])


def test_null_namespace_is_refused() -> None:
    sink = last_value_sink(["temp"])
    with heap() as backend, pytest.raises(JobError, match="column 'window' is null in 1 of 1 rows"):
        feed(backend, sink, [[("a", None, 1.0, "")]], namespace_columns=("window",))


def test_namespace_types_are_those_that_queries_give() -> None:
    sink = last_value_sink(["temp"])
    assert spec(sink, input_schema=SCHEMA, namespace_columns=("window",)).namespace_types == (ColumnType.BIGINT,)
    with pytest.raises(JobError, match="namespace column 'temp' is double"):
        spec(sink, input_schema=SCHEMA, namespace_columns=("temp",))


def test_sink_without_queryable_name_or_value_is_refused() -> None:
    with pytest.raises(JobError, match="state 'last' of a queryable sink needs a queryable name"):
        QueryableValueSink(ValueStateDescriptor("last"), ["temp"])
    with pytest.raises(JobError, match="no column is left to be the value"):
        last_value_sink([])
