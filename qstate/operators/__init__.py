"""Operators: functions, state handles and the loop that calls them. No sockets, no Spark."""

from qstate.operators.checkpointed import (
    CheckpointedFunction,
    CheckpointListener,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedStateStore,
    ListCheckpointed,
    OperatorStateStore,
)
from qstate.operators.context import RuntimeContext, Subtask
from qstate.operators.functions import (
    FlatMapWithState,
    KeyedBatchFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StreamFunction,
)
from qstate.operators.handles import (
    AggregatingState,
    ElementContext,
    ListState,
    MapState,
    ReducingState,
    StateHandle,
    ValueState,
)
from qstate.operators.keyed_batch import KeyedBatch, RowsByKey, RowsOfKey
from qstate.operators.operator import FunctionOperator
from qstate.operators.operator_lists import OperatorListState
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.sinks import QueryableReducingSink, QueryableStateSink, QueryableValueSink
from qstate.operators.time.due_timers import DueTimers

__all__ = [
    "AggregatingState",
    "CheckpointListener",
    "CheckpointedFunction",
    "DueTimers",
    "ElementContext",
    "FlatMapWithState",
    "FunctionInitializationContext",
    "FunctionOperator",
    "FunctionSnapshotContext",
    "KeyedBatch",
    "KeyedBatchFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "ListCheckpointed",
    "ListState",
    "MapState",
    "OperatorListState",
    "OperatorSpec",
    "OperatorStateStore",
    "QueryableReducingSink",
    "QueryableStateSink",
    "QueryableValueSink",
    "ReducingState",
    "RowsByKey",
    "RowsOfKey",
    "RuntimeContext",
    "StateHandle",
    "StreamFunction",
    "Subtask",
    "ValueState",
]
