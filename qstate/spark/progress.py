"""Listens to Spark's events about committed micro-batches, and reports them as final epochs.

Rules of this module: an epoch that Spark reports is final; these events prove nothing else. They may come late or not
at all; the start of the next epoch proves the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

__all__ = ["EpochListener"]

log = logging.getLogger(__name__)


class EpochListener(StreamingQueryListener):
    """Calls `finalize(query id, epoch)` for each micro-batch that Spark has committed."""

    def __init__(self, finalize: Callable[[str, int], None]) -> None:
        self._finalize = finalize

    def onQueryStarted(self, event: Any) -> None:
        """Nothing is final yet."""

    def onQueryProgress(self, event: Any) -> None:
        self._finalize(str(event.progress.id), int(event.progress.batchId))

    def onQueryIdle(self, event: Any) -> None:
        """No epoch ran."""

    def onQueryTerminated(self, event: Any) -> None:
        """What is final stays final."""

    def detach(self, spark: SparkSession) -> None:
        """Stop listening. Never raises, also when Spark is gone already."""
        try:
            spark.streams.removeListener(self)
        except Exception as exc:  # py4j raises many types once the JVM is gone
            log.debug("the listener could not be removed: %s", exc)
