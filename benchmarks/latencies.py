"""Times of single calls, and their summary.

Rules of this module: a clock and order statistics.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

__all__ = ["durations_us", "percentile"]

Argument = TypeVar("Argument")


def durations_us(call: Callable[[Argument], object], arguments: Iterable[Argument]) -> list[float]:
    """How long each call took, in microseconds."""
    taken = []
    clock = time.perf_counter
    for argument in arguments:
        began = clock()
        call(argument)
        taken.append((clock() - began) * 1e6)
    return taken


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that so many percent are not above."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
