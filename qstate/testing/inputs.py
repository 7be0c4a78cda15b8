"""The inputs of a harness: the columns that a test declares, and batches of its rows.

Rules of this module: it says of an operator what a query's plan would say, by the same rules (`operators.inputs`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from qstate.descriptors import MapStateDescriptor
from qstate.errors import ConfigError
from qstate.operators.columns.inputs import BROADCAST, TARGET_COLUMN, BroadcastNames, InputNames, UnitedNames
from qstate.operators.time.epoch_time import EventTime
from qstate.testing.rows import Columns, batch_of, schema_of

__all__ = ["Broadcast", "HarnessInputs", "Input"]

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, kw_only=True)
class Input:
    """An input of a function: the types of its columns by name, its keys, and its event time if it has one."""

    columns: Columns
    key_by: str | Sequence[str] = ()
    event_time: str | None = None
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, kw_only=True)
class Broadcast:
    """Broadcast rows: the types of their columns by name, and the broadcast states that the function may write.

    `event_time` and `delay` are those of `Input`.
    """

    columns: Columns
    states: Sequence[MapStateDescriptor] = ()
    event_time: str | None = None
    delay: timedelta = timedelta(0)


class HarnessInputs:
    """One input, or two connected ones. `order_by` are columns that each of them has; of a broadcast one, the other."""

    def __init__(self, inputs: Sequence[Input | Broadcast], order_by: str | Sequence[str] = ()) -> None:
        self._inputs = inputs
        self._schemas = [schema_of("input", one.columns) for one in inputs]
        self._names = [
            InputNames(tuple(schema.names), _names(one.key_by), _names(order_by))
            if isinstance(one, Input)
            else InputNames(tuple(schema.names), (), target=TARGET_COLUMN)
            for schema, one in zip(self._schemas, inputs, strict=True)
        ]
        self.has_broadcast = isinstance(inputs[BROADCAST], Broadcast)
        united = BroadcastNames if self.has_broadcast else UnitedNames
        self._united = united(self._names) if len(inputs) > 1 else None

    def spec_fields(self) -> dict[str, Any]:
        """The fields of an `OperatorSpec` that are about its inputs."""
        first, united = self._names[0], self._united
        return {
            "key_columns": first.keys if united is None else united.keys,
            "order_by": first.order_by if united is None else united.order_by,
            "input_schema": self.batch(*([] for _ in self._inputs)).schema,
            "inputs": tuple(one.columns for one in self._names),
            "event_times": self._event_times(),
            "broadcast_states": tuple(
                state for one in self._inputs if isinstance(one, Broadcast) for state in one.states
            ),
        }

    def batch(self, *rows: Sequence[Any], subtask: int = 0) -> pa.RecordBatch:
        """The rows of each input as one batch, with the broadcast rows for one subtask.

        Raises `ConfigError` for a row that does not fit.
        """
        batches = [batch_of(of_input, schema) for of_input, schema in zip(rows, self._schemas, strict=True)]
        if self.has_broadcast:
            target = pa.array([subtask] * len(batches[BROADCAST]), pa.int32())
            batches[BROADCAST] = batches[BROADCAST].append_column(TARGET_COLUMN, target)
        if self._united is None:
            return batches[0]
        parts = [list(self._arrays(number, batches)) for number in range(len(batches))]
        arrays = [pa.concat_arrays(arrays) for arrays in zip(*parts, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=self._united.all)

    def _arrays(self, number: int, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.Array]:
        """The united columns of the rows of one input."""
        assert self._united is not None
        rows = len(batches[number])
        for source in self._united.sources(number):
            if source is None:
                yield pa.array([number] * rows, pa.int8())
                continue
            other, name = source
            if name not in batches[other].schema.names:
                raise ConfigError(f"input {other + 1} has no column {name!r}; there are {batches[other].schema.names}")
            column = batches[other].column(name)
            yield column if other == number else pa.nulls(rows, column.type)

    def _event_times(self) -> tuple[EventTime, ...]:
        found: list[EventTime] = []
        for number, one in sorted(enumerate(self._inputs), key=lambda pair: isinstance(pair[1], Broadcast)):
            if one.event_time is None:
                return tuple(found) if isinstance(one, Broadcast) else ()
            _check_event_time(one, self._schemas[number])
            names = {} if self._united is None else self._united.columns[number]
            found.append(EventTime(names.get(one.event_time, one.event_time), one.delay // _MILLISECOND))
        return tuple(found)


def _check_event_time(of_input: Input | Broadcast, schema: pa.Schema) -> None:
    """Raise `ConfigError` unless the event time is what `withWatermark` takes: a timestamp and a delay."""
    name = of_input.event_time
    if name not in schema.names:
        raise ConfigError(f"the event time {name!r} is not among the columns {', '.join(schema.names)}")
    kind = schema.field(name).type
    if not pa.types.is_timestamp(kind):
        raise ConfigError(f"the event time {name!r} is a column of type {kind}, not a timestamp")
    if not isinstance(of_input.delay, timedelta):
        raise ConfigError(f"the delay is a timedelta, got {of_input.delay!r}")


def _names(columns: str | Sequence[str]) -> tuple[str, ...]:
    return (columns,) if isinstance(columns, str) else tuple(columns)
