"""Jobs on a session of Spark Connect: the job manager is in this process, Spark's driver in another one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import ConfigError
from tests.project.documentation import Page
from tests.spark.functions_under_test import Total
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals
from tests.spark.streams import REPOSITORY

SCHEMA = "key string, total bigint"
PAGE = Page("docs/how-to/spark-connect.md")
TABLES = amounts(batches=3, rows_a_batch=100, keys=10)


def test_a_job_is_queried_stopped_and_restarted_with_its_state(
    connect_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    stream = stream_of(connect_spark, TABLES[0])

    def started() -> Any:
        job = job_of(connect_spark, checkpoint_dir=str(tmp_path / "state"))
        result = job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")
        writer = result.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return job, writer.start(str(tmp_path / "results"))

    job, query = started()
    query.processAllAvailable()
    assert_totals(client_of(job), "job", totals(TABLES[:1]))
    stream.add(TABLES[1])
    query.processAllAvailable()
    assert_totals(client_of(job), "job", totals(TABLES[:2]))
    assert client_of(job).get("job", "totalAmount", TABLES[0]["key"][0].as_py(), isolation="committed", min_epoch=1)
    assert sum(one.rows_in for one in job.statistics().subtasks) == TABLES[0].num_rows + TABLES[1].num_rows
    query.stop()
    job.stop()

    stream.add(TABLES[2])
    job, query = started()
    query.processAllAvailable()
    assert_totals(client_of(job), "job", totals(TABLES))
    assert {one.epoch for one in job.restored} == {1}
    written = connect_spark.read.parquet(str(tmp_path / "results")).count()
    assert written == sum(table.num_rows for table in TABLES)


def test_the_program_of_the_page_runs(connect_spark: Any, tmp_path: Path) -> None:
    (block,) = [one for one in PAGE.blocks if one.language == "python"]
    assert block.title is not None
    program = tmp_path / block.title
    server = f"sc://{connect_spark.client._builder.endpoint}"
    program.write_text(block.text.replace("sc://localhost", server))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    shown = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert re.fullmatch(r"the last value of key 7 is \d*7\n", shown.stdout), shown.stderr


def test_executors_that_cannot_reach_the_job_manager_are_reported(connect_spark: Any, job_of: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot reach the job manager, .* at 127\.0\.0\.2:\d+ \(.*\): set job_man"):
        job_of(connect_spark, job_manager_host="127.0.0.2", job_manager_bind="127.0.0.1")
    job_of(connect_spark, job_manager_host="localhost", job_manager_bind="0.0.0.0")
