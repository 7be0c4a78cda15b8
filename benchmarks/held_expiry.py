"""State with a time-to-live in one subtask: what a row of it costs, and what is left when most of it has expired.

Rules of this module: it runs in a process of its own, without Spark, and measures. A function counts for each key; its
state has a time-to-live or not. The operator removes what has expired with its usual settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.held_operator import EpochCost, HeldOperator
from benchmarks.inputs import sensor_name
from benchmarks.process_memory import resident_mib
from benchmarks.rounds import say, turns
from qstate.config import JobConfig
from qstate.descriptors import ValueStateDescriptor
from qstate.operators.expiry.expiry_sweep import VISITS_PER_WRITE
from qstate.operators.functions import KeyedProcessFunction
from qstate.values.ttl import StateTtl

__all__ = ["Held", "SweepCosts", "measure_rows", "measure_sweep"]

STATE = "count"
#: One key in so many is written again and does not expire.
CURRENT_EACH = 10
#: Milliseconds.
MINUTE = 60_000
ROWS_PER_BATCH = 10_000
SCHEMA = pa.schema([("sensor", pa.string())])
#: An hour after the first rows.
EXPIRED_AT = 61 * MINUTE
#: How often a sweep is asked, about, whether it is done.
LOOKS = 20


class _Counts(KeyedProcessFunction):
    def __init__(self, ttl: StateTtl | None) -> None:
        self.ttl = ttl

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor(STATE, int, ttl=self.ttl))

    def process_element(self, row: Any, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)


@dataclass(frozen=True, slots=True)
class Held:
    """What a subtask holds: entries of the state, resident memory and files of the backend."""

    entries: int
    resident_mib: float
    backend_mib: float


@dataclass(frozen=True, slots=True)
class SweepCosts:
    """Before and after a sweep, and with as many new keys as had expired; what the sweep took."""

    empty: Held
    before: Held
    after: Held
    filled_again: Held
    epochs: int
    seconds: float


def measure_rows(backend: str, directory: Path, rows: int, keys: int, rounds: int) -> dict[str, list[EpochCost]]:
    """Epochs of so many rows, in turn: `with` a time-to-live that nothing reaches, and `without`."""
    ttls = {"with": StateTtl(timedelta(days=1)), "without": None}
    found: dict[str, list[EpochCost]] = {name: [] for name in ttls}
    with ExitStack() as stack:
        held = {
            name: stack.enter_context(closing(HeldOperator(_Counts(ttl), SCHEMA, backend, directory / name)))
            for name, ttl in ttls.items()
        }
        names = pa.array(map(sensor_name, range(keys)))
        # two rounds do not count: one puts the keys, one warms up
        for number, name in turns(list(held), rounds=2 + rounds):
            chosen = np.random.default_rng(number).integers(0, keys, rows) if number else np.arange(keys)
            cost = held[name].run(_batches(names, chosen), processing_time=number * MINUTE)
            took = f"{len(chosen) / cost.seconds:,.0f} rows/s, {cost.cpu_s:.1f} s of a processor"
            say(f"  {backend}, {name} time-to-live: {took}")
            if number > 1:
                found[name].append(cost)
    return found


def measure_sweep(backend: str, directory: Path, keys: int, rows: int) -> SweepCosts:
    """Let nine keys in ten expire, and run epochs of so many rows of the other keys until the nine are gone.

    It looks now and then whether they are, so the number of epochs is good for a twentieth.
    """
    names = pa.array(map(sensor_name, range(2 * keys)))
    current = np.arange(0, keys, CURRENT_EACH)
    with closing(HeldOperator(_Counts(StateTtl(timedelta(hours=1))), SCHEMA, backend, directory)) as counts:
        empty = _held(counts)
        counts.run(_batches(names, np.arange(keys)))
        counts.run(_batches(names, current), processing_time=30 * MINUTE)
        before = _held(counts)
        epochs, seconds, left = 0, 0.0, before.entries
        most = 2 * -(-keys // (JobConfig().ttl_sweep_entries + VISITS_PER_WRITE * rows)) + 1
        while left > len(current):
            for _ in range(-(-most // LOOKS)):
                epochs += 1
                chosen = np.random.default_rng(epochs).choice(current, rows)
                seconds += counts.run(_batches(names, chosen), processing_time=EXPIRED_AT).seconds
            left = counts.entries(STATE)
            say(f"  {backend}, {rows:,} rows an epoch: {left:,} keys left after {epochs:,} epochs, {seconds:,.1f} s")
        after = _held(counts)
        counts.run(_batches(names, np.arange(keys, 2 * keys - len(current))), processing_time=EXPIRED_AT)
        return SweepCosts(empty, before, after, _held(counts), epochs, seconds)


def _held(counts: HeldOperator) -> Held:
    found = Held(counts.entries(STATE), resident_mib(), counts.backend_mib())
    say(f"  {found.entries:,} keys: {found.resident_mib:,.0f} MiB of memory, {found.backend_mib:,.0f} MiB of disk")
    return found


def _batches(names: pa.Array, chosen: npt.NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(chosen), ROWS_PER_BATCH):
        numbers = pa.array(chosen[start : start + ROWS_PER_BATCH])
        yield pa.record_batch([names.take(numbers)], schema=SCHEMA)
