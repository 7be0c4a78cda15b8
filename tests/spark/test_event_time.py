"""Watermarks, windows and deduplication before and behind an operator: what Spark gives without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.errors import JobError
from qstate.spark import Job
from tests.spark.functions_under_test import Passes
from tests.spark.streams import FileStream, run_to_end

SCHEMA = "key string, at timestamp, n bigint"
LAST_MINUTE = 120


def minutes(*numbers: int) -> pa.Table:
    times = [datetime(2020, 1, 1) + timedelta(minutes=number) for number in numbers]
    keys = [f"k{number % 3}" for number in numbers]
    return pa.table({"key": keys, "at": pa.array(times, pa.timestamp("us", "UTC")), "n": list(numbers)})


#: The rows of minute 5 come twice, and once when the watermark has passed their window; minute 11 comes twice.
BATCHES = [minutes(0, 1, 2, 3, 5, 5, 11), minutes(12, 21, 25, 11), minutes(60, 61, 5), minutes(LAST_MINUTE)]


@pytest.fixture(scope="module")
def job(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """One job for all operators of this module; its task managers are up, so that no test is blamed for them."""
    with Job(spark, "job", parallelism=2, proxy_ports="0", server_ports="0") as job:
        stream = FileStream(spark, tmp_path_factory.mktemp("warm") / "input")
        stream.add(BATCHES[0])
        run_to_end(job.key_by(stream.read(), "key").process(Passes(), SCHEMA, uid="warm"), stream.directory / "c")
        yield job


@pytest.fixture
def rows(spark: Any, stream_of: Any) -> Iterator[DataFrame]:
    """Spark gives an empty micro-batch when the watermark has moved on, which is its default."""
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "true")
    stream: DataFrame = stream_of(spark, *BATCHES).read()
    yield stream
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")


@pytest.fixture
def through(job: Job, request: pytest.FixtureRequest) -> Callable[..., DataFrame]:
    """`through(stream, **options)`: the stream through an operator that gives its rows on."""
    made: list[DataFrame] = []

    def run(stream: DataFrame, **options: Any) -> DataFrame:
        uid = f"{request.node.name} {len(made)}"
        made.append(job.key_by(stream, "key").process(Passes(), SCHEMA, uid=uid, order_by="at", **options))
        return made[-1]

    return run


def late_after_five_minutes(stream: DataFrame) -> DataFrame:
    return stream.withWatermark("at", "5 minutes")


def once_each(stream: DataFrame) -> DataFrame:
    return stream.dropDuplicatesWithinWatermark(["key", "n"])


def by_ten_minutes(stream: DataFrame) -> DataFrame:
    counts = stream.groupBy(F.window("at", "10 minutes"), "key").count()
    return counts.select("key", F.window_time("window").alias("at"), F.col("count").alias("n"))


def by_hour(stream: DataFrame) -> DataFrame:
    sums = stream.groupBy(F.window("at", "1 hour"), "key").agg(F.sum("n").alias("n"))
    return sums.select("key", F.col("window.start").alias("at"), "n")


def as_it_is(stream: DataFrame) -> DataFrame:
    return stream


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (as_it_is, by_ten_minutes),
        (as_it_is, once_each),
        (once_each, by_ten_minutes),
        (by_ten_minutes, as_it_is),
        (by_ten_minutes, by_hour),
    ],
    ids=["window", "deduplication", "deduplication and window", "window before", "window and window"],
)
def test_the_watermark_of_the_stream_continues_after_the_operator(
    before: Any, behind: Any, rows: DataFrame, through: Any, tmp_path: Path
) -> None:
    source = before(late_after_five_minutes(rows))
    expected = run_to_end(behind(source.select("key", "at", "n")), tmp_path / "spark alone")
    found = run_to_end(behind(through(source, event_time_column="at")), tmp_path / "with an operator")
    assert sorted(found) == sorted(expected) != []


def test_the_watermark_passes_several_operators(rows: DataFrame, through: Any, tmp_path: Path) -> None:
    source = late_after_five_minutes(rows)
    expected = run_to_end(by_ten_minutes(source), tmp_path / "spark alone")
    twice = through(through(source, event_time_column="at"), event_time_column="at")
    assert sorted(run_to_end(by_ten_minutes(twice), tmp_path / "with operators")) == sorted(expected) != []


def test_a_watermark_after_the_operator_alone_works_as_in_spark(rows: DataFrame, through: Any, tmp_path: Path) -> None:
    expected = run_to_end(by_ten_minutes(late_after_five_minutes(rows)), tmp_path / "spark alone")
    found = run_to_end(by_ten_minutes(late_after_five_minutes(through(rows))), tmp_path / "with an operator")
    assert sorted(found) == sorted(expected) != []


def test_rows_that_the_function_gives_an_older_time_are_late(rows: DataFrame, job: Job, tmp_path: Path) -> None:
    """The watermark is that of the stream, for any times in the function's results."""
    keyed = job.key_by(late_after_five_minutes(rows), "key")
    moved = keyed.process(Passes(timedelta(hours=-2)), SCHEMA, uid="moved", order_by="at", event_time_column="at")
    counted = sum(row.n for row in run_to_end(by_ten_minutes(moved), tmp_path / "checkpoint"))
    # There is no watermark yet in the first micro-batch; the windows of the last one's rows have passed.
    assert BATCHES[0].num_rows <= counted <= sum(batch.num_rows for batch in BATCHES[:-1])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("when", "no column 'when' in output_schema, which has key, at, n"),
        ("n", "'n' is bigint, not a timestamp"),
        ("at", "which has none: call withWatermark on the stream before key_by"),
    ],
)
def test_an_event_time_column_that_cannot_be_one_is_refused(
    column: str, message: str, rows: DataFrame, through: Any
) -> None:
    with pytest.raises(JobError, match=message):
        through(rows, event_time_column=column)


def test_spark_refuses_a_window_without_its_watermark_in_these_words(
    rows: DataFrame, through: Any, tmp_path: Path
) -> None:
    """The words in the guide that lead to the remedy."""
    source = late_after_five_minutes(rows)
    with pytest.raises(AnalysisException, match="not supported for streaming aggregations without watermark"):
        run_to_end(by_ten_minutes(through(source)), tmp_path / "without")
    with pytest.raises(StreamingQueryException, match="Redefining watermark is disallowed"):
        run_to_end(by_ten_minutes(late_after_five_minutes(through(source))), tmp_path / "twice")


def test_window_between_two_watermarks_gives_no_rows(rows: DataFrame, through: Any, tmp_path: Path) -> None:
    """Spark does not refuse this one; the guide warns of it."""
    source = by_ten_minutes(late_after_five_minutes(rows))
    assert run_to_end(by_hour(late_after_five_minutes(through(source))), tmp_path / "checkpoint") == []
