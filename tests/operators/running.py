"""Shared by the tests of operators: a heap backend, an operator on it, and input batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from qstate.backends.contract import BackendContext, StateBackend
from qstate.backends.heap.backend import HeapBackend
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.operators.context import RuntimeContext, Subtask
from qstate.operators.functions import KeyedBatchFunction, KeyedProcessFunction, StreamFunction
from qstate.operators.handles import ElementContext
from qstate.operators.keyed_batch import KeyedBatch
from qstate.operators.operator import FunctionOperator
from qstate.operators.operator_spec import OperatorSpec

__all__ = [
    "INPUT",
    "OUTPUT",
    "Batches",
    "Calls",
    "batch",
    "empty_heap",
    "heap",
    "opened",
    "operator_of",
    "rows_of",
    "spec",
]

SUBTASK = Subtask(0, 1, 128)
INPUT = pa.schema([("key", pa.string()), ("temp", pa.float64()), ("at", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("text", pa.string())])


class Calls(KeyedProcessFunction):
    """Calls the given functions: `opening(self, context)`, `each(self, row, context)`."""

    def __init__(self, each: Callable[..., Any], opening: Callable[..., Any] = lambda self, context: None) -> None:
        self._each = each
        self._opening = opening

    def open(self, context: RuntimeContext) -> None:
        self._opening(self, context)

    def process_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        found: Iterable[Any] | None = self._each(self, row, context)
        return found


class Batches(KeyedBatchFunction):
    """Calls the given functions: `opening(self, context)`, `each(self, batch, context)`."""

    def __init__(self, each: Callable[..., Any], opening: Callable[..., Any] = lambda self, context: None) -> None:
        self._each = each
        self._opening = opening

    def open(self, context: RuntimeContext) -> None:
        self._opening(self, context)

    def process_batch(self, batch: KeyedBatch, context: ElementContext) -> Iterable[pa.RecordBatch] | None:
        found: Iterable[pa.RecordBatch] | None = self._each(self, batch, context)
        return found


def batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema = INPUT) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for one in batches for row in one.to_pylist()]


def spec(function: StreamFunction, **changed: Any) -> OperatorSpec:
    settings: dict[str, Any] = {
        "uid": "alerts",
        "job": "weather",
        "function": function,
        "key_columns": ("key",),
        "input_schema": INPUT,
        "output_schema": OUTPUT,
    }
    return OperatorSpec(**{**settings, **changed})


@contextmanager
def empty_heap() -> Iterator[StateBackend]:
    """A backend that has not begun an epoch."""
    with (
        TemporaryDirectory() as directory,
        HeapBackend(BackendContext(SUBTASK.key_groups, SUBTASK.max_parallelism, Path(directory))) as backend,
    ):
        yield backend


@contextmanager
def heap() -> Iterator[StateBackend]:
    """A backend in its first epoch."""
    with empty_heap() as backend:
        backend.begin(0)
        yield backend


def operator_of(
    function: StreamFunction, backend: StateBackend, *, stored: OperatorState | None = None, **changed: Any
) -> FunctionOperator:
    return FunctionOperator(spec(function, **changed), SUBTASK, backend, stored=stored)


@contextmanager
def opened(function: StreamFunction, **changed: Any) -> Iterator[FunctionOperator]:
    with heap() as backend:
        operator = operator_of(function, backend, **changed)
        operator.open()
        yield operator
        operator.close()
