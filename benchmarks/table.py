"""The report as text: with rich where it is installed, as plain lines elsewhere.

Rules of this module: it formats what it is given.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.optional_packages import optional
from benchmarks.results import Comparison, Report

__all__ = ["show"]

_HEADINGS = ("id", "work", "qstate", "other", "value", "floor", "stretch", "floor is")
#: Wide enough for the table when the output is not a terminal.
_PLAIN_WIDTH = 170


def show(report: Report) -> None:
    """Print the comparisons, the figures without a target, and the machine."""
    rows = [_row(comparison) for comparison in report.findings.comparisons]
    figures = [(figure.name, f"{_amount(median(figure.samples))} {figure.unit}") for figure in report.findings.figures]
    console: Any = optional("rich.console")
    if console is None:
        _print_plain(rows, figures)
    else:
        _print_rich(console, rows, figures)
    print("; ".join(f"{name} {value}" for name, value in report.machine.items()))


def _row(comparison: Comparison) -> tuple[str, ...]:
    target, sign = comparison.target, "≥" if comparison.target.more_is_better else "≤"
    verdict = f"{comparison.verdict}: {comparison.missing}" if comparison.missing else comparison.verdict
    unit = "x" if target.unit == "x" else f" {target.unit}"
    return (
        target.id,
        f"{target.work}; {comparison.detail}" if comparison.detail else target.work,
        _side(comparison.ours, comparison.unit),
        f"{_side(comparison.theirs, comparison.unit)} ({comparison.their_name})" if comparison.their_name else "",
        "-" if comparison.value is None else f"{_amount(comparison.value)}{unit}",
        f"{sign} {_amount(target.floor)}{unit}",
        f"{sign} {_amount(target.stretch)}{unit}",
        verdict if comparison.counts else f"{verdict} (does not count)",
    )


def _side(samples: Any, unit: str) -> str:
    return f"{_amount(median(samples))} {unit}" if samples else "-"


def _amount(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f}M"
    if value >= 1e4:
        return f"{value / 1e3:.0f}k"
    return f"{value:.4g}"


def _print_plain(rows: list[tuple[str, ...]], figures: list[tuple[str, str]]) -> None:
    for row in (_HEADINGS, *rows):
        print(" | ".join(row))
    for name, value in figures:
        print(f"{name}: {value}")


def _print_rich(console_module: Any, rows: list[tuple[str, ...]], figures: list[tuple[str, str]]) -> None:
    console = console_module.Console()
    if not console.is_terminal:
        console = console_module.Console(width=_PLAIN_WIDTH)
    rich_table: Any = optional("rich.table")
    table = rich_table.Table(title="qstate benchmarks", show_lines=True)
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading in ("value", "floor", "stretch") else "left")
    for row in rows:
        verdict = row[-1]
        style = "red" if verdict.startswith("NOT") else "yellow" if verdict.startswith("not") else "green"
        style = "dim" if verdict.endswith("(does not count)") else style
        table.add_row(*row[:-1], f"[{style}]{verdict}[/]")
    console.print(table)
    if figures:
        extra = rich_table.Table("figure", "median", title="without a target")
        for figure in figures:
            extra.add_row(*figure)
        console.print(extra)
