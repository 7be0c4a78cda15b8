"""A few threads for calls that may take long, which must not run on a reactor.

Rules of this module: it runs calls in order of arrival and knows nothing of their purpose.
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
        """Run `call(*args)` when a thread is free. The exceptions of calls are logged."""
        self._calls.put((call, args))

    def stop(self, timeout_s: float) -> bool:
        """Run the queued calls and end the threads. False: a thread is still busy after the timeout."""
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
