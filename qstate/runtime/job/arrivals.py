"""Wakes those that wait for one task manager.

Rules of this module: conditions of the job manager's lock, and nothing about task managers. When ten thousand task
managers start at the same time, as many relays wait, each for its own. If each event woke them all, the start would
cost the driver a wake-up for every pair of task managers.
"""

from __future__ import annotations

import threading
from typing import Any

__all__ = ["Arrivals"]


class Arrivals:
    """One condition for each index that is waited for. Call every method with `lock`, a `threading.RLock`, held."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._conditions: dict[int, threading.Condition] = {}

    def wait(self, index: int, timeout_s: float) -> bool:
        """Wait for the next event of this index. False when there was none in time."""
        found = self._conditions.get(index)
        if found is None:
            found = self._conditions[index] = threading.Condition(self._lock)
        return found.wait(timeout_s)

    def notify(self, index: int) -> None:
        """Something has happened to this index."""
        found = self._conditions.pop(index, None)
        if found is not None:
            found.notify_all()

    def notify_all(self) -> None:
        """Something has happened to all."""
        for index in list(self._conditions):
            self.notify(index)
