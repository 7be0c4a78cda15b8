"""The temperature alert, twice: as a qstate function and as a processor of Spark's transformWithState.

Rules of this module: user code, as its users would write it. Each reading is compared with the one before it of
the same sensor; one that is more than `FACTOR` times as high is an alert (about one reading in eighty).

Spark's processor gets all rows of a key at once, so it reads the state once per key and batch and writes it once:
the fastest way to write it. qstate's function does both for every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from qstate.descriptors import ValueStateDescriptor
from qstate.operators.functions import KeyedProcessFunction

__all__ = ["ALERTS_DDL", "STATE", "AlertFunction", "AlertProcessor"]

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
