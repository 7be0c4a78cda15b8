"""The life-cycle hooks of a function: what it keeps outside of handles is stored with each epoch, as in Flink.

Rules of this module: interfaces, which a function inherits beside its own class, and what their methods get. The
operator calls them; it has the order of the calls.

    ListCheckpointed        snapshot_state(checkpoint_id, timestamp) -> list, restore_state(list)
    CheckpointedFunction    initialize_state(context), snapshot_state(context)
    CheckpointListener      notify_checkpoint_complete(checkpoint_id)

A checkpoint is an epoch: `checkpoint_id` is its number. Times are milliseconds since 1970-01-01 UTC.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import JobError
from qstate.operators.broadcast import BroadcastState
from qstate.operators.context import RuntimeContext
from qstate.operators.handles import AggregatingState, ListState, MapState, ReducingState, ValueState
from qstate.operators.operator_lists import OperatorListState

__all__ = [
    "CheckpointListener",
    "CheckpointedFunction",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyedStateStore",
    "ListCheckpointed",
    "OperatorStateStore",
    "check_hooks",
]


class ListCheckpointed(ABC):
    """A function whose attributes are stored as a list of elements, which another parallelism distributes evenly."""

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int, timestamp: int) -> list[Any]:
        """What the function has to keep, at the end of an epoch, before it is sealed.

        `timestamp` is the epoch's processing time. An element is a value that a state of type `object` can hold.
        """

    @abstractmethod
    def restore_state(self, state: list[Any]) -> None:
        """Take back the elements that this subtask has now; they may be none, or those of several subtasks.

        Called once, after `open`, when there is an epoch to restore: after a restart, and after an epoch that failed.
        """


class KeyedStateStore:
    """Gives the handles of keyed states. A handle has no key until a row comes, so it cannot be read here."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """The handle of a value state."""
        return self._context.get_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """The handle of a list state."""
        return self._context.get_list_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """The handle of a map state."""
        return self._context.get_map_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """The handle of a reducing state."""
        return self._context.get_reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """The handle of an aggregating state."""
        return self._context.get_aggregating_state(descriptor)


class OperatorStateStore:
    """Gives the states of the subtask that belong to no key. They have their restored elements at once."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context

    def get_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list that is split evenly when the parallelism changes."""
        return self._context.get_operator_list_state(descriptor)

    def get_union_list_state(self, descriptor: ListStateDescriptor) -> OperatorListState:
        """A list of which each subtask has the elements of all when the parallelism changes."""
        return self._context.get_union_list_state(descriptor)

    def get_broadcast_state(self, descriptor: MapStateDescriptor) -> BroadcastState:
        """A broadcast state that `broadcast(descriptor)` has declared. Only broadcast rows may write it."""
        return self._context.get_broadcast_state(descriptor)


@dataclass(frozen=True, slots=True)
class FunctionInitializationContext:
    """The argument of `initialize_state`. The states of its stores count as those that `open` asks for."""

    #: Whether there is an epoch to restore, in which the operator was there already.
    is_restored: bool
    keyed_state_store: KeyedStateStore
    operator_state_store: OperatorStateStore


@dataclass(frozen=True, slots=True)
class FunctionSnapshotContext:
    """The argument of `snapshot_state`: the epoch that ends, and its processing time."""

    checkpoint_id: int
    checkpoint_timestamp: int


class CheckpointedFunction(ABC):
    """A function that initializes itself from its restored state, and writes into it at the end of each epoch."""

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the states and take back from them what the function keeps in attributes.

        Called once, after `open` and before the first row, in a new job, too. A function asks for the same states each
        time, whatever `context.is_restored` is.
        """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Write what the function keeps in attributes into its operator state. The epoch ends, and is sealed next."""


class CheckpointListener(ABC):
    """A function that wants to know which epochs are final."""

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Spark has committed this epoch, and all before: none of them comes again.

        It may be missed, as when the task manager ends first: the call for a later epoch counts for this one, too. It
        comes between two epochs and delays the next one. An error is only logged. What it changes is not exact.
        """


#: The interfaces that call a method of this name.
_INTERFACES: Mapping[str, tuple[type, ...]] = {
    "snapshot_state": (ListCheckpointed, CheckpointedFunction),
    "restore_state": (ListCheckpointed,),
    "initialize_state": (CheckpointedFunction,),
    "notify_checkpoint_complete": (CheckpointListener,),
}


def check_hooks(operator: str, function: object) -> None:
    """Raise `JobError` for a function whose hooks are ambiguous, or would never be called."""
    kind = type(function)
    if isinstance(function, ListCheckpointed) and isinstance(function, CheckpointedFunction):
        raise JobError(
            f"operator {operator!r}: {kind.__qualname__} is both ListCheckpointed and CheckpointedFunction, whose "
            "snapshot_state() differ: inherit one of them"
        )
    for name, interfaces in _INTERFACES.items():
        if hasattr(kind, name) and not isinstance(function, interfaces):
            wanted = " or ".join(interface.__name__ for interface in interfaces)
            raise JobError(
                f"operator {operator!r}: {name}() of {kind.__qualname__} would never be called: inherit {wanted} (from "
                "qstate.spark), too, or give the method another name"
            )
