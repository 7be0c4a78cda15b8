"""The inputs of a harness: the columns that a test declares, and batches of its rows.

Rules of this module: it says of an operator what a query's plan would say, by the same rules (`operators.inputs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from qstate.errors import ConfigError
from qstate.operators.columns.inputs import InputNames, UnitedNames
from qstate.operators.time.epoch_time import EventTime
from qstate.testing.rows import Columns, batch_of, schema_of

__all__ = ["HarnessInputs", "Input"]

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input of a function: the types of its columns by name, its keys, and its event time if it has one."""

    columns: Columns
    key_by: str | Sequence[str]
    event_time: str | None = None
    delay: timedelta = timedelta(0)


class HarnessInputs:
    """One input, or two connected ones. `order_by` are columns that each of them has."""

    def __init__(self, inputs: Sequence[Input], order_by: str | Sequence[str] = ()) -> None:
        self._inputs = inputs
        self._schemas = [schema_of("input", one.columns) for one in inputs]
        self._names = [
            InputNames(tuple(schema.names), _names(one.key_by), _names(order_by))
            for schema, one in zip(self._schemas, inputs, strict=True)
        ]
        self._united = UnitedNames(self._names) if len(inputs) > 1 else None

    @property
    def count(self) -> int:
        """The number of inputs."""
        return len(self._inputs)

    def spec_fields(self) -> dict[str, Any]:
        """The fields of an `OperatorSpec` that are about its inputs."""
        first, united = self._names[0], self._united
        return {
            "key_columns": first.keys if united is None else united.keys,
            "order_by": first.order_by if united is None else united.order_by,
            "input_schema": self.batch(*([] for _ in self._inputs)).schema,
            "inputs": tuple(one.columns for one in self._names),
            "event_times": self._event_times(),
        }

    def batch(self, *rows: Sequence[Any]) -> pa.RecordBatch:
        """The rows of each input as one batch. Raises `ConfigError` for a row that does not fit."""
        batches = [batch_of(of_input, schema) for of_input, schema in zip(rows, self._schemas, strict=True)]
        if self._united is None:
            return batches[0]
        parts = [list(self._arrays(number, batches)) for number in range(len(batches))]
        arrays = [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._united.all)

    def _arrays(self, number: int, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Array]:
        """The united columns of the rows of one input."""
        mine = batches[number]
        for other, batch in enumerate(batches):
            yield from mine.columns if other == number else (pa.nulls(len(mine), kind) for kind in batch.schema.types)
        yield pa.array([number] * len(mine), pa.int8())
        for name in (*self._names[number].keys, *self._names[number].order_by):
            if name not in mine.schema.names:
                raise ConfigError(f"input {number + 1} has no column {name!r}; there are {mine.schema.names}")
            yield mine.column(name)

    def _event_times(self) -> tuple[EventTime, ...]:
        found = []
        for number, one in enumerate(self._inputs):
            if one.event_time is None:
                return ()
            names = {} if self._united is None else self._united.columns[number]
            found.append(EventTime(names.get(one.event_time, one.event_time), one.delay // _MILLISECOND))
        return tuple(found)


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
