"""The clients, under a short name: `from qstate.client import QueryableStateClient`.

Rules of this module: names only. It works where neither Spark nor RocksDB nor PyArrow is installed.
"""

from qstate.runtime.client.async_client import AsyncQueryableStateClient
from qstate.runtime.client.caching.kept_values import CacheStatistics, ClientCache
from qstate.runtime.client.results.async_results import AsyncScanResults, AsyncSubscription
from qstate.runtime.client.results.async_state_handle import AsyncStateHandle
from qstate.runtime.client.results.state_handle import StateHandle
from qstate.runtime.client.results.sync_results import QueryFuture, ScanResults, Subscription
from qstate.runtime.client.results.value_parts import MapPage
from qstate.runtime.client.scanning import ScannedEntry
from qstate.runtime.client.subscriptions import ChangeBatch, ChangeKind, StateChange
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.tls import ClientTls

__all__ = [
    "AsyncQueryableStateClient",
    "AsyncScanResults",
    "AsyncStateHandle",
    "AsyncSubscription",
    "CacheStatistics",
    "ChangeBatch",
    "ChangeKind",
    "ClientCache",
    "ClientTls",
    "MapPage",
    "QueryFuture",
    "QueryableStateClient",
    "ScanResults",
    "ScannedEntry",
    "StateChange",
    "StateHandle",
    "Subscription",
]
