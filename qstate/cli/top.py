"""The command `qstate top ADDRESS`: a view of a running job or standby, from its metrics.

Rules of this module: figures in, text out, again and again until Ctrl-C. It computes no rates (`readings` does). On a
terminal it uses rich if that is installed, to redraw without flicker.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import Any

from qstate.cli.output.formats import JSONL, TABLE, add_format
from qstate.cli.output.tables import table
from qstate.errors import ConfigError, QStateError
from qstate.runtime.control.readings import Figures, Reading, ServingFigures, SubtaskFigures, compare, read, url_of

__all__ = ["add_top_command", "lines_of"]

DEFAULT_INTERVAL_S = 2.0
CLEAR = "\x1b[H\x1b[2J"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_Show = Callable[[str], None]


def add_top_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    top: argparse.ArgumentParser = commands.add_parser("top", help="watch a running job or standby, from its metrics")
    top.add_argument(
        "address",
        metavar="ADDRESS",
        help="HOST:PORT or URL of the metrics: the job's metrics_ports, or the standby's --metrics-port",
    )
    top.add_argument(
        "--interval",
        type=float,
        default=DEFAULT_INTERVAL_S,
        metavar="SECONDS",
        help="time between two looks, over which rates are measured (default: %(default)s)",
    )
    top.add_argument("--once", action="store_true", help="show the figures of one interval, and end")
    add_format(top, TABLE, JSONL)
    top.set_defaults(run=_top)


def _top(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.interval <= 3600:
        raise ConfigError(f"--interval takes seconds above zero, up to 3600, got {arguments.interval:g}")
    url = url_of(arguments.address)
    before = read(url)  # before the screen is cleared: the first failure ends the command
    with suppress(KeyboardInterrupt), _screen(plain=arguments.format == JSONL or arguments.once) as show:
        while True:
            time.sleep(arguments.interval)
            before = _look(url, before, show, arguments)
            if arguments.once:
                return


def _look(url: str, before: Reading, show: _Show, arguments: argparse.Namespace) -> Reading:
    """Show what has happened since the reading before; returns the new one, or the old one after a failure."""
    try:
        now = read(url)
    except QStateError as exc:
        if arguments.once:
            raise
        show(json.dumps({"error": str(exc)}) if arguments.format == JSONL else f"no answer, looking again: {exc}")
        return before
    figures = compare(before, now)
    show(json.dumps(asdict(figures)) if arguments.format == JSONL else "\n".join(lines_of(figures)))
    return now


@contextmanager
def _screen(*, plain: bool) -> Iterator[_Show]:
    """Yields a function that shows a text in the place of the one before; without a terminal, after it."""
    if plain or not sys.stdout.isatty():
        yield lambda text: print(text, flush=True)
    elif find_spec("rich") is None:
        yield lambda text: print(CLEAR + text, flush=True)
    else:
        with _live() as show:
            yield show


@contextmanager
def _live() -> Iterator[_Show]:
    from rich.live import Live  # noqa: PLC0415  # optional, as the module says
    from rich.text import Text  # noqa: PLC0415

    with Live(screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        yield lambda text: live.update(Text(text, no_wrap=True), refresh=True)


def lines_of(figures: Figures) -> Iterator[str]:
    """The figures as text."""
    at = datetime.fromtimestamp(figures.at, timezone.utc)
    silent = f", no answer from {', '.join(figures.silent)}" if figures.silent else ""
    rows = sum(one.rows_in_per_s or 0.0 for one in figures.subtasks)
    gets = sum(one.requests_per_s or 0.0 for one in figures.serving if one.endpoint == "server")
    yield (
        f"job {figures.job}  {at:%H:%M:%S} UTC  {rows:,.0f} rows/s  {gets:,.0f} reads/s  "
        f"{figures.restarts} restarts{silent}"
    )
    if figures.subtasks:
        heads = "OPERATOR SUBTASK PROCESS EPOCH ROWS/S OUT/S EPOCH_S COMMIT_S STATE TIMERS WATERMARK SNAPSHOT FAILED"
        yield ""
        yield from table([heads.split(), *(_subtask_cells(one, figures.at) for one in figures.subtasks)])
    if figures.standby:
        yield ""
        yield from table([("OPERATOR", "EPOCH"), *((one.operator, one.epoch) for one in figures.standby)])
    if figures.serving:
        heads = "PROCESS ENDPOINT CONNECTIONS REQUESTS/S KEYS/S P99_MS FAILURES/S"
        yield ""
        yield from table([heads.split(), *map(_serving_cells, figures.serving)])


def _subtask_cells(one: SubtaskFigures, now: float) -> tuple[str, ...]:
    return (
        one.operator,
        str(one.subtask),
        one.process,
        str(one.epoch),
        _number(one.rows_in_per_s),
        _number(one.rows_out_per_s),
        _number(one.epoch_s, 3),
        _number(one.commit_s, 3),
        _state(one),
        _number(one.timers),
        _ago(one.watermark, now),
        _ago(one.snapshot_at, now),
        str(one.abandoned),
    )


def _serving_cells(one: ServingFigures) -> tuple[str, ...]:
    return (
        one.process,
        one.endpoint,
        str(one.connections),
        _number(one.requests_per_s),
        _number(one.keys_per_s),
        _number(None if one.p99_s is None else one.p99_s * 1000, 2),
        _number(one.failures_per_s, 1),
    )


def _state(one: SubtaskFigures) -> str:
    """The size of the state: keys where they are counted, else entries and bytes."""
    if one.state_keys is not None:
        return f"{one.state_keys:,} keys"
    if one.state_entries is None:
        return "-"
    return f"{one.state_entries:,} entries" + ("" if one.state_bytes is None else f", {_bytes(one.state_bytes)}")


def _bytes(size: float) -> str:
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ago(at: float | None, now: float) -> str:
    """How long ago a time was, short."""
    if at is None:
        return "-"
    seconds = now - at
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.1f} s ago"
