"""Functions over whole batches in a running job: the rows, keys and namespaces that they get, and their errors."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from qstate.descriptors import ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.spark import ElementContext, KeyedBatch, KeyedBatchFunction, KeyedProcessFunction, RuntimeContext
from tests.functions import add
from tests.spark.generated import amounts, totals
from tests.spark.streams import run_to_end


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


class Fails(KeyedBatchFunction):
    def process_batch(self, batch: KeyedBatch, context: ElementContext) -> Iterable[pa.RecordBatch]:
        for one in batch.by_key():
            raise ValueError(f"no good: {one.rows.num_rows > 0}")
        return ()


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
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
