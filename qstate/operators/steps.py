"""Finds the call of a user's function that a thread is running. Used by other threads.

Rules of this module: it reads the frames of running threads and changes nothing. So the loop over the rows has no cost
for being watched. A row is compared by identity: while the watcher keeps the object, it can only be the same object
again as long as it is being processed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from reprlib import repr as shown  # bounded: a column may hold anything
from traceback import StackSummary
from types import CodeType, FrameType
from typing import Any, NamedTuple

from qstate.operators.no_key import NO_KEY, place_of
from qstate.operators.operator import FunctionOperator
from qstate.operators.user_traceback import shortened

__all__ = ["Step", "step_in", "step_of"]

#: The number of columns of a row that are shown.
MOST_COLUMNS = 20


class Step(NamedTuple):
    """A call of the user's function: a life-cycle method, or the processing of a row, a batch or timers.

    `subject` is the same object during the whole call, and another one in the next call: the row, the batch, the due
    timers, or the bound method.
    """

    operator: FunctionOperator
    call: str
    key: Any
    subject: object
    frames: tuple[FrameType, ...]

    @property
    def where(self) -> str:
        """The operator, the subtask, the function and the key."""
        key = "" if self.key is NO_KEY else f", {place_of(self.key, shown)}"
        return f"{self.operator.place}{key}"

    @property
    def row(self) -> str:
        """The row, shortened to a line or two; empty when there is none."""
        row: Any = self.subject
        if not hasattr(row, "_fields"):
            return ""
        pairs = [f"{name}={shown(value)}" for name, value in zip(row._fields, row, strict=True)]
        more = ["..."] if len(pairs) > MOST_COLUMNS else []
        return f"Row({', '.join([*pairs[:MOST_COLUMNS], *more])})"

    def stack(self) -> str:
        """The stack of the call, as in a traceback: the most recent call last."""
        lines = StackSummary.extract((frame, frame.f_lineno) for frame in self.frames).format()
        return shortened("".join(lines).rstrip())


def step_in(operator: FunctionOperator) -> Step | None:
    """The call that a thread is running now for this operator, None for none."""
    for frame in sys._current_frames().values():
        step = step_of(frame)
        if step is not None and step.operator is operator:
            return step
    return None


def step_of(frame: FrameType) -> Step | None:
    """The call that a thread is running, from its innermost frame; None for none."""
    inner: list[FrameType] = []
    outer: FrameType | None = frame
    while outer is not None:
        found = _STEPS.get(outer.f_code)
        if found is not None:
            return found(outer.f_locals, tuple(reversed(inner)))
        inner.append(outer)
        outer = outer.f_back
    return None


_Found = Callable[[Mapping[str, Any], "tuple[FrameType, ...]"], Step | None]


def _element(names: Mapping[str, Any], frames: tuple[FrameType, ...]) -> Step | None:
    if "row" not in names:  # before the first row
        return None
    return Step(names["self"], names["process"].__name__, names["cursor"].current_key, names["row"], frames)


def _keys(names: Mapping[str, Any], frames: tuple[FrameType, ...]) -> Step | None:
    keyed = names["keyed"]
    return Step(names["self"], names["call"].__name__, keyed.key_of_loop, keyed, frames)


def _call(names: Mapping[str, Any], frames: tuple[FrameType, ...]) -> Step | None:
    return Step(names["self"], names["name"], NO_KEY, names["call"], frames)


_STEPS: dict[CodeType, _Found] = {
    FunctionOperator._fill.__code__: _element,
    FunctionOperator._run_keys.__code__: _keys,
    FunctionOperator._call.__code__: _call,
}
