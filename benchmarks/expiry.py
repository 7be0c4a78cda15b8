"""State with a time-to-live: what a row costs, and memory and disk when nine values in ten have expired.

Rules of this module: it makes figures of what `held_expiry` measures, each in a process of its own. There is no target.
"""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.held_expiry import Held, SweepCosts, measure_rows, measure_sweep
from benchmarks.own_process import in_own_process
from benchmarks.results import Figure, Findings

__all__ = ["run"]

BACKENDS = ("heap", "rocksdb")


def run(bench: Bench) -> Findings:
    """Figures of both backends."""
    sizes = bench.sizes
    figures: list[Figure] = []
    for backend in BACKENDS:
        for keys in (sizes.alert_keys, sizes.ttl_keys):
            figures += _row_figures(bench, backend, keys)
        for rows in (sizes.ttl_sweep_rows, 0):
            directory = bench.directory(f"sweep-{backend}")
            costs = in_own_process(measure_sweep, backend, directory, sizes.ttl_keys, rows)
            figures += _sweep_figures(f"time-to-live, {backend}, {rows:,} rows an epoch", costs)
    return Findings([], figures)


def _row_figures(bench: Bench, backend: str, keys: int) -> list[Figure]:
    """Rows per second with and without a time-to-live, and the ratio of each round."""
    rows = bench.sizes.alert_rows
    directory = bench.directory(f"rows-{backend}")
    costs = in_own_process(measure_rows, backend, directory, rows, keys, bench.sizes.ttl_rounds)
    per_s = {name: [rows / cost.seconds for cost in found] for name, found in costs.items()}
    detail = f"{backend}, {rows:,} rows of {keys:,} keys"
    pairs = list(zip(costs["with"], costs["without"], strict=True))
    ratios = [without.seconds / timed.seconds for timed, without in pairs]
    cpu_ratios = [without.cpu_s / timed.cpu_s for timed, without in pairs]
    return [
        Figure(f"{detail}, with a time-to-live", "rows/s", per_s["with"]),
        Figure(f"{detail}, without", "rows/s", per_s["without"]),
        Figure(f"{detail}, with against without", "x", ratios),
        Figure(f"{detail}, by the processor time of the operator's thread", "x", cpu_ratios),
    ]


def _sweep_figures(name: str, costs: SweepCosts) -> list[Figure]:
    def held(when: str, found: Held) -> list[Figure]:
        figures = [Figure(f"{name}, {when}: memory", "MiB", [found.resident_mib])]
        if found.backend_mib:
            figures.append(Figure(f"{name}, {when}: files of the backend", "MiB", [found.backend_mib]))
        return figures

    return [
        Figure(f"{name}: epochs until nine in ten are gone", "epochs", [costs.epochs]),
        Figure(f"{name}: time of these epochs", "s", [costs.seconds]),
        *held(f"{costs.before.entries:,} keys", costs.before),
        *held(f"{costs.after.entries:,} keys left", costs.after),
        *held("with new keys in the place of the expired", costs.filled_again),
    ]
