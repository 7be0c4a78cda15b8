"""How far a long command is: a bar on a terminal, a line now and then elsewhere.

Rules of this module: it draws, on standard error, and knows nothing of what is done. The bar is rich's; without rich,
which only the demo brings, a terminal gets lines, too.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["shown_progress"]

#: Seconds between two pictures of the bar, and between two lines.
BAR_INTERVAL_S, LINE_INTERVAL_S = 0.1, 5.0

#: Told what is worked on, how many entries of it are done, and how much that is, 0 to 1.
Told = Callable[[str, int, float], None]


@contextmanager
def shown_progress() -> Iterator[Told]:
    """What the work is to tell of its progress, from beginning to end."""
    if sys.stderr.isatty() and find_spec("rich") is not None:
        with _bar() as told:
            yield told
    else:
        yield _now_and_then(_print_line, LINE_INTERVAL_S)


def _print_line(what: str, entries: int, done: float) -> None:
    print(f"{what}: {entries:,} entries, {done:.0%}", file=sys.stderr, flush=True)


@contextmanager
def _bar() -> Iterator[Told]:
    from rich.console import Console  # noqa: PLC0415  # optional, as the module says
    from rich.progress import BarColumn, Progress, TaskID, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%  {task.fields[n]}"))
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False) as bar:

        def draw(what: str, entries: int, done: float) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=1.0, n="")
            bar.update(tasks[what], completed=done, n=f"{entries:,} entries", refresh=True)

        yield _now_and_then(draw, BAR_INTERVAL_S)


def _now_and_then(show: Told, interval_s: float) -> Told:
    """Calls that come too fast are left out; the one that says that all is done never is."""
    last = time.monotonic() - interval_s

    def told(what: str, entries: int, done: float) -> None:
        nonlocal last
        now = time.monotonic()
        if done >= 1.0 or now - last >= interval_s:
            last = now
            show(what, entries, done)

    return told
