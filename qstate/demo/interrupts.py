"""Handles Ctrl-C and SIGTERM between two steps instead of in the middle of one.

Rules of this module: it only notes that somebody wants the demo to end. An exception raised inside a call into the
JVM would leave the connection to it useless, and everything that is put away through it would fail.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

__all__ = ["Interrupts"]

#: How late an interrupt may be noticed while pausing: a handler does not end a sleep.
SLICE_S = 0.1


class Interrupts:
    """A context manager for the main thread: SIGINT and SIGTERM are noted while it is entered."""

    def __init__(self) -> None:
        self._asked = False

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if one was noted."""
        if self._asked:
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> None:
        """Wait; raise `KeyboardInterrupt` soon after one is noted."""
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, SLICE_S))
            self.check()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
