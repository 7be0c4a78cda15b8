"""The figures of a job as a table: live in a notebook, once as text elsewhere.

Rules of this module: figures in, a table out. It asks for new figures and waits in between; it knows no Spark.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from numbers import Real
from typing import Any

from qstate.errors import ClosedError, ConfigError
from qstate.runtime.control.job_statistics import JobStatistics, SubtaskStatistics
from qstate.values.html_tables import html_table

__all__ = ["figures_html", "ipython", "show_figures"]

#: A day; beyond some hundred years, `time.sleep` fails.
LONGEST_INTERVAL_S = 86_400.0
HEADS = ("operator", "subtask", "epoch", "rows in", "rows/s", "rows out", "keys or entries", "watermark")


def figures_html(now: JobStatistics, before: JobStatistics | None = None, past_s: float = 0.0) -> str:
    """The figures of each subtask as a table. Rows per second are those since `before`, `past_s` seconds ago."""
    earlier = {} if before is None else {(one.operator, one.subtask): one.rows_in for one in before.subtasks}
    served = now.proxies
    queries = "" if served is None else f", {served.requests:,} queries served"
    silent = sum(not process.reachable for process in now.processes)
    lost = f", {silent} do not answer" if silent else ""
    caption = f"job {now.job!r}: {len(now.processes)} processes{lost}{queries}"
    return html_table(caption, HEADS, (_cells(one, earlier, past_s) for one in now.subtasks))


def show_figures(statistics: Callable[[], JobStatistics], seconds: float | None, interval_s: float) -> None:
    """Show the figures: in a notebook again and again for so many seconds, elsewhere once, as text.

    Ends without an error when the cell is interrupted, or when the job is stopped meanwhile. Raises `ConfigError` for
    what is no time.
    """
    ends_s = math.inf if seconds is None else _checked("seconds", seconds, math.inf)
    interval_s = _checked("interval_s", interval_s, LONGEST_INTERVAL_S)
    shell = ipython()
    # IPython in a terminal has no kernel: what it has shown, it cannot change.
    if shell is None or getattr(shell.get_ipython(), "kernel", None) is None:
        print(statistics())
        return
    with suppress(KeyboardInterrupt):
        before = statistics()
        asked = time.monotonic()
        ends_s += asked
        shown = shell.display.DisplayHandle()
        shown.display(_Table(before, figures_html(before)))
        with suppress(ClosedError):
            while (rest_s := ends_s - time.monotonic()) > 0:
                time.sleep(min(interval_s, rest_s))
                now, at = statistics(), time.monotonic()
                shown.update(_Table(now, figures_html(now, before, at - asked)))
                before, asked = now, at


def _checked(name: str, given: object, most_s: float) -> float:
    if isinstance(given, Real) and not isinstance(given, bool) and 0 < (found := float(given)) <= most_s:
        return found
    most = f" and at most {most_s:,.0f}" if math.isfinite(most_s) else ""
    raise ConfigError(f"{name} must be a number of seconds above zero{most}, got {given!r}")


class _Table:
    """The figures, for front ends that show HTML and for those that show text."""

    def __init__(self, figures: JobStatistics, html: str) -> None:
        self._figures = figures
        self._html = html

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return str(self._figures)


def ipython() -> Any:
    """The module IPython, if this program runs in it, in a notebook or in a terminal. It is not imported for that."""
    found = sys.modules.get("IPython")
    return None if found is None or found.get_ipython() is None else found


def _cells(one: SubtaskStatistics, earlier: dict[tuple[str, int], int], past_s: float) -> list[object]:
    before = earlier.get((one.operator, one.subtask))
    # A task manager that was restarted counts from zero.
    rate = "" if before is None or not past_s else f"{max(0, one.rows_in - before) / past_s:,.0f}"
    keys = sum(one.state.keys.values()) if one.state.keys else one.state.entries
    moment = one.watermark_ms
    return [
        one.operator,
        one.subtask,
        one.epoch,
        f"{one.rows_in:,}",
        rate,
        f"{one.rows_out:,}",
        "" if keys is None else f"{keys:,}",
        "" if moment is None else f"{datetime.fromtimestamp(moment / 1000, timezone.utc):%Y-%m-%d %H:%M:%S}",
    ]
