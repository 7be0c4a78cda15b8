"""P20: state as a DataFrame, against Spark's own source `statestore` with the same state.

Rules of this module: `scan_keys` sums. Spark holds them in a stateful operator of its own, on two partitions; here,
two task managers without Spark hold them, so the pipeline costs nothing meanwhile. Every contender is one aggregate
over all keys and values, which reads both, on two cores. The checkpoint of Spark's query is read without its job, as
the stored state is here; Spark's source has no live state.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from benchmarks.bench import Bench
from benchmarks.inputs import sensor_name
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import interleaved, rate, say
from benchmarks.served_job import JOB, STATE, ServedJob

__all__ = ["run"]

SCHEMA = "key string, value bigint"


def run(bench: Bench) -> Findings:
    """P20."""
    keys, rounds = bench.sizes.scan_keys, bench.sizes.scan_rounds
    directory = bench.directory("dataframes")
    values = {sensor_name(number): number for number in range(keys)}
    theirs = _state_of_spark(bench, values, directory)
    ours = str(directory / "ours")
    with ServedJob(pa.int64(), declared=int, parallelism=2, checkpoint_dir=ours) as job:
        job.hold(values)
        job.finalize()
        frames = _frames(bench.spark, "{}:{}".format(*job.proxy), ours)
        frames["statestore"] = theirs
        contenders = {name: rate(partial(_read, frame), keys) for name, frame in frames.items()}
        samples = interleaved(contenders, rounds=rounds)
    stored, statestore = samples.pop("stored"), samples.pop("statestore")
    detail = f"{keys:,} keys"
    say(f"  {detail}: {max(stored):,.0f} rows/s stored, statestore {max(statestore):,.0f}")
    return Findings(
        [Comparison("P20", "rows/s", stored, statestore, "Spark's statestore source", detail)],
        [Figure(f"P20, {name}", "rows/s", rates) for name, rates in samples.items()],
    )


def _state_of_spark(bench: Bench, values: dict[str, int], directory: Path) -> DataFrame:
    """The same sums in Spark's state store, as its own source reads them."""
    rows, checkpoint = directory / "rows", str(directory / "theirs")
    rows.mkdir(parents=True)
    pq.write_table(pa.table({"key": list(values), "value": list(values.values())}), rows / "rows.parquet")
    sums = bench.spark.readStream.schema(SCHEMA).parquet(str(rows)).groupBy("key").sum("value")
    written = sums.writeStream.format("noop").outputMode("update").option("checkpointLocation", checkpoint)
    written.trigger(availableNow=True).start().awaitTermination()
    found = bench.spark.read.format("statestore").load(checkpoint)
    return found.selectExpr("key.key AS key", "value.sum AS value")


def _frames(spark: Any, address: str, directory: str) -> dict[str, DataFrame]:
    frames = {"stored": spark.read.format("qstate").option("state", STATE).option("epoch", 0).load(directory)}
    for isolation in ("committed", "live"):
        source = spark.read.format("qstate").option("address", address).option("job", JOB).option("state", STATE)
        frames[isolation] = source.option("isolation", isolation).load()
    return frames


def _read(frame: DataFrame) -> int:
    """How many rows there are, with each key and value looked at."""
    found = frame.selectExpr("count(value)", "sum(value)", "sum(length(key))").first()
    return int(found[0]) if found else 0
