"""Rounds: every contender measured once per round, in turn, so that a noisy minute hits all of them alike.

Rules of this module: it calls and collects. What a measurement is, the contenders know.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

__all__ = ["interleaved", "say"]


def interleaved(contenders: Mapping[str, Callable[[], float]], *, rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """One sample per contender and round, after `warm` rounds that do not count.

    Each round begins with another contender. When each has begun once, the order is reversed, so that no contender
    always runs after the same one.
    """
    names = list(contenders)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for number in range(warm + rounds):
        turn, shift = divmod(number, len(names))
        order = names[shift:] + names[:shift]
        for name in reversed(order) if turn % 2 else order:
            sample = contenders[name]()
            if number >= warm:
                samples[name].append(sample)
            say(f"  {'warm ' if number < warm else 'round'} {number}: {name}: {sample:,.1f}")
    return samples


def say(text: str) -> None:
    """Report progress to standard error; the results go to standard output."""
    print(text, file=sys.stderr, flush=True)
