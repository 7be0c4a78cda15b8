"""Times of calls, one after the other or many in flight, and their summary.

Rules of this module: a clock and order statistics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["Window", "durations_us", "in_flight", "one_at_a_time", "percentile"]

Argument = TypeVar("Argument")


@dataclass(frozen=True, slots=True)
class Window:
    """What the calls of some seconds came to."""

    calls_per_s: float
    p50_ms: float
    p99_ms: float


def durations_us(call: Callable[[Argument], object], arguments: Iterable[Argument]) -> list[float]:
    """How long each call took, in microseconds."""
    taken = []
    clock = time.perf_counter
    for argument in arguments:
        began = clock()
        call(argument)
        taken.append((clock() - began) * 1e6)
    return taken


def one_at_a_time(call: Callable[[Argument], object], arguments: Iterator[Argument], seconds: float) -> Window:
    """Call for so long, each call after the answer to the one before."""
    taken = []
    clock = time.perf_counter
    first = began = clock()
    while began < first + seconds:
        call(next(arguments))
        now = clock()
        taken.append(now - began)
        began = now
    return _window(taken, began - first)


async def in_flight(
    call: Callable[[Argument], Awaitable[object]], arguments: Iterator[Argument], tasks: int, seconds: float
) -> Window:
    """Call for so long in so many tasks, each of which waits for its answer before it calls again."""
    taken = []
    clock = time.perf_counter
    first = clock()

    async def ask() -> None:
        began = clock()
        while began < first + seconds:
            await call(next(arguments))
            now = clock()
            taken.append(now - began)
            began = now

    await asyncio.gather(*(ask() for _ in range(tasks)))
    return _window(taken, clock() - first)


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that this percentage of the samples does not exceed."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def _window(taken_s: Sequence[float], elapsed_s: float) -> Window:
    return Window(len(taken_s) / elapsed_s, percentile(taken_s, 50) * 1e3, percentile(taken_s, 99) * 1e3)
