"""A clock that only the test moves."""

from __future__ import annotations


class Clock:
    """A clock in seconds. Set `now`."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now
