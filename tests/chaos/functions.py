"""Functions of jobs under chaos: one with a state of each kind, a check at the end of each task, and smaller ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from random import SystemRandom
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtl,
    ValueStateDescriptor,
)
from qstate.operators.checkpointed import ListCheckpointed
from qstate.operators.functions import KeyedBroadcastProcessFunction, KeyedProcessFunction
from tests.chaos.faults import Place, Plan
from tests.functions import Mean, add
from tests.spark.streams import until

__all__ = ["ALERTS", "DELAY_MS", "LIMITS", "RULING", "EndOfTask", "FailsOnCue", "Ledger", "RunningTotal"]

ALERTS = "key string, at bigint, total bigint"

#: Local properties that Spark sets for every task of a micro-batch.
BATCH_ID_PROPERTY = "streaming.sql.batchId"

KEPT = 5
#: A label that was seen so often is taken out of the map, so that removals are among the changes.
VISITS_THAT_REMOVE = 4
#: Every amount that this divides clears the list.
CLEARING = 13
#: An amount that the first divides registers a timer; another that the second divides deletes the key's last one.
REGISTERING, DELETING = 3, 7
#: The event time of a row is its number, in milliseconds. Timers wait for about half an epoch of the generated rows.
TIMER_MS, DELAY_MS = 300, 50
#: An amount that the first divides is a broadcast row, too; one that the second divides adds `RAISE` to each count.
RULING, RAISING, RAISE = 41, 82, 1000
#: Longer than any run.
LONG = StateTtl(timedelta(days=1))
LIMITS = MapStateDescriptor("limits", int).queryable("limits")
ABOVE = ReducingStateDescriptor("above", int, reduce_function=add).queryable("aboveLimit")


class Ledger(KeyedBroadcastProcessFunction, ListCheckpointed):
    """Keeps a state of each kind of (key, label, amount, at) rows; alerts when an amount is above the one before.

    Some rows register a timer or delete the key's last one. A timer that fires is counted, and alerts with its negative
    time. Some rows are broadcast, too: they set the limit of their label, and some of these also add to the count of
    each key that had amounts above a limit. An attribute counts the rows of the subtask. The time-to-live of some
    states is longer than any run.
    """

    def __init__(self) -> None:
        self.seen = 0

    def open(self, context: Any) -> None:
        self.limits = context.get_broadcast_state(LIMITS)
        self.above = context.get_reducing_state(ABOVE)
        self.last = context.get_state(ValueStateDescriptor("last", dict, ttl=LONG).queryable("lastRow"))
        self.recent = context.get_list_state(ListStateDescriptor("recent", int).queryable("recentAmounts"))
        self.visits = context.get_map_state(MapStateDescriptor("visits", int, ttl=LONG).queryable("visitsByLabel"))
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        )
        self.mean = context.get_aggregating_state(
            AggregatingStateDescriptor("mean", list, aggregate_function=Mean()).queryable("meanAmount")
        )
        self.fired = context.get_state(ValueStateDescriptor("fired", int, default=0).queryable("firedTimers"))
        self.timer = context.get_state(ValueStateDescriptor("timer", int))
        self.plan = Plan.of_environment()
        self.rows = self.plan.rows

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        self.limits.put(row.label, row.amount)
        if row.amount % RAISING == 0:
            context.apply_to_keyed_state(ABOVE, lambda key, above: above.add(RAISE))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        self.seen += 1
        limit = self.limits.get(row.label)
        if limit is not None and row.amount > limit:
            self.above.add(1)
        before = self.last.value()
        self.last.update({"label": row.label, "amount": row.amount})
        if row.amount % CLEARING == 0:
            self.recent.clear()
        self.recent.add(row.amount)
        if len(self.recent.get()) > KEPT:
            self.recent.update(self.recent.get()[-KEPT:])
        visits = (self.visits.get(row.label) or 0) + 1
        if visits == VISITS_THAT_REMOVE:
            self.visits.remove(row.label)
        else:
            self.visits.put(row.label, visits)
        if row.at in self.rows:
            self.plan.at(Place.ROW, row=row.at)
        self.total.add(row.amount)
        self.mean.add(row.amount)
        if row.amount % REGISTERING == 0:
            context.timers.register_event_time(context.timestamp + TIMER_MS)
            self.timer.update(context.timestamp + TIMER_MS)
        elif row.amount % DELETING == 0 and self.timer.value() is not None:
            context.timers.delete_event_time(self.timer.value())
        if before is not None and row.amount > before["amount"]:
            yield row.key, row.at, self.total.get()

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[Any, ...]]:
        self.fired.update(self.fired.value() + 1)
        yield context.current_key, -timestamp, self.total.get()

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.seen]

    def restore_state(self, state: list[int]) -> None:
        self.seen = sum(state)


class EndOfTask:
    """Stands behind the operator: when its input has ended, the subtask has sealed the epoch."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        context = TaskContext.get()
        assert context is not None
        epoch = context.getLocalProperty(BATCH_ID_PROPERTY)
        assert epoch is not None
        Plan.of_environment().at(Place.SEALED, epoch=int(epoch), subtask=context.partitionId())


class RunningTotal(KeyedProcessFunction):
    """Emits the running total of each key; with `random`, of random numbers instead of the amounts."""

    def __init__(self, *, random: bool) -> None:
        self._random = random

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", float, reduce_function=add).queryable("totalAmount")
        )

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        self.total.add(SystemRandom().random() if self._random else float(row.amount))
        yield row.key, row.at, self.total.get()


class FailsOnCue(RunningTotal):
    """Fails once at each of some rows, after it has changed state, when `NN.go` is there beside its `NN.reached`."""

    def __init__(self, rows: Iterable[int], directory: Path) -> None:
        super().__init__(random=False)
        self._reached = {row: directory / f"{row}.reached" for row in rows}

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        yield from super().process_element(row, context)
        reached = self._reached.get(row.at)
        if reached is not None and not reached.exists():
            reached.write_text(row.key)
            until(reached.with_suffix(".go").exists, "the test gives the cue")
            raise ValueError(f"row {row.at} has to be taken back")
