"""Streams for the Spark tests: sessions, files that replay as micro-batches, and running a query to its end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

REPOSITORY = Path(__file__).parents[2]
LOCAL, LOCAL_WITH_RETRIES, LOCAL_CLUSTER = "local[2]", "local[2,4]", "local-cluster[2,1,1024]"


def start_spark(master: str) -> SparkSession:
    """A session on this master, small and quiet. A session on another master is stopped first."""
    session = _session(master)
    if session.sparkContext.master != master:  # an earlier test's, which need not be the active one of this thread
        session.stop()
        session = _session(master)
    session.sparkContext.setLogLevel("ERROR")
    return session


def _session(master: str) -> SparkSession:
    """A new session, or the one that there is."""
    return (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.default.parallelism", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        # the executors of local-cluster have directories of their own, and the tests' functions are not installed
        .config("spark.executorEnv.PYTHONPATH", str(REPOSITORY))
        .config("spark.sql.streaming.noDataMicroBatches.enabled", "false")
        .getOrCreate()
    )


class FileStream:
    """A stream that replays the given tables, one micro-batch each, in order."""

    def __init__(self, session: SparkSession, directory: Path) -> None:
        self._session = session
        self.directory = directory
        self._written = 0
        directory.mkdir()

    def add(self, rows: pa.Table) -> None:
        """One more micro-batch."""
        hidden = self.directory / f".{self._written:04}.tmp"
        pq.write_table(rows, hidden)
        target = self.directory / f"{self._written:04}.parquet"
        hidden.rename(target)
        self._written += 1
        # the file source orders by modification time, whose resolution may be coarse
        stamp = 1_700_000_000 + self._written
        os.utime(target, (stamp, stamp))
        self._schema = rows.schema

    def read(self, files_per_trigger: int = 1) -> DataFrame:
        return (
            self._session.readStream.schema(from_arrow_schema(self._schema))
            .option("maxFilesPerTrigger", files_per_trigger)
            .parquet(str(self.directory))
        )


def run_to_end(result: DataFrame, checkpoint: Path) -> list[Any]:
    """Run a streaming result over all its input. Returns every row that it emitted, batch by batch."""
    emitted: list[Any] = []
    query = (
        result.writeStream.foreachBatch(lambda batch, _: emitted.extend(batch.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return emitted


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition that another process fulfils; fail with its description."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        pause.wait(0.02)
