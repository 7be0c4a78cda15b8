"""Ticks: a streaming source that lets a query run an epoch when timers are due, also without input.

Rules of this module: it knows Spark's Python data sources and asks the job manager; it does not know timers. Spark runs
no micro-batch without new input. So the input of an operator with timers is united with this source. Its offset moves
only when the job manager says that timers are due, and each move has one row, the tick. The relay task drops it.

At each trigger Spark asks the source for its offset, in a Python process beside the driver. While nothing is due this
question is all that a waiting query costs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from qstate.runtime.control.rpc import RpcPeer, connect
from qstate.runtime.relay.relay import JobTicket

__all__ = ["ticks_of"]

#: The one field of an offset: the time of the newest tick in milliseconds, which only rises.
OFFSET = "ticked_ms"


def ticks_of(spark: SparkSession, ticket: JobTicket, uid: str, name: str) -> DataFrame:
    """The ticks of an operator, as a stream with one column. `name` is the name of the source; no other has it."""

    class Ticks(DataSource):
        """Pickled by value, with the ticket: an option of the source would show the job's secret in Spark's plans."""

        @classmethod
        def name(cls) -> str:
            return name

        def schema(self) -> str:
            return "tick bigint"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return TickReader(ticket, uid)

    spark.dataSource.register(Ticks)
    return spark.readStream.format(name).load()


class TickReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Asks the job manager whether timers of an operator are due.

    A query of what is available (`trigger(availableNow=True)`) ends: it fires the timers that its rows make due, and
    those whose processing time had come when it began.
    """

    def __init__(self, ticket: JobTicket, uid: str) -> None:
        self._ticket = ticket
        self._uid = uid
        self._job_manager: RpcPeer | None = None
        self._ticked_ms = 0
        self._available_ms: int | None = None

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_ms = int(time.time() * 1000)

    def initialOffset(self) -> dict[str, int]:
        return {OFFSET: 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:
        """The offset after a tick if timers are due, else the last one. Some releases call it without the start."""
        if start is not None:
            self._ticked_ms = max(self._ticked_ms, start[OFFSET])
        if self._timers_are_due():
            self._ticked_ms = max(self._ticked_ms + 1, int(time.time() * 1000))
        return {OFFSET: self._ticked_ms}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(end[OFFSET])] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        yield (partition.value,)

    def stop(self) -> None:
        if self._job_manager is not None:
            self._job_manager.close()

    def _timers_are_due(self) -> bool:
        if self._job_manager is None:
            self._job_manager = RpcPeer(connect(*self._ticket.job_manager, self._ticket.secret), {}).start()
        due: bool = self._job_manager.call("timers_are_due", self._uid, self._available_ms)
        return due
