"""P14: the temperature alert by whole batches, against row by row, and against a query that only moves the rows.

Rules of this module: as in `pipelines`. The ceiling is Spark's part alone: the same files, the same shuffle by key
group, and a `mapInArrow` that drops everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.alert_job import ALERTS_DDL, AlertFunction, BatchAlertFunction
from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.micro_batches import FedQuery
from benchmarks.pipelines import alert_query, check_alert_state
from benchmarks.results import Comparison, Findings
from benchmarks.rounds import interleaved
from qstate.keys import DEFAULT_MAX_PARALLELISM
from qstate.operators.functions import KeyedBatchFunction, KeyedProcessFunction

__all__ = ["run"]

PARALLELISM = 2
BATCHES, ROWS, CEILING = "whole batches", "row by row", "rows dropped"


def run(bench: Bench) -> Findings:
    """Run P14 on the heap."""
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.batch_rows, keys=sizes.batch_keys)
    functions: dict[str, KeyedProcessFunction | KeyedBatchFunction] = {
        BATCHES: BatchAlertFunction(),
        ROWS: AlertFunction(),
    }
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(bench.job("heap", PARALLELISM)) for name in functions}
        queries = {
            name: stack.enter_context(alert_query(bench, jobs[name], files, function))
            for name, function in functions.items()
        }
        queries[CEILING] = stack.enter_context(_dropping_query(bench, files))
        for query in queries.values():
            query.write_ahead(sizes.batch_rounds + 1)
        contenders = {name: query.rows_per_s for name, query in queries.items()}
        samples = interleaved(contenders, rounds=sizes.batch_rounds)
        for job in jobs.values():
            check_alert_state(job, files)
    detail = f"{sizes.batch_rows:,} rows a batch, {sizes.batch_keys:,} keys, heap"
    return Findings(
        [
            Comparison("P14 rows", "rows/s", samples[BATCHES], samples[ROWS], ROWS, detail),
            Comparison("P14 ceiling", "rows/s", samples[BATCHES], samples[CEILING], CEILING, detail),
        ]
    )


@contextmanager
def _dropping_query(bench: Bench, files: ReadingFiles) -> Iterator[FedQuery]:
    def start(stream: DataFrame, checkpoint: Path) -> StreamingQuery:
        group = F.pmod(F.xxhash64("sensor"), F.lit(DEFAULT_MAX_PARALLELISM))
        subtask = F.floor(group * F.lit(PARALLELISM) / F.lit(DEFAULT_MAX_PARALLELISM)).cast("int")
        placed = stream.withColumn("subtask", subtask).repartitionById(PARALLELISM, F.col("subtask"))
        nothing = placed.mapInArrow(_drop, ALERTS_DDL)
        return nothing.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()

    query = FedQuery(bench.spark, files, bench.directory("query-dropping"), start)
    try:
        yield query
    finally:
        query.stop()


def _drop(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield from ()
