"""Functions over a stream: the classes that users implement and the operator calls.

Rules of this module: interfaces and the flat-map shortcut only. A function is pickled with its job, and every
subtask uses its own copy. After an epoch that failed, a new copy takes its place: its attributes are those of the
pickle. Keep what must survive in state handles, or store it with a hook (`qstate.operators.checkpointed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pyarrow as pa

from qstate.descriptors import ValueStateDescriptor
from qstate.errors import JobError
from qstate.operators.context import RuntimeContext
from qstate.operators.handles import ElementContext, ValueState
from qstate.operators.keyed_batch import KeyedBatch
from qstate.operators.time.due_timers import DueTimers

__all__ = [
    "BroadcastProcessFunction",
    "FlatMapWithState",
    "KeyedBatchFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "ProcessFunction",
    "RowFunction",
    "StreamFunction",
]


class StreamFunction:
    """A function with state. The operator opens each copy once, before its first row, and closes it once.

    A subtask has one copy at a time. It gets a new one when it is restored, and after each epoch that failed.
    """

    #: Whether its stream has a key.
    keyed: ClassVar[bool] = True

    def open(self, context: RuntimeContext) -> None:
        """Get state handles and whatever else the function needs. Called before keyed state is restored.

        Ask for the same states each time.
        """

    def close(self) -> None:
        """Release the resources of `open`. Not called when the process is killed."""

    @property
    def display_name(self) -> str:
        """The name of the function in errors."""
        return type(self).__qualname__

    @property
    def uses_timers(self) -> bool:
        """Whether the function defines the method that gets due timers."""
        return False


class RowFunction(StreamFunction, ABC):
    """A function that processes one row at a time, of one or several inputs, and may have timers."""

    #: The method for the rows of each input.
    elements: ClassVar[tuple[str, ...]] = ("process_element",)
    #: Whether the first input is broadcast: every subtask gets its rows.
    has_broadcast: ClassVar[bool] = False

    @property
    def uses_timers(self) -> bool:
        return type(self).on_timer is not RowFunction.on_timer

    def on_timer(self, timestamp: int, context: ElementContext) -> Iterable[Any] | None:
        """A timer of the current key is due; `timestamp` is its time. Returns output rows like `process_element`.

        It may read and write the state of the key, and register and delete timers. `context.time_domain` and
        `context.namespace` say which timer it is.
        """
        return None


class KeyedProcessFunction(RowFunction):
    """Processes one row at a time, with the state of that row's key."""

    @abstractmethod
    def process_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process one row; return the output rows, or None for none. May be a generator.

        `row` has the input's columns as attributes: structs and maps are dicts, arrays lists, timestamps are in UTC. A
        map's key that is a struct or an array is a tuple; of equal keys in a map the last one counts.

        Output rows are tuples or lists in the order of the output schema, or dicts or named rows with its column names.
        """


class KeyedCoProcessFunction(RowFunction):
    """Processes the rows of two keyed streams. Both read and write the same state of their key.

    Rows, results and the context are those of `KeyedProcessFunction.process_element`.
    """

    elements: ClassVar[tuple[str, ...]] = ("process_element1", "process_element2")

    @abstractmethod
    def process_element1(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process a row of the first stream."""

    @abstractmethod
    def process_element2(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process a row of the second stream."""


class KeyedBroadcastProcessFunction(RowFunction):
    """Processes the rows of a keyed stream, and broadcast rows that every subtask gets, such as rules.

    A broadcast row may write broadcast state, and has no key: keyed state and timers raise `JobError` there. In each
    epoch all broadcast rows come first, in the same order in every subtask, then due timers, then the other rows.
    """

    elements: ClassVar[tuple[str, ...]] = ("process_broadcast_element", "process_element")
    has_broadcast = True

    @abstractmethod
    def process_broadcast_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process a broadcast row. Every subtask does that, so each of them emits the rows that it returns.

        `context.apply_to_keyed_state` visits all keys of a keyed state.
        """

    @abstractmethod
    def process_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process a row of the keyed stream, as `KeyedProcessFunction.process_element`. Broadcast state can be read."""


class ProcessFunction(RowFunction):
    """Processes the rows of a stream without a key. It has operator state, and neither keyed state nor timers.

    Equal rows come to the same subtask. Otherwise a row may come to any, and to another one at another parallelism.
    """

    keyed = False

    @abstractmethod
    def process_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process one row, as `KeyedProcessFunction.process_element`. There is no current key."""


class BroadcastProcessFunction(RowFunction):
    """Processes the rows of a stream without a key, and broadcast rows that every subtask gets.

    It is to `KeyedBroadcastProcessFunction` as `ProcessFunction` is to `KeyedProcessFunction`.
    """

    keyed = False
    elements: ClassVar[tuple[str, ...]] = ("process_broadcast_element", "process_element")
    has_broadcast = True

    @abstractmethod
    def process_broadcast_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process a broadcast row. Every subtask does that, so each of them emits the rows that it returns."""

    @abstractmethod
    def process_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        """Process a row of the stream. Broadcast state can be read."""


class KeyedBatchFunction(StreamFunction, ABC):
    """Processes whole Arrow batches, for functions that need no Python code per row, and may have timers.

    It gets its handles in `open` like any function, and reads and writes the state of many keys at once: `get_many`,
    `put_many`, `add_many`, .... Name only keys of the batch: other keys may belong to other subtasks.
    """

    @abstractmethod
    def process_batch(self, batch: KeyedBatch, context: ElementContext) -> Iterable[pa.RecordBatch] | None:
        """Process a batch; return batches of the output schema, or None for none. May be a generator.

        A batch has some of the epoch's rows, in the order in which they arrive. With `order_by`, the batches of an
        epoch are in that order together. How many rows a batch has is unspecified: the result must not depend on it.
        """

    @property
    def uses_timers(self) -> bool:
        return type(self).on_timers is not KeyedBatchFunction.on_timers

    def on_timers(self, timers: DueTimers, context: ElementContext) -> Iterable[pa.RecordBatch] | None:
        """Timers are due; returns batches like `process_batch`. Called before the rows of an epoch.

        It may read and write the state of the timers' keys, and register and delete timers of them. A batch has some
        of the timers that are due, the earliest first; how many is unspecified. All of them have fired: to delete one
        of them has no effect, and one that is registered again fires again. Other due timers come in later batches of
        the epoch, also those that are registered meanwhile, unless they are deleted first.
        """
        return None


class FlatMapWithState(KeyedProcessFunction):
    """Flink's `flatMapWithState`: `function(row, state_value) -> (output_rows, new_state_value)`.

    `state_value` is None for a key without state; a new value of None clears it. The output rows may be None.
    """

    def __init__(
        self, function: Callable[[Any, Any], tuple[Iterable[Any] | None, Any]], descriptor: ValueStateDescriptor
    ) -> None:
        self._function = function
        self._descriptor = descriptor
        self._state: ValueState

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_state(self._descriptor)

    def process_element(self, row: Any, context: ElementContext) -> Iterable[Any] | None:
        found = self._function(row, self._state.value())
        if type(found) is not tuple or len(found) != 2:
            raise JobError(f"expected a pair (output rows, new state value), got {found!r}")
        self._state.update(found[1])
        return found[0]

    @property
    def display_name(self) -> str:
        return f"FlatMapWithState({getattr(self._function, '__qualname__', type(self._function).__qualname__)})"
