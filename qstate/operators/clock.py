"""The clock of one operator subtask: the time of the running epoch, and the event time of its rows.

Rules of this module: it reads the event-time column of batches and keeps what the subtask has reached in a list of the
operator state. So that is sealed, rolled back and restored with the epoch, and each subtask of another parallelism gets
it from all subtasks (`Distribution.UNION`). The job manager decides the time of an epoch (`epoch_time` has the rule).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from qstate.checkpoint.log.operator_state import TIME_LIST, Distribution
from qstate.descriptors import ListStateDescriptor
from qstate.operators.epoch_time import EpochTime, EventTime, Reached
from qstate.operators.handles import ElementContext
from qstate.operators.operator_lists import OperatorLists, OperatorListState

__all__ = ["OperatorClock"]

_MICROSECONDS = 1000


class OperatorClock:
    """Sets the times of the element context. `kept`: what the subtask has reached is stored with each epoch."""

    def __init__(self, event_time: EventTime | None, cursor: ElementContext) -> None:
        self._column = None if event_time is None else event_time.column
        self._cursor = cursor
        self._list: OperatorListState | None = None
        self._epoch = -1
        self._greatest: int | None = None

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
        self._epoch, self._greatest = epoch, None if reached is None else reached.greatest
        self._cursor.watermark, self._cursor.processing_time = time

    def observe(self, batch: pa.RecordBatch) -> None:
        """Take note of the event times of input rows."""
        if self._column is None:
            return
        greatest = pc.max(batch.column(self._column))
        if greatest.is_valid:
            found = greatest.value // _MICROSECONDS
            self._greatest = found if self._greatest is None else max(self._greatest, found)

    def timestamps(self, batch: pa.RecordBatch) -> Iterator[int | None]:
        """The event time of each row, None where the column is null or there is none."""
        return repeat(None, batch.num_rows) if self._column is None else iter(_milliseconds(batch.column(self._column)))

    def end(self) -> None:
        """The epoch has no more rows: store what is reached."""
        if self._list is None:
            return
        reached = self.reached
        before = None if reached is None else reached.watermark
        cursor = self._cursor
        self._list.update([[self._epoch, before, cursor.watermark, cursor.processing_time, self._greatest]])


def _milliseconds(times: pa.Array) -> list[Any]:
    """Timestamps in microseconds as milliseconds, rounded down, as Spark does."""
    micros = pc.fill_null(times.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    found: list[Any] = (micros // _MICROSECONDS).tolist()
    if times.null_count:
        return [None if missing else time for time, missing in zip(found, times.is_null().to_pylist(), strict=True)]
    return found
