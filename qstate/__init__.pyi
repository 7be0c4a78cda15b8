from qstate.client import AsyncQueryableStateClient, QueryableStateClient, QueryFuture
from qstate.errors import QStateError, QueryError
from qstate.views import (
    ReadOnlyAggregatingState,
    ReadOnlyListState,
    ReadOnlyMapState,
    ReadOnlyReducingState,
    ReadOnlyState,
    ReadOnlyValueState,
)

__all__ = [
    "AsyncQueryableStateClient",
    "QStateError",
    "QueryError",
    "QueryFuture",
    "QueryableStateClient",
    "ReadOnlyAggregatingState",
    "ReadOnlyListState",
    "ReadOnlyMapState",
    "ReadOnlyReducingState",
    "ReadOnlyState",
    "ReadOnlyValueState",
    "__version__",
]

__version__: str
