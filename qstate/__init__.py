"""Queryable state for PySpark Structured Streaming: read a running job's keyed state live, by key.

Rules of this module: names only, each imported when it is first used. So `import qstate` costs nothing, and a client
pays neither for Spark nor for PyArrow. `__init__.pyi` says the same to type checkers.
"""

from importlib import import_module
from typing import Any

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

__version__ = "0.1.0"

_MODULES = {
    "AsyncQueryableStateClient": "qstate.client",
    "QueryFuture": "qstate.client",
    "QueryableStateClient": "qstate.client",
    "QStateError": "qstate.errors",
    "QueryError": "qstate.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'qstate' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES.get(name, "qstate.views")), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
