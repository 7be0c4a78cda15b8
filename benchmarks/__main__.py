"""Runs the benchmarks: `python -m benchmarks [--quick] [--only p1,p4,growth] [--memory-keys N] [--output DIR]`.

Rules of this module: it reads the command line, runs the families in their order and hands the results to the
table, the JSON file and the plots. It measures nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from os import getloadavg
from pathlib import Path

from benchmarks import (
    cached_gets,
    checkpoints,
    dataframes,
    expiry,
    gateway,
    gets,
    growth,
    interference,
    large_jobs,
    live_gets,
    losses,
    machine,
    memory,
    pipelines,
    plots,
    scans,
    secured_gets,
    service_times,
    sinks,
    sizing,
    snapshots_beside,
    subscriptions,
    table,
    timers,
    whole_batches,
)
from benchmarks.bench import Bench
from benchmarks.results import Findings, Report
from benchmarks.rounds import say
from benchmarks.sizes import FULL, QUICK, TINY

#: Family -> the benchmarks it runs. Those without Spark come first, so that they run beside no JVM.
FAMILIES: dict[str, tuple[tuple[str, ...], Callable[[Bench], Findings]]] = {
    "gets": (("p4", "p5", "p6"), gets.run),
    "secured gets": (("tls",), secured_gets.run),
    "gateway": (("gateway",), gateway.run),
    "growth of gets": (("growth",), growth.run_gets),
    "checkpoints": (("p9", "p10", "p12"), checkpoints.run),
    "growth of checkpoints": (("growth",), checkpoints.run_growth),
    "memory": (("p11",), memory.run),
    "timers": (("p19",), timers.run),
    "time-to-live": (("ttl",), expiry.run),
    "cached gets": (("cache",), cached_gets.run),
    "subscriptions": (("p15",), subscriptions.run),
    "scans": (("p16",), scans.run),
    "large jobs": (("scale",), large_jobs.run),
    "service times": (("scale",), service_times.run),
    "sizes": (("sizes",), sizing.run),
    "state as a DataFrame": (("p20",), dataframes.run),
    "pipelines": (("p1", "p2"), pipelines.run),
    "whole batches": (("p14",), whole_batches.run),
    "sinks": (("p3",), sinks.run),
    "large batches": (("p2b",), pipelines.run_large),
    "interference": (("p7",), interference.run),
    "live gets": (("p8", "p8b"), live_gets.run),
    "losses": (("p17",), losses.run),
    "snapshots": (("p13",), snapshots_beside.run),
    "growth of pipelines": (("growth",), growth.run_pipelines),
}
NAMES = sorted({name for names, _ in FAMILIES.values() for name in names})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for."""
    options = _parsed(arguments)
    sizes = TINY if options.tiny else QUICK if options.quick else FULL
    if options.memory_keys:
        sizes = replace(sizes, memory_keys=options.memory_keys)
    wanted = options.only or NAMES
    report = Report(machine.describe(), asdict(sizes))
    if machine.busy():
        say(machine.busy())
    with tempfile.TemporaryDirectory(prefix="qstate-bench-") as directory:
        bench = Bench(sizes, Path(directory), wanted)
        try:
            for family, (names, run) in FAMILIES.items():
                if any(bench.wants(name) for name in names):
                    _run(family, run, bench, report)
        finally:
            bench.close()
            # Also when a family failed: what was measured until then took minutes.
            _hand_over(report, options.output)


def _hand_over(report: Report, output: Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    (output / "results.json").write_text(report.to_json())
    drawn = plots.draw(report.findings, output)
    table.show(report)
    print(f"written: {output / 'results.json'} and {len(drawn)} plots")


def _run(family: str, run: Callable[[Bench], Findings], bench: Bench, report: Report) -> None:
    say(f"{family}:")
    load, began = getloadavg()[0], time.monotonic()
    report.findings.add(run(bench))
    report.families[family] = {"seconds": round(time.monotonic() - began, 1), "load_before": round(load, 2)}


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Measure qstate beside its alternatives.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer rounds and smaller growth curves")
    size.add_argument("--tiny", action="store_true", help="show that everything runs; the figures mean nothing")
    parser.add_argument("--only", type=_names, metavar="NAMES", help=f"comma-separated, of: {', '.join(NAMES)}")
    parser.add_argument(
        "--memory-keys", type=int, metavar="N", help="how many keys p11 holds (20 million take minutes)"
    )
    default = Path("build/benchmarks")
    parser.add_argument("--output", type=Path, default=default, help=f"directory for JSON and plots ({default})")
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    names = [name.strip().lower() for name in text.split(",")]
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are {', '.join(NAMES)}")
    return names


if __name__ == "__main__":
    main()
