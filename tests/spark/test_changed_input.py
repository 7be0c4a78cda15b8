"""A sealed epoch that Spark repeats with other rows is refused, because the rows would never reach the state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.descriptors import ValueStateDescriptor
from qstate.operators.functions import KeyedProcessFunction
from qstate.runtime.client.sync_client import QueryableStateClient
from tests.spark.functions_under_test import Total
from tests.spark.generated import amounts, totals

Columns = Callable[[DataFrame], DataFrame]
SCHEMA = "key string, total bigint"
KEYS = 20
REFUSED = r"(?s)epoch 1 was sealed with \d+ rows .* but comes with \d+ rows"


class Largest(KeyedProcessFunction):
    """Passes rows on and keeps the largest total of each key."""

    def open(self, context: Any) -> None:
        self.largest = context.get_state(ValueStateDescriptor("largest", int))

    def process_element(self, row: Any, context: Any) -> Any:
        self.largest.update(max(self.largest.value() or 0, row.total))
        yield row.key, row.total


class Sink:
    """Takes every row; fails after the rows of one epoch, once."""

    def __init__(self, fails_at: int) -> None:
        self._fails_at: int | None = fails_at
        self.rows: list[Any] = []

    def __call__(self, batch: Any, epoch: int) -> None:
        rows = batch.collect()
        if epoch == self._fails_at:
            self._fails_at = None
            raise OSError("the sink is full")
        self.rows += rows


class Pipeline:
    """A query over files whose epoch 1 is sealed, and not committed by Spark: the sink failed."""

    def __init__(self, spark: Any, stream_of: Any, job_of: Any, work: Path, columns: Columns) -> None:
        self.tables = amounts(batches=3, rows_a_batch=300, keys=KEYS)
        self._columns = columns
        self._checkpoint = work / "checkpoint"
        self._older_copy = work / "copy"
        self._settings = {"checkpoint_dir": str(work / "epochs")}
        self._session, self._job_of = spark, job_of
        self.sink = Sink(fails_at=1)
        self.stream = stream_of(spark, self.tables[0])
        self.run()
        shutil.copytree(self._checkpoint, self._older_copy)
        self.stream.add(self.tables[1])
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            self.run()

    def run(self, **settings: Any) -> dict[str, int]:
        """Run a driver from start to end: a job, and its query over all input so far. Returns the totals."""
        job = self._job_of(self._session, **self._settings, **settings)
        keyed = job.key_by(self._columns(self.stream.read(files_per_trigger=10)), "key")
        first = keyed.process(Total(), SCHEMA, uid="total")
        # An operator on the results of another one: its rows are what that one gave before.
        result = job.key_by(first, "key").process(Largest(), SCHEMA, uid="largest")
        writer = result.writeStream.foreachBatch(self.sink).option("checkpointLocation", str(self._checkpoint))
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
            with QueryableStateClient(*job.proxy_address) as client:
                found = client.get_many("job", "totalAmount", [f"k{number}" for number in range(KEYS)])
                return {key: view.get() for key, view in found.items() if view is not None}
        finally:
            job.stop()

    def lose_offsets(self) -> None:
        """Spark's files of epoch 1 are lost, as after a loss of power."""
        for directory in (self._checkpoint / "offsets", self._checkpoint / "sources" / "0"):
            for name in ("1", ".1.crc"):
                (directory / name).unlink()

    def restore_older_copy(self) -> None:
        """A checkpointLocation that was copied before `checkpoint_dir` was."""
        shutil.rmtree(self._checkpoint)
        shutil.copytree(self._older_copy, self._checkpoint)

    def lose_commit(self) -> None:
        """Spark has committed epoch 1, qstate knows it, and Spark has lost its record of that."""
        self.run()
        for name in ("1", ".1.crc"):
            (self._checkpoint / "commits" / name).unlink()


@pytest.fixture
def pipeline_of(spark: Any, stream_of: Any, job_of: Any, tmp_path: Path) -> Callable[..., Pipeline]:
    def make(columns: Columns = lambda stream: stream) -> Pipeline:
        return Pipeline(spark, stream_of, job_of, tmp_path, columns)

    return make


@pytest.mark.parametrize("loss", [Pipeline.lose_offsets, Pipeline.restore_older_copy])
def test_an_epoch_that_is_planned_again_with_other_rows_is_refused(
    loss: Callable[[Pipeline], None], pipeline_of: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_of()
    loss(pipeline)
    pipeline.stream.add(pipeline.tables[2])
    with pytest.raises(StreamingQueryException, match=REFUSED):
        pipeline.run()
    assert pipeline.run(allow_changed_input=True) == totals(pipeline.tables[:2]), "the third file's rows are dropped"


@pytest.mark.parametrize("loss", [Pipeline.lose_offsets, Pipeline.lose_commit])
def test_an_epoch_that_is_planned_again_with_the_same_rows_is_replayed(
    loss: Callable[[Pipeline], None], pipeline_of: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_of()
    loss(pipeline)
    del pipeline.sink.rows[300:]
    assert pipeline.run() == totals(pipeline.tables[:2])
    assert len(pipeline.sink.rows) == 600, "the stored results"
    pipeline.stream.add(pipeline.tables[2])
    assert pipeline.run() == totals(pipeline.tables)


def test_an_input_that_is_not_repeatable_is_refused(pipeline_of: Callable[..., Pipeline]) -> None:
    pipeline = pipeline_of(lambda stream: stream.withColumn("id", F.uuid()))
    with pytest.raises(StreamingQueryException, match=r"(?s)sealed with \d+ rows .* comes with .*uuid\(\)"):
        pipeline.run()


def test_combined_rows_that_are_read_in_other_parts_are_no_change(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    """A driver that restarts with another number of cores combines other rows of the same input."""
    table = amounts(batches=1, rows_a_batch=300, keys=KEYS)[0]
    stream = stream_of(spark, table)
    checkpoint = tmp_path / "checkpoint"

    def run(partitions: int) -> None:
        job = job_of(spark, checkpoint_dir=str(tmp_path / "epochs"))
        rows = stream.read(files_per_trigger=10).repartition(partitions)
        sink = job.key_by(rows, "key").as_queryable_state("lastRow", uid="last", combine=True)
        try:
            sink.start(checkpoint_location=str(checkpoint), trigger={"availableNow": True}).awaitTermination()
        finally:
            job.stop()

    run(partitions=1)
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink()
    run(partitions=4)
