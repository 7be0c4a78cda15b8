"""Listens to Spark's events about committed micro-batches, and reports them as final epochs.

Rules of this module: an epoch that Spark reports is final; these events prove nothing else. They may come late or not
at all; the start of the next epoch proves the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["EpochListener"]


class EpochListener(StreamingQueryListener):
    """Calls `finalize(query id, epoch)` for each micro-batch that Spark has committed."""

    def __init__(self, finalize: Callable[[str, int], None]) -> None:
        self._finalize = finalize
        #: The runs of queries that have not been reported as ended; with the condition's lock held.
        self._runs: set[str] = set()
        self._ended = threading.Condition()

    def onQueryStarted(self, event: Any) -> None:
        """Spark calls this before `start` of the query returns."""
        with self._ended:
            self._runs.add(str(event.runId))

    def onQueryProgress(self, event: Any) -> None:
        self.committed(event.progress)

    def committed(self, progress: Any) -> None:
        """A micro-batch with this progress is committed."""
        self._finalize(str(progress.id), int(progress.batchId))

    def onQueryIdle(self, event: Any) -> None:
        """No epoch ran."""

    def onQueryTerminated(self, event: Any) -> None:
        """The last event of a run: all its micro-batches have been reported."""
        with self._ended:
            self._runs.discard(str(event.runId))
            self._ended.notify_all()

    def await_ended(self, running: Collection[str], timeout_s: float) -> bool:
        """Wait until all runs of queries but the `running` ones have been reported as ended; False if some are not."""
        with self._ended:
            return self._ended.wait_for(lambda: self._runs.issubset(running), timeout_s)
