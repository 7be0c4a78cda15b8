"""Timers of a function over whole batches in epochs that commit, fail and are restored: those of a function over rows.

A program registers and deletes timers by its rows. Its functions register and delete more when timers fire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.descriptors import ReducingStateDescriptor
from qstate.keys import Key, Namespace, key_identity
from qstate.operators.functions import KeyedBatchFunction, KeyedProcessFunction, StreamFunction
from qstate.operators.keyed_batch import KeyedBatch
from qstate.operators.time import timers as module
from qstate.operators.time.due_timers import DueTimers
from qstate.operators.time.timers import TimeDomain
from qstate.testing import FunctionHarness
from tests.functions import add

START = datetime(1970, 1, 1, tzinfo=timezone.utc)
INPUT = pa.schema(
    [
        ("key", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("registers", pa.bool_()),
        ("domain", pa.string()),
        ("time", pa.int64()),
        ("space", pa.int64()),
    ]
)
OUTPUT = pa.schema([(name, pa.string()) for name in ("key", "domain", "namespace", "time", "rows")])
ROWS = ReducingStateDescriptor("rows", int, reduce_function=add)


class Action(NamedTuple):
    """A timer to register or to delete."""

    registers: bool
    domain: TimeDomain
    time: int
    namespace: Namespace
    key: Key


def action_of(row: Any) -> Action:
    return Action(row.registers, TimeDomain(row.domain), row.time, row.space, row.key)


class Fires:
    """What a function does when a timer fires. `present`: also with timers that are due already."""

    def __init__(self, present: bool) -> None:
        self.present = present

    def open(self, context: Any) -> None:
        self.rows = context.get_reducing_state(ROWS)

    def actions(self, domain: TimeDomain, time: int, namespace: Namespace, key: Key, context: Any) -> list[Action]:
        now = context.watermark if domain is TimeDomain.EVENT_TIME else context.processing_time
        found = [
            Action(time % 2 == 0, domain, time + 1 + time % 3, namespace, key),
            Action(time % 5 == 0, domain, time + 3, None, key),
        ]
        return [one for one in found if one.time % 7 and (self.present or one.time > now)]


class ByRow(Fires, KeyedProcessFunction):
    def process_element(self, row: Any, context: Any) -> None:
        self.rows.add(1)
        act_on_one(action_of(row), context)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        domain, namespace, key = context.time_domain, context.namespace, context.current_key
        yield key, domain.value, str(namespace), str(timestamp), str(self.rows.get())
        for action in self.actions(domain, timestamp, namespace, key, context):
            act_on_one(action, context)


class InLoops(Fires, KeyedBatchFunction):
    def process_batch(self, batch: KeyedBatch, context: Any) -> None:
        for one in batch.by_key():
            for row in one.rows.to_pylist():
                self.rows.add(1)
                domain = TimeDomain(row["domain"])
                act_on_one(Action(row["registers"], domain, row["time"], row["space"], one.key), context)

    def on_timers(self, timers: DueTimers, context: Any) -> Iterator[pa.RecordBatch]:
        domain = timers.time_domain
        for timer in timers:
            values = timer.key, domain.value, str(timer.namespace), str(timer.time), str(self.rows.get())
            yield pa.RecordBatch.from_arrays([pa.array([value]) for value in values], schema=OUTPUT)
            for action in self.actions(domain, timer.time, timer.namespace, timer.key, context):
                act_on_one(action, context)


class AtOnce(Fires, KeyedBatchFunction):
    def process_batch(self, batch: KeyedBatch, context: Any) -> None:
        self.rows.add_many(batch.keys, [1] * len(batch.keys))
        names = ("registers", "domain", "time", "space")
        registers, domains, times, spaces = (batch.rows.column(name).to_pylist() for name in names)
        act_on_many(map(Action, registers, map(TimeDomain, domains), times, spaces, batch.keys), context)

    def on_timers(self, timers: DueTimers, context: Any) -> Iterable[pa.RecordBatch]:
        domain, fired = timers.time_domain, zip(timers.times.tolist(), timers.namespaces, timers.keys, strict=True)
        act_on_many((action for one in fired for action in self.actions(domain, *one, context)), context)
        columns = (
            timers.keys,
            [domain.value] * len(timers),
            list(map(str, timers.namespaces)),
            list(map(str, timers.times.tolist())),
            list(map(str, self.rows.get_many(timers.keys))),
        )
        return [pa.RecordBatch.from_arrays([pa.array(column, pa.string()) for column in columns], schema=OUTPUT)]


def act_on_one(action: Action, context: Any) -> None:
    """With the timers of the current key."""
    timers = context.timers.in_namespace(action.namespace)
    getattr(timers, f"{'register' if action.registers else 'delete'}_{action.domain.value}")(action.time)


def act_on_many(actions: Iterable[Action], context: Any) -> None:
    """With the timers of all keys: the last action on a timer counts."""
    last = {(one.domain, one.time, key_identity(one.namespace), one.key): one for one in actions}
    for registers in (True, False):
        for domain in TimeDomain:
            mine = [one for one in last.values() if (one.registers, one.domain) == (registers, domain)]
            call = getattr(context.timers, f"{'register' if registers else 'delete'}_{domain.value}_many")
            times = pa.array([one.time for one in mine], pa.int64())
            call([one.key for one in mine], times, [one.namespace for one in mine])


#: Few of each, so that they meet.
TIMES = st.integers(0, 12)
EPOCH_ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        TIMES.map(lambda time: START + timedelta(milliseconds=time)),
        st.sampled_from([True, True, False]),
        st.sampled_from([domain.value for domain in TimeDomain]),
        TIMES,
        st.sampled_from([None, 1]),
    ),
    max_size=10,
)
#: Epochs that commit, that fail, and that only move a time; and a new job with another parallelism.
PROGRAMS = st.lists(
    st.one_of(
        st.tuples(st.just("process"), EPOCH_ROWS),
        st.tuples(st.just("fail"), EPOCH_ROWS),
        st.tuples(st.just("advance_watermark"), TIMES),
        st.tuples(st.just("advance_processing_time"), TIMES),
        st.tuples(st.just("rescale"), st.integers(1, 2)),
    ),
    max_size=10,
)


class Lives:
    """A job with one function, over the lives that a program gives it."""

    def __init__(self, function: StreamFunction, backend: str, checkpoint: Path) -> None:
        self._make = lambda parallelism: FunctionHarness(
            function,
            input=INPUT,
            output=OUTPUT,
            key_by="key",
            event_time="at",
            backend=backend,
            checkpoint=checkpoint,
            parallelism=parallelism,
        )
        self._harness = self._make(1)

    def step(self, name: str, argument: Any) -> Any:
        if name == "rescale":
            self.close()
            self._harness = self._make(argument)
            return None
        arguments = argument if isinstance(argument, list) else [argument]
        return getattr(self._harness, name)(*arguments)

    def timers(self) -> list[Any]:
        return [sorted(self._harness.timers(domain), key=repr) for domain in TimeDomain]

    def close(self) -> None:
        self._harness.close()


#: How many timers a batch may have, and whether the functions may change timers that are due already.
BATCHES = st.sampled_from([(1, True), (2, False), (10_000, False)])
NEXT = START + timedelta(milliseconds=9)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@example([("process", [("a", NEXT, True, "event_time", time, None) for time in (2, 3, 4)]), ("process", [])], (1, True))
@example([("process", [("a", NEXT, True, "event_time", time, 1) for time in (5, 9)]), ("process", [])], (2, False))
@given(program=PROGRAMS, batches=BATCHES)
def test_timers_of_batches_fire_as_those_of_rows(
    backend: str, program: list[tuple[str, Any]], batches: tuple[int, bool]
) -> None:
    """Also timers that are changed while others fire; those that are due already only if a batch has one timer."""
    at_once, present = batches
    with TemporaryDirectory() as directory, ExitStack() as stack, patch.object(module, "TAKEN_AT_ONCE", at_once):
        by_rows, *by_batches = (
            Lives(kind(present), "heap" if kind is ByRow else backend, Path(directory, kind.__name__))
            for kind in (ByRow, InLoops, AtOnce)
        )
        for lives in (by_rows, *by_batches):
            stack.callback(lives.close)
        for name, argument in program:
            expected, timers = by_rows.step(name, argument), by_rows.timers()
            for lives in by_batches:
                assert lives.step(name, argument) == expected
                assert lives.timers() == timers


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_failed_epoch_leaves_its_batches_of_timers_to_the_next_one(backend: str, tmp_path: Path) -> None:
    rows = [(key, START, True, "event_time", time, None) for key in "abc" for time in (3, 9)]
    lives = Lives(AtOnce(present=False), backend, tmp_path)
    lives.step("process", rows)
    with patch.object(module, "TAKEN_AT_ONCE", 2):
        lives.step("process", [("late", START + timedelta(milliseconds=5), True, "event_time", 9, None)])
        lives.step("fail", [])
        assert [row[0] for row in lives.step("process", [])] == ["a", "b", "c"]
    assert lives.step("process", []) == []
    lives.close()
