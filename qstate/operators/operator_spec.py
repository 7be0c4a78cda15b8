"""The definition of an operator, as the driver makes it and every subtask gets it.

Rules of this module: it checks that function and columns fit together, before anything runs. It knows Arrow's types and
the function's class; it processes no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from qstate.descriptors import MapStateDescriptor
from qstate.errors import JobError
from qstate.keys import MAX_KEY_COLUMNS, ColumnType
from qstate.operators.broadcast import check_broadcast_states
from qstate.operators.checkpointed import check_hooks
from qstate.operators.columns.inputs import InputRows
from qstate.operators.columns.key_columns import key_column_type, why_no_key
from qstate.operators.functions import KeyedBatchFunction, RowFunction, StreamFunction
from qstate.operators.side_outputs import check_names, united_schema
from qstate.operators.time.epoch_time import EventTime

__all__ = ["OperatorSpec", "sort_keys"]


@dataclass(frozen=True, kw_only=True)
class OperatorSpec:
    """The definition of an operator: its uid, its function and its columns.

    `inputs` are the names of the columns that the rows of each input have for a process function, in their order. In
    `input_schema` these columns come first, then hidden ones: keys and orders that are not columns of the rows
    (`qstate.operators.columns.inputs`). Without `inputs`, there is one, and its rows have all columns. `event_times`
    says where the event time of each input is; without it the rows have none. `side_outputs` has the schemas of the
    side outputs by their names. `broadcast_states` are those that broadcast rows write. A function of a stream without
    a key has no `key_columns`.

    Raises `JobError`, which names the operator and the column, for a spec that cannot work. The function is not copied,
    so every subtask unpickles a spec of its own.
    """

    uid: str
    job: str
    function: StreamFunction
    key_columns: tuple[str, ...]
    input_schema: pa.Schema
    output_schema: pa.Schema
    order_by: tuple[str, ...] = ()
    namespace_columns: tuple[str, ...] = ()
    inputs: tuple[tuple[str, ...], ...] = ()
    event_times: tuple[EventTime, ...] = ()
    side_outputs: Mapping[str, pa.Schema] = field(default_factory=dict)
    broadcast_states: tuple[MapStateDescriptor, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.function, (RowFunction, KeyedBatchFunction)):
            raise JobError(
                f"operator {self.uid!r}: the function must be one of the function classes of qstate.spark, such as "
                f"KeyedProcessFunction, got {self.function!r}"
            )
        check_hooks(self.uid, self.function)
        self._check_function()
        for what in ("key_columns", "order_by", "namespace_columns"):
            self._check_columns(what, getattr(self, what))
        if self.namespace_columns and not isinstance(self.function, KeyedBatchFunction):
            raise JobError(
                f"operator {self.uid!r}: namespace columns are for queryable sinks and batch functions; a process "
                "function chooses the namespace itself, with in_namespace()"
            )
        InputRows(self.row_names)
        self._check_inputs()
        _ = self.key_types, self.namespace_types
        self._check_sortable()
        for event_time in self.event_times:
            self._check_columns("event_time", [event_time.column])
        check_names(self.side_outputs, f"operator {self.uid!r}")
        if self.side_outputs and not isinstance(self.function, RowFunction):
            raise JobError(f"operator {self.uid!r}: side outputs are for functions that process one row at a time")

    @property
    def result_schema(self) -> pa.Schema:
        """The schema of the operator's results: the output schema, or one struct for each output if there are several.

        `qstate.operators.side_outputs` describes the latter.
        """
        return united_schema(self.output_schema, self.side_outputs) if self.side_outputs else self.output_schema

    @property
    def keeps_time(self) -> bool:
        """Whether the operator stores with each epoch how far its time has come."""
        return self.uses_timers or bool(self.event_times)

    @property
    def uses_timers(self) -> bool:
        """Whether the function has timers."""
        return self.function.uses_timers

    @property
    def has_broadcast(self) -> bool:
        """Whether the first input is broadcast."""
        return isinstance(self.function, RowFunction) and self.function.has_broadcast

    @property
    def row_names(self) -> tuple[tuple[str, ...], ...]:
        """The columns that a function sees, of each input."""
        return self.inputs or (tuple(self.input_schema.names),)

    @property
    def key_types(self) -> tuple[ColumnType, ...]:
        """The types of the key columns, which the keys of queries must have."""
        return tuple(self._column_type("key", name) for name in self.key_columns)

    @property
    def namespace_types(self) -> tuple[ColumnType, ...]:
        """The types of the namespace columns."""
        return tuple(self._column_type("namespace", name) for name in self.namespace_columns)

    def _check_function(self) -> None:
        if self.function.keyed and not self.key_columns:
            raise JobError(f"operator {self.uid!r}: a keyed stream needs at least one key column")
        if not self.function.keyed and self.key_columns:
            raise JobError(f"operator {self.uid!r}: {self.function.display_name} is for a stream without a key")
        if not self.function.keyed and self.uses_timers:
            raise JobError(
                f"operator {self.uid!r}: timers belong to keys, and the stream of {self.function.display_name} has "
                "none: leave on_timer() out, or use key_by()"
            )
        wrong = "on_timers" if isinstance(self.function, RowFunction) else "on_timer"
        if hasattr(self.function, wrong):
            raise JobError(
                f"operator {self.uid!r}: {wrong}() of {self.function.display_name} would never be called: functions of "
                "rows define on_timer(), functions of whole batches on_timers()"
            )
        if self.broadcast_states and not self.has_broadcast:
            raise JobError(f"operator {self.uid!r}: {self.function.display_name} has no broadcast rows")
        check_broadcast_states(f"operator {self.uid!r}", self.broadcast_states)

    def _check_inputs(self) -> None:
        expected = len(self.function.elements) if isinstance(self.function, RowFunction) else 1
        if len(self.row_names) != expected:
            raise JobError(
                f"operator {self.uid!r}: {self.function.display_name} is for {expected} input(s), and the operator has "
                f"{len(self.row_names)}; two streams need connect() and a function for both"
            )

    def _check_columns(self, what: str, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.input_schema.names:
                raise JobError(
                    f"operator {self.uid!r}: {what} names {name!r}, which the input does not have; "
                    f"its columns are {', '.join(self.input_schema.names)}"
                )
        if len(set(names)) != len(names):
            raise JobError(f"operator {self.uid!r}: {what} names a column twice: {', '.join(names)}")
        if what != "order_by" and len(names) > MAX_KEY_COLUMNS:
            raise JobError(
                f"operator {self.uid!r}: {what} names {len(names)} columns, at most {MAX_KEY_COLUMNS} can be"
            )

    def _check_sortable(self) -> None:
        for name in self.order_by:
            try:
                pc.sort_indices(self.input_schema.empty_table(), sort_keys=sort_keys([name]))
            except (pa.ArrowException, TypeError) as exc:
                raise JobError(
                    f"operator {self.uid!r}: order_by column {name!r} is {self.input_schema.field(name).type}, "
                    "which has no order; use a timestamp, number or text"
                ) from exc

    def _column_type(self, role: str, name: str) -> ColumnType:
        kind = self.input_schema.field(name).type
        found = key_column_type(kind)
        if found is None:
            raise JobError(f"operator {self.uid!r}: {role} column {name!r} {why_no_key(kind)}")
        return found


def sort_keys(names: Sequence[str]) -> list[tuple[Any, str]]:
    """Ascending by these columns. A plain name that begins with a dot would be read as a path."""
    return [(pc.field(name), "ascending") for name in names]
