"""The copies of a function that follow each other in a subtask: each has its own attributes, and all the same state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from qstate.descriptors import ListStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError, SerializationError
from qstate.operators.checkpointed import CheckpointedFunction
from qstate.operators.functions import KeyedProcessFunction
from qstate.operators.time.timers import TimeDomain
from qstate.testing import FunctionHarness
from tests.either_backend import EITHER_BACKEND

COLUMNS = {"key": str, "amount": int}
BACKENDS = pytest.mark.parametrize("backend", EITHER_BACKEND)


def harness(function: Any, **settings: Any) -> FunctionHarness:
    return FunctionHarness(function, input=COLUMNS, output={"key": str, "sum": int}, key_by="key", **settings)


@BACKENDS
def test_class_that_is_pickled_by_value_is_the_same_for_all_copies(backend: str) -> None:
    """As the classes of a notebook: each copy unpickles them, and writes and reads their instances."""

    @dataclass
    class Amount:
        amount: int

    class Sums(KeyedProcessFunction, CheckpointedFunction):
        def initialize_state(self, context: Any) -> None:
            self.last = context.keyed_state_store.get_state(ValueStateDescriptor("last", Amount))
            self.all = context.operator_state_store.get_list_state(ListStateDescriptor("all", Amount))
            self.amounts = self.all.get()

        def process_element(self, row: Any, context: Any) -> Any:
            before = self.last.value()
            assert before is None or type(before) is Amount
            self.last.update(Amount(row.amount))
            self.amounts.append(Amount(row.amount))
            assert all(type(one) is Amount for one in self.amounts)
            yield row.key, sum(one.amount for one in self.amounts)

        def snapshot_state(self, context: Any) -> None:
            self.all.update(self.amounts)

    with harness(Sums(), backend=backend) as running:
        assert running.process(("a", 1)) == [("a", 1)]
        for _ in range(3):
            running.fail(("a", 2))
        assert running.process(("a", 4)) == [("a", 5)]


class Timed(KeyedProcessFunction):
    """Sums in an attribute what timers and rows of this copy bring."""

    def __init__(self) -> None:
        self.sum = 0

    def process_element(self, row: Any, context: Any) -> Any:
        self.sum += row.amount
        context.timers.register_processing_time(context.processing_time + row.amount)

    def on_timer(self, timestamp: int, context: Any) -> Any:
        yield context.current_key, timestamp


@BACKENDS
def test_new_copy_registers_and_fires_timers(backend: str) -> None:
    with harness(Timed(), backend=backend) as running:
        running.process(("a", 10))
        running.fail(("a", 20))
        running.process(("a", 30))
        assert [one.time for one in running.timers(TimeDomain.PROCESSING_TIME)] == [10, 30]
        running.fail()
        assert running.advance_processing_time(40) == [("a", 10), ("a", 30)]


class Sends(KeyedProcessFunction):
    """Sends rows to a side output."""

    def process_element(self, row: Any, context: Any) -> Any:
        context.output("late", (row.key, row.amount))
        yield row.key, row.amount


def test_new_copy_sends_to_side_outputs() -> None:
    with harness(Sends(), side_outputs={"late": {"key": str, "amount": int}}) as running:
        running.process(("a", 1))
        running.fail(("a", 2))
        assert running.process(("a", 4)) == [("a", 4)]
        assert running.side_output("late") == [("a", 4)]


class Checked(KeyedProcessFunction):
    """Writes a value that does not have the declared type, after its first copy has failed at once."""

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", int))

    def process_element(self, row: Any, context: Any) -> None:
        self.last.update(row.key)


@BACKENDS
def test_writes_of_each_copy_are_checked(backend: str) -> None:
    with harness(Checked(), backend=backend) as running:
        running.fail()  # without a row
        for _ in range(2):
            with pytest.raises(SerializationError, match="declared as int"):
                running.process(("a", 1))
        assert running.state("last", "a") is None


class Unstable(KeyedProcessFunction):
    """Its pickle cannot be read again after some copies."""

    def __init__(self) -> None:
        self.sum = 0

    def process_element(self, row: Any, context: Any) -> Any:
        self.sum += row.amount
        yield row.key, self.sum

    def __setstate__(self, state: dict[str, Any]) -> None:
        if BROKEN:
            raise ValueError("cannot be read")
        self.__dict__.update(state)


BROKEN: list[bool] = []


def test_copy_that_cannot_be_unpickled_fails_the_attempt_only() -> None:
    with harness(Unstable()) as running:
        running.fail(("a", 1))
        BROKEN.append(True)
        try:
            with pytest.raises((JobError, ValueError), match="cannot be read"):
                running.process(("a", 2))
        finally:
            BROKEN.clear()
        assert running.process(("a", 4)) == [("a", 4)]
