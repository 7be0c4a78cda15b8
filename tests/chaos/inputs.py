"""The input of a job under chaos, one file for each micro-batch, and its expected results, in plain Python."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from qstate.demo.data import prepare
from tests.chaos.functions import (
    CLEARING,
    DELAY_MS,
    DELETING,
    KEPT,
    RAISE,
    RAISING,
    REGISTERING,
    RULING,
    TIMER_MS,
    VISITS_THAT_REMOVE,
)
from tests.spark.generated import amounts

__all__ = ["SCHEMA", "Expectation", "expectation", "flights", "generated", "write_input"]

SCHEMA = "key string, label string, amount bigint, at bigint"

#: A query that is started again may run an epoch without rows, which shows what timers there are.
MOST_EPOCHS_WITHOUT_ROWS = 50
#: The file source takes files in the order of their modification times.
FIRST_FILE_TIME_S = 1_700_000_000


def generated(epochs: int, seed: int) -> list[pa.Table]:
    return amounts(batches=epochs, rows_a_batch=600, keys=60, seed=seed)


def flights(epochs: int, directory: Path) -> list[pa.Table]:
    """The first days of the demo's flights: aircraft, destination and delay of each that departed, in order."""
    days = sorted(prepare(directory, first_days=epochs).flights_directory.glob("*.parquet"))
    tables = []
    rows = 0
    for day in days:
        table = pq.read_table(day)
        table = table.filter(pc.and_(table["tailnum"].is_valid(), table["dep_delay"].is_valid()))
        columns = [table["tailnum"], table["dest"], table["dep_delay"], pa.array(range(rows, rows + len(table)))]
        tables.append(pa.table(columns, names=["key", "label", "amount", "at"]))
        rows += len(table)
    return tables


def write_input(tables: list[pa.Table], directory: Path) -> None:
    """The files of a stream, one of each table."""
    directory.mkdir()
    for number, table in enumerate(tables):
        path = directory / f"{number:04}.parquet"
        pq.write_table(table, path)
        os.utime(path, (FIRST_FILE_TIME_S + number, FIRST_FILE_TIME_S + number))


@dataclass(slots=True)
class _Held:
    last: dict[str, Any] = field(default_factory=dict)
    recent: list[int] = field(default_factory=list)
    visits: Counter[str] = field(default_factory=Counter)
    total: int = 0
    count: int = 0
    timers: set[int] = field(default_factory=set)
    last_timer: int | None = None
    fired: int = 0
    above: int = 0

    def fire(self, watermark: int) -> Iterator[int]:
        """The timers that the watermark has reached."""
        due = sorted(timer for timer in self.timers if timer <= watermark)
        self.timers.difference_update(due)
        self.fired += len(due)
        yield from due

    def note_timers(self, amount: int, at: int) -> None:
        """What a row does to the timers."""
        if amount % REGISTERING == 0:
            self.last_timer = at + TIMER_MS
            self.timers.add(self.last_timer)
        elif amount % DELETING == 0 and self.last_timer is not None:
            self.timers.discard(self.last_timer)


@dataclass(frozen=True, slots=True)
class Expectation:
    """`states`: queryable name -> key -> contents in the end. `totals`: of each epoch, key -> total after it."""

    states: dict[str, dict[str, Any]]
    totals: list[dict[str, int]]
    alerts: list[tuple[str, int, int]]

    #: How many rows there are.
    rows: int

    @property
    def keys(self) -> list[str]:
        return list(self.states["totalAmount"])


def expectation(tables: list[pa.Table]) -> Expectation:
    """What `Ledger` must end with, and must have shown on the way."""
    held: dict[str, _Held] = {}
    totals: list[dict[str, int]] = []
    alerts = []
    watermark = -DELAY_MS
    limits: dict[str, int] = {}
    for table in [*tables, None]:  # the last epoch has no rows: it fires the timers that are due in the end
        for row in [] if table is None else table.to_pylist():
            if row["amount"] % RULING == 0:
                limits[row["label"]] = row["amount"]
                for one in held.values() if row["amount"] % RAISING == 0 else ():
                    one.above += RAISE if one.above else 0
        alerts += [(key, -at, one.total) for key, one in held.items() for at in one.fire(watermark)]
        rows = [] if table is None else table.to_pylist()
        watermark = max((row["at"] - DELAY_MS for row in rows), default=watermark)
        for row in rows:
            one = held.setdefault(row["key"], _Held())
            one.above += row["label"] in limits and row["amount"] > limits[row["label"]]
            one.total += row["amount"]
            one.count += 1
            if one.last and row["amount"] > one.last["amount"]:
                alerts.append((row["key"], row["at"], one.total))
            one.last = {"label": row["label"], "amount": row["amount"]}
            one.recent = [*([] if row["amount"] % CLEARING == 0 else one.recent), row["amount"]][-KEPT:]
            one.visits[row["label"]] += 1
            if one.visits[row["label"]] == VISITS_THAT_REMOVE:
                del one.visits[row["label"]]
            one.note_timers(row["amount"], row["at"])
        totals.append({key: one.total for key, one in held.items()})
    totals += totals[-1:] * MOST_EPOCHS_WITHOUT_ROWS
    states: dict[str, dict[str, Any]] = {
        "lastRow": {key: one.last for key, one in held.items()},
        "recentAmounts": {key: one.recent for key, one in held.items()},
        "visitsByLabel": {key: dict(one.visits) for key, one in held.items()},
        "totalAmount": {key: one.total for key, one in held.items()},
        "meanAmount": {key: one.total / one.count for key, one in held.items()},
        "firedTimers": {key: one.fired or None for key, one in held.items()},
        "aboveLimit": {key: one.above or None for key, one in held.items()},
        "limits": {key: limits.get(key) for key in (*limits, *held)},
    }
    return Expectation(states, totals, sorted(alerts), sum(map(len, tables)))
