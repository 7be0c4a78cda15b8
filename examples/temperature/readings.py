"""What the programs share: a Spark session, a stream of generated readings, and a query that prints its result."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import mkdtemp

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
SENSORS = ("attic", "cellar", "kitchen")
FILES, SECONDS_IN_A_FILE = 3, 20
#: (sensor, second) -> how much hotter that reading is than those around it
SPIKES = {("kitchen", 7): 15.0, ("attic", 31): 20.0, ("kitchen", 45): 30.0}


@contextmanager
def session() -> Iterator[SparkSession]:
    """A Spark session: `local[2]`, unless the variable SPARK_MASTER names another master. A running one is taken."""
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = SparkSession.builder.master(os.environ.get("SPARK_MASTER", "local[2]")).appName("temperature")
    spark = builder.config("spark.sql.session.timeZone", "UTC").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def backend() -> str:
    """The state backend: `heap`, unless the variable QSTATE_EXAMPLE_BACKEND names another one."""
    return os.environ.get("QSTATE_EXAMPLE_BACKEND", "heap")


def work_directory() -> Path:
    """A new directory for a program's state and progress."""
    return Path(mkdtemp(prefix="qstate-example-"))


def temperature(sensor: str, second: int) -> float:
    """Slowly rising, with spikes."""
    return 20.0 + 5.0 * SENSORS.index(sensor) + second / 10 + SPIKES.get((sensor, second), 0.0)


def readings(spark: SparkSession, work: Path) -> DataFrame:
    """A stream of (sensor, time, temperature): each sensor once a second for a minute, in three micro-batches."""
    tables = []
    for number in range(FILES):
        seconds = range(number * SECONDS_IN_A_FILE, (number + 1) * SECONDS_IN_A_FILE)
        rows = [(sensor, second) for second in seconds for sensor in SENSORS]
        table = pa.table(
            {
                "sensor": [sensor for sensor, _ in rows],
                "time": pa.array([START + timedelta(seconds=second) for _, second in rows], pa.timestamp("us", "UTC")),
                "temperature": [temperature(sensor, second) for sensor, second in rows],
            }
        )
        tables.append(table)
    return stream_of(spark, work / "readings", tables, "sensor string, time timestamp, temperature double")


def stream_of(spark: SparkSession, directory: Path, tables: Sequence[pa.Table], schema: str) -> DataFrame:
    """A stream of the rows of some tables, one table in each micro-batch."""
    directory.mkdir()
    for number, table in enumerate(tables):
        file = directory / f"{number}.parquet"
        pq.write_table(table, file)
        os.utime(file, (number, number))  # Spark takes files in the order of their times
    return spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(directory))


def print_all(result: DataFrame, checkpoint: Path) -> None:
    """Run the result as a query over all its input, and print its rows, those of a micro-batch in order."""

    def show(batch: DataFrame, epoch: int) -> None:
        for row in sorted(tuple(row) for row in batch.collect()):
            print(*(_shown(value) for value in row))

    query = (
        result.writeStream.foreachBatch(show)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _shown(value: object) -> str:
    return f"{value:%H:%M:%S}" if isinstance(value, datetime) else str(value)
