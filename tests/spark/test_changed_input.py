"""An epoch that is sealed and comes again with other rows is refused: its rows would never reach the state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.functions_under_test import Total
from tests.spark.generated import amounts

SCHEMA = "key string, total bigint"
REFUSED = r"(?s)epoch 1 was sealed with \d+ rows .* but comes with \d+ rows"


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

    def __init__(self, spark: Any, stream_of: Any, job_of: Any, work: Path, **settings: Any) -> None:
        self.tables = amounts(batches=3, rows_a_batch=300, keys=20)
        self._checkpoint = work / "checkpoint"
        self._older_copy = work / "copy"
        self._settings = {"checkpoint_dir": str(work / "epochs"), **settings}
        self._session, self._job_of = spark, job_of
        self.sink = Sink(fails_at=1)
        self.stream = stream_of(spark, self.tables[0])
        self.run()
        shutil.copytree(self._checkpoint, self._older_copy)
        self.stream.add(self.tables[1])
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            self.run()

    def run(self, **settings: Any) -> None:
        """A driver's life from start to end: a job, and its query over all that has come."""
        self.job = self._job_of(self._session, **self._settings, **settings)
        result = self.job.key_by(self.stream.read(files_per_trigger=10), "key").process(Total(), SCHEMA, uid="total")
        writer = result.writeStream.foreachBatch(self.sink).option("checkpointLocation", str(self._checkpoint))
        try:
            writer.trigger(availableNow=True).start().awaitTermination()
        finally:
            self.job.stop()

    def lose_offsets(self) -> None:
        """What Spark has written of epoch 1 is gone, as after a loss of power."""
        for directory in (self._checkpoint / "offsets", self._checkpoint / "sources" / "0"):
            for name in ("1", ".1.crc"):
                (directory / name).unlink()

    def restore_older_copy(self) -> None:
        """A checkpointLocation that was copied before `checkpoint_dir` was."""
        shutil.rmtree(self._checkpoint)
        shutil.copytree(self._older_copy, self._checkpoint)


@pytest.fixture
def pipeline_of(spark: Any, stream_of: Any, job_of: Any, tmp_path: Path) -> Callable[..., Pipeline]:
    return lambda **settings: Pipeline(spark, stream_of, job_of, tmp_path, **settings)


@pytest.mark.parametrize("loss", [Pipeline.lose_offsets, Pipeline.restore_older_copy])
def test_an_epoch_that_is_planned_again_with_other_rows_is_refused(
    loss: Callable[[Pipeline], None], pipeline_of: Callable[..., Pipeline]
) -> None:
    pipeline = pipeline_of()
    loss(pipeline)
    pipeline.stream.add(pipeline.tables[2])
    with pytest.raises(StreamingQueryException, match=REFUSED):
        pipeline.run()
