"""The temperature alert, in three forms: qstate's functions over rows and over batches, and a processor of Spark's
transformWithState.

Rules of this module: user code, as its users would write it. Each reading is compared with the one before it of
the same sensor; one that is more than `FACTOR` times as high is an alert (about one reading in eighty).

Spark's processor gets all rows of a key at once, so it reads the state once per key and batch and writes it once:
the fastest way to write it. qstate's function over rows does both for every row, that over batches once per key and
batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from qstate.descriptors import ValueStateDescriptor
from qstate.operators.functions import KeyedBatchFunction, KeyedProcessFunction

__all__ = ["ALERTS_DDL", "STATE", "AlertFunction", "AlertProcessor", "BatchAlertFunction"]

ALERTS_DDL = "sensor string, before double, now double"
FACTOR = 2.5
#: The queryable name.
STATE = "lastTemperature"


class AlertFunction(KeyedProcessFunction):
    """The alert in qstate."""

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("lastTemp", float).queryable(STATE))

    def process_element(self, row: Any, context: Any) -> Any:
        before = self.last.value()
        now = row.temperature
        self.last.update(now)
        if before is not None and now > before * FACTOR:
            return [(row.sensor, before, now)]
        return None


class BatchAlertFunction(KeyedBatchFunction):
    """The alert in qstate, for whole Arrow batches."""

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("lastTemp", float).queryable(STATE))

    def process_batch(self, batch: Any, context: Any) -> Any:
        by_key = batch.by_key()
        now = by_key.rows.column("temperature").to_numpy()
        before = np.roll(now, 1)
        before[by_key.first_rows] = np.array(self.last.get_many(by_key.keys), float)  # None becomes NaN
        self.last.put_many(by_key.keys, now[by_key.last_rows])
        alerts = np.flatnonzero(now > before * FACTOR)
        sensors = by_key.rows.column("sensor").take(pa.array(alerts))
        columns = [sensors, pa.array(before[alerts]), pa.array(now[alerts])]
        return [pa.RecordBatch.from_arrays(columns, ["sensor", "before", "now"])]


class AlertProcessor(StatefulProcessor):
    """The alert in Spark's own arbitrary stateful operator."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.last = handle.getValueState("lastTemp", "temperature double")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
        held = self.last.get()
        before = None if held is None else held[0]
        for row in rows:
            now = row.temperature
            if before is not None and now > before * FACTOR:
                yield Row(sensor=key[0], before=before, now=now)
            before = now
        self.last.update((before,))

    def close(self) -> None:
        """Nothing to release."""
