"""The contents of a view of any kind, for programs that do not know the kind: tools, comparisons.

Rules of this module: it reads views by their public methods only.
"""

from __future__ import annotations

from typing import Any

from qstate.views import (
    ReadOnlyAggregatingState,
    ReadOnlyListState,
    ReadOnlyMapState,
    ReadOnlyReducingState,
    ReadOnlyState,
    ReadOnlyValueState,
)

__all__ = ["contents"]


def contents(view: ReadOnlyState | None) -> Any:
    """The value of a view: a list view's elements, a map view's entries as a dict; None for None."""
    if view is None:
        return None
    if isinstance(view, ReadOnlyValueState):
        return view.value()
    if isinstance(view, ReadOnlyMapState):
        return dict(view.entries())
    if isinstance(view, ReadOnlyListState | ReadOnlyReducingState | ReadOnlyAggregatingState):
        return view.get()
    raise TypeError(f"{type(view).__name__} is not a view of a state")
