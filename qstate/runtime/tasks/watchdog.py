"""The watchdog of a task manager: it says where a function is that does not come back, and ends it if the job says so.

Rules of this module: a thread that looks at the others now and then; it writes nothing that they read. What a row that
takes too long means for the session is the task manager's to decide.

It cannot look while another thread holds the interpreter, as a regular expression may for hours. A timer of the
system's then writes the stacks of all threads to the log.
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

#: Between two looks, when nothing shorter is asked for.
INTERVAL_S = 5.0
LEAST_INTERVAL_S = 0.05
#: The part of the lease after which the log says who holds the interpreter: the process is given up at the end of it.
HELD_PART = 0.8


@dataclass(slots=True)
class _Watched:
    """A call that was seen, since when, and when it is told next."""

    call: str
    subject: object
    since: float
    next_warning_s: float


class Watchdog:
    """`expired` is called with a thread's id and the error of its session when a call takes `element_timeout_s`."""

    def __init__(self, config: JobConfig, expired: Callable[[int, JobError], None]) -> None:
        self._expired = expired
        self._warning_s = config.element_warning_s
        self._timeout_s = config.element_timeout_s
        # Before the relay gives the start up, and shows the end of the log.
        self._open_warning_s = min(self._warning_s, config.start_timeout_s / 2)
        # A model or a connection takes longer to open than a row to process; a start may take so long, too.
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
        """Look no more. Idempotent."""
        self._closed.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(self._interval_s + 1.0)

    def look(self, now: float, frames: Mapping[int, FrameType]) -> None:
        """Compare what the threads do with what they did at the last look. `now` is of `time.monotonic`."""
        before, self._watched = self._watched, {}
        for thread, frame in frames.items():
            step = step_of(frame)
            if step is not None:
                self._note(thread, step, before.get(thread), now)

    def _note(self, thread: int, step: Step, known: _Watched | None, now: float) -> None:
        if known is None or known.subject is not step.subject or known.call != step.call:
            warning_s = self._open_warning_s if step.call == "open" else self._warning_s
            known = _Watched(step.call, step.subject, now, warning_s)
        self._watched[thread] = known
        took_s = now - known.since
        if known.next_warning_s and took_s >= known.next_warning_s:
            known.next_warning_s *= 2
            log.warning("%s", _told(step, took_s))
        timeout_s = self._open_timeout_s if step.call == "open" else self._timeout_s
        if timeout_s and took_s >= timeout_s and step.call != "close":  # closing ends with the process
            setting = "start_timeout_s" if timeout_s != self._timeout_s else "element_timeout_s"
            del self._watched[thread]
            self._expired(
                thread,
                JobError(
                    f"{_told(step, took_s)}\nThat is more than {setting} allows ({timeout_s:g} s), so the epoch has "
                    "failed and the task manager ends; the next one goes on from the last sealed epoch"
                ),
            )

    def _run(self) -> None:
        try:
            while not self._closed.wait(self._interval_s):
                faulthandler.dump_traceback_later(self._held_s, file=sys.stderr)
                frames = sys._current_frames()
                frames.pop(threading.get_ident(), None)  # its own would hold itself
                self.look(time.monotonic(), frames)
                frames.clear()
        finally:
            faulthandler.cancel_dump_traceback_later()


def _told(step: Step, took_s: float) -> str:
    row = f"\nRow: {step.row}" if step.row else ""
    return f"{step.where}: {step.call} has not returned for {took_s:.3g} s{row}\nIt is at:\n{step.stack()}"
