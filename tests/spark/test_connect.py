"""Jobs on a session of Spark Connect: the job manager is in this process, Spark's driver in another one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from base64 import b64encode
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import Column
from pyspark.sql import functions as F

from qstate.client import ClientTls
from qstate.errors import ClosedError, ConfigError, JobError, TlsFailed, Unauthenticated
from qstate.spark.plan.columns import StreamColumns
from qstate.spark.sessions.executor_check import ExecutorCheck
from tests.certificates import Authority
from tests.project.documentation import Page
from tests.spark import outlives_its_server
from tests.spark.connect_server import connect_server, remote_session, server_process
from tests.spark.functions_under_test import Gaps, Total
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals
from tests.spark.streams import LOCAL, LOCAL_CLUSTER, REPOSITORY, until

SCHEMA = "key string, total bigint"
GAPS = "key string, at timestamp, n bigint"
AT, UTC = datetime(2020, 1, 1, tzinfo=timezone.utc), pa.timestamp("us", "UTC")
PAGE = Page("docs/how-to/spark-connect.md")
TABLES = amounts(batches=3, rows_a_batch=100, keys=10)


def url_of(spark: Any) -> str:
    return f"sc://{spark.client._builder.endpoint}"


def events_of(spark: Any) -> bytes:
    """What Spark's event log has of the server."""
    log = Path(spark.conf.get("spark.eventLog.dir").removeprefix("file:"))
    return b"".join(path.read_bytes() for path in log.rglob("*") if path.is_file())


def assert_not_in_events(spark: Any, secret: bytes) -> None:
    """Spark's event log has the operator's plan, but not the job's key: neither as it is nor in Base64."""
    events = events_of(spark)
    assert b"MapInArrow" in events
    key = secret.partition(b"PRIVATE KEY-----")[2]
    shifted = (b64encode(b" " * shift + key)[4:-4] for shift in range(3))
    assert not any(part in events for part in (*key.splitlines()[1:-1], *(one[:40] for one in shifted)))


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
    with pytest.raises(ConfigError, match=rf"a job 'job' is up .* streaming query {query.id} runs: stop the query"):
        job_of(connect_spark)
    query.stop()
    assert_not_in_events(connect_spark, job.manager.secret)
    job.stop()

    stream.add(TABLES[2])
    job, query = started()
    query.processAllAvailable()
    assert_totals(client_of(job), "job", totals(TABLES))
    assert {one.epoch for one in job.restored} == {1}
    written = connect_spark.read.parquet(str(tmp_path / "results")).count()
    assert written == sum(table.num_rows for table in TABLES)


def test_a_job_stops_while_an_event_of_its_query_comes(
    connect_spark: Any, stream_of: Any, job_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's own removal of the last listener waits, with a lock, for a thread that needs it for an event."""
    stream = stream_of(connect_spark, TABLES[0])
    job = job_of(connect_spark)
    query = job.key_by(stream.read(), "key").as_queryable_state("last", uid="last").start()
    query.processAllAvailable()
    ask, removals = connect_spark.client.execute_command, []

    def an_event_comes() -> bool:
        return any(frame.f_code.co_name == "post_to_all" for frame in sys._current_frames().values())

    def ask_after_an_event(command: Any, *args: Any, **named: Any) -> Any:
        if command.streaming_query_listener_bus_command.remove_listener_bus_listener:
            removals.append(command)
            stream.add(TABLES[1])
            until(an_event_comes, "the client has an event of the query")
        return ask(command, *args, **named)

    monkeypatch.setattr(connect_spark.client, "execute_command", ask_after_an_event)
    stopping = threading.Thread(target=job.stop, daemon=True)
    stopping.start()
    stopping.join(60)
    assert not stopping.is_alive() and removals
    query.stop()


def test_the_query_port_takes_tls_and_the_token_of_the_job_only(
    connect_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    token = tmp_path / "token"
    token.write_text("a-secret")
    token.chmod(0o600)
    job = job_of(
        connect_spark,
        auth_token_file=str(token),
        tls_certificate_file=authority.issue("127.0.0.1", "localhost"),
        tls_ca_file=authority.file,
    )
    sink = job.key_by(stream_of(connect_spark, TABLES[0]).read(), "key").as_queryable_state("last", uid="last")
    sink.start().processAllAvailable()
    key = TABLES[0]["key"][0].as_py()
    known = ClientTls(authority.file)
    for direct in (False, True):
        assert client_of(job, tls=known, token="a-secret", direct=direct).get("job", "last", key).value()
    with pytest.raises(Unauthenticated):
        client_of(job, tls=known, token="another").get("job", "last", key)
    with pytest.raises(TlsFailed):
        client_of(job, token="a-secret").get("job", "last", key)
    assert_not_in_events(connect_spark, job.manager.secret)
    assert b"a-secret" not in events_of(connect_spark)


def test_the_program_of_the_page_runs_with_pyspark_client_alone(connect_spark: Any, tmp_path: Path) -> None:
    (block,) = [one for one in PAGE.blocks if one.language == "python"]
    assert block.title is not None
    program = tmp_path / block.title
    program.write_text(block.text.replace("sc://localhost", url_of(connect_spark)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    shown = subprocess.run(
        [sys.executable, "-m", "tests.spark.as_pyspark_client", str(program)],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert re.fullmatch(r"the last value of key 7 is \d*7\n", shown.stdout), shown.stderr


def test_executors_that_cannot_reach_the_job_manager_or_the_directory_are_reported(
    connect_spark: Any, job_of: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"cannot reach the job manager, .* at 127\.0\.0\.2:\d+ \(.*\): set job_man"):
        job_of(connect_spark, job_manager_host="127.0.0.2", job_manager_bind="127.0.0.1")
    job = job_of(connect_spark, job_manager_host="localhost", job_manager_bind="0.0.0.0")
    check = ExecutorCheck(job._ticket(), str(tmp_path / "elsewhere"), {})
    (answer,) = check(iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    assert re.search(r"cannot use checkpoint_dir .*elsewhere \(.*\): set checkpoint_dir to", answer["fault"][0].as_py())


def test_columns_are_told_apart_by_what_they_are(connect_spark: Any, stream_of: Any) -> None:
    wide = {f"c{n}": [n] for n in range(30)}  # Spark's plans usually show 25 columns
    stream = stream_of(connect_spark, pa.table({**wide, "a.b": ["dot"], "st": [{"a": 1}], "at": [AT]})).read()
    columns = StreamColumns(stream.withWatermark("at", "10 seconds"))
    given = ["c29", "C3", "`a.b`", "at", stream["c5"], "st.a", F.col("c7") + 0, (F.col("c7") + 0).alias("c7")]
    found = [one.source for one in columns.resolve("key_by", given)]
    assert found[:5] == [29, 3, 30, 32, 5]
    assert all(isinstance(one, Column) for one in found[5:])
    assert columns.resolve("key_by", F.col("c4").alias("four"))[0].name == "four"
    with pytest.raises(JobError, match="key_by: no column 'c30'; the stream has c0, c1, "):
        columns.resolve("key_by", "c30")
    with pytest.raises(JobError, match=r"key_by: 'st\.\*' gives|'a\.b' is a column with a dot"):
        columns.resolve("key_by", "a.b")


def test_timers_fire_and_a_second_operator_follows_the_first_ones_watermark(
    connect_spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    times = [AT, AT + timedelta(minutes=1)]
    stream = stream_of(connect_spark, pa.table({"key": ["a", "b"], "at": pa.array(times, UTC), "n": [1, 2]}))
    job = job_of(connect_spark)
    rows = stream.read().withWatermark("at", "10 seconds")
    gaps = job.key_by(rows, "key").process(Gaps(5), GAPS, uid="gaps", event_time_column="at")
    (times_of_gaps,) = job.key_by(gaps, "key")._operators.event_times([gaps])
    assert (times_of_gaps.column, times_of_gaps.follows, times_of_gaps.has_source) == ("at", ("gaps",), False)
    writer = gaps.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start(str(tmp_path / "results"))
    until(lambda: any(one.batchId == 1 and one.numInputRows for one in query.recentProgress), "a timer's tick")
    query.stop()
    emitted = connect_spark.read.parquet(str(tmp_path / "results")).collect()
    assert [row.key for row in emitted] == ["a"]


def test_a_savepoint_has_the_last_epoch_of_a_running_and_of_an_ended_query(
    connect_spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    stream = stream_of(connect_spark, TABLES[0])
    job = job_of(connect_spark, checkpoint_dir=str(tmp_path / "state"))
    sink = job.key_by(stream.read(), "key").as_queryable_state("last", uid="last")
    query = sink.start(checkpoint_location=str(tmp_path / "checkpoint"))
    query.processAllAvailable()
    assert job.savepoint(tmp_path / "running").operators()["last"].epoch == 0
    query.stop()
    stream.add(TABLES[1])
    query = sink.start(checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True})
    query.awaitTermination()
    assert job.savepoint(tmp_path / "ended").operators()["last"].epoch == 1


def test_foreach_batch_is_refused_by_name_and_changes_no_state(
    connect_spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    job = job_of(connect_spark)
    stream = stream_of(connect_spark, TABLES[0])
    result = job.key_by(stream.read(), "key").process(Total(), SCHEMA, uid="total")
    writer = result.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.foreachBatch(count_rows).start()
    with pytest.raises(
        StreamingQueryException, match=r"'total' runs in streaming queries .*Connect without foreachBatch"
    ):
        query.awaitTermination()
    assert job.statistics().processes == ()


def count_rows(batch: Any, epoch: int) -> None:
    batch.count()


@pytest.mark.filterwarnings("ignore:StreamingQueryListenerBus Handler thread")
def test_state_is_served_until_the_job_stops_also_when_its_session_has_ended(
    connect_spark: Any, stream_of: Any, job_of: Any, client_of: Any
) -> None:
    with remote_session(url_of(connect_spark)) as session:
        job = job_of(session)
        sink = job.key_by(stream_of(session, TABLES[0]).read(), "key").as_queryable_state("last", uid="last")
        sink.start().processAllAvailable()
    assert client_of(job).get("job", "last", TABLES[0]["key"][-1].as_py())
    with pytest.warns(UserWarning, match="earlier job 'job' is stopped"):  # no query of it runs
        job_of(connect_spark)
    with pytest.raises(ClosedError):
        job.statistics()


def test_a_killed_server_is_reported_soon_and_the_same_program_continues_on_another_one(
    connect_spark: Any, tmp_path: Path
) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    with connect_server(LOCAL) as first:
        shown = subprocess.run(
            [sys.executable, "-m", outlives_its_server.__name__, first, url_of(connect_spark), str(tmp_path)],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stdout.splitlines()[-1])
    seen = found["seen"]
    # 1.1 s on an idle machine; without the end of the retries more than ten minutes
    assert {call: seconds for call, (_, _, seconds) in seen.items() if seconds > 10} == {}
    assert {call: seen.pop(call)[0] for call in ("awaitTermination", "job.stop", "spark.stop")} == {
        "awaitTermination": "SparkConnectGrpcException",
        "job.stop": "",
        "spark.stop": "",
    }
    message = (
        rf"the Spark Connect server at {first.removeprefix('sc://')} is gone .* is in {tmp_path / 'state'}\. To "
        r"continue: start a server, stop this session \(spark\.stop\(\)\), .* create the job again with the same "
        r"checkpoint_dir"
    )
    for call, (error, text, _) in seen.items():
        assert error == "JobError", (call, text)
        assert re.search(message, text), call
    assert found["threads"] == []
    tables = amounts(outlives_its_server.BATCHES, outlives_its_server.ROWS, outlives_its_server.KEYS)
    assert found["totals"] == totals(tables)
    assert found["restored"][0] == 0  # the other subtask may have sealed the interrupted epoch
    assert found["rows"] == outlives_its_server.BATCHES * outlives_its_server.ROWS


@pytest.mark.usefixtures("connect_spark")
def test_executors_of_a_server_may_be_processes_of_their_own(stream_of: Any, job_of: Any, client_of: Any) -> None:
    with connect_server(LOCAL_CLUSTER) as url, remote_session(url) as session:
        job = job_of(session)
        sink = job.key_by(stream_of(session, *TABLES).read(), "key").as_queryable_state("last", uid="last")
        query = sink.start()
        query.processAllAvailable()
        assert client_of(job).get("job", "last", TABLES[-1]["key"][-1].as_py()).value()["at"] == 299
        executors = {manager.executor_pid for manager in job.manager.task_managers()}
        assert executors and server_process(url).pid not in executors
        query.stop()
        job.stop()
