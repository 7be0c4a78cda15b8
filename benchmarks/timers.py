"""P19: timers that fire, against rows of the same function without timers; memory and disk of many timers.

Rules of this module: it makes comparisons and figures of what `held_timers` measures in a process of its own. Both
sides are whole epochs, until they are sealed on disk.
"""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.held_operator import EpochCost
from benchmarks.held_timers import SLOTS, TimerCosts, measure
from benchmarks.own_process import in_own_process
from benchmarks.results import Comparison, Curve, Figure, Findings

__all__ = ["run"]


def run(bench: Bench) -> Findings:
    """P19."""
    sizes = bench.sizes
    timers, due = sizes.timers, sizes.timers // SLOTS
    costs = in_own_process(measure, "rocksdb", bench.directory("timers"), timers, sizes.timer_rounds)
    fired, rows, registered = (_per_s(due, found) for found in (costs.fired, costs.rows, costs.registered))
    comparison = Comparison(
        "P19", "a second", fired, rows, "rows without timers", f"{due:,} of {timers:,} timers due in one epoch, rocksdb"
    )
    line = [((number + 1) * due, cost.peak_mib) for number, cost in enumerate(costs.registered)]
    speed = [((number + 1) * due, found) for number, found in enumerate(registered)]
    return Findings(
        [comparison],
        _figures(costs, due, registered),
        [
            Curve("peak memory against timers", "timers", "MiB, while as many were registered", {"rocksdb": line}),
            Curve("registering against timers", "timers", "rows/s, one timer each", {"rocksdb": speed}),
        ],
    )


def _per_s(count: int, costs: list[EpochCost]) -> list[float]:
    return [count / cost.seconds for cost in costs]


def _figures(costs: TimerCosts, due: int, registered: list[float]) -> list[Figure]:
    first, registering = costs.first_fired, costs.registered
    parts = {
        "rows that register a timer each": ("rows/s", registered),
        "the same, before the commit": ("rows/s", [due / cost.rows.seconds for cost in registering]),
        "timers that fire, before the commit": ("timers/s", [due / cost.fire.seconds for cost in costs.fired]),
        "one that fires against a row, by the processor time of the operator's thread": (
            "x",
            [of_rows.cpu_s / of_timers.cpu_s for of_rows, of_timers in zip(costs.rows, costs.fired, strict=True)],
        ),
        "commit of the timers of an epoch": ("s", [cost.commit.seconds for cost in registering]),
        "commit of the timers that fired": ("s", [cost.commit.seconds for cost in costs.fired]),
        "memory without timers": ("MiB", [costs.held_mib]),
        "peak memory, rows that register": ("MiB", [max(cost.rows.peak_mib for cost in registering)]),
        "peak memory, their commit": ("MiB", [max(cost.commit.peak_mib for cost in registering)]),
        "peak memory, timers that fire": ("MiB", [first.fire.peak_mib]),
        "peak memory, commit of what fired": ("MiB", [first.commit.peak_mib]),
    }
    disk = {"all timers": costs.registered_mib, "a tenth fewer": costs.fired_mib}
    return [
        *(Figure(f"timers: {name}", unit, samples) for name, (unit, samples) in parts.items()),
        *(Figure(f"timers: files of rocksdb with {name}", "MiB", [backend]) for name, (backend, _) in disk.items()),
        *(Figure(f"timers: files of the log with {name}", "MiB", [log]) for name, (_, log) in disk.items()),
    ]
