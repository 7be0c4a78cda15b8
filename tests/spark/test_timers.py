"""Timers in queries of Spark: they fire without rows, and an idle query with none that is due runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from qstate.spark import Job
from tests.either_backend import EITHER_BACKEND
from tests.spark.functions_under_test import Deadlines, Gaps, Passes
from tests.spark.streams import FileStream, run_to_end, until

START = datetime(2020, 1, 1, tzinfo=timezone.utc)
SCHEMA = "key string, at timestamp, n bigint"
#: A trigger asks some forty times a second whether timers are due.
QUIET_TRIGGERS_S = 2.0


def rows(*found: tuple[str, int]) -> pa.Table:
    """Rows of (key, seconds after the start)."""
    times = [START + timedelta(seconds=second) for _, second in found]
    keys, numbers = [key for key, _ in found], [second for _, second in found]
    return pa.table({"key": keys, "at": pa.array(times, pa.timestamp("us", "UTC")), "n": numbers})


def late_after_ten_seconds(stream: FileStream) -> DataFrame:
    return stream.read().withWatermark("at", "10 seconds")


class Collected:
    """The rows that a query has emitted, by epoch."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[tuple[Any, ...]]] = {}

    def take(self, batch: DataFrame, epoch: int) -> None:
        self.epochs[epoch] = [tuple(row) for row in batch.collect()]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        return [row for _, found in sorted(self.epochs.items()) for row in found]


@contextmanager
def running(result: DataFrame, checkpoint: Path) -> Iterator[tuple[StreamingQuery, Collected]]:
    """The result as a query that runs until the test ends it."""
    collected = Collected()
    query = result.writeStream.foreachBatch(collected.take).option("checkpointLocation", str(checkpoint)).start()
    try:
        yield query, collected
    finally:
        query.stop()


def second(time: datetime) -> int:
    return round((time.replace(tzinfo=timezone.utc) - START).total_seconds())


def test_timers_fire_without_rows_and_then_the_query_is_idle(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    stream = stream_of(spark, rows(("a", 0), ("b", 60), ("c", 61)))
    gaps = job_of(spark).key_by(late_after_ten_seconds(stream), "key").process(Gaps(5), SCHEMA, uid="gaps")
    with running(gaps, tmp_path / "query") as (query, collected):
        until(lambda: ("a", 5) in [(key, second(at)) for key, at, _ in collected.rows], "the timer of a fires")
        epochs = dict(collected.epochs)
        assert not query.awaitTermination(QUIET_TRIGGERS_S)
        assert collected.epochs == epochs, "the timers of b and c are not due"
        stream.add(rows(("d", 76)))
        until(lambda: len(collected.rows) == 3, "the timers of b and c fire")
    assert [(key, second(at), n) for key, at, n in collected.rows] == [("a", 5, 1), ("b", 65, 1), ("c", 66, 1)]


def test_timers_of_processing_time_fire_without_rows(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    stream = stream_of(spark, rows(("a", 0)))
    deadlines = job_of(spark).key_by(stream.read(), "key").process(Deadlines(1500), SCHEMA, uid="deadlines")
    with running(deadlines, tmp_path / "query") as (_, collected):
        until(lambda: len(collected.rows) == 1, "the deadline passes")
    ((key, registered, waited),) = collected.rows
    assert key == "a" and waited >= 1500 and registered is not None


def test_later_operator_gets_the_timers_rows_of_the_earlier_one_before_its_own_timers_fire(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    """Both wait five seconds for a key; the second one for what the first one emits when its timers fire."""
    stream = stream_of(spark, rows(("a", 0), ("b", 60)))
    job = job_of(spark)
    first = job.key_by(late_after_ten_seconds(stream), "key").process(
        Gaps(5), SCHEMA, uid="first", event_time_column="at"
    )
    second_one = job.key_by(first, "key").process(Gaps(5), SCHEMA, uid="second")
    with running(second_one, tmp_path / "query") as (_, collected):
        until(lambda: len(collected.rows) == 1, "the second timer of a fires")
    assert [(key, second(at), n) for key, at, n in collected.rows] == [("a", 10, 1)]


def test_timers_of_a_stopped_query_fire_when_it_is_started_again_without_rows(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    stream = stream_of(spark, rows(("a", 0)))
    places = {"checkpoint_dir": str(tmp_path / "state")}

    def deadlines(job: Job) -> DataFrame:
        return job.key_by(stream.read(), "key").process(Deadlines(6000), SCHEMA, uid="deadlines")

    job = job_of(spark, **places)
    with running(deadlines(job), tmp_path / "query") as (query, collected):
        query.processAllAvailable()
        assert collected.rows == []
    job.stop()
    with running(deadlines(job_of(spark, **places)), tmp_path / "query") as (_, collected):
        until(lambda: len(collected.rows) == 1, "the deadline passes")


def test_query_of_what_is_available_fires_the_timers_that_are_due(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    stream = stream_of(spark, rows(("a", 0)), rows(("b", 60)), rows(("c", 61)))
    gaps = job_of(spark).key_by(late_after_ten_seconds(stream), "key").process(Gaps(5), SCHEMA, uid="gaps")
    assert [row[0] for row in run_to_end(gaps, tmp_path / "query")] == ["a"]


def test_function_without_timers_has_no_source_of_ticks(spark: Any, stream_of: Any, job_of: Callable[..., Job]) -> None:
    stream = late_after_ten_seconds(stream_of(spark, rows(("a", 0))))
    keyed = job_of(spark).key_by(stream, "key")

    def sources(result: DataFrame) -> int:
        return str(result._jdf.queryExecution().analyzed().toString()).count("StreamingRelation")

    assert sources(keyed.process(Passes(), SCHEMA, uid="passes")) == 1
    assert sources(keyed.process(Gaps(5), SCHEMA, uid="gaps")) == 2


def test_secret_of_the_job_is_not_in_the_plan(spark: Any, stream_of: Any, job_of: Callable[..., Job]) -> None:
    job = job_of(spark)
    gaps = job.key_by(late_after_ten_seconds(stream_of(spark, rows(("a", 0)))), "key").process(Gaps(5), SCHEMA, uid="g")
    plan = str(gaps._jdf.queryExecution().toString())
    assert "qstate_ticks" in plan
    assert job.manager.secret.hex() not in plan and repr(job.manager.secret) not in plan


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_timers_of_a_large_key_space_fire_once(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path, backend: str
) -> None:
    keys = [f"k{number}" for number in range(3000)]
    stream = stream_of(spark, rows(*((key, 0) for key in keys)), rows(("last", 3600)), rows(("last", 3601)))
    gaps = job_of(spark, backend=backend).key_by(late_after_ten_seconds(stream), "key")
    found = run_to_end(gaps.process(Gaps(5), SCHEMA, uid="gaps"), tmp_path / "query")
    assert sorted(row[0] for row in found) == sorted(keys)
