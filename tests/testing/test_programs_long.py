"""Generated programs of rows, broadcast rows, timers, failures and restarts give what plain Python computes.

One function has all that a function can have: keyed state of which some expires, timers of both kinds, broadcast state,
visits of keyed state, and an attribute that is stored with a hook. It is restarted with another parallelism and
another backend.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from qstate.checkpoint import open_source, read_operator_state
from qstate.checkpoint.log.operator_state import FUNCTION_LIST
from qstate.descriptors import MapStateDescriptor, ReducingStateDescriptor, StateTtl, ValueStateDescriptor
from qstate.operators.checkpointed import ListCheckpointed
from qstate.operators.functions import KeyedBroadcastProcessFunction
from qstate.operators.time.timers import TimeDomain
from qstate.testing import Broadcast, FunctionHarness
from tests.functions import add

LIMITS = MapStateDescriptor("limits", int)
TOTAL = ReducingStateDescriptor("total", int, reduce_function=add)
TTL_MS, DELAY_MS = 20, 5
RECENT = ValueStateDescriptor("recent", int, ttl=StateTtl(timedelta(milliseconds=TTL_MS)))
#: A timer at a time that the first divides registers another one this much later; one that the second divides clears.
AGAIN, CLEARS, LATER_MS = 3, 5, 4
#: A limit that adds to the total of every key that has one.
RAISING, RAISE = 13, 1000


class Row(NamedTuple):
    """`what` is done with the number `n` for a key, at an event time."""

    key: str
    what: str
    n: int
    at: datetime


class Everything(KeyedBroadcastProcessFunction, ListCheckpointed):
    def __init__(self) -> None:
        self.seen = 0

    def open(self, context: Any) -> None:
        self.limits = context.get_broadcast_state(LIMITS)
        self.total = context.get_reducing_state(TOTAL)
        self.recent = context.get_state(RECENT)

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        if row.limit is None:
            self.limits.remove(row.key)
        else:
            self.limits.put(row.key, row.limit)
        if row.limit == RAISING:
            context.apply_to_keyed_state(TOTAL, lambda key, total: total.add(RAISE))

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[Any, ...]]:
        self.seen += 1
        if row.what == "add":
            self.total.add(row.n)
            self.recent.update(row.n)
        elif row.what == "ask":
            found = (self.total.get(), self.recent.value(), self.limits.get(row.key), context.watermark)
            yield row.key, row.what, repr(found)
        else:
            getattr(context.timers, row.what)(row.n)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[Any, ...]]:
        yield context.current_key, context.time_domain.value, repr((timestamp, self.total.get()))
        if timestamp % CLEARS == 0:
            self.total.clear()
        if timestamp % AGAIN == 0:
            context.timers.register_event_time(timestamp + LATER_MS)

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[int]:
        return [self.seen]

    def restore_state(self, state: list[int]) -> None:
        self.seen = sum(state)


@dataclass
class Model:
    """What the function has, in plain Python."""

    limits: dict[str, int] = field(default_factory=dict)
    total: dict[str, int] = field(default_factory=dict)
    recent: dict[str, tuple[int, int]] = field(default_factory=dict)
    timers: dict[str, set[tuple[int, str]]] = field(
        default_factory=lambda: {"event_time": set(), "processing_time": set()}
    )
    seen: int = 0
    greatest: int | None = None
    now: int = 0

    @property
    def watermark(self) -> int | None:
        return None if self.greatest is None else self.greatest - DELAY_MS

    def epoch(self, rows: list[Row], limits: list[tuple[str, int | None]]) -> list[tuple[Any, ...]]:
        watermark = self.watermark
        for key, limit in limits:
            if limit is None:
                self.limits.pop(key, None)
            else:
                self.limits[key] = limit
            if limit == RAISING:
                self.total = {key: total + RAISE for key, total in self.total.items()}
        found = [*self._fire("event_time", watermark), *self._fire("processing_time", self.now)]
        for row in rows:
            self.seen += 1
            found += self._process(row, watermark)
        at = [_milliseconds(row.at) for row in rows]
        self.greatest = max(at if self.greatest is None else [self.greatest, *at], default=self.greatest)
        return sorted(found)

    def _fire(self, domain: str, upto: int | None) -> Iterator[tuple[Any, ...]]:
        timers = self.timers[domain]
        while upto is not None and timers and min(timers)[0] <= upto:
            at, key = min(timers)
            timers.discard((at, key))
            yield key, domain, repr((at, self.total.get(key)))
            if at % CLEARS == 0:
                self.total.pop(key, None)
            if at % AGAIN == 0:
                self.timers["event_time"].add((at + LATER_MS, key))

    def _process(self, row: Row, watermark: int | None) -> Iterator[tuple[Any, ...]]:
        if row.what == "add":
            self.total[row.key] = self.total.get(row.key, 0) + row.n
            self.recent[row.key] = row.n, self.now
        elif row.what == "ask":
            recent, written = self.recent.get(row.key, (None, 0))
            recent = None if self.now - written >= TTL_MS else recent
            yield row.key, row.what, repr((self.total.get(row.key), recent, self.limits.get(row.key), watermark))
        else:
            action, _, domain = row.what.partition("_")
            change = set.add if action == "register" else set.discard
            change(self.timers[domain], (row.n, row.key))


def _milliseconds(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


KEYS = [f"k{number}" for number in range(6)]
TIMES = st.integers(0, 60)
ROWS = st.builds(
    Row,
    st.sampled_from(KEYS),
    st.sampled_from(
        [
            "add",
            "ask",
            "register_event_time",
            "register_event_time",
            "register_processing_time",
            "delete_event_time",
            "delete_processing_time",
        ]
    ),
    TIMES,
    TIMES.map(lambda at: datetime.fromtimestamp(at / 1000, timezone.utc)),
)
EPOCH = st.tuples(
    st.lists(ROWS, max_size=12),
    st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([None, 1, RAISING])), max_size=3),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("epoch"), EPOCH),
        st.tuples(st.just("epoch"), EPOCH),
        st.tuples(st.just("fail"), EPOCH),
        st.tuples(st.just("wait"), st.integers(1, 30)),
        st.tuples(st.just("restart"), st.tuples(st.sampled_from([1, 2, 5]), st.sampled_from(["heap", "rocksdb"]))),
    ),
    min_size=3,
    max_size=10,
)


def opened(directory: Path, now: int, parallelism: int, backend: str) -> FunctionHarness:
    return FunctionHarness(
        Everything(),
        input={"key": str, "what": str, "n": int, "at": datetime},
        output={"key": str, "what": str, "found": str},
        key_by="key",
        event_time="at",
        delay=timedelta(milliseconds=DELAY_MS),
        broadcast=Broadcast(columns={"key": str, "limit": int}, states=[LIMITS]),
        processing_time=now,
        checkpoint=directory,
        parallelism=parallelism,
        backend=backend,
    )


def check(harness: FunctionHarness, model: Model) -> None:
    assert harness.broadcast_state("limits") == model.limits
    for key in KEYS:
        assert harness.state("limits", key) == model.limits.get(key), key
        assert harness.state("total", key) == model.total.get(key), key
    for domain in TimeDomain:
        found = [(timer.time, timer.key) for timer in harness.timers(domain)]
        assert sorted(found) == sorted(model.timers[domain.value]), domain


@settings(max_examples=600)
@given(STEPS)
def test_a_function_with_everything_does_what_the_model_does(steps: list[tuple[str, Any]]) -> None:
    model, place = Model(), (2, "heap")
    with TemporaryDirectory() as directory, ExitStack() as stack:
        harness = stack.enter_context(opened(Path(directory), 0, *place))
        for step, given_to_it in steps:
            if step == "epoch":
                rows, limits = given_to_it
                assert sorted(harness.process(*rows, broadcast=limits)) == model.epoch(rows, limits)
            elif step == "fail":
                rows, limits = given_to_it
                harness.fail(*rows, broadcast=limits)
            elif step == "wait":
                model.now += given_to_it
                assert sorted(harness.advance_processing_time(model.now)) == model.epoch([], [])
            else:
                stack.close()
                harness = stack.enter_context(opened(Path(directory), model.now, *given_to_it))
            check(harness, model)
        stack.close()
        counts = [
            one.value for one in read_operator_state(open_source(directory), "function") if one.state == FUNCTION_LIST
        ]
        assert sum(counts) == model.seen
