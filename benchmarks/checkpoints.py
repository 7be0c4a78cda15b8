"""P9, P10 and P12: the time to seal an epoch, to restore state, and to make a whole or a partial snapshot.

Rules of this module: one subtask's state without Spark and without sockets, so that nothing else is in the figures.
P9 holds a commit of few changes against the faster of two ways to write everything: an epoch that changed all keys,
and a dump of the backend's entries. P10 holds opening the log and filling a backend against reading and unpickling
the same keys and values as one dictionary.
"""

from __future__ import annotations

import gc
import pickle
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.bench import Bench
from benchmarks.held_state import HeldState, SnapshotCost, open_again, restore_s, snapshot_cost, value_of
from benchmarks.inputs import sensor_name
from benchmarks.results import Comparison, Curve, Figure, Findings
from benchmarks.rounds import interleaved, say

__all__ = ["run", "run_growth"]

BACKENDS = ("heap", "rocksdb")
#: Epochs of one key in a hundred that lie over the first one, which put them all.
EPOCHS_SINCE = 5
#: So many times the keys of the other benchmarks, for a state that is too large to be written whole every time.
LARGE = 3


def run(bench: Bench) -> Findings:
    """Run those of P9, P10 and P12 that are selected."""
    findings = Findings()
    for name, measure in (("p9", _commits), ("p10", _restores), ("p10", _partial_snapshots), ("p12", _flatness)):
        if bench.wants(name):
            findings.add(measure(bench))
    return findings


def _commits(bench: Bench) -> Findings:
    findings = Findings()
    keys = bench.sizes.checkpoint_keys
    for backend in BACKENDS:
        with closing(HeldState(backend, bench.directory(f"commits-{backend}"), keys)) as state:
            contenders: dict[str, Callable[[], float]] = {
                "1 %": _in_ms(partial(state.commit_s, range(0, keys, 100))),
                "a dump of the entries": _in_ms(state.dump_s),
            }
            if backend == "heap":  # on rocksdb it never is the faster one, and takes up to a minute
                contenders["an epoch that changed all"] = _in_ms(partial(state.commit_s, range(keys)))
            samples = interleaved(contenders, rounds=bench.sizes.checkpoint_rounds)
        ours = samples.pop("1 %")
        fastest = min(samples, key=lambda name: median(samples[name]))
        theirs = samples.pop(fastest)
        findings.comparisons.append(Comparison("P9", "ms", ours, theirs, fastest, f"{backend}, {keys:,} keys"))
        findings.figures += [Figure(f"{backend}, {name}", "ms", times) for name, times in samples.items()]
    return findings


def _restores(bench: Bench) -> Findings:
    keys, rounds = bench.sizes.checkpoint_keys, bench.sizes.checkpoint_rounds
    directory = bench.directory("restores")
    log, epoch = _sealed_log(directory / "log", keys)
    snapshots = [_snapshot_over_log(log, directory / f"copy-{number}", epoch) for number in range(rounds)]
    sources = {"the log": log, "a snapshot": directory / "copy-0"}
    pickled = directory / "dictionary.pickle"
    pickled.write_bytes(pickle.dumps({sensor_name(number): value_of(number) for number in range(keys)}, protocol=5))
    contenders = {"unpickling": _in_ms(partial(_unpickle_s, pickled))}
    for backend in BACKENDS:
        for name, source in sources.items():
            scratch = bench.directory("scratch")
            contenders[f"{backend}, from {name}"] = _in_ms(partial(restore_s, backend, source, scratch, keys))
    samples = interleaved(contenders, rounds=rounds)
    theirs = samples.pop("unpickling")
    detail = f"{keys:,} keys"
    return Findings(
        [Comparison("P10", "ms", ours, theirs, "unpickling", f"{name}, {detail}") for name, ours in samples.items()],
        _snapshot_figures(f"snapshot of {detail} over the log", snapshots),
    )


def _sealed_log(directory: Path, keys: int) -> tuple[Path, int]:
    """A log of one epoch that put all keys and some that changed a few; gives its path and newest epoch."""
    with closing(HeldState("heap", directory, keys)) as state:
        for number in range(EPOCHS_SINCE):
            state.commit_s(range(number, keys, 100))
        return state.log_directory, state.epoch


def _snapshot_over_log(log: Path, copy: Path, epoch: int) -> SnapshotCost:
    shutil.copytree(log, copy)
    return snapshot_cost(copy, epoch)


def _snapshot_figures(name: str, costs: list[SnapshotCost]) -> list[Figure]:
    return [
        Figure(name, "s", [cost.wall_s for cost in costs]),
        Figure(f"{name}, processor time", "s", [cost.cpu_s for cost in costs]),
        Figure(f"{name}, peak memory", "MiB", [cost.peak_mib for cost in costs]),
        Figure(f"{name}, written", "MiB", [cost.written_mib for cost in costs]),
    ]


def _partial_snapshots(bench: Bench) -> Findings:
    """After one key in a hundred changed: a partial snapshot and a whole one, and restores from each."""
    keys, rounds = LARGE * bench.sizes.checkpoint_keys, bench.sizes.checkpoint_rounds
    directory = bench.directory("partial")
    with closing(HeldState("heap", directory, keys)) as state:
        snapshot_cost(state.log_directory, state.epoch)
        state.commit_s(range(0, keys, 100))
        epoch = state.epoch
    costs: dict[str, list[SnapshotCost]] = {"partial": [], "whole": []}
    for number in range(rounds):
        for kind, found in costs.items():
            copy = directory / f"{kind}-{number}"
            shutil.copytree(state.log_directory, copy)
            if kind == "whole":
                open_again(copy)
            found.append(snapshot_cost(copy, epoch))
    contenders = {
        f"{backend}, from a {kind} snapshot": _in_ms(
            partial(restore_s, backend, directory / f"{kind}-0", bench.directory("scratch"), keys)
        )
        for backend in BACKENDS
        for kind in costs
    }
    detail = f"{keys:,} keys of which 1 % changed"
    figures = [one for kind, found in costs.items() for one in _snapshot_figures(f"{kind} snapshot, {detail}", found)]
    restores = interleaved(contenders, rounds=rounds)
    return Findings([], [*figures, *(Figure(f"{name}, {detail}", "ms", found) for name, found in restores.items())])


def _unpickle_s(path: Path) -> float:
    gc.collect()
    began = time.perf_counter()
    pickle.loads(path.read_bytes())
    return time.perf_counter() - began


def _flatness(bench: Bench) -> Findings:
    """As many changes among many keys as among a tenth of them."""
    keys = bench.sizes.checkpoint_keys
    findings = Findings()
    for backend in BACKENDS:
        with ExitStack() as stack:
            contenders = {}
            for count in (keys, keys // 10):
                directory = bench.directory(f"flat-{backend}")
                state = stack.enter_context(closing(HeldState(backend, directory, count)))
                changed = range(0, count, max(1, count * 100 // keys))
                contenders[f"{count:,}"] = _in_ms(partial(state.commit_s, changed))
            # a commit is short: many rounds cost little
            many, few = interleaved(contenders, rounds=3 * bench.sizes.checkpoint_rounds).values()
        detail = f"{backend}, {keys // 100:,} changes, {keys:,} keys"
        findings.comparisons.append(Comparison("P12", "ms", many, few, f"{keys // 10:,} keys", detail))
    return findings


def run_growth(bench: Bench) -> Findings:
    """Commit time against changed entries, and against all entries; the time of a snapshot that changed little."""
    sizes = bench.sizes
    by_changes: dict[str, list[tuple[float, float]]] = {}
    by_keys: dict[str, list[tuple[float, float]]] = {}
    snapshots: list[tuple[float, float]] = []
    most = max(sizes.growth_checkpoint_keys)
    changes = min(sizes.growth_checkpoint_keys) // 10
    for backend in BACKENDS:
        for keys in sizes.growth_checkpoint_keys:
            with closing(HeldState(backend, bench.directory(f"growth-{backend}"), keys)) as state:
                few = _median_ms(state, range(0, keys, keys // changes), sizes.checkpoint_rounds)
                by_keys.setdefault(backend, []).append((keys, few))
                if keys == most:
                    by_changes[backend] = [
                        (count, _median_ms(state, range(0, keys, keys // count), sizes.checkpoint_rounds))
                        for count in sizes.growth_changes
                    ]
                if backend == "heap":
                    snapshots.append((keys, _later_snapshot_s(state)))
            say(f"  {backend}, {keys:,} keys: {by_keys[backend][-1][1]:,.1f} ms")
    return Findings(
        curves=[
            Curve("commit against changed entries", "changed entries", f"ms, {most:,} keys", by_changes),
            Curve("commit against all entries", "keys", f"ms, {changes:,} changed entries", by_keys),
            Curve("snapshot against keys", "keys", "s, one key in a hundred changed", {"any backend": snapshots}),
        ]
    )


def _later_snapshot_s(state: HeldState) -> float:
    """A snapshot over a snapshot, one key in a hundred changed."""
    snapshot_cost(state.log_directory, state.epoch)
    state.commit_s(range(0, len(state.keys), 100))
    return snapshot_cost(state.log_directory, state.epoch).wall_s


def _median_ms(state: HeldState, changed: range, rounds: int) -> float:
    return median(state.commit_s(changed) for _ in range(rounds)) * 1e3


def _in_ms(measure: Callable[[], float]) -> Callable[[], float]:
    return lambda: measure() * 1e3
