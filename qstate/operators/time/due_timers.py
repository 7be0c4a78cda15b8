"""Timers that are due, as a function over whole batches gets them.

Rules of this module: it knows timers and the current key; it must not know queues, epochs or rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from qstate.backends.contract import Timer
from qstate.keys import Key, Namespace
from qstate.operators.handles import ElementContext
from qstate.operators.keyed_batch import ManyKeys
from qstate.operators.time.timers import TimeDomain

__all__ = ["DueTimers"]


class DueTimers(ManyKeys):
    """Due timers of one time domain, the earliest first. A key may have several. Made by the operator.

    Iterate it for one timer after the other: its `time`, `namespace` and `key`. In the loop, state handles and
    `context.timers` have the timer's key as their current key, as in `on_timer`.
    """

    def __init__(self, timers: Sequence[Timer], time_domain: TimeDomain, cursor: ElementContext) -> None:
        super().__init__(cursor)
        self._timers = timers
        self._time_domain = time_domain

    @property
    def time_domain(self) -> TimeDomain:
        """The time that the timers waited for."""
        return self._time_domain

    @cached_property
    def keys(self) -> list[Key]:
        """The key of each timer: a bare value for one key column, a tuple for several."""
        return [timer.key for timer in self._timers]

    @cached_property
    def times(self) -> npt.NDArray[np.int64]:
        """The time of each timer, in milliseconds since 1970-01-01 UTC."""
        return np.array([timer.time for timer in self._timers], np.int64)

    @cached_property
    def namespaces(self) -> list[Namespace]:
        """The namespace that each timer was registered in; None for the void namespace."""
        return [timer.namespace for timer in self._timers]

    def __len__(self) -> int:
        return len(self._timers)

    def __iter__(self) -> Iterator[Timer]:
        return self.one_by_one(self._timers)
