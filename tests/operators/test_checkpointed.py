"""The life-cycle hooks of a function: when the operator calls them, with what, and what an error says."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from qstate.checkpoint.log.operator_state import OperatorState
from qstate.descriptors import ListStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from qstate.errors import ClosedError, JobError
from qstate.operators.checkpointed import CheckpointedFunction, CheckpointListener, ListCheckpointed
from qstate.operators.functions import KeyedProcessFunction
from qstate.operators.operator import FunctionOperator
from qstate.operators.time.epoch_time import EpochTime
from tests.functions import add
from tests.operators.running import batch, empty_heap, operator_of, spec

ROW = batch([("a", 1.0, 1)])


class Count(KeyedProcessFunction, ListCheckpointed):
    """Counts rows in an attribute; notes the calls of its hooks."""

    def __init__(self) -> None:
        self.rows = 0
        self.calls: list[Any] = []

    def open(self, context: Any) -> None:
        self.calls.append("open")

    def process_element(self, row: Any, context: Any) -> None:
        self.rows += 1

    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        self.calls.append(("snapshot", checkpoint_id, timestamp))
        return [self.rows]

    def restore_state(self, state: list[Any]) -> None:
        self.calls.append(("restore", state))
        self.rows = sum(state)

    def close(self) -> None:
        self.calls.append("close")


class Buffer(KeyedProcessFunction, CheckpointedFunction, CheckpointListener):
    """Buffers rows in an attribute, and counts them for each key."""

    def __init__(self) -> None:
        self.buffered: list[str] = []
        self.calls: list[Any] = []

    def initialize_state(self, context: Any) -> None:
        total = ReducingStateDescriptor("total", int, reduce_function=add)
        self.total = context.keyed_state_store.get_reducing_state(total)
        self.names = context.operator_state_store.get_list_state(ListStateDescriptor("names", str))
        self.all_names = context.operator_state_store.get_union_list_state(ListStateDescriptor("all", str))
        self.calls.append(("initialize", context.is_restored, self.names.get()))
        self.buffered = self.names.get()

    def process_element(self, row: Any, context: Any) -> Iterator[Any]:
        self.buffered.append(row.key)
        self.total.add(1)
        yield row.key, str(self.total.get())

    def snapshot_state(self, context: Any) -> None:
        self.calls.append(("snapshot", context.checkpoint_id, context.checkpoint_timestamp))
        self.names.update(self.buffered)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.calls.append(("complete", checkpoint_id))


@contextmanager
def opened(function: Any, stored: OperatorState | None = None) -> Iterator[FunctionOperator]:
    with empty_heap() as backend:
        operator = operator_of(function, backend, stored=stored)
        operator.open()
        yield operator
        operator.close()


def run(operator: FunctionOperator, epoch: int) -> OperatorState:
    """Process and seal an epoch of one row."""
    operator._backend.begin(epoch)
    list(operator.begin(epoch, EpochTime(None, 1000 + epoch)))
    operator.process(ROW)
    list(operator.finish())
    state = operator.snapshot(epoch)
    list(operator._backend.commit(epoch))
    operator.sealed(state)
    return state


def abandon(operator: FunctionOperator, epoch: int, function: Any) -> None:
    """Process a row of an epoch that fails, and put another copy of the function in place."""
    operator._backend.begin(epoch)
    list(operator.begin(epoch, EpochTime(None, 1000 + epoch)))
    operator.process(ROW)
    operator.discard()
    operator._backend.rollback()
    operator.restart(spec(function))


def test_list_is_asked_for_at_the_end_of_each_epoch_and_given_to_the_next_copy() -> None:
    function, copy = Count(), Count()
    with opened(function) as operator:
        state = run(operator, 0)
        run(operator, 1)
        assert function.calls == ["open", ("snapshot", 0, 1000), ("snapshot", 1, 1001)]
    with opened(copy, state) as operator:
        assert copy.calls == ["open", ("restore", [1])]


def test_restored_list_may_be_empty_and_a_new_job_restores_none() -> None:
    function = Count()
    with opened(function, ()):
        assert function.calls == ["open", ("restore", [])]
    function = Count()
    with opened(function):
        assert function.calls == ["open"]


def test_initialize_state_has_the_lists_and_declares_states() -> None:
    function, copy = Buffer(), Buffer()
    with opened(function) as operator:
        state = run(operator, 7)
        assert [one.name for one in operator.descriptors] == ["total"]
        operator.complete(7)
        assert function.calls == [("initialize", False, []), ("snapshot", 7, 1007), ("complete", 7)]
    with opened(copy, state) as operator:
        assert copy.calls == [("initialize", True, ["a"])]


def test_new_copy_begins_with_what_was_sealed() -> None:
    function, copies = Count(), [Count(), Count()]
    with opened(function) as operator:
        run(operator, 0)
        abandon(operator, 1, copies[0])
        assert (function.rows, function.calls[-1]) == (2, "close")
        assert (copies[0].rows, copies[0].calls) == (1, ["open", ("restore", [1])])
        run(operator, 1)
        abandon(operator, 2, copies[1])
        assert copies[1].rows == 2


def test_new_copy_of_the_first_epoch_restores_nothing() -> None:
    copy = Buffer()
    with opened(Buffer()) as operator:
        abandon(operator, 0, copy)
        assert copy.calls == [("initialize", False, [])]
        run(operator, 0)
        assert copy.buffered == ["a"]


def test_new_copy_has_the_state_of_the_old_one() -> None:
    with opened(Buffer()) as operator:
        run(operator, 0)
        abandon(operator, 1, Buffer())
        operator._backend.begin(1)
        (found,) = operator.process(ROW)
        assert found.column("text").to_pylist() == ["2"]


class Conditional(Count):
    """Asks for a state only when there is something to restore."""

    def __init__(self) -> None:
        super().__init__()
        self.restored = False

    def open(self, context: Any) -> None:
        if self.restored:
            context.get_state(ValueStateDescriptor("last", float))


def test_new_copy_must_ask_for_the_same_states() -> None:
    with opened(Conditional()) as operator:
        other = Conditional()
        other.restored = True
        with pytest.raises(JobError, match=r"asked for other states than before: open\(\) and initialize_state"):
            abandon(operator, 0, other)
        with pytest.raises(ClosedError):
            operator.process(ROW)
        operator.restart(spec(Conditional()))
        assert other.calls == ["close"]
        operator.process(ROW)


def test_error_of_the_old_copys_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Count):
        def close(self) -> None:
            raise ValueError("cannot close")

    with opened(Failing()) as operator, caplog.at_level(logging.WARNING):
        abandon(operator, 0, Count())
        assert "'alerts' subtask 0, function" in caplog.text and "close(): ValueError: cannot close" in caplog.text
        run(operator, 0)


def fail(*_: Any) -> Any:
    raise ValueError("as the test wants")


def failing(kind: type, hook: str) -> Any:
    function = kind()
    setattr(function, hook, fail)
    return function


@pytest.mark.parametrize(
    ("kind", "hook"),
    [(Count, "restore_state"), (Count, "snapshot_state"), (Buffer, "initialize_state"), (Buffer, "snapshot_state")],
)
def test_error_names_operator_function_and_hook(kind: type, hook: str) -> None:
    told = rf"operator 'alerts', function {kind.__name__}, {hook}\(\): ValueError: as the test wants"
    with pytest.raises(JobError, match=told), opened(failing(kind, hook), ()) as operator:
        run(operator, 0)


def test_error_of_a_notification_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with opened(failing(Buffer, "notify_checkpoint_complete")) as operator, caplog.at_level(logging.WARNING):
        run(operator, 0)
        operator.complete(0)
        assert "function Buffer, notify_checkpoint_complete(): ValueError: as the test wants" in caplog.text
        run(operator, 1)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "expected a list of elements, got None"),
        ("text", "expected a list of elements, got 'text'"),
        ([None], "got None, which is not a value"),
        ([object()], "operator state '__qstate.snapshot_state' cannot be stored"),
    ],
)
def test_what_is_no_list_of_values_is_refused(result: Any, told: str) -> None:
    function = Count()
    function.snapshot_state = lambda checkpoint_id, timestamp: result  # type: ignore[method-assign]
    with opened(function) as operator, pytest.raises(JobError, match=told):
        run(operator, 0)


def test_keyed_state_has_no_key_in_hooks() -> None:
    class Reads(Buffer):
        def initialize_state(self, context: Any) -> None:
            super().initialize_state(context)
            self.total.get()

    told = r"initialize_state\(\): JobError: state was used where there is no current key"
    with pytest.raises(JobError, match=told), opened(Reads()):
        pass


class Both(Count, CheckpointedFunction):  # type: ignore[misc]
    def initialize_state(self, context: Any) -> None: ...


class Plain(KeyedProcessFunction):
    def process_element(self, row: Any, context: Any) -> None: ...


def with_method(name: str) -> Callable[[], Any]:
    return type("Forgetful", (Plain,), {name: fail})


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (Both, "Both is both ListCheckpointed and CheckpointedFunction"),
        (with_method("snapshot_state"), r"snapshot_state\(\) of Forgetful .* inherit ListCheckpointed or Checkpointed"),
        (with_method("restore_state"), r"restore_state\(\) of Forgetful would never be called: inherit ListCheck"),
        (with_method("initialize_state"), "never be called: inherit CheckpointedFunction"),
        (with_method("notify_checkpoint_complete"), "never be called: inherit CheckpointListener"),
    ],
)
def test_hooks_that_would_not_be_called_are_refused(function: Callable[[], Any], told: str) -> None:
    with pytest.raises(JobError, match=told):
        spec(function())
