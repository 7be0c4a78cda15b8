"""Savepoints of jobs on Spark: written while they run, and restored by other jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qstate.checkpoint import open_source
from qstate.errors import CheckpointError, ClosedError
from tests.spark.functions_under_test import FiveKinds
from tests.spark.generated import amounts, five_kinds
from tests.spark.state_checks import assert_five_kinds
from tests.spark.streams import run_to_end, until

SCHEMA = "key string, total bigint"


def test_another_backend_and_parallelism_continue_from_a_savepoint(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=4, rows_a_batch=500, keys=20)
    job = job_of(spark, backend="heap", checkpoint_dir=str(tmp_path / "epochs"))
    with pytest.raises(CheckpointError, match="no committed state yet"):
        job.savepoint(tmp_path / "savepoint")
    first = job.key_by(stream_of(spark, *tables[:2]).read(), "key").process(
        FiveKinds(), SCHEMA, uid="five", order_by="at"
    )
    run_to_end(first, tmp_path / "progress")
    source = open_source(str(tmp_path / "epochs"))
    until(lambda: source.operators()["five"].epoch == 1, "Spark reports the last commit")
    savepoint = job.savepoint(tmp_path / "savepoint")
    assert savepoint.operators()["five"].epoch == 1
    job.stop()
    with pytest.raises(ClosedError):
        job.savepoint(tmp_path / "another")

    other = job_of(
        spark,
        backend="rocksdb",
        parallelism=3,
        checkpoint_dir=str(tmp_path / "other epochs"),
        restore_from=savepoint.location,
    )
    rest = other.key_by(stream_of(spark, *tables[2:]).read(), "key").process(
        FiveKinds(), SCHEMA, uid="five", order_by="at"
    )
    run_to_end(rest, tmp_path / "other progress")
    assert_five_kinds(client_of(other), "job", five_kinds(tables))
