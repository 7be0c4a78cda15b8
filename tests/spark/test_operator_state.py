"""Operator state on Spark: a query that is started again with another parallelism loses and repeats nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qstate.checkpoint import open_source, read_operator_state
from tests.spark.functions_under_test import Notes
from tests.spark.generated import amounts
from tests.spark.streams import run_to_end, until


def test_operator_list_has_every_row_once_after_a_rescale(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=4, rows_a_batch=50, keys=20)
    checkpoint = tmp_path / "epochs"
    stream = stream_of(spark, *tables[:2])
    for parallelism, rest in ((2, tables[2:]), (3, [])):
        job = job_of(spark, parallelism=parallelism, checkpoint_dir=str(checkpoint), snapshot_interval=0)
        result = job.key_by(stream.read(), "key").process(Notes(), "key string, total bigint", uid="notes")
        run_to_end(result, tmp_path / "progress")
        source = open_source(str(checkpoint))
        until(lambda source=source, last=1 if rest else 3: source.operators()["notes"].epoch == last, "the last commit")
        job.stop()
        for table in rest:
            stream.add(table)
    noted = [one.value for one in read_operator_state(source, "notes")]
    assert sorted(noted) == list(range(200))
    assert {one.subtask for one in read_operator_state(source, "notes")} == {0, 1, 2}
    until(lambda: [path.name for path in checkpoint.glob("notes-*/*")] == ["001"], "the old layout is removed")
