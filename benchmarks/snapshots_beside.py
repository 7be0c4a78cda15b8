"""P13: how snapshots slow the pipeline down.

Rules of this module: the temperature alert job twice, with a snapshot every `INTERVAL` epochs and without any. A
sample is as many micro-batches, so that each has the work of one snapshot per subtask; what counts is the rows of
all of them by the sum of their durations. The snapshot processes run on the same cores as Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.inputs import ReadingFiles
from benchmarks.micro_batches import FedQuery
from benchmarks.pipelines import alert_query, check_alert_state
from benchmarks.results import Comparison, Findings
from benchmarks.rounds import interleaved

__all__ = ["run"]

#: Ten times as often as by default, and long enough for the noise of single micro-batches to even out.
INTERVAL = 10


def run(bench: Bench) -> Findings:
    """P13."""
    sizes = bench.sizes
    files = ReadingFiles(bench.directory("readings"), rows=sizes.alert_rows, keys=sizes.alert_keys)
    with ExitStack() as stack:
        contenders: dict[str, Callable[[], float]] = {}
        jobs = []
        for name, interval in (("with", INTERVAL), ("without", 0)):
            jobs.append(stack.enter_context(bench.job("heap", snapshot_interval=interval)))
            query = stack.enter_context(alert_query(bench, jobs[-1], files))
            query.write_ahead(INTERVAL * (sizes.snapshot_rounds + 1) + 1)
            contenders[name] = _rows_per_s_of(query)
        samples = interleaved(contenders, rounds=sizes.snapshot_rounds)
        for job in jobs:
            check_alert_state(job, files)
        _check_snapshots(jobs[0].config.checkpoint_dir)
    detail = f"every {INTERVAL} epochs, {sizes.alert_rows:,} rows a batch, {sizes.alert_keys:,} keys, heap"
    return Findings([Comparison("P13", "rows/s", samples["with"], samples["without"], "no snapshots", detail)])


def _rows_per_s_of(query: FedQuery) -> Callable[[], float]:
    def measure() -> float:
        times = query.feed(INTERVAL)
        return sum(time.rows for time in times) / sum(time.trigger_s for time in times)

    return measure


def _check_snapshots(directory: str) -> None:
    if not any(Path(directory).rglob("*.snapshot")):
        raise RuntimeError(f"no snapshot was made in {directory}")
