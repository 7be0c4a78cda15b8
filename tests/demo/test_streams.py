"""The demo's job on real Spark: every backend gives the batch computation's results, and a difference is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from qstate.client import QueryableStateClient
from qstate.demo.compare import report
from qstate.demo.data import DataSet, prepare
from qstate.demo.feeder import Feeder
from qstate.demo.interrupts import Interrupts
from qstate.demo.main import _connect
from qstate.demo.streams import JOB, Progress, Streams, cause_of, start_streams
from qstate.errors import JobError
from qstate.spark import Job
from tests.runtime.job.running_job import Background

pytestmark = pytest.mark.spark

PATIENCE_S = 180.0
FAILED_START = """
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "relay.py", line 239, in _acquire
    child.wait(ticket.start_timeout_s)
qstate.errors.JobError: a task manager ended as it started; its log ends with:
2026-11-20 13:38:56,192 INFO qstate.runtime.serving.endpoint: Started the Queryable State Server @ 127.0.0.1:9067
2026-11-20 13:38:56,194 ERROR __main__: task manager 0 of job nycflights cannot run: no free port

 SQLSTATE: 38000
=== Streaming Query ===
2026-11-20 13:38:57,000 ERROR nothing: of ours
"""

FAILED_WORKER = """
[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "worker.py", line 2, in main
    read(
  File "serializers.py", line 10, in read
EOFError: the reason
 SQLSTATE: 38000
"""

Start = Callable[..., tuple[Streams, QueryableStateClient]]


@pytest.fixture
def start(spark: SparkSession, tmp_path: Path) -> Iterator[Start]:
    """`start(data, backend)`: the running streams and a client of their job."""
    with ExitStack() as cleanup:

        def run(data: DataSet, backend: str, *, complete: bool = True) -> tuple[Streams, QueryableStateClient]:
            job = cleanup.enter_context(
                Job(spark, JOB, backend=backend, parallelism=2, proxy_ports="0", server_ports="0")
            )
            streams = start_streams(spark, job, data, tmp_path / "out", complete=complete)
            cleanup.callback(streams.stop)
            return streams, cleanup.enter_context(QueryableStateClient(*job.proxy_address))

        yield run


def wait_for(streams: Streams) -> None:
    """Wait until every row has been through; the queries' own waiting bounds each look."""
    deadline = time.monotonic() + PATIENCE_S
    while not streams.finished():
        assert time.monotonic() < deadline, "the streams did not finish"
        streams.flights.query.awaitTermination(0.2)  # type: ignore[arg-type]
        streams.update()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_every_key_and_output_is_as_in_batch(
    backend: str, spark: SparkSession, winter: DataSet, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    streams, client = start(winter, backend)
    wait_for(streams)
    assert report(spark, winter, streams, client)
    printed = capsys.readouterr().out
    assert f"lastFlight: {winter.aircraft:,} keys" in printed
    assert f"compared {5 * winter.aircraft + 3 + 3 * len(winter.days):,} keys: 0 mismatches" in printed


def test_batch_with_one_more_day_is_a_mismatch(
    spark: SparkSession, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    streams, client = start(prepare(tmp_path / "week", first_days=7), "heap")
    wait_for(streams)
    assert not report(spark, prepare(tmp_path / "eight days", first_days=8), streams, client)
    printed = capsys.readouterr().out
    assert "MISMATCH lastFlight[" in printed
    assert "0 mismatches" not in printed
    assert "wrong number of rows in alerts and late departures" in printed


def test_days_that_arrive_one_by_one_give_the_same(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    week = prepare(tmp_path / "week", first_days=7)
    feeder = Feeder(week, tmp_path / "incoming", days_per_s=50.0)
    feeder.start()
    try:
        streams, client = start(replace(week, directory=feeder.directory), "heap", complete=False)
        wait_for(streams)
    finally:
        feeder.stop()
    assert feeder.finished()
    assert report(spark, week, streams, client)


def test_demo_waits_for_a_slow_machine_while_the_queries_run(spark: SparkSession, tmp_path: Path) -> None:
    """The demo continues after a pause of the input that is longer than a task manager's start timeout."""
    week = prepare(tmp_path / "week", first_days=7)
    feeder = Feeder(week, tmp_path / "incoming", days_per_s=50.0)
    with Job(spark, JOB, parallelism=2, proxy_ports="0", server_ports="0") as job:
        fed = replace(week, directory=feeder.directory)
        streams = start_streams(spark, job, fed, tmp_path / "out", complete=False)
        job.config = job.config.merged(start_timeout_s=0.2)  # its task managers have the time that they were given
        connecting = Background(lambda: _connect(job, streams, Interrupts()))
        assert not connecting.ended(1.0)
        feeder.start()
        try:
            with connecting.result() as client:
                wait_for(streams)
                assert report(spark, week, streams, client)
        finally:
            feeder.stop()
            streams.stop()


def test_demo_does_not_wait_for_stopped_streams(spark: SparkSession, tmp_path: Path) -> None:
    day = prepare(tmp_path / "day", first_days=1)
    feeder = Feeder(day, tmp_path / "incoming", days_per_s=1.0)
    with Job(spark, JOB, parallelism=2, proxy_ports="0", server_ports="0") as job:
        fed = replace(day, directory=feeder.directory)
        streams = start_streams(spark, job, fed, tmp_path / "out", complete=False)
        streams.check()
        streams.stop()
        with pytest.raises(JobError, match="ended before everything was replayed"):
            _connect(job, streams, Interrupts())


def test_failed_query_is_named_with_its_cause(spark: SparkSession, winter: DataSet, start: Start) -> None:
    streams, _ = start(winter, "heap")
    streams.stop()
    streams.update()  # a query that was stopped has not failed
    flights = spark.readStream.schema("a int").parquet(str(winter.flights_directory))
    broken = flights.selectExpr("raise_error('the reason')").writeStream.format("noop").queryName("broken").start()
    with suppress(StreamingQueryException):
        broken.awaitTermination()
    with pytest.raises(JobError, match=r"'broken' failed: .*the reason"):
        Progress(broken, 1, {}).update()


def test_cause_is_the_last_error_in_the_task_managers_log() -> None:
    assert cause_of(FAILED_START) == "task manager 0 of job nycflights cannot run: no free port"


def test_cause_without_a_log_is_a_qstate_error_or_the_first_line() -> None:
    assert cause_of("a\nqstate.errors.JobError: the reason\nb") == "JobError: the reason"
    assert cause_of("\n  a line of Spark\nanother") == "a line of Spark"
    assert cause_of(FAILED_WORKER) == "EOFError: the reason"
    assert cause_of("") == "Spark gives no reason"
