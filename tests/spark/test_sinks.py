"""The queryable state sink in its three forms, and combined before the shuffle."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from operator import methodcaller
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.spark import KeyedStream, QueryableStateStream
from tests.functions import add
from tests.spark.generated import amounts, totals

Sink = Callable[[KeyedStream], QueryableStateStream]


@pytest.fixture
def stored(spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path) -> Any:
    """`stored(tables, sink)`: run the sink over the tables to its end; the values by key, as a client reads them."""

    def run(tables: list[pa.Table], sink: Sink, read: Callable[[Any], Any] = methodcaller("value")) -> dict[str, Any]:
        job = job_of(spark)
        stream = sink(job.key_by(stream_of(spark, *tables).read(), "key"))
        query = stream.start(checkpoint_location=str(tmp_path / "checkpoint"), trigger={"availableNow": True})
        query.awaitTermination()
        keys = sorted({key for table in tables for key in table.column("key").to_pylist()})
        found = client_of(job).get_many("job", stream.queryable_name, keys)
        return {key: read(view) for key, view in found.items()}

    return run


def last_amounts(tables: list[pa.Table]) -> dict[str, int]:
    return {row["key"]: row["amount"] for table in tables for row in table.to_pylist()}


@pytest.mark.parametrize("combine", [False, True])
def test_a_name_or_a_value_descriptor_keeps_the_last_value_by_event_time(stored: Any, combine: bool) -> None:
    tables = amounts(batches=3, rows_a_batch=1000, keys=40)
    descriptor = ValueStateDescriptor("last", int).queryable("lastAmount")
    found = stored(
        tables,
        lambda keyed: keyed.as_queryable_state(descriptor, uid="last", value="amount", order_by="at", combine=combine),
    )
    assert found == last_amounts(tables)


def test_combined_rows_without_an_order_are_one_of_the_keys_rows(stored: Any) -> None:
    tables = amounts(batches=2, rows_a_batch=1000, keys=40)
    found = stored(tables, lambda keyed: keyed.as_queryable_state("lastRow", uid="last", combine=True))
    newest = {(row["key"], row["label"], row["amount"], row["at"]) for row in tables[-1].to_pylist()}
    assert {(key, held["label"], held["amount"], held["at"]) for key, held in found.items()} <= newest


def test_a_reducing_descriptor_combines_every_value(stored: Any) -> None:
    tables = amounts(batches=2, rows_a_batch=1000, keys=40)
    descriptor = ReducingStateDescriptor("total", int, reduce_function=add)
    found = stored(
        tables, lambda keyed: keyed.as_queryable_state(descriptor, uid="total", value="amount"), methodcaller("get")
    )
    assert found == totals(tables)


def test_a_reducing_descriptor_cannot_be_combined_before_the_shuffle(spark: Any, stream_of: Any, job_of: Any) -> None:
    keyed = job_of(spark).key_by(stream_of(spark, *amounts(1, 10, 2)).read(), "key")
    descriptor = ReducingStateDescriptor("total", int, reduce_function=add)
    with pytest.raises(JobError, match="a reducing descriptor needs every row"):
        keyed.as_queryable_state(descriptor, uid="total", value="amount", combine=True)
    with pytest.raises(JobError, match="combine is True or False, got 'yes'"):
        keyed.as_queryable_state("total", uid="total", value="amount", combine="yes")


@pytest.mark.parametrize("combine", [False, True])
def test_a_window_is_a_namespace_as_it_is(
    combine: bool, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    """The namespace is the tuple of the window's start and end, in UTC, whatever the session's time zone is."""
    five = datetime(2013, 7, 18, 5, tzinfo=timezone.utc)
    moments = [five + timedelta(minutes=20 * number) for number in range(6)]
    table = pa.table(
        {"key": ["JFK", "EWR"] * 3, "time": pa.array(moments, pa.timestamp("us", "UTC")), "temp": range(6)}
    )
    job = job_of(spark)
    rows = stream_of(spark, table).read().withColumn("window", F.window("time", "1 hour"))
    stream = job.key_by(rows, "key").as_queryable_state(
        "perHour", uid="perHour", namespace="window", value=["temp", "time"], order_by="time", combine=combine
    )
    stream.start(checkpoint_location=str(tmp_path / "c"), trigger={"availableNow": True}).awaitTermination()
    client, hour = client_of(job), timedelta(hours=1)
    for start, expected in ((five, {"JFK": 2, "EWR": 1}), (five + hour, {"JFK": 4, "EWR": 5})):
        found = client.get_many("job", "perHour", ["JFK", "EWR"], namespace=(start, start + hour))
        assert {key: view.value()["temp"] for key, view in found.items()} == expected
        assert found["JFK"].value()["time"] == moments[expected["JFK"]]
    assert client.get("job", "perHour", "JFK", namespace=(five, five)) is None
