"""Event-time timers of one subtask: registered in epochs of many rows, fired in epochs without rows.

Rules of this module: it runs in a process of its own, without Spark, and measures. A function counts for each key; the
one with timers also registers one for each row, and counts once more when it fires. So a timer that fires does the
same to the state as a row of the function without timers.

Each key gets `SLOTS` timers, one in each slot of time. The rows of an epoch go to all slots, so a slot has timers of
all epochs, and it has one timer of each key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.held_operator import EpochCost, HeldOperator
from benchmarks.inputs import sensor_name
from benchmarks.process_memory import resident_mib
from benchmarks.rounds import say, turns
from qstate.descriptors import ValueStateDescriptor
from qstate.operators.functions import KeyedProcessFunction
from qstate.operators.time.timers import EVENT_TIME_TIMERS

__all__ = ["SLOTS", "TimerCosts", "measure"]

SLOTS = 10
#: Slots that fire before a round counts: one for the memory, one to warm up.
NOT_COUNTED = 2
#: Milliseconds.
SLOT = 3_600_000
ROWS_PER_BATCH = 10_000
SCHEMA = pa.schema([("sensor", pa.string()), ("due", pa.int64()), ("at", pa.timestamp("us"))])


class _Counts(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, row: Any, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)


class _Reminds(_Counts):
    def process_element(self, row: Any, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        context.timers.register_event_time(row.due)

    def on_timer(self, timestamp: int, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)


@dataclass(frozen=True, slots=True)
class TimerCosts:
    """Epochs, in their order: of the function with timers, and of the same function without.

    `held_mib` is the memory before the first timer; `registered_mib` and `fired_mib` have the files of the backend and
    the epoch log, after all timers were registered and after a slot has fired.
    """

    held_mib: float
    registered: list[EpochCost]
    registered_mib: tuple[float, float]
    first_fired: EpochCost
    fired_mib: tuple[float, float]
    fired: list[EpochCost]
    rows: list[EpochCost]


def measure(backend: str, directory: Path, timers: int, rounds: int) -> TimerCosts:
    """Register so many timers, then let slots fire in turn with epochs of as many rows without timers."""
    rows = _Rows(timers // SLOTS)
    with closing(HeldOperator(_Reminds(), SCHEMA, backend, directory / "timers", "at")) as reminds:
        held = resident_mib()
        registered = []
        for number in range(SLOTS):
            registered.append(reminds.run(rows.of_epoch(number)))
            _tell(f"{(number + 1) * rows.keys:,} timers", rows.keys, registered[-1])
        registered_mib = reminds.backend_mib(), reminds.log_mib()
        first = reminds.run(watermark=_end_of_slot(0))
        _tell("the first slot", rows.keys, first)
        fired_mib = reminds.backend_mib(), reminds.log_mib()
        with closing(HeldOperator(_Counts(), SCHEMA, backend, directory / "rows")) as counts:
            fired, rows_only = _in_turn(reminds, counts, rows, rounds)
        _check(reminds, rows.keys * (SLOTS - NOT_COUNTED - rounds))
    return TimerCosts(held, registered, registered_mib, first, fired_mib, fired, rows_only)


def _in_turn(
    reminds: HeldOperator, counts: HeldOperator, rows: _Rows, rounds: int
) -> tuple[list[EpochCost], list[EpochCost]]:
    counts.run(rows.of_epoch(0))  # the keys of the other one have values already
    found: dict[str, list[EpochCost]] = {"fired": [], "rows": []}
    for number, name in turns(list(found), rounds=1 + rounds):
        if name == "fired":
            cost = reminds.run(watermark=_end_of_slot(1 + number))
        else:
            cost = counts.run(rows.of_epoch(1 + number))
        _tell(f"{'round' if number else 'warm '} {number}: {name}", rows.keys, cost)
        if number:
            found[name].append(cost)
    return found["fired"], found["rows"]


class _Rows:
    """The rows of epochs: one for each key, in any order; the timer of a key's row in epoch n is in slot key + n."""

    def __init__(self, keys: int) -> None:
        self.keys = keys
        self._names = pa.array(map(sensor_name, range(keys)))

    def of_epoch(self, number: int) -> Iterator[pa.RecordBatch]:
        random = np.random.default_rng(number)
        order = random.permutation(self.keys)
        for start in range(0, self.keys, ROWS_PER_BATCH):
            keys = order[start : start + ROWS_PER_BATCH]
            due = (keys + number) % SLOTS * SLOT + random.integers(0, SLOT, len(keys))
            at = pa.array(np.zeros(len(keys), np.int64), pa.timestamp("us"))
            yield pa.record_batch([self._names.take(pa.array(keys)), pa.array(due), at], schema=SCHEMA)


def _end_of_slot(number: int) -> int:
    return (number + 1) * SLOT - 1


def _check(reminds: HeldOperator, expected: int) -> None:
    left = reminds.entries(EVENT_TIME_TIMERS.name)
    if left != expected:
        raise RuntimeError(f"{left:,} timers are left, expected {expected:,}")


def _tell(what: str, count: int, cost: EpochCost) -> None:
    parts = " + ".join(
        f"{name} {part.seconds:.1f} s, {part.cpu_s:.1f} s of a processor, {part.peak_mib:,.0f} MiB"
        for name, part in (("fire", cost.fire), ("rows", cost.rows), ("commit", cost.commit))
    )
    say(f"  {what}: {count / cost.seconds:,.0f} a second ({parts})")
