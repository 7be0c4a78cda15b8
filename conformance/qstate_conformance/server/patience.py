"""How long a law waits for a server: long the first time, briefly once the server has been found silent.

Rules of this module: time limits only. A law that finds a silent server is run again and again while its example
shrinks; a full wait each time would take minutes and show nothing new. The next law starts with all its patience.
"""

from __future__ import annotations

import os
import time

__all__ = ["Patience"]


class Patience:
    """`limit_s` is how long to wait now; `was_lost` says that a wait was in vain."""

    def __init__(self, full_s: float = 10.0, short_s: float = 0.25, memory_s: float = 5.0) -> None:
        self._full_s = full_s
        self._short_s = short_s
        self._memory_s = memory_s
        self._lost_at = float("-inf")
        self._lost_in = ""

    @property
    def limit_s(self) -> float:
        """Seconds to wait from now."""
        lately = time.monotonic() - self._lost_at < self._memory_s
        return self._short_s if lately and self._lost_in == _running() else self._full_s

    def was_lost(self) -> None:
        """A wait ended without what was waited for."""
        self._lost_at, self._lost_in = time.monotonic(), _running()


def _running() -> str:
    """The law that runs: pytest says so to everybody in its process."""
    return os.environ.get("PYTEST_CURRENT_TEST", "")
