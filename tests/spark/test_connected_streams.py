"""Two keyed streams in one query: shared state, one order, one watermark, and what cannot be connected."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.errors import JobError
from qstate.spark import Job
from tests.spark.functions_under_test import Passes, Prices, Unanswered
from tests.spark.streams import FileStream, run_to_end, until

START = datetime(2020, 1, 1, tzinfo=timezone.utc)
RESULT = "item string, pieces bigint, price double"


def at(second: int) -> datetime:
    return START + timedelta(seconds=second)


def orders(*found: tuple[str, int, int]) -> pa.Table:
    """Orders of (item, pieces, second)."""
    items, pieces, seconds = zip(*found, strict=True)
    times = pa.array([at(second) for second in seconds], pa.timestamp("us", "UTC"))
    return pa.table({"item": items, "pieces": pieces, "at": times})


def prices(*found: tuple[str, float, int]) -> pa.Table:
    """Prices of (code, price, second)."""
    codes, amounts, seconds = zip(*found, strict=True)
    times = pa.array([at(second) for second in seconds], pa.timestamp("us", "UTC"))
    return pa.table({"code": codes, "price": amounts, "at": times})


@pytest.fixture
def streams(spark: Any, stream_of: Any) -> Callable[..., tuple[FileStream, FileStream]]:
    return lambda first, second: (stream_of(spark, first), stream_of(spark, second))


def test_rows_with_equal_keys_share_state_and_are_sorted_together(
    spark: Any, streams: Any, job_of: Callable[..., Job], client_of: Any, tmp_path: Path
) -> None:
    many = [(f"i{number % 50}", number, 10 * number) for number in range(1000)]
    changes = [(f"i{number % 50}", number / 2, 10 * number - 5) for number in range(1000)]
    first, second = streams(orders(*many), prices(*changes))
    job = job_of(spark)
    joined = job.key_by(first.read(), "item").connect(job.key_by(second.read(), F.col("code")))
    found = run_to_end(joined.process(Prices(), RESULT, uid="prices", order_by="at"), tmp_path / "query")
    assert sorted(map(tuple, found)) == sorted((item, pieces, pieces / 2) for item, pieces, _ in many)
    assert client_of(job).get("job", "price", "i7").value() == 957 / 2


def test_second_action_and_a_new_query_see_the_same_results(
    spark: Any, streams: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    first, second = streams(orders(("a", 1, 1)), prices(("a", 0.5, 0)))
    job = job_of(spark)
    seen: list[list[Any]] = []

    def prepared() -> DataFrame:
        joined = job.key_by(first.read(), "item").connect(job.key_by(second.read(), "code"))
        return joined.process(Prices(), RESULT, uid="prices", order_by="at")

    def take(batch: DataFrame, _: int) -> None:
        seen.append([[tuple(row) for row in batch.collect()] for _ in range(2)])

    def run() -> None:
        writer = prepared().writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "query"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    first.add(orders(("a", 2, 3)))
    run()
    assert seen == [[[("a", 1, 0.5)]] * 2, [[("a", 2, 0.5)]] * 2]


def test_timers_wait_for_the_lesser_watermark(
    spark: Any, streams: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    first, second = streams(orders(("a", 1, 0), ("b", 1, 60)), prices(("b", 0.5, 2)))
    job = job_of(spark)
    connected = job.key_by(first.read().withWatermark("at", "10 seconds"), "item").connect(
        job.key_by(second.read().withWatermark("at", "0 seconds"), "code")
    )
    unanswered = connected.process(Unanswered(), "item string, at timestamp, n bigint", uid="unanswered")
    found: list[Any] = []
    query = (
        unanswered.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
        .option("checkpointLocation", str(tmp_path / "query"))
        .start()
    )
    query.processAllAvailable()
    assert found == [], "the watermark of the second stream is 2"
    second.add(prices(("c", 0.5, 30)))
    until(lambda: len(found) == 1, "the timer of a fires")
    query.stop()
    assert found[0].item == "a" and found[0].at.replace(tzinfo=timezone.utc) == at(0)


def test_integers_of_two_sizes_are_equal_keys(
    spark: Any, stream_of: Any, job_of: Callable[..., Job], tmp_path: Path
) -> None:
    small = stream_of(spark, pa.table({"item": pa.array([7, 8], pa.int32()), "pieces": [1, 2]}))
    large = stream_of(spark, pa.table({"code": pa.array([7], pa.int64()), "price": [0.5]}))
    job = job_of(spark)
    joined = job.key_by(small.read(), "item").connect(job.key_by(large.read(), "code"))
    found = run_to_end(
        joined.process(Prices(), "item bigint, pieces bigint, price double", uid="p"), tmp_path / "query"
    )
    assert sorted(row.item for row in found) == [7, 8]


def test_what_cannot_be_connected_says_why(spark: Any, streams: Any, job_of: Callable[..., Job]) -> None:
    first, second = streams(orders(("a", 1, 0)), prices(("a", 0.5, 2)))
    job = job_of(spark)
    items = job.key_by(first.read(), "item")
    codes = job.key_by(second.read(), "code")
    with pytest.raises(JobError, match="or, if this stream is keyed, another keyed one; got"):
        items.connect(second.read())  # type: ignore[arg-type]
    with pytest.raises(JobError, match="of the same job"):
        items.connect(job_of(spark, "other").key_by(second.read(), "code"))
    with pytest.raises(JobError, match="equally many key columns, got 1 and 2"):
        items.connect(job.key_by(second.read(), "code", "at"))
    with pytest.raises(JobError, match="'pieces' of the second one is bigint: cast one of them"):
        items.connect(job.key_by(first.read(), "pieces")).process(Prices(), RESULT, uid="p")
    with pytest.raises(JobError, match="order_by columns of both streams must have equal types"):
        items.connect(job.key_by(second.read().select("code", F.lit(1).alias("at")), "code")).process(
            Prices(), RESULT, uid="p", order_by="at"
        )
    with pytest.raises(JobError, match="no column 'pieces'"):
        items.connect(codes).process(Prices(), RESULT, uid="p", order_by="pieces")
    with pytest.raises(JobError, match="needs a KeyedCoProcessFunction"):
        items.connect(codes).process(Passes(), RESULT, uid="p")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="got the class: write Prices"):
        items.connect(codes).process(Prices, RESULT, uid="p")  # type: ignore[arg-type]
