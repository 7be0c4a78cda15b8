"""P3: the last value per key as queryable state, against writing it to Redis in foreachBatch.

Rules of this module: it sets them up on the same files and checks that all hold the values afterwards. Neither side
orders the rows of a key, and Redis is spared the shuffle: it needs none. The target is against what users of Redis
write; the fastest way into Redis that we know is shown beside it. A sample is one warm micro-batch, its rows divided by
Spark's `triggerExecution`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.alert_job import STATE
from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.micro_batches import FedQuery
from benchmarks.optional_packages import optional
from benchmarks.pipelines import check_alert_state
from benchmarks.redis_server import redis_server, unavailable
from benchmarks.redis_sink import ArrowRedisWriter, RowRedisWriter
from benchmarks.results import Comparison, Figure, Findings
from benchmarks.rounds import interleaved
from benchmarks.sizes import Sizes
from qstate.spark import Job

__all__ = ["run"]

PLAIN, COMBINED = "queryable sink", "queryable sink with combine"
REDIS, FAST_REDIS = "Redis", "Redis, from Arrow batches"


def run(bench: Bench) -> Findings:
    """Run P3 with many keys, where nearly every row has a new one, and with fewer."""
    findings = Findings()
    for keys in bench.sizes.sink_keys:
        findings.add(_compared(bench, keys))
    return findings


def _compared(bench: Bench, keys: int) -> Findings:
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.sink_rows, keys=keys)
    absent = unavailable()
    with ExitStack() as stack:
        jobs = {name: stack.enter_context(bench.job("heap")) for name in (PLAIN, COMBINED)}
        queries = {
            name: stack.enter_context(_sink_query(bench, job, files, combine=name == COMBINED))
            for name, job in jobs.items()
        }
        if not absent:
            port = stack.enter_context(redis_server(bench.directory("redis")))
            for name in (REDIS, FAST_REDIS):
                queries[name] = stack.enter_context(_redis_query(bench, port, files, fast=name == FAST_REDIS))
        for query in queries.values():
            query.write_ahead(sizes.sink_rounds + sizes.sink_warm_rounds)
        contenders = {name: query.rows_per_s for name, query in queries.items()}
        samples = interleaved(contenders, rounds=sizes.sink_rounds, warm=sizes.sink_warm_rounds)
        for job in jobs.values():
            check_alert_state(job, files)
        if not absent:
            _check_redis(port, files)
    return _findings(sizes, keys, samples, absent)


def _findings(sizes: Sizes, keys: int, samples: dict[str, list[float]], absent: str) -> Findings:
    """Compares the form of the sink that the documentation recommends for this number of keys."""
    chosen, other = (COMBINED, PLAIN) if sizes.sink_rows >= 2 * keys else (PLAIN, COMBINED)
    detail = f"{chosen}; {sizes.sink_rows:,} rows a batch, {keys:,} keys"
    comparison = Comparison("P3", "rows/s", samples[chosen], samples.get(REDIS, []), "Redis, MSET", detail, absent)
    beside = [name for name in (other, FAST_REDIS) if name in samples]
    return Findings([comparison], [Figure(f"{name}; {keys:,} keys", "rows/s", samples[name]) for name in beside])


@contextmanager
def _sink_query(bench: Bench, job: Job, files: ReadingFiles, *, combine: bool) -> Iterator[FedQuery]:
    def start(stream: DataFrame, checkpoint: Path) -> StreamingQuery:
        keyed = job.key_by(stream.select("sensor", "temperature"), "sensor")
        return keyed.as_queryable_state(STATE, uid="last", combine=combine).start(checkpoint_location=str(checkpoint))

    query = FedQuery(bench.spark, files, bench.directory("query-sink"), start)
    try:
        yield query
    finally:
        query.stop()


@contextmanager
def _redis_query(bench: Bench, port: int, files: ReadingFiles, *, fast: bool) -> Iterator[FedQuery]:
    def write(batch: DataFrame, _number: int) -> None:
        if fast:
            batch.mapInArrow(ArrowRedisWriter(port), "nothing bigint").write.format("noop").mode("overwrite").save()
        else:
            batch.foreachPartition(RowRedisWriter(port))

    def start(stream: DataFrame, checkpoint: Path) -> StreamingQuery:
        writing = stream.select("sensor", "temperature").writeStream.foreachBatch(write)
        return writing.option("checkpointLocation", str(checkpoint)).start()

    query = FedQuery(bench.spark, files, bench.directory(f"query-redis-{'fast' if fast else 'common'}"), start)
    try:
        yield query
    finally:
        query.stop()


def _check_redis(port: int, files: ReadingFiles) -> None:
    redis: Any = optional("redis")
    with closing(redis.Redis("127.0.0.1", port)) as client:
        found = client.mget([files.sensor(number * 97) for number in range(100)])
    if sum(value is not None for value in found) < 90:
        raise RuntimeError("Redis does not hold the values that were written")
