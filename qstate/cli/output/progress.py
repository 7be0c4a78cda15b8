"""The progress of a long command: a bar on a terminal, occasional lines elsewhere.

Rules of this module: it draws on standard error, and knows nothing of the work. The bar is rich's. Only the demo's
extra installs rich; without it, a terminal gets lines. A count of unknown end is one line that is rewritten, on a
terminal only.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from qstate.cli.output.terminal import shown

__all__ = ["shown_count", "shown_progress"]

#: Seconds between two updates of the bar, and between two lines.
BAR_INTERVAL_S, LINE_INTERVAL_S = 0.1, 5.0

#: Takes the name of the work, the number of entries done, and the fraction done, 0 to 1.
Report = Callable[[str, int, float], None]


@contextmanager
def shown_progress() -> Iterator[Report]:
    """Show progress. Yields a function that the work calls as it proceeds; the last call has the fraction 1."""
    if sys.stderr.isatty() and find_spec("rich") is not None:
        with _bar() as report:
            yield report
    else:
        yield _now_and_then(_print_line, LINE_INTERVAL_S)


def _print_line(what: str, entries: int, done: float) -> None:
    print(shown(f"{what}: {entries:,} entries, {done:.0%}"), file=sys.stderr, flush=True)


@contextmanager
def shown_count(what: str) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how many there were so far. Yields a function that the work calls; removes the line again."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    last = time.monotonic()

    def count(number: int) -> None:
        nonlocal last
        if time.monotonic() - last >= BAR_INTERVAL_S:
            last = time.monotonic()
            print(f"\r{number:,} {what}", end="", file=sys.stderr, flush=True)

    try:
        yield count
    finally:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextmanager
def _bar() -> Iterator[Report]:
    from rich.console import Console  # noqa: PLC0415  # optional, as the module says
    from rich.markup import escape  # noqa: PLC0415
    from rich.progress import BarColumn, Progress, TaskID, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%  {task.fields[n]}"))
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:

        def draw(what: str, entries: int, done: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(escape(shown(what)), total=1.0, n="")
            bar.update(tasks[what], completed=done, n=f"{entries:,} entries", refresh=True)

        yield _now_and_then(draw, BAR_INTERVAL_S)


def _now_and_then(show: Report, interval_s: float) -> Report:
    """Call `show` at most once in `interval_s`, and always for the fraction 1."""
    last = time.monotonic() - interval_s

    def report(what: str, entries: int, done: float) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= 1.0 or now - last >= interval_s:
            last = now
            show(what, entries, done)

    return report
