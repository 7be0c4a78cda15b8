"""On `local[2,4]`, where Spark retries tasks: an attempt that failed after its epoch was sealed counts once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

from qstate.checkpoint import open_source, read_operator_state
from tests.either_backend import EITHER_BACKEND
from tests.spark.functions_under_test import Counted, Total, kill_this_process, raise_error
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals
from tests.spark.streams import LOCAL_WITH_RETRIES, run_to_end, start_spark, until

SCHEMA = "key string, total bigint"


@pytest.fixture(scope="module")
def retrying_spark() -> Iterator[Any]:
    session = start_spark(LOCAL_WITH_RETRIES)
    yield session
    session.stop()


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_a_task_that_fails_after_its_epoch_was_sealed_counts_once(
    backend: str, retrying_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=2, rows_a_batch=1000, keys=20)
    flag = tmp_path / "failed once"

    def fail_at_the_end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not flag.exists():
            flag.touch()
            raise OSError("the task fails when the operator is done")

    job = job_of(retrying_spark, backend=backend)
    rows = job.key_by(stream_of(retrying_spark, *tables).read(), "key")
    result = rows.process(Total(), SCHEMA, uid="total").mapInArrow(fail_at_the_end, SCHEMA)
    emitted = run_to_end(result, tmp_path / "checkpoint")
    assert flag.exists()
    assert len(emitted) == 2000
    assert_totals(client_of(job), "job", totals(tables))


def test_a_task_manager_lost_beyond_the_replay_buffer_is_left_to_sparks_retry(
    retrying_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=2, rows_a_batch=1000, keys=20)
    function = Total(kill_this_process, flag=tmp_path / "killed", at=1500)
    job = job_of(retrying_spark, replay_buffer_bytes=0)
    rows = job.key_by(stream_of(retrying_spark, *tables).read(), "key")
    run_to_end(rows.process(function, SCHEMA, uid="total"), tmp_path / "checkpoint")
    assert (tmp_path / "killed").exists()
    assert_totals(client_of(job), "job", totals(tables))


def test_attribute_counts_each_row_once_when_a_task_is_retried_and_the_sink_fails_after_the_seal(
    retrying_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=3, rows_a_batch=1000, keys=20)
    function = Counted(raise_error, flag=tmp_path / "failed", at=500)  # in the middle of epoch 0
    checkpoint = tmp_path / "epochs"
    job = job_of(retrying_spark, checkpoint_dir=str(checkpoint))
    rows = job.key_by(stream_of(retrying_spark, *tables).read(), "key")
    result = rows.process(function, SCHEMA, uid="counted")
    full = [1]

    def sink(batch: Any, epoch: int) -> None:
        batch.collect()
        if epoch in full:
            full.remove(epoch)
            raise OSError("the sink is full")

    def run() -> None:
        writer = result.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run()
    run()
    assert (tmp_path / "failed").exists()
    assert_totals(client_of(job), "job", totals(tables))
    source = open_source(str(checkpoint))
    until(lambda: source.operators()["counted"].epoch == 2, "the last commit")
    counted = [one.value for one in read_operator_state(source, "counted")]
    assert sum(counted) == sum(totals(tables).values())
