"""A few threads for calls that may take long and that nobody on a reactor may run.

Rules of this module: it runs what it is given, in order of arrival, and knows nothing of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

__all__ = ["WorkerPool"]

log = logging.getLogger(__name__)


class WorkerPool:
    """`threads` daemon threads. Any thread may `submit`."""

    def __init__(self, threads: int, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{index}", daemon=True) for index in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[..., None], *args: Any) -> None:
        """Run `call(*args)` when a thread is free. What it raises is logged."""
        self._calls.put((call, args))

    def stop(self, timeout_s: float) -> bool:
        """Let the queued calls run and end the threads; False when one is still busy."""
        for _ in self._threads:
            self._calls.put(None)
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self) -> None:
        while (entry := self._calls.get()) is not None:
            call, args = entry
            try:
                call(*args)
            except Exception:
                log.exception("a call failed")
