"""The contents of a view of any kind, for programs that do not know the kind beforehand: tools, comparisons.

Rules of this module: it reads views by their public methods. What is printed or compared is the caller's business.
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
    """A value's, reduction's or aggregate's value, a list's elements, a map's entries as a dict; None for no view."""
    if view is None:
        return None
    if isinstance(view, ReadOnlyValueState):
        return view.value()
    if isinstance(view, ReadOnlyMapState):
        return dict(view.entries())
    if isinstance(view, ReadOnlyListState | ReadOnlyReducingState | ReadOnlyAggregatingState):
        return view.get()
    raise TypeError(f"{type(view).__name__} is no view of a state")
