"""Notebooks: cells that are run again, after any end of the run before."""

from __future__ import annotations

import signal
import socket
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from qstate.errors import ClosedError, ConfigError, JobError
from qstate.spark import Job
from tests.spark.functions_under_test import Total, wait_for_go
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals
from tests.spark.streams import run_to_end, until

SCHEMA = "key string, total bigint"
AT_ONCE_S = 5.0
TABLES = amounts(batches=3, rows_a_batch=100, keys=10)


def test_a_cell_that_declares_an_operator_can_be_run_again(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    job = job_of(spark)
    stream = stream_of(spark, TABLES[0])

    def cell() -> Any:
        return job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")

    run_to_end(cell(), tmp_path / "checkpoint")
    stream.add(TABLES[1])
    run_to_end(cell(), tmp_path / "checkpoint")
    assert_totals(client_of(job), "job", totals(TABLES[:2]))

    query = cell().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.queryName("totals").start()
    stream.add(TABLES[2])
    running.processAllAvailable()
    with pytest.raises(JobError, match=r"'total' cannot be declared again while its streaming query 'totals' \(.*stop"):
        cell()
    running.stop()
    cell()
    assert_totals(client_of(job), "job", totals(TABLES))


def test_a_sink_can_be_declared_again(spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path) -> None:
    job = job_of(spark)
    stream = stream_of(spark, TABLES[0])
    for table in TABLES[1:]:
        sink = job.key_by(stream.read(), "key").as_queryable_state("last", uid="last", value="amount", order_by="at")
        query = sink.start(checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True})
        query.awaitTermination()
        stream.add(table)
    last = {row["key"]: row["amount"] for table in TABLES[:2] for row in table.to_pylist()}
    found = client_of(job).get_many("job", "last", list(last))
    assert {key: view.value() for key, view in found.items()} == last


def test_a_cell_that_creates_a_job_can_be_run_again(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    stream = stream_of(spark, TABLES[0])
    jobs: list[Job] = []

    def cell() -> Any:
        jobs.append(job_of(spark, "notebook", checkpoint_dir=str(tmp_path / "state")))
        return jobs[-1].key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")

    run_to_end(cell(), tmp_path / "checkpoint")
    stream.add(TABLES[1])
    running = cell().writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    running.processAllAvailable()
    with pytest.raises(ClosedError):
        jobs[0].key_by(stream.read(), "key")
    with pytest.raises(
        ConfigError, match=rf"a job 'notebook' is up .* streaming query {running.id} runs: stop the query"
    ):
        cell()
    stream.add(TABLES[2])
    running.processAllAvailable()
    assert_totals(client_of(jobs[1]), "notebook", totals(TABLES))
    running.stop()
    cell()


def test_a_job_with_a_query_that_has_had_no_data_yet_is_not_stopped(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    job, another, stream = job_of(spark), job_of(spark, "another"), stream_of(spark)
    rows = spark.readStream.schema(from_arrow_schema(TABLES[0].schema)).parquet(str(stream.directory))
    result = job.key_by(rows, "key").process(Total(), SCHEMA, uid="total")
    of_another = another.key_by(rows, "key").process(Total(), SCHEMA, uid="total")
    of_another.writeStream.format("noop").start()
    running = result.writeStream.foreachBatch(lambda batch, epoch: batch.count()).start()
    with pytest.raises(ConfigError, match=rf"a job 'job' is up .* streaming query {running.id} runs: stop the query"):
        job_of(spark)
    stream.add(TABLES[0])
    running.processAllAvailable()
    assert_totals(client_of(job), "job", totals(TABLES[:1]))
    running.stop()
    with pytest.warns(UserWarning, match="earlier job 'job' is stopped"):
        job_of(spark)


def test_a_job_whose_state_is_deleted_by_its_successor_warns(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job_of(spark)
        job = job_of(spark)  # nothing is lost with a job without state
    stream = stream_of(spark, TABLES[0]).read()
    run_to_end(job.key_by(stream, "key").process(Total(), SCHEMA, uid="total"), tmp_path / "checkpoint")
    with pytest.warns(UserWarning, match=r"earlier job 'job' is stopped, which deletes its state.*checkpoint_dir"):
        job_of(spark)


def test_a_cell_that_was_interrupted_can_be_run_again(
    spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    """In the middle of a micro-batch, which PySpark may cancel, or not."""
    job = job_of(spark)
    stream = stream_of(spark, TABLES[0])
    flag = tmp_path / "held"

    def cell() -> None:
        function = Total(wait_for_go, flag=flag, at=50)
        result = job.key_by(stream.read(), "key").process(function, SCHEMA, uid="total")
        writer = result.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def interrupt() -> None:
        until(flag.exists, "the function holds a row")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        cell()
    interrupting.join()
    for query in spark.streams.active:
        query.stop()
    flag.with_suffix(".go").touch()
    cell()
    assert_totals(client_of(job), "job", totals(TABLES[:1]))


def test_a_wait_for_a_proxy_fails_without_a_query(spark: Any, stream_of: Any, job_of: Any, tmp_path: Path) -> None:
    job = job_of(spark, parallelism=1)  # one proxy, so it stays the one that is named
    with pytest.raises(JobError, match="has no client proxies: proxy_enabled is False"):
        _ = job_of(spark, "without", proxy_enabled=False).proxy_address
    begun = time.monotonic()
    with pytest.raises(JobError, match=r"no client proxy with states yet and no streaming query runs.*start the query"):
        _ = job.proxy_address
    assert time.monotonic() - begun < AT_ONCE_S
    keyed = job.key_by(stream_of(spark, TABLES[0]).read(), "key")
    query = keyed.process(Total(), SCHEMA, uid="total").writeStream.format("noop").start()
    host, port = job.proxy_address
    assert (host, port > 0) == ("127.0.0.1", True)
    query.stop()
    assert job.proxy_address == (host, port)


def test_a_wait_for_a_proxy_fails_when_the_query_has_failed(spark: Any, stream_of: Any, job_of: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = job_of(spark, server_ports=str(taken.getsockname()[1]))
        keyed = job.key_by(stream_of(spark, TABLES[0]).read(), "key")
        keyed.process(Total(), SCHEMA, uid="total").writeStream.format("noop").start()
        with pytest.raises(JobError, match=r"no streaming query runs.*query\.exception\(\)"):
            _ = job.proxy_address
