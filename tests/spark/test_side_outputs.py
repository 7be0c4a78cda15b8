"""One query that writes each output to a sink of its own, in one pass and exactly once."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from qstate.descriptors import ReducingStateDescriptor
from qstate.errors import JobError
from qstate.operators.functions import KeyedProcessFunction
from qstate.spark import output_of, write_each
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.spark.generated import amounts, totals
from tests.spark.state_checks import assert_totals
from tests.spark.streams import run_to_end

MAIN, ODD = "key string, total bigint", "amount bigint"


class Splits(KeyedProcessFunction):
    """Emits running totals, and the odd amounts to a side output."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        )

    def process_element(self, row: Any, context: Any) -> Any:
        self.total.add(row.amount)
        if row.amount % 2:
            context.output("odd", (row.amount,))
        yield row.key, self.total.get()


class Moves(KeyedProcessFunction):
    """Emits its rows, and sends their numbers to a side output."""

    def process_element(self, row: Any, context: Any) -> Any:
        context.output("numbers", (row.n,))
        yield row.key, row.at, row.n


def run(result: DataFrame, directory: Path, each: Callable[[DataFrame, int], None]) -> None:
    writer = result.writeStream.foreachBatch(each).option("checkpointLocation", str(directory))
    writer.trigger(availableNow=True).start().awaitTermination()


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_sinks_get_the_same_rows_again_when_one_failed_after_the_seal(
    backend: str, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=3, rows_a_batch=500, keys=20)
    job = job_of(spark, backend=backend)
    stream = stream_of(spark, *tables).read()
    result = job.key_by(stream, "key").process(Splits(), MAIN, uid="split", side_outputs={"odd": ODD})
    found: dict[tuple[str, int], list[list[Any]]] = {}
    broken = {"once": True}

    def keep(name: str) -> Callable[[DataFrame, int], None]:
        return lambda rows, epoch: found.setdefault((name, epoch), []).append(sorted(rows.collect()))

    def odd(rows: DataFrame, epoch: int) -> None:
        keep("odd")(rows, epoch)
        if epoch == 1 and broken.pop("once", False):
            raise OSError("the sink is full")

    sinks = write_each(main=keep("main"), odd=odd)
    with pytest.raises(StreamingQueryException, match="the sink is full"):
        run(result, tmp_path / "c", sinks)
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()
    run(result, tmp_path / "c", sinks)
    assert spark._jsparkSession.sharedState().cacheManager().isEmpty()
    for epoch, table in enumerate(tables):
        times = 2 if epoch == 1 else 1
        numbers = sorted((one,) for one in table["amount"].to_pylist() if one % 2)
        assert found["odd", epoch] == [numbers] * times
        assert [len(rows) for rows in found["main", epoch]] == [500] * times
        assert all(rows == found["main", epoch][0] for rows in found["main", epoch])
    assert_totals(client_of(job), "job", totals(tables))


def test_outputs_that_no_sink_reads_skip_no_epoch_and_unknown_names_stop_the_query(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=2, rows_a_batch=100, keys=5)
    job = job_of(spark)
    result = job.key_by(stream_of(spark, *tables).read(), "key").process(
        Splits(), MAIN, uid="split", side_outputs={"odd": ODD}
    )
    drop: Any = lambda rows, epoch: None  # noqa: E731
    with pytest.raises(StreamingQueryException, match=r"no sink for \['odd'\] and no output is called \['even'\]"):
        run(result, tmp_path / "c", write_each(main=drop, even=drop))
    run(result, tmp_path / "c", write_each(main=drop, odd=drop))
    with pytest.raises(JobError, match="the sink of 'main' is a function"):
        write_each(main=7)  # type: ignore[arg-type]
    with pytest.raises(JobError, match="no output is called 'even'; there are 'main', 'odd'"):
        output_of(result, "even")


def test_main_output_has_the_watermark_for_a_window_behind_it(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    def minutes(*numbers: int) -> pa.Table:
        times = [datetime(2020, 1, 1) + timedelta(minutes=number) for number in numbers]
        keys = [f"k{number % 3}" for number in numbers]
        return pa.table({"key": keys, "at": pa.array(times, pa.timestamp("us", "UTC")), "n": list(numbers)})

    def by_ten_minutes(stream: DataFrame) -> DataFrame:
        return stream.groupBy(F.window("at", "10 minutes"), "key").count()

    tables = [minutes(0, 1, 2, 11), minutes(12, 21, 25), minutes(60, 5), minutes(120)]
    source = stream_of(spark, *tables).read().withWatermark("at", "5 minutes")
    result = (
        job_of(spark)
        .key_by(source, "key")
        .process(
            Moves(),
            "key string, at timestamp, n bigint",
            uid="moves",
            event_time_column="at",
            side_outputs={"numbers": "n bigint"},
        )
    )
    expected = run_to_end(by_ten_minutes(source), tmp_path / "spark alone")
    found = run_to_end(by_ten_minutes(output_of(result, "main")), tmp_path / "with an operator")
    assert sorted(found) == sorted(expected) != []
