"""The clock of one operator subtask: the time of the running epoch, and the event time of its rows.

Rules of this module: it reads the event-time column of batches and keeps what the subtask has reached in a list of the
operator state. So that is sealed, rolled back and restored with the epoch, and each subtask of another parallelism gets
it from all subtasks (`Distribution.UNION`). The job manager decides the time of an epoch (`epoch_time` has the rule).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat

import pyarrow as pa
import pyarrow.compute as pc

from qstate.checkpoint.log.operator_state import TIME_LIST, Distribution
from qstate.descriptors import ListStateDescriptor
from qstate.operators.columns.column_values import timestamp_milliseconds
from qstate.operators.handles import ElementContext
from qstate.operators.operator_lists import OperatorLists, OperatorListState
from qstate.operators.time.epoch_time import EpochTime, EventTime, Reached

__all__ = ["OperatorClock"]

_MICROSECONDS = 1000


class OperatorClock:
    """Sets the times of the element context. `kept`: what the subtask has reached is stored with each epoch."""

    def __init__(self, event_times: Sequence[EventTime], cursor: ElementContext) -> None:
        self._columns = [event_time.column for event_time in event_times]
        self._cursor = cursor
        self._list: OperatorListState | None = None
        self._epoch = -1
        self._greatest: list[int | None] = [None] * len(self._columns)

    def keep_in(self, lists: OperatorLists) -> None:
        """Store what is reached with each epoch, from now on."""
        self._list = lists.declare(ListStateDescriptor(TIME_LIST), Distribution.UNION)

    @property
    def reached(self) -> Reached | None:
        """What the subtask has reached as of the epoch sealed last; None if that is not stored."""
        return None if self._list is None else Reached.of_all(Reached(*one) for one in self._list.get())

    def begin(self, epoch: int, time: EpochTime) -> None:
        """Begin an epoch."""
        reached = self.reached
        inputs = range(len(self._columns))
        self._epoch = epoch
        self._greatest = [None if reached is None else reached.greatest_of(number) for number in inputs]
        self._cursor.watermark, self._cursor.processing_time = time

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take note of the event times of input rows."""
        for number, column in enumerate(self._columns):
            greatest = pc.max(batch.column(column))
            if greatest.is_valid:
                found, before = greatest.value // _MICROSECONDS, self._greatest[number]
                self._greatest[number] = found if before is None else max(before, found)

    def timestamps(self, batch: pa.RecordBatch) -> Iterator[int | None]:
        """The event time of each row, None where the column is null or there is none."""
        if not self._columns:
            return repeat(None, batch.num_rows)
        return iter(timestamp_milliseconds(pc.coalesce(*map(batch.column, self._columns))))

    def end(self) -> None:
        """The epoch has no more rows: store what is reached."""
        if self._list is None:
            return
        reached = self.reached
        before = None if reached is None else reached.watermark
        cursor = self._cursor
        self._list.update([[self._epoch, before, cursor.watermark, cursor.processing_time, list(self._greatest)]])
