"""Streaming queries that are fed one micro-batch at a time and timed by Spark itself.

Rules of this module: it knows Spark sessions, queries and their progress reports, not what a query computes. A
query is started once and stays up, so that contenders can take turns while all of them are warm.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.inputs import READINGS_DDL, ReadingFiles

__all__ = ["BatchTime", "FedQuery", "start_spark"]

REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class BatchTime:
    """The times of one micro-batch in Spark's progress report.

    `trigger_s` is all of it, planning and logs included; `add_batch_s` the execution alone.
    """

    rows: int
    trigger_s: float
    add_batch_s: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.trigger_s


def start_spark() -> SparkSession:
    """A session on local[2] with the RocksDB state store, quiet and on loopback."""
    # Spark's workers run this interpreter and find this package, whatever directory they are in.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    session = (
        SparkSession.builder.master("local[2]")
        .appName("qstate-benchmarks")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # Without a limit Spark 4.3 does not compute the size of an Arrow batch after each of its rows, which costs
        # everybody who gets rows by Arrow a quarter of the time; the limit on rows stays.
        .config("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        # idle queries look for new files less often than every 10 ms: they are not to cost the one that runs
        .config("spark.sql.streaming.pollingDelay", "100ms")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


class FedQuery:
    """A running query over a directory of its own; `feed` gives it the next file and waits for the batch.

    `start` turns the stream of readings into a started query, given the checkpoint location.
    """

    def __init__(
        self,
        session: SparkSession,
        files: ReadingFiles,
        directory: Path,
        start: Callable[[DataFrame, Path], StreamingQuery],
    ) -> None:
        self._files = files
        self._input = directory / "input"
        self._input.mkdir(parents=True)
        stream = session.readStream.schema(READINGS_DDL).option("maxFilesPerTrigger", 1).parquet(str(self._input))
        self._fed = 0
        self._query = start(stream, directory / "checkpoint")

    def feed(self, batches: int = 1) -> list[BatchTime]:
        """Feed the next files, one micro-batch each, and wait. Raises the query's error."""
        first = self._fed
        for _ in range(batches):
            self.offer(self._files.file(self._fed))
        self.finish()
        return [self._time(report) for report in self._reports(first)]

    def offer(self, file: Path) -> None:
        """Feed this file as one micro-batch and do not wait."""
        # A link, so that no contender's file is warmer than another's; linking is atomic.
        (self._input / f"{self._fed:06d}.parquet").hardlink_to(file)
        self._fed += 1

    def finish(self) -> None:
        """Wait for all that was fed. Raises what the query failed with."""
        self._query.processAllAvailable()

    @property
    def fed(self) -> int:
        """How many files were fed."""
        return self._fed

    @property
    def waiting(self) -> int:
        """How many of the files fed are in no finished micro-batch."""
        progress = self._query.lastProgress
        return self._fed - (progress["batchId"] + 1 if progress else 0)

    def write_ahead(self, batches: int) -> None:
        """Write the next files now, so that no measurement waits for them later."""
        for number in range(self._fed, self._fed + batches):
            self._files.file(number)

    def rows_per_s(self) -> float:
        """One micro-batch, as rows per second of its whole duration."""
        (time,) = self.feed()
        return time.rows_per_s

    def last_progress(self) -> Any:
        """Spark's latest report of this query, as a dictionary."""
        return self._query.lastProgress

    def stop(self) -> None:
        self._query.stop()

    def _reports(self, first: int) -> list[Any]:
        found = {report["batchId"]: report for report in self._query.recentProgress if report["numInputRows"]}
        return [found[number] for number in range(first, self._fed)]

    def _time(self, report: Any) -> BatchTime:
        if report["numInputRows"] != self._files.rows:
            raise RuntimeError(f"a micro-batch had {report['numInputRows']} rows, expected {self._files.rows}")
        durations = report["durationMs"]
        return BatchTime(report["numInputRows"], durations["triggerExecution"] / 1e3, durations["addBatch"] / 1e3)
