"""The clients, under a short name: `from qstate.client import QueryableStateClient`.

Rules of this module: names only. It works where neither Spark nor RocksDB nor PyArrow is installed.
"""

from qstate.runtime.client.async_client import AsyncQueryableStateClient, AsyncScanResults, AsyncSubscription
from qstate.runtime.client.scanning import ScannedEntry
from qstate.runtime.client.subscriptions import ChangeBatch, ChangeKind, StateChange
from qstate.runtime.client.sync_client import QueryableStateClient, QueryFuture, ScanResults, Subscription
from qstate.tls import ClientTls

__all__ = [
    "AsyncQueryableStateClient",
    "AsyncScanResults",
    "AsyncSubscription",
    "ChangeBatch",
    "ChangeKind",
    "ClientTls",
    "QueryFuture",
    "QueryableStateClient",
    "ScanResults",
    "ScannedEntry",
    "StateChange",
    "Subscription",
]
