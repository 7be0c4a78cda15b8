"""The functions of the queryable state sink: a stream's latest or reduced value per key.

Rules of this module: batches in, writes to state, no rows out. They are functions as users write them: they know state
handles and Arrow columns, and no tables. It must not know how the state is queried.

The value of a row comes from the value columns: the bare value of one column, a dict by column name for several, or a
record when the descriptor's value type is a dataclass with those fields.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from qstate.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.operators.columns.column_values import column_values
from qstate.operators.context import RuntimeContext
from qstate.operators.functions import KeyedBatchFunction
from qstate.operators.handles import ElementContext
from qstate.operators.keyed_batch import KeyedBatch
from qstate.serializers import DeclaredSerializer
from qstate.values.value_types import RecordType, value_type_of

__all__ = ["QueryableReducingSink", "QueryableStateSink", "QueryableValueSink"]


class QueryableStateSink(KeyedBatchFunction):
    """Puts the values of each batch into one queryable state, under the rows' keys and namespaces."""

    def __init__(self, descriptor: StateDescriptor, value_columns: Sequence[str]) -> None:
        if descriptor.queryable_name is None:
            raise JobError(f"state {descriptor.name!r} of a queryable sink needs a queryable name")
        if not value_columns:
            raise JobError(f"queryable state {descriptor.queryable_name!r}: no column is left to be the value")
        declared = value_type_of(descriptor.value_type)
        #: The class of the values if the columns are its fields.
        self._record: Any = None
        if isinstance(declared, RecordType):
            _check_record(descriptor.name, declared, value_columns)
            self._record = declared.python_class
        self._descriptor = descriptor
        self._value_columns = tuple(value_columns)

    def process_batch(self, batch: KeyedBatch, context: ElementContext) -> Iterable[pa.RecordBatch] | None:
        self._store(batch, self._values(batch.rows))
        return None

    @property
    def display_name(self) -> str:
        return f"{type(self).__name__}({self._descriptor.queryable_name})"

    @abstractmethod
    def _store(self, batch: KeyedBatch, values: Sequence[Any]) -> None:
        """Write the values of a batch, in their order."""

    def _values(self, rows: pa.RecordBatch) -> Sequence[Any]:
        columns = [column_values(rows.column(name)) for name in self._value_columns]
        found: list[Any] = columns[0]
        if len(columns) > 1 or self._record is not None:
            # dict(zip(names, row)) for each row, without Python code per row.
            found = list(map(dict, map(zip, repeat(self._value_columns), zip(*columns, strict=True))))
        serializer = self._descriptor.serializer
        if isinstance(serializer, DeclaredSerializer):
            return [None if value is None else serializer.revived(value) for value in found]
        return [self._record(**value) for value in found] if self._record is not None else found


class QueryableValueSink(QueryableStateSink):
    """Stores the latest value of each key; a null clears it, like `ValueState.update(None)`."""

    _descriptor: ValueStateDescriptor

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_state(self._descriptor)

    def _store(self, batch: KeyedBatch, values: Sequence[Any]) -> None:
        self._state.put_many(batch.keys, values, batch.namespaces)


class QueryableReducingSink(QueryableStateSink):
    """Combines the values of each key with the descriptor's reduce function, in the order of the rows."""

    _descriptor: ReducingStateDescriptor

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_reducing_state(self._descriptor)

    def _store(self, batch: KeyedBatch, values: Sequence[Any]) -> None:
        if None in values:
            raise JobError(
                f"column {self._value_columns[0]!r} is null for key {batch.keys[values.index(None)]!r}; a reducing "
                "state cannot add a null: filter or fill the column before the sink"
            )
        self._state.add_many(batch.keys, values, batch.namespaces)


def _check_record(state: str, record: RecordType, value_columns: Sequence[str]) -> None:
    names = {field.name for field in record.fields}
    required = [field.name for field in record.fields if not field.default]
    unknown = [name for name in value_columns if name not in names]
    missing = [name for name in required if name not in value_columns]
    if unknown or missing:
        raise JobError(
            f"state {state!r}: the value columns {', '.join(value_columns)} do not fill {record.name}; "
            f"columns without a field: {unknown}, fields without a column: {missing}"
        )
