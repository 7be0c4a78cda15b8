"""P1, P2, P2b: rows per second of the temperature alert job, against Spark's transformWithState, and by backend.

Rules of this module: it sets the contenders up and checks that they did the work. All read the same files, one per
micro-batch, on local[2] with two partitions, into the noop sink; a sample is one warm micro-batch, its rows
divided by Spark's `triggerExecution`, which is the whole micro-batch with planning and logs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.alert_job import ALERTS_DDL, STATE, AlertFunction, AlertProcessor
from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.micro_batches import FedQuery
from benchmarks.optional_packages import missing
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import interleaved
from qstate.operators.functions import KeyedBatchFunction, KeyedProcessFunction
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.spark import Job

__all__ = ["alert_query", "check_alert_state", "run", "run_large"]

SPARKS_OWN = "transformWithState"
BACKEND_OF = {"p1": "heap", "p2": "rocksdb"}


def run(bench: Bench) -> Findings:
    """Run those of P1 and P2 that are selected."""
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.alert_rows, keys=sizes.alert_keys)
    backends = {name: backend for name, backend in BACKEND_OF.items() if bench.wants(name)}
    absent = missing("google.protobuf")
    jobs: dict[str, Job] = {}
    with ExitStack() as stack:
        queries: dict[str, FedQuery] = {}
        for backend in backends.values():
            jobs[backend] = stack.enter_context(bench.job(backend))
            queries[backend] = stack.enter_context(alert_query(bench, jobs[backend], files))
        if not absent:
            queries[SPARKS_OWN] = stack.enter_context(_sparks_own_query(bench, files))
        for query in queries.values():
            query.write_ahead(sizes.alert_rounds + 1)
        contenders = {name: query.rows_per_s for name, query in queries.items()}
        samples = interleaved(contenders, rounds=sizes.alert_rounds)
        for backend in backends.values():
            check_alert_state(jobs[backend], files)
    findings = Findings()
    theirs = samples.get(SPARKS_OWN, [])
    detail = f"{sizes.alert_rows:,} rows a batch, {sizes.alert_keys:,} keys"
    for name, backend in backends.items():
        findings.comparisons.append(
            Comparison(name.upper(), "rows/s", samples[backend], theirs, SPARKS_OWN, detail, absent)
        )
        findings.figures.append(_fixed_cost(backend, sizes.alert_rows, samples[backend]))
    return findings


def run_large(bench: Bench) -> Findings:
    """P2b: both backends on micro-batches that are ten times as large."""
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.large_rows, keys=sizes.large_keys)
    with ExitStack() as stack:
        queries: dict[str, FedQuery] = {}
        jobs = {backend: stack.enter_context(bench.job(backend)) for backend in BACKEND_OF.values()}
        for backend, job in jobs.items():
            queries[backend] = stack.enter_context(alert_query(bench, job, files))
            queries[backend].write_ahead(sizes.large_rounds + 1)
        contenders = {backend: query.rows_per_s for backend, query in queries.items()}
        samples = interleaved(contenders, rounds=sizes.large_rounds)
        for job in jobs.values():
            check_alert_state(job, files)
    detail = f"{sizes.large_rows:,} rows a batch, {sizes.large_keys:,} keys"
    return Findings([Comparison("P2b", "rows/s", samples["rocksdb"], samples["heap"], "heap", detail)])


@contextmanager
def alert_query(
    bench: Bench, job: Job, files: ReadingFiles, function: KeyedProcessFunction | KeyedBatchFunction | None = None
) -> Iterator[FedQuery]:
    """The job in qstate, running; by rows, unless another function is given."""

    def start(stream: DataFrame, checkpoint: Path) -> StreamingQuery:
        alerts = job.key_by(stream, "sensor").process(function or AlertFunction(), ALERTS_DDL, uid="alerts")
        return _into_noop(alerts, checkpoint)

    query = FedQuery(bench.spark, files, bench.directory(f"query-{job.name}"), start)
    try:
        yield query
    finally:
        query.stop()


@contextmanager
def _sparks_own_query(bench: Bench, files: ReadingFiles) -> Iterator[FedQuery]:
    def start(stream: DataFrame, checkpoint: Path) -> StreamingQuery:
        keyed = stream.groupBy("sensor")
        alerts = keyed.transformWithState(AlertProcessor(), ALERTS_DDL, outputMode="Append", timeMode="None")
        return _into_noop(alerts, checkpoint)

    query = FedQuery(bench.spark, files, bench.directory("query-transform-with-state"), start)
    try:
        yield query
        _check_sparks_state(query, files)
    finally:
        query.stop()


def _into_noop(result: DataFrame, checkpoint: Path) -> StreamingQuery:
    return result.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()


def check_alert_state(job: Job, files: ReadingFiles) -> None:
    """Raise unless sensors that must have had a reading have state: the job must have done the work."""
    wanted = [files.sensor(number * 97) for number in range(100)]
    with QueryableStateClient(*job.proxy_address) as client:
        found = client.get_many(job.name, STATE, wanted)
    held = sum(view is not None and 10.0 <= view.value() <= 30.0 for view in found.values())
    if held < 0.9 * len(found):
        raise RuntimeError(f"only {held} of {len(found)} sensors have a last temperature")


def _check_sparks_state(query: FedQuery, files: ReadingFiles) -> None:
    (operator,) = query.last_progress()["stateOperators"]
    if operator["numRowsTotal"] < 0.9 * files.keys:
        raise RuntimeError(f"transformWithState holds {operator['numRowsTotal']} of {files.keys} keys")


def _fixed_cost(backend: str, rows: int, samples: list[float]) -> Figure:
    return Figure(f"one batch of the {backend} job", "s", [rows / sample for sample in samples])
