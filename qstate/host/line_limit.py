"""A bound on the log lines that clients can cause: a few lines of each kind are written, the others are counted.

Rules of this module: it knows loggers and a clock, not the meaning of lines. The kind of a line is its level and its
text before formatting, so there is one kind per logging call in the code.

Any process that can reach a port can send ten thousand broken frames a second. The first few lines describe the
problem. The next line that is written, or `report_withheld`, tells how many were withheld.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["LineLimit", "count_again", "limited", "report_withheld"]

#: How many lines of a kind are written within one interval.
MOST_LINES = 10
INTERVAL_S = 60.0

_limits: list[LineLimit] = []


@dataclass(slots=True)
class _Kind:
    since: float
    written: int = 0
    withheld: int = 0


class LineLimit(logging.Filter):
    """The bound on one logger's lines. Any thread."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[int, object], _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now = self._clock()
        with self._lock:
            kind = self._kinds.setdefault((record.levelno, record.msg), _Kind(now))
            withheld = kind.withheld
            if now - kind.since >= INTERVAL_S:
                kind.since, kind.written, kind.withheld = now, 0, 0
            if kind.written >= MOST_LINES:
                kind.withheld += 1
                return False
            kind.written += 1
        if withheld:
            record.msg, record.args = f"{record.getMessage()} ({withheld:,} more of this kind before)", None
        return True

    def forget(self) -> None:
        """Reset the counts."""
        with self._lock:
            self._kinds.clear()

    def report(self) -> None:
        """Log how many lines of each kind were withheld in intervals that are over."""
        now = self._clock()
        with self._lock:
            over = {
                name: kind for name, kind in self._kinds.items() if kind.withheld and now - kind.since >= INTERVAL_S
            }
            for name in over:
                del self._kinds[name]
        for (level, text), kind in over.items():
            self._logger.log(level, "%s more lines of this kind were not written: %s", f"{kind.withheld:,}", text)


def limited(logger: logging.Logger) -> logging.Logger:
    """Bound the logger's lines from now on, and return it. For modules whose lines a client can cause."""
    limit = LineLimit(logger)
    logger.addFilter(limit)
    _limits.append(limit)
    return logger


def count_again() -> None:
    """Reset the counts of all these loggers."""
    for limit in _limits:
        limit.forget()


def report_withheld() -> None:
    """Log what all these loggers withheld. A thread calls it from time to time."""
    for limit in _limits:
        limit.report()
