"""The running call of the user's function, found from another thread."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from qstate.descriptors import ReducingStateDescriptor
from qstate.operators.checkpointed import CheckpointedFunction, CheckpointListener
from qstate.operators.functions import StreamFunction
from qstate.operators.operator import FunctionOperator
from qstate.operators.sinks import QueryableReducingSink
from qstate.operators.steps import Step, step_of
from qstate.operators.time.due_timers import DueTimers
from qstate.operators.time.epoch_time import EpochTime
from tests.operators.running import Batches, Calls, batch, heap, opened, operator_of


class Gate:
    """Blocks its callers until it is opened; `reached` is set when it is called."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, *_: Any) -> None:
        self.reached.set()
        assert self.opened.wait(30)  # where it stands


@contextmanager
def held(call: Any, gate: Gate) -> Iterator[Step | None]:
    """The step that another thread finds while `call` is blocked at the gate."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    try:
        assert gate.reached.wait(30)
        assert thread.ident is not None
        yield step_of(sys._current_frames()[thread.ident])
    finally:
        gate.opened.set()
        thread.join(30)


@pytest.fixture
def operator_with() -> Iterator[Any]:
    with heap() as backend:

        def make(function: StreamFunction, **settings: Any) -> FunctionOperator:
            return operator_of(function, backend, **settings)

        yield make


def test_a_row_is_shown_with_its_key_its_columns_and_the_users_stack(operator_with: Any) -> None:
    gate = Gate()
    operator = operator_with(Calls(lambda function, row, context: gate(row)))
    operator.open()
    rows = batch([("a", 1.5, 7), ("b" * 1000, 2.5, 8)])
    with held(lambda: operator.process(rows.slice(0, 1)), gate) as step:
        assert step is not None
        assert (step.call, step.key, step.row) == ("process_element", "a", "Row(key='a', temp=1.5, at=7)")
        assert step.where == "operator 'alerts' subtask 0, function Calls, key 'a'"
        stack = step.stack()
    assert "assert self.opened.wait(30)  # where it stands" in stack
    assert stack.index("process_element") < stack.index("__call__") < stack.index("in wait")
    assert "in _fill" not in stack
    gate = Gate()
    with held(lambda: operator.process(rows.slice(1, 1)), gate) as step:
        assert step is not None
        assert len(step.row) < 100
        assert len(step.where) < 150


def test_rows_of_one_key_are_different_rows(operator_with: Any) -> None:
    gates = [Gate(), Gate()]
    operator = operator_with(Calls(lambda function, row, context: gates[row.at](row)))
    operator.open()
    rows = batch([("a", 1.5, 0), ("a", 1.5, 1)])
    with held(lambda: operator.process(rows), gates[0]) as first:
        assert first is not None
        again = step_of(first.frames[-1])
        assert again is not None and again.subject is first.subject
        gates[0].opened.set()
        assert gates[1].reached.wait(30)
        (second,) = [found for frame in sys._current_frames().values() if (found := step_of(frame)) is not None]
        gates[1].opened.set()
    assert second.subject is not first.subject
    assert second.key is first.key or second.key == first.key


def test_step_of_a_generator_is_the_row_it_processes(operator_with: Any) -> None:
    gate = Gate()

    def each(function: Any, row: Any, context: Any) -> Any:
        yield row.key, "before"
        gate()

    operator = operator_with(Calls(each))
    operator.open()
    with held(lambda: operator.process(batch([("a", 1.5, 7)])), gate) as step:
        assert step is not None
        assert step.row == "Row(key='a', temp=1.5, at=7)"


def test_a_batch_is_shown_as_one(operator_with: Any) -> None:
    gate = Gate()
    descriptor = ReducingStateDescriptor("r", float, reduce_function=lambda *_: gate() or 1.0).queryable("r")
    operator = operator_with(QueryableReducingSink(descriptor, ["temp"]), output_schema=pa.schema([]))
    operator.open()
    with held(lambda: operator.process(batch([("a", 1.5, 7), ("a", 1.5, 7)])), gate) as step:
        assert step is not None
        assert (step.call, step.row) == ("process_batch", "")
        assert step.where == "operator 'alerts' subtask 0, function QueryableReducingSink(r)"


class Timed(Batches):
    def on_timers(self, timers: DueTimers, context: Any) -> None:
        for _ in timers:
            self.process_batch(timers, context)  # type: ignore[arg-type]


def test_due_timers_are_shown_with_the_key_of_the_loop() -> None:
    gate = Gate()

    def each(function: Any, rows: Any, context: Any) -> None:
        if isinstance(rows, DueTimers):
            gate()
        else:
            context.timers.register_processing_time_many(rows.keys, [5])

    with opened(Timed(each)) as operator:
        operator.process(batch([("a", 1.5, 7)]))
        with held(lambda: list(operator.begin(1, EpochTime(None, 5))), gate) as step:
            assert step is not None
            assert (step.call, step.key, step.row) == ("on_timers", "a", "")


class Hooked(Calls, CheckpointedFunction, CheckpointListener):
    """Waits at the gate in one life-cycle method."""

    def __init__(self, call: str, gate: Gate) -> None:
        super().__init__(lambda function, row, context: None)
        self.call, self.gate = call, gate

    def _reach(self, call: str) -> None:
        if call == self.call:
            self.gate()

    def open(self, context: Any) -> None:
        self._reach("open")

    def initialize_state(self, context: Any) -> None:
        self._reach("initialize_state")

    def snapshot_state(self, context: Any) -> None:
        self._reach("snapshot_state")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._reach("notify_checkpoint_complete")

    def close(self) -> None:
        self._reach("close")


@pytest.mark.parametrize("call", ["open", "initialize_state", "snapshot_state", "notify_checkpoint_complete", "close"])
def test_life_cycle_methods_are_shown(call: str, operator_with: Any) -> None:
    gate = Gate()
    operator = operator_with(Hooked(call, gate))

    def live() -> None:
        operator.open()
        operator.snapshot(0)
        operator.complete(0)
        operator.close()

    with held(live, gate) as step:
        assert step is not None
        assert (step.operator, step.call, step.row) == (operator, call, "")
        assert f"in {call}" in step.stack()


def test_thread_outside_user_code_has_no_step() -> None:
    assert step_of(sys._getframe()) is None
