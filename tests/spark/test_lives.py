"""Drivers, jobs and queries that are killed and restarted, stopped during an epoch, or run side by side."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from qstate.errors import ConfigError
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.runtime.control.processes import await_ends, runs
from tests.either_backend import EITHER_BACKEND
from tests.spark.functions_under_test import Total, wait_for_go
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals
from tests.spark.streams import run_to_end, until

SCHEMA = "key string, total bigint"

#: Runs the job over what is in `input`, and stays up until its standard input ends.
DRIVER = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from tests.spark.functions_under_test import Total, wait_for_go
from tests.spark.generated import amounts
from tests.spark.streams import LOCAL, run_to_end, start_spark
from qstate.spark import Job

work, backend = Path(sys.argv[1]), sys.argv[2]
session = start_spark(LOCAL)
settings = dict(backend=backend, parallelism=2, proxy_ports="0", server_ports="0")
job = Job(session, "restarted", checkpoint_dir=str(work / "epochs"), **settings)
schema = from_arrow_schema(amounts(1, 1, 1)[0].schema)
stream = session.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(work / "input-0"))
function = Total(wait_for_go, flag=work / "held", at=2500)
run_to_end(job.key_by(stream, "key").process(function, "key string, total bigint", uid="total"), work / "checkpoint")
print("done", *job.proxy_address, flush=True)
sys.stdin.read()
"""


def driver(work: Path, backend: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(work), backend],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        text=True,
    )


def kill(process: subprocess.Popen[str]) -> None:
    """kill -9 of a driver; the processes that it started have to end by themselves."""
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    alive = await_ends(started, 20)
    assert alive == []


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_a_driver_killed_in_the_middle_of_an_epoch_continues_exactly_there(
    backend: str, spark: Any, stream_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=4, rows_a_batch=1000, keys=20)
    stream_of(spark, *tables)
    first = driver(tmp_path, backend)
    try:
        until((tmp_path / "held").exists, "the third epoch is under way", 120)
    finally:
        kill(first)
    second = driver(tmp_path, backend)
    try:
        assert second.stdout is not None
        done, host, port = second.stdout.readline().split()
        assert done == "done"
        with QueryableStateClient(host, int(port)) as client:
            assert_totals(client, "restarted", totals(tables))
    finally:
        kill(second)


def test_a_query_that_continues_over_an_empty_checkpoint_directory_is_refused(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    stream = stream_of(spark, *amounts(batches=1, rows_a_batch=100, keys=10))
    job = job_of(spark)
    run_to_end(job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total"), tmp_path / "checkpoint")
    job.stop()
    stream.add(amounts(batches=1, rows_a_batch=100, keys=10)[0])
    result = job_of(spark).key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")
    with pytest.raises(StreamingQueryException, match="checkpointLocation whose state this job does not have"):
        run_to_end(result, tmp_path / "checkpoint")


def test_a_new_query_over_an_old_checkpoint_directory_is_refused(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    stream = stream_of(spark, *amounts(batches=1, rows_a_batch=100, keys=10))
    settings = {"checkpoint_dir": str(tmp_path / "epochs")}
    job = job_of(spark, **settings)
    run_to_end(job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total"), tmp_path / "checkpoint")
    with pytest.raises(ConfigError, match="in use by another running job"):
        job_of(spark, "other", **settings)
    job.stop()
    result = job_of(spark, **settings).key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")
    with pytest.raises(StreamingQueryException, match="was made by streaming query"):
        run_to_end(result, tmp_path / "new checkpoint")


def test_two_jobs_of_one_session_are_independent(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=2, rows_a_batch=200, keys=10)
    stream = stream_of(spark, *tables)
    for name in ("one", "other"):
        job = job_of(spark, name)
        run_to_end(job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total"), tmp_path / name)
        assert_totals(client_of(job), name, totals(tables))


def test_stopping_a_job_under_a_running_query_fails_that_query_and_leaves_nothing(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    flag = tmp_path / "held"
    job = job_of(spark)
    stream = stream_of(spark, *amounts(batches=1, rows_a_batch=100, keys=10))
    result = job.key_by(stream.read(), "key").process(Total(wait_for_go, flag=flag, at=50), SCHEMA, uid="total")
    query = result.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    until(flag.exists, "the function holds a row")
    processes = [psutil.Process(manager.pid) for manager in job.manager.task_managers()]
    stopping = [threading.Thread(target=job.stop) for _ in range(2)]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join(30)
    assert list(filter(runs, processes)) == []
    with pytest.raises(StreamingQueryException, match="has been stopped"):
        query.awaitTermination(60)


def test_a_sink_that_reads_only_some_rows_gets_an_error_that_says_so(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    """`take` evaluates some partitions, and those not to their end: the next epoch would lack their rows."""
    job = job_of(spark)
    stream = stream_of(spark, *amounts(batches=3, rows_a_batch=20_000, keys=10))
    result = job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")
    query = (
        result.writeStream.foreachBatch(lambda batch, epoch: batch.take(1) if epoch == 1 else batch.collect())
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"does not evaluate its whole input \(show\(\), take\(\)"):
        query.awaitTermination()


@pytest.mark.parametrize("sink", ["foreachBatch", "noop"])
def test_an_epoch_without_rows_counts(
    sink: str, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=3, rows_a_batch=300, keys=10)
    job = job_of(spark)
    stream = stream_of(spark, *tables).read().filter("at < 300 or at >= 600")
    result = job.key_by(stream, "key").process(Total(), SCHEMA, uid="total")
    if sink == "foreachBatch":
        run_to_end(result, tmp_path / "checkpoint")
    else:
        writer = result.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
    assert_totals(client_of(job), "job", totals([tables[0], tables[2]]))


def test_a_failed_process_call_leaves_its_uid_free(spark: Any, stream_of: Any, job_of: Any) -> None:
    keyed = job_of(spark).key_by(stream_of(spark, *amounts(1, 10, 2)).read(), "key")
    with pytest.raises(Exception, match="nonsense"):
        keyed.process(Total(), "key nonsense(", uid="total")
    keyed.process(Total(), SCHEMA, uid="total")


def test_one_directory_for_state_and_offsets_is_refused_before_there_is_any_state(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    both, link = tmp_path / "both", tmp_path / "link"
    link.symlink_to(both)
    stream = stream_of(spark, *amounts(batches=1, rows_a_batch=100, keys=10))
    job = job_of(spark, checkpoint_dir=str(both))
    result = job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")
    with pytest.raises(StreamingQueryException, match="are the same directory, or one is where the other writes"):
        run_to_end(result, link)
    assert not list(both.glob("total-*"))
    job.stop()
    with pytest.raises(ConfigError, match="is the checkpointLocation of a streaming query"):
        job_of(spark, checkpoint_dir=str(both))
