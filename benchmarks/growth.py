"""Growth curves: gets by keys, value size and requests in flight; pipelines by keys and parallelism.

Rules of this module: curves only, no targets. It measures ours; what others do with the same work is in the
comparisons.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import cycle
from statistics import median
from typing import Any

import pyarrow as pa

from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.latencies import durations_us, in_flight, percentile
from benchmarks.optional_packages import run_async
from benchmarks.pipelines import alert_query
from benchmarks.results import Curve, Findings
from benchmarks.rounds import say
from benchmarks.served_job import JOB, STATE, ServedJob
from benchmarks.sizes import Sizes
from qstate.runtime.client.async_client import AsyncQueryableStateClient
from qstate.runtime.client.sync_client import QueryableStateClient

__all__ = ["run_gets", "run_pipelines"]

BACKENDS = ("heap", "rocksdb")
KEYS_FOR_VALUE_SIZES = 500

Line = list[tuple[float, float]]


def run_gets(bench: Bench) -> Findings:
    """Latency against keys and value size, throughput against gets in flight."""
    sizes = bench.sizes
    by_keys: dict[str, Line] = {backend: [] for backend in BACKENDS}
    by_bytes: dict[str, Line] = {backend: [] for backend in BACKENDS}
    in_flight: dict[str, Line] = {}
    for backend in BACKENDS:
        for keys in sizes.growth_held_keys:
            values = {f"key-{i}": i * 0.5 for i in range(keys)}
            with ServedJob(pa.float64(), backend=backend) as job:
                job.hold(values)
                by_keys[backend].append((keys, _p50_us(job, sizes, list(values))))
            say(f"  {backend}, {keys:,} keys: {by_keys[backend][-1][1]:,.0f} us")
        for size in sizes.growth_value_bytes:
            values_of_size = {f"key-{i}": random.Random(i).randbytes(size) for i in range(KEYS_FOR_VALUE_SIZES)}
            with ServedJob(pa.binary(), backend=backend) as job:
                job.hold(values_of_size)
                by_bytes[backend].append((size, _p50_us(job, sizes, list(values_of_size))))
            say(f"  {backend}, {size:,} bytes: {by_bytes[backend][-1][1]:,.0f} us")
        in_flight.update(_throughputs(sizes, backend))
    return Findings(
        curves=[
            Curve("get latency against keys", "keys", "p50, us, direct", by_keys),
            Curve("get latency against value size", "bytes", "p50, us, direct", by_bytes),
            Curve("get throughput against gets in flight", "gets in flight", "gets/s, asyncio", in_flight),
        ]
    )


def _p50_us(job: ServedJob, sizes: Sizes, keys: list[str]) -> float:
    chooser = random.Random(5)
    with QueryableStateClient(*job.proxy, direct=True) as client:
        wanted = [chooser.choice(keys) for _ in range(sizes.gets_a_round)]
        durations_us(lambda key: client.get(JOB, STATE, key).value(), wanted[: len(wanted) // 5])
        return percentile(durations_us(lambda key: client.get(JOB, STATE, key).value(), wanted), 50)


def _throughputs(sizes: Sizes, backend: str) -> Mapping[str, Line]:
    values = {f"key-{i}": i * 0.5 for i in range(sizes.held_keys)}
    lines: dict[str, Line] = {}
    with ServedJob(pa.float64(), backend=backend) as job:
        job.hold(values)
        for way in ("direct", "through the proxy"):
            lines[f"{backend}, {way}"] = run_async(_throughput_line(job.proxy, sizes, direct=way == "direct"))
    return lines


async def _throughput_line(proxy: tuple[str, int], sizes: Sizes, *, direct: bool) -> Line:
    keys = cycle([f"key-{i * 37 % sizes.held_keys}" for i in range(sizes.held_keys)])
    async with await AsyncQueryableStateClient.connect(*proxy, direct=direct) as client:

        async def get(key: str) -> Any:
            return (await client.get(JOB, STATE, key)).value()

        line: Line = []
        for tasks in sizes.growth_in_flight:
            line.append((tasks, (await in_flight(get, keys, tasks, sizes.in_flight_s)).calls_per_s))
            say(f"  {tasks} in flight, {'direct' if direct else 'proxy'}: {line[-1][1]:,.0f} gets/s")
        return line


def run_pipelines(bench: Bench) -> Findings:
    """Rows per second against keys (both backends) and parallelism (heap)."""
    sizes = bench.sizes
    by_keys: dict[str, Line] = {backend: [] for backend in BACKENDS}
    for keys in sizes.growth_pipeline_keys:
        files = ReadingFiles(bench.directory("readings"), rows=sizes.growth_rows, keys=keys)
        for backend in BACKENDS:
            by_keys[backend].append((keys, _rows_per_s(bench, backend, 2, files)))
    files = ReadingFiles(bench.directory("readings"), rows=sizes.growth_rows, keys=sizes.alert_keys)
    by_parallelism = [(float(count), _rows_per_s(bench, "heap", count, files)) for count in sizes.growth_parallelism]
    return Findings(
        curves=[
            Curve("pipeline against keys", "keys", f"rows/s, {sizes.growth_rows:,} rows a batch", by_keys),
            Curve("pipeline against parallelism", "parallelism", "rows/s, local[2]", {"heap": by_parallelism}),
        ]
    )


def _rows_per_s(bench: Bench, backend: str, parallelism: int, files: ReadingFiles) -> float:
    with ExitStack() as stack:
        job = stack.enter_context(bench.job(backend, parallelism))
        query = stack.enter_context(alert_query(bench, job, files))
        query.write_ahead(bench.sizes.growth_batches + 1)
        query.feed()
        found = median(query.rows_per_s() for _ in range(bench.sizes.growth_batches))
    say(f"  {backend}, {files.keys:,} keys, parallelism {parallelism}: {found:,.0f} rows/s")
    return found
