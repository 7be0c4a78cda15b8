"""The watchdog of a task manager: logs where a function hangs, and reports a call that exceeds its timeout.

Rules of this module: one thread that inspects the others at intervals and changes nothing that they read. The task
manager decides what a timeout means for the session.

The watchdog cannot run while another thread holds the interpreter, as a regular expression may for hours. A timer of
`faulthandler` then writes the stacks of all threads to the log.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

from qstate.config import JobConfig
from qstate.errors import JobError
from qstate.operators.steps import Step, step_of

__all__ = ["Watchdog"]

log = logging.getLogger(__name__)

#: Between two inspections, unless a timeout needs a shorter interval.
INTERVAL_S = 5.0
LEAST_INTERVAL_S = 0.05
#: The part of the lease after which the stacks are logged when a thread holds the interpreter. At the end of the lease,
#: which the job manager counts from the last heartbeat, it ends the process. The last heartbeat may be a quarter of the
#: lease older than the last inspection, so the stacks have to be in the log before three quarters of the lease.
HELD_PART = 0.5

#: The calls that open a function.
_OPENING = ("open", "initialize_state", "restore_state")


@dataclass(slots=True)
class _Watched:
    """A running call, since when it runs, and after how many seconds the next warning is due."""

    call: str
    subject: object
    since: float
    next_warning_s: float


class Watchdog:
    """Calls `expired` with a thread's id and the error for its session when a call exceeds `element_timeout_s`."""

    def __init__(self, config: JobConfig, expired: Callable[[int, JobError], None]) -> None:
        self._expired = expired
        self._warning_s = config.element_warning_s
        self._timeout_s = config.element_timeout_s
        # Early enough: at start_timeout_s the relay gives up and shows the end of the log.
        self._open_warning_s = min(self._warning_s, config.start_timeout_s / 2)
        # To open a model or a connection takes longer than to process a row, and a start may take start_timeout_s.
        self._open_timeout_s = max(config.element_timeout_s, config.start_timeout_s) if self._timeout_s else 0.0
        self._held_s = config.lease_s * HELD_PART
        limits = [limit / 4 for limit in (self._warning_s, self._timeout_s, config.lease_s) if limit]
        self._interval_s = max(LEAST_INTERVAL_S, min(INTERVAL_S, *limits))
        self._watched: dict[int, _Watched] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="qstate-watchdog", daemon=True)

    def start(self) -> Watchdog:
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop. Idempotent."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._interval_s + 1.0)

    def look(self, now: float, frames: Mapping[int, FrameType]) -> None:
        """Compare the running calls with those of the last inspection. `now` is of `time.monotonic`."""
        before, self._watched = self._watched, {}
        for thread, frame in frames.items():
            step = step_of(frame)
            if step is not None:
                self._note(thread, step, before.get(thread), now)

    def _note(self, thread: int, step: Step, known: _Watched | None, now: float) -> None:
        if known is None or known.subject is not step.subject or known.call != step.call:
            warning_s = self._open_warning_s if step.call in _OPENING else self._warning_s
            known = _Watched(step.call, step.subject, now, warning_s)
        self._watched[thread] = known
        took_s = now - known.since
        if known.next_warning_s and took_s >= known.next_warning_s:
            known.next_warning_s *= 2
            log.warning("%s", _told(step, took_s))
        timeout_s = self._open_timeout_s if step.call in _OPENING else self._timeout_s
        if timeout_s and took_s >= timeout_s and step.call != "close":  # a close that hangs ends with the process
            setting = "start_timeout_s" if timeout_s != self._timeout_s else "element_timeout_s"
            del self._watched[thread]
            self._expired(
                thread,
                JobError(
                    f"{_told(step, took_s)}\nThat is more than {setting} allows ({timeout_s:g} s), so the epoch has "
                    "failed and the task manager ends; the next one continues from the last sealed epoch"
                ),
            )

    def _run(self) -> None:
        try:
            ended = False
            while not ended:
                faulthandler.dump_traceback_later(self._held_s, file=sys.stderr)
                frames = sys._current_frames()
                frames.pop(threading.get_ident(), None)  # a frame of its own would keep itself alive
                self.look(time.monotonic(), frames)
                frames.clear()
                ended = self._closed.wait(self._interval_s)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _told(step: Step, took_s: float) -> str:
    row = f"\nRow: {step.row}" if step.row else ""
    return f"{step.where}: {step.call} has not returned for {took_s:.3g} s{row}\nIt is at:\n{step.stack()}"
