"""Every row counts once: evaluated twice, retried, interrupted, or delivered in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from tests.either_backend import EITHER_BACKEND
from tests.spark.functions_under_test import KeepsOrder, Total, kill_this_process
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals
from tests.spark.streams import run_to_end

SCHEMA = "key string, total bigint"


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_a_batch_evaluated_twice_counts_once(
    backend: str, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=2, rows_a_batch=1000, keys=20)
    job = job_of(spark, backend=backend)
    result = job.key_by(stream_of(spark, *tables).read(), "key").process(Total(), SCHEMA, uid="total")
    evaluated: list[tuple[Any, Any]] = []
    query = (
        result.writeStream.foreachBatch(
            lambda batch, _: evaluated.append((sorted(batch.collect()), sorted(batch.collect())))
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [len(first) for first, _ in evaluated] == [1000, 1000]
    assert all(first == second for first, second in evaluated)
    assert_totals(client_of(job), "job", totals(tables))


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_a_task_manager_killed_in_the_middle_of_an_epoch_loses_and_doubles_nothing(
    backend: str, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    """On local[2], where Spark does not retry tasks: the relay repeats the epoch itself."""
    tables = amounts(batches=3, rows_a_batch=1000, keys=20)
    function = Total(kill_this_process, flag=tmp_path / "killed", at=1500)
    job = job_of(spark, backend=backend)
    result = job.key_by(stream_of(spark, *tables).read(), "key").process(function, SCHEMA, uid="total")
    emitted = run_to_end(result, tmp_path / "checkpoint")
    assert (tmp_path / "killed").exists()
    assert len(emitted) == 3000
    assert_totals(client_of(job), "job", totals(tables))


def test_a_sink_that_fails_and_a_query_that_is_restarted_count_once(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=3, rows_a_batch=500, keys=20)
    job = job_of(spark)
    result = job.key_by(stream_of(spark, *tables).read(), "key").process(Total(), SCHEMA, uid="total")
    broken = {"once": True}

    def sink(batch: Any, epoch: int) -> None:
        rows = batch.collect()
        if epoch == 1 and broken.pop("once", False):
            raise OSError(f"the sink is full after {len(rows)} rows")

    def run() -> None:
        writer = result.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run()
    run()
    assert_totals(client_of(job), "job", totals(tables))


def test_order_by_restores_the_order_that_the_shuffle_breaks(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    rows = pa.table({"key": [f"k{i % 10}" for i in range(200_000)], "at": list(range(200_000))})
    job = job_of(spark)
    # eight partitions before the operator's shuffle, each with part of every key's rows
    stream = stream_of(spark, rows).read().repartition(8, F.col("at") % 8)
    keyed = job.key_by(stream, "key")
    broken = run_to_end(keyed.process(KeepsOrder(), "key string, at bigint", uid="unordered"), tmp_path / "one")
    kept = run_to_end(
        keyed.process(KeepsOrder(), "key string, at bigint", uid="ordered", order_by="at"), tmp_path / "other"
    )
    assert len(broken) > 0
    assert kept == []
