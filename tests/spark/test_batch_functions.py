"""Functions over whole batches in a running job: the rows, keys and namespaces that they get, and their errors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.spark import DueTimers, ElementContext, KeyedBatch, KeyedBatchFunction, KeyedProcessFunction, RuntimeContext
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.spark.generated import amounts, totals
from tests.spark.streams import run_to_end, until


class TotalByBatch(KeyedBatchFunction):
    """Adds amounts up per key and per (key, label), and emits each key's total once per batch."""

    def open(self, context: RuntimeContext) -> None:
        total = ReducingStateDescriptor("total", int, reduce_function=add)
        self.total = context.get_reducing_state(total.queryable("totalAmount"))
        self.last = context.get_state(ValueStateDescriptor("last", int).queryable("lastAmount"))

    def process_batch(self, batch: KeyedBatch, context: ElementContext) -> Iterable[pa.RecordBatch]:
        amounts = batch.rows.column("amount")
        self.total.add_many(batch.keys, amounts)
        self.last.put_many(batch.keys, amounts, batch.namespaces)
        keys = batch.by_key().keys
        yield pa.RecordBatch.from_arrays(
            [pa.array(keys, pa.string()), pa.array(self.total.get_many(keys), pa.int64())], ["key", "total"]
        )


class Silent(KeyedBatchFunction):
    """Emits the keys that had no row for some milliseconds of processing time, with the number of their rows."""

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms

    def open(self, context: RuntimeContext) -> None:
        self.rows = context.get_reducing_state(ReducingStateDescriptor("rows", int, reduce_function=add))
        self.until = context.get_state(ValueStateDescriptor("until", int))

    def process_batch(self, batch: KeyedBatch, context: ElementContext) -> None:
        self.rows.add_many(batch.keys, [1] * len(batch.keys))
        keys = batch.by_key().keys
        timed = [(key, time) for key, time in zip(keys, self.until.get_many(keys), strict=True) if time is not None]
        context.timers.delete_processing_time_many([key for key, _ in timed], [time for _, time in timed])
        until = [context.processing_time + self._wait_ms] * len(keys)
        context.timers.register_processing_time_many(keys, until)
        self.until.put_many(keys, until)

    def on_timers(self, timers: DueTimers, context: ElementContext) -> Iterable[pa.RecordBatch]:
        rows = self.rows.get_many(timers.keys)
        self.until.clear_many(timers.keys)
        yield pa.RecordBatch.from_arrays([pa.array(timers.keys, pa.string()), pa.array(rows, pa.int64())], ["key", "n"])


class Fails(KeyedBatchFunction):
    def process_batch(self, batch: KeyedBatch, context: ElementContext) -> Iterable[pa.RecordBatch]:
        for one in batch.by_key():
            raise ValueError(f"no good: {one.rows.num_rows > 0}")
        return ()


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_a_batch_function_keeps_state_by_key_and_namespace(
    backend: str, spark: Any, stream_of: Any, job_of: Any, client_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=3, rows_a_batch=1000, keys=40)
    job = job_of(spark, backend=backend)
    result = job.key_by(stream_of(spark, *tables).read(), "key").process(
        TotalByBatch(), "key string, total bigint", uid="totals", order_by="at", namespace=F.upper("label")
    )
    emitted = run_to_end(result, tmp_path / "checkpoint")
    expected = totals(tables)
    assert {row.key: row.total for row in emitted} == expected
    client = client_of(job)
    held = client.get_many("job", "totalAmount", list(expected))
    assert {key: view.get() for key, view in held.items()} == expected
    last = {(row["key"], row["label"]): row["amount"] for table in tables for row in table.to_pylist()}
    for label in {label for _, label in last}:
        keys = [key for key, own in last if own == label]
        found = client.get_many("job", "lastAmount", keys, namespace=label.upper())
        assert {key: view.value() for key, view in found.items()} == {key: last[key, label] for key in keys}


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_timers_of_a_batch_function_fire_when_the_input_has_stopped(
    backend: str, spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    tables = amounts(batches=2, rows_a_batch=5000, keys=40)
    counts = Counter(key for table in tables for key in table["key"].to_pylist())
    emitted: list[tuple[str, int]] = []
    result = job_of(spark, backend=backend).key_by(stream_of(spark, *tables).read(), "key")
    silent = result.process(Silent(2000), "key string, n bigint", uid="silent")
    query = (
        silent.writeStream.foreachBatch(lambda batch, _: emitted.extend((row.key, row.n) for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        until(lambda: dict(emitted) == counts, "the timers of all keys fire after their last rows")
    finally:
        query.stop()


def test_errors_of_a_batch_function_name_it_and_its_key(
    spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    (table,) = amounts(batches=1, rows_a_batch=10, keys=1)
    result = job_of(spark).key_by(stream_of(spark, table).read(), "key").process(Fails(), "key string", uid="fails")
    with pytest.raises(
        Exception, match=r"operator 'fails', function Fails, a batch of 10 rows, key '.+': ValueError: no"
    ):
        run_to_end(result, tmp_path / "checkpoint")


def test_namespace_columns_are_for_batch_functions(spark: Any, stream_of: Any, job_of: Any) -> None:
    class ByRow(KeyedProcessFunction):
        def process_element(self, row: Any, context: Any) -> None:
            return None

    keyed = job_of(spark).key_by(stream_of(spark, *amounts(1, 10, 2)).read(), "key")
    with pytest.raises(JobError, match="namespace columns are for queryable sinks and batch functions"):
        keyed.process(ByRow(), "key string", uid="rows", namespace="label")
