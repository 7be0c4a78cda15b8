"""Rounds: every contender is measured once per round, in turn, so that a noisy minute affects all of them.

Rules of this module: it calls and collects. What a measurement is, the contenders know.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

__all__ = ["interleaved", "rate", "say", "turns"]

Contender = TypeVar("Contender")


def interleaved(contenders: Mapping[str, Callable[[], float]], *, rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """One sample per contender and round, after `warm` rounds that do not count."""
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for number, name in turns(list(contenders), rounds=warm + rounds):
        sample = contenders[name]()
        if number >= warm:
            samples[name].append(sample)
        say(f"  {'warm ' if number < warm else 'round'} {number}: {name}: {sample:,.1f}")
    return samples


def rate(read: Callable[[], int], keys: int) -> Callable[[], float]:
    """A contender: the keys per second of a read, which returns how many it has read. Raises when it has not all."""

    def measured() -> float:
        began = time.perf_counter()
        found = read()
        took = time.perf_counter() - began
        if found != keys:
            raise RuntimeError(f"{found} of {keys} keys")
        return keys / took

    return measured


def turns(contenders: Sequence[Contender], *, rounds: int) -> Iterator[tuple[int, Contender]]:
    """The number of the round and the contender whose turn it is.

    Each round begins with another contender. When each has begun once, the order is reversed, so that no contender
    always runs after the same one.
    """
    for number in range(rounds):
        turn, shift = divmod(number, len(contenders))
        order = [*contenders[shift:], *contenders[:shift]]
        for contender in reversed(order) if turn % 2 else order:
            yield number, contender


def say(text: str) -> None:
    """Report progress to standard error; the results go to standard output."""
    print(text, file=sys.stderr, flush=True)
