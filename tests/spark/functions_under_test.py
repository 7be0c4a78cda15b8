"""Functions that the Spark tests run in task managers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from qstate.operators.checkpointed import ListCheckpointed
from qstate.operators.context import RuntimeContext
from qstate.operators.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
)
from qstate.operators.handles import ElementContext
from tests.functions import Mean, add


class FiveKinds(KeyedProcessFunction):
    """Keeps one state of each kind of (key, label, amount) rows and emits a row's running total."""

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", dict).queryable("lastRow"))
        self.recent = context.get_list_state(ListStateDescriptor("recent", int).queryable("recentAmounts"))
        self.visits = context.get_map_state(MapStateDescriptor("visits", int).queryable("visitsByLabel"))
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        )
        self.mean = context.get_aggregating_state(
            AggregatingStateDescriptor("mean", list, aggregate_function=Mean()).queryable("meanAmount")
        )

    def process_element(self, row: Any, context: Any) -> Any:
        self.last.update({"label": row.label, "amount": row.amount})
        self.recent.add(row.amount)
        if len(self.recent.get()) > 10:
            self.recent.update(self.recent.get()[-10:])
        self.visits.put(row.label, (self.visits.get(row.label) or 0) + 1)
        self.total.add(row.amount)
        self.mean.add(row.amount)
        yield row.key, self.total.get()


class Total(KeyedProcessFunction):
    """Adds amounts up per key; may do one `mischief` at a given row, once per flag file."""

    def __init__(
        self, mischief: Callable[[Path], None] | None = None, *, flag: Path | None = None, at: int = -1
    ) -> None:
        self._mischief = mischief
        self._flag = flag
        self._at = at

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        )

    def process_element(self, row: Any, context: Any) -> Any:
        if row.at == self._at and self._flag is not None and not self._flag.exists():
            written = self._flag.with_suffix(".new")
            written.write_text(str(os.getpid()))
            written.rename(self._flag)  # a test that waits for the flag finds the process id in it
            assert self._mischief is not None
            self._mischief(self._flag)
        self.total.add(row.amount)
        yield row.key, self.total.get()


class Notes(KeyedProcessFunction):
    """Notes the number of every row, for all keys."""

    def open(self, context: Any) -> None:
        self.numbers = context.get_operator_list_state(ListStateDescriptor("numbers", int))

    def process_element(self, row: Any, context: Any) -> Any:
        self.numbers.add(row.at)
        yield row.key, row.amount


class Counted(Total, ListCheckpointed):
    """Adds amounts up in an attribute, too, for all keys of the subtask."""

    amount = 0

    def process_element(self, row: Any, context: Any) -> Any:
        self.amount += row.amount
        yield from super().process_element(row, context)

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.amount]

    def restore_state(self, state: list[int]) -> None:
        self.amount = sum(state)


def raise_error(flag: Path) -> None:
    """Fail the epoch, at a row of the test's choice."""
    raise ValueError("as the test wants")


def kill_this_process(flag: Path) -> None:
    """Kill -9 of the task manager, at a row of the test's choice."""
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_go(flag: Path) -> None:
    """Block the epoch until the test has acted on the job."""
    deadline = time.monotonic() + 60
    while not flag.with_suffix(".go").exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the test never said go")
        threading.Event().wait(0.02)


class KeepsOrder(KeyedProcessFunction):
    """Emits a row for every element that came after a newer one of its key."""

    def open(self, context: Any) -> None:
        self.newest = context.get_state(ValueStateDescriptor("newest", int))

    def process_element(self, row: Any, context: Any) -> Any:
        newest = self.newest.value()
        if newest is not None and row.at < newest:
            yield row.key, row.at
        self.newest.update(row.at if newest is None else max(row.at, newest))


class Raises(KeyedProcessFunction):
    """Fails on one key, after it has changed state."""

    def open(self, context: Any) -> None:
        self.total = context.get_state(ValueStateDescriptor("total", int).queryable("totalAmount"))

    def process_element(self, row: Any, context: Any) -> Any:
        self.total.update((self.total.value() or 0) + row.amount)
        if row.amount < 0:
            raise ValueError(f"amount {row.amount} is negative")


class WrongColumns(KeyedProcessFunction):
    """Yields three columns where two were declared."""

    def process_element(self, row: Any, context: Any) -> Any:
        yield row.key, row.amount, "surplus"


class SameQueryableName(KeyedProcessFunction):
    """Two states, one queryable name."""

    def open(self, context: Any) -> None:
        context.get_state(ValueStateDescriptor("one", int).queryable("same"))
        context.get_state(ValueStateDescriptor("other", int).queryable("same"))

    def process_element(self, row: Any, context: Any) -> Any:
        return None


class Unpicklable(KeyedProcessFunction):
    """Has a lock, which cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def process_element(self, row: Any, context: Any) -> Any:
        return None


class Echo(KeyedProcessFunction):
    """Emits the key and the row, and stores the number of each key's rows under a queryable name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open(self, context: Any) -> None:
        self.echoed = context.get_state(ValueStateDescriptor("echoed", int).queryable(self._name))

    def process_element(self, row: Any, context: Any) -> Any:
        self.echoed.update((self.echoed.value() or 0) + 1)
        yield repr(context.current_key), repr(row._asdict())


class Passes(KeyedProcessFunction):
    """Emits its rows with their times moved."""

    def __init__(self, moved: timedelta = timedelta(0)) -> None:
        self._moved = moved

    def process_element(self, row: Any, context: Any) -> Any:
        yield row.key, row.at + self._moved, row.n


class Gaps(KeyedProcessFunction):
    """Emits (key, time, rows) when a key has had no row for some seconds of event time."""

    def __init__(self, seconds: int) -> None:
        self._gap_ms = seconds * 1000

    def open(self, context: RuntimeContext) -> None:
        self.rows = context.get_reducing_state(ReducingStateDescriptor("rows", int, reduce_function=add))
        self.until = context.get_state(ValueStateDescriptor("until", int))

    def process_element(self, row: Any, context: ElementContext) -> None:
        assert context.timestamp is not None
        before, until = self.until.value(), context.timestamp + self._gap_ms
        if before is None or before < until:
            if before is not None:
                context.timers.delete_event_time(before)
            context.timers.register_event_time(until)
            self.until.update(until)
        self.rows.add(1)

    def on_timer(self, timestamp: int, context: ElementContext) -> Iterator[Any]:
        yield context.current_key, datetime.fromtimestamp(timestamp / 1000, timezone.utc), self.rows.get()
        self.rows.clear()
        self.until.clear()


class Deadlines(KeyedProcessFunction):
    """Emits (key, time, milliseconds) some milliseconds of processing time after a row."""

    def __init__(self, wait_ms: int) -> None:
        self._wait_ms = wait_ms

    def process_element(self, row: Any, context: ElementContext) -> None:
        context.timers.register_processing_time(context.processing_time + self._wait_ms)

    def on_timer(self, timestamp: int, context: ElementContext) -> Iterator[Any]:
        registered = timestamp - self._wait_ms
        at = datetime.fromtimestamp(registered / 1000, timezone.utc)
        yield context.current_key, at, context.processing_time - registered


class Prices(KeyedCoProcessFunction):
    """Gives each order (item, pieces) of the first stream the price (code, price) that the second one had last."""

    def open(self, context: Any) -> None:
        self.price = context.get_state(ValueStateDescriptor("price", float).queryable("price"))

    def process_element1(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        yield context.current_key, row.pieces, self.price.value()

    def process_element2(self, row: Any, context: Any) -> None:
        self.price.update(row.price)


class Unanswered(KeyedCoProcessFunction):
    """Emits (key, its time) of rows of the first stream that the second one has not followed within five seconds."""

    def open(self, context: Any) -> None:
        self.asked = context.get_state(ValueStateDescriptor("asked", datetime))

    def process_element1(self, row: Any, context: Any) -> None:
        self.asked.update(row.at)
        context.timers.register_event_time(row.at + timedelta(seconds=5))

    def process_element2(self, row: Any, context: Any) -> None:
        self.asked.clear()

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[Any, ...]]:
        if self.asked.value() is not None:
            yield context.current_key, self.asked.value(), 0


LIMITS = MapStateDescriptor("limits", float).queryable("limits")
COUNT = ReducingStateDescriptor("count", int, reduce_function=add).queryable("count")


class Above(KeyedBroadcastProcessFunction):
    """Broadcast rows (kind, limit) set limits; readings (sensor, kind, temp) above theirs are emitted, and counted."""

    def open(self, context: Any) -> None:
        self.limits = context.get_broadcast_state(LIMITS)
        self.count = context.get_reducing_state(COUNT)

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        if row.kind == "reset":
            context.apply_to_keyed_state(COUNT, lambda key, state: state.clear())
        elif row.limit is None:
            self.limits.remove(row.kind)
        else:
            self.limits.put(row.kind, row.limit)

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        limit = self.limits.get(row.kind)
        if limit is not None and row.temp > limit:
            self.count.add(1)
            yield row.sensor, row.temp, limit


class InOrder(BroadcastProcessFunction):
    """Emits, in each subtask, the broadcast rows in the order in which it got them, and after them its other rows."""

    def open(self, context: Any) -> None:
        self.subtask = context.subtask
        self.rows: list[str] = []

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        self.rows.append(row.kind)

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        yield self.subtask, ",".join(self.rows), row.sensor


class Numbered(ProcessFunction):
    """Counts the rows of its subtask in operator state."""

    def open(self, context: Any) -> None:
        self.counts = context.get_operator_list_state(ListStateDescriptor("counts", int))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        self.counts.update([sum(self.counts.get()) + 1])
        yield row.sensor, sum(self.counts.get())


class SeesWatermark(KeyedBroadcastProcessFunction):
    """Emits the watermark of each row's epoch."""

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        return None

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        yield row.sensor, context.watermark


class Hot(KeyedProcessFunction):
    """Passes readings of 20 and more on."""

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        if row.temp >= 20:
            yield row.sensor, row.kind, row.temp


class SameRule(KeyedProcessFunction):
    """Passes limits on."""

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        yield row.kind, row.limit


class Pairs(KeyedCoProcessFunction):
    """Counts the rows of both streams, and emits the count of each key when its micro-batch is through."""

    def open(self, context: Any) -> None:
        self.count = context.get_reducing_state(COUNT)

    def process_element1(self, row: Any, context: Any) -> None:
        self.count.add(1)
        context.timers.register_processing_time(0)

    def process_element2(self, row: Any, context: Any) -> None:
        self.count.add(1)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[Any, ...]]:
        yield context.current_key, self.count.get()
