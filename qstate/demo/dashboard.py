"""Shows the demo's progress: a live dashboard on a terminal, plain lines elsewhere.

Rules of this module: it gets a picture and shows it. It queries nothing itself.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from qstate.demo.probe import Reading

__all__ = ["Dashboard", "Picture", "PlainLines", "StreamLine", "Terminal", "open_dashboard"]


@dataclass(frozen=True, slots=True)
class StreamLine:
    """The progress of one stream."""

    name: str
    rows: int
    total: int
    epochs: int
    rows_per_s: float


@dataclass(frozen=True, slots=True)
class Picture:
    """The contents of the dashboard at one moment."""

    elapsed_s: float
    day: str
    streams: Sequence[StreamLine]
    readings: Sequence[Reading]
    keys_asked: int
    request_ms: float


class Dashboard:
    """Shows pictures between `open` and `close`."""

    #: Seconds between two pictures.
    interval_s: float

    def open(self) -> None:
        """Prepare the output."""

    def show(self, picture: Picture) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Leave the output as others expect it."""


def open_dashboard(*, plain: bool) -> Dashboard:
    """The dashboard that fits the output."""
    dashboard: Dashboard = Terminal() if sys.stdout.isatty() and not plain else PlainLines()
    dashboard.open()
    return dashboard


class PlainLines(Dashboard):
    """One line per stream and a few of the values, every few seconds."""

    interval_s = 2.0

    def show(self, picture: Picture) -> None:
        for stream in picture.streams:
            print(
                f"{picture.elapsed_s:6.1f} s  {stream.name}: {stream.rows:,} of {stream.total:,} rows, "
                f"{stream.epochs} epochs, {stream.rows_per_s:,.0f} rows/s"
            )
        for reading in _first_of_each_state(picture.readings):
            print(f"          {reading.state} {reading.key}: {reading.text}")
        sys.stdout.flush()


class Terminal(Dashboard):
    """A dashboard that redraws itself in place."""

    interval_s = 0.5

    def __init__(self, console: Console | None = None) -> None:
        # Drawn only when there is new content: no thread redraws in between.
        self._live = Live(console=console or Console(), auto_refresh=False, transient=False)

    def open(self) -> None:
        self._live.start()

    def show(self, picture: Picture) -> None:
        self._live.update(draw(picture), refresh=True)

    def close(self) -> None:
        self._live.stop()


def draw(picture: Picture) -> Group:
    """The picture as rich draws it."""
    heading = Text.assemble(("qstate demo", "bold"), f"   {picture.elapsed_s:.0f} s   {picture.day}")
    asked = Text(f"{picture.keys_asked:,} keys asked over TCP, {picture.request_ms:.1f} ms per request", "dim")
    return Group(heading, _streams(picture.streams), _readings(picture.readings), asked)


def _streams(streams: Sequence[StreamLine]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("stream", "", "rows", "epochs", "rows/s"):
        table.add_column(name, justify="left" if name in ("stream", "") else "right")
    for stream in streams:
        bar = ProgressBar(total=max(1, stream.total), completed=stream.rows, width=30)
        count = f"{stream.rows:,} / {stream.total:,}"
        table.add_row(stream.name, bar, count, str(stream.epochs), f"{stream.rows_per_s:,.0f}")
    return table


def _readings(readings: Sequence[Reading]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("state", "key", "value"):
        table.add_column(name, no_wrap=True, overflow="ellipsis")
    for reading in readings:
        table.add_row(reading.state, reading.key, reading.text)
    return table


def _first_of_each_state(readings: Sequence[Reading]) -> list[Reading]:
    first: dict[str, Reading] = {}
    for reading in readings:
        first.setdefault(reading.state, reading)
    return list(first.values())


class Stopwatch:
    """Rows per second of a stream, over the last few seconds."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def rows_per_s(self, rows: int, now: float | None = None, over_s: float = 5.0) -> float:
        now = time.monotonic() if now is None else now
        self._marks.append((now, rows))
        while len(self._marks) > 2 and now - self._marks[1][0] >= over_s:
            self._marks.pop(0)
        since, before = self._marks[0]
        return (rows - before) / (now - since) if now > since else 0.0
