"""State backends: the contract and the implementations that come with qstate.

Importing this package never imports RocksDB: `open_backend("rocksdb", ...)` does.
"""

from __future__ import annotations

from qstate.backends.byte_stores.backend import ByteStoreBackend
from qstate.backends.byte_stores.store import ByteSnapshot, ByteStore
from qstate.backends.catalog import backend_class, backend_names, check_backend, open_backend
from qstate.backends.contract import (
    UNBOUNDED,
    BackendContext,
    BackendOption,
    Capability,
    Change,
    ChangeOp,
    Isolation,
    ReadResult,
    Scanned,
    Selection,
    StateBackend,
    StateReader,
    StateScan,
    StateSizes,
    StateTable,
    Timer,
    TimerQueue,
    ValueParts,
)
from qstate.backends.heap.backend import HeapBackend

__all__ = [
    "UNBOUNDED",
    "BackendContext",
    "BackendOption",
    "ByteSnapshot",
    "ByteStore",
    "ByteStoreBackend",
    "Capability",
    "Change",
    "ChangeOp",
    "HeapBackend",
    "Isolation",
    "ReadResult",
    "Scanned",
    "Selection",
    "StateBackend",
    "StateReader",
    "StateScan",
    "StateSizes",
    "StateTable",
    "Timer",
    "TimerQueue",
    "ValueParts",
    "backend_class",
    "backend_names",
    "check_backend",
    "open_backend",
]
