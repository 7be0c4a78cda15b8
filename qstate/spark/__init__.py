"""The PySpark edge: the only package of qstate that imports pyspark.

Rules of this module: names only. Its import raises `InstallationError` without the packages of the extra `spark`.
"""

from qstate.installation import missing_package

try:
    from qstate.descriptors import StateTtl
    from qstate.operators.broadcast import BroadcastState
    from qstate.operators.checkpointed import (
        CheckpointedFunction,
        CheckpointListener,
        FunctionInitializationContext,
        FunctionSnapshotContext,
        KeyedStateStore,
        ListCheckpointed,
        OperatorStateStore,
    )
    from qstate.operators.context import RuntimeContext
    from qstate.operators.functions import (
        BroadcastProcessFunction,
        KeyedBatchFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        ProcessFunction,
    )
    from qstate.operators.handles import (
        AggregatingState,
        ElementContext,
        ListState,
        MapState,
        ReducingState,
        ValueState,
    )
    from qstate.operators.keyed_batch import KeyedBatch, RowsByKey, RowsOfKey
    from qstate.operators.operator_lists import OperatorListState
    from qstate.operators.time.due_timers import DueTimers
    from qstate.operators.time.timers import TimeDomain, TimerService
    from qstate.spark.broadcast_streams import BroadcastConnectedStream, BroadcastStream
    from qstate.spark.connected_streams import ConnectedStreams
    from qstate.spark.job import Job
    from qstate.spark.keyed_stream import KeyedStream
    from qstate.spark.outputs import output_of, write_each
    from qstate.spark.sink import QueryableStateStream
    from qstate.spark.stream import Stream
except ModuleNotFoundError as exc:
    raise missing_package("qstate.spark", "spark", exc) from exc

__all__ = [
    "AggregatingState",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointListener",
    "CheckpointedFunction",
    "ConnectedStreams",
    "DueTimers",
    "ElementContext",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "Job",
    "KeyedBatch",
    "KeyedBatchFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "KeyedStream",
    "ListCheckpointed",
    "ListState",
    "MapState",
    "OperatorListState",
    "OperatorStateStore",
    "ProcessFunction",
    "QueryableStateStream",
    "ReducingState",
    "RowsByKey",
    "RowsOfKey",
    "RuntimeContext",
    "StateTtl",
    "Stream",
    "TimeDomain",
    "TimerService",
    "ValueState",
    "output_of",
    "write_each",
]
