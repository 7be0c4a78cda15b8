"""The report as pictures: one file per growth curve, and one with all figures beside their floors.

Rules of this module: the only one that draws. Without matplotlib it draws nothing and says so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from benchmarks.optional_packages import missing, optional
from benchmarks.results import Curve, Findings
from benchmarks.rounds import say

__all__ = ["draw"]


def draw(findings: Findings, directory: Path) -> list[Path]:
    """Draw everything into `directory`; gives the files."""
    if missing("matplotlib"):
        say(f"no plots: {missing('matplotlib')}")
        return []
    optional("matplotlib").use("agg")
    pyplot = optional("matplotlib.pyplot")
    drawn = [_draw_curve(pyplot, curve, directory) for curve in findings.curves]
    if any(comparison.value is not None for comparison in findings.comparisons):
        drawn.append(_draw_margins(pyplot, findings, directory))
    return drawn


def _draw_curve(pyplot: Any, curve: Curve, directory: Path) -> Path:
    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name, points in curve.lines.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
    axes.set(xscale="log", xlabel=curve.x, ylabel=curve.y, title=curve.name)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    path = directory / f"growth-{re.sub(r'[^a-z0-9]+', '-', curve.name.lower()).strip('-')}.png"
    return _saved(pyplot, figure, path)


def _draw_margins(pyplot: Any, findings: Findings, directory: Path) -> Path:
    """How far each figure is from its floor; right of the line is better, whichever way the figure goes."""
    known = [(item, item.value) for item in findings.comparisons if item.value is not None]
    margins = [
        value / item.target.floor if item.target.more_is_better else item.target.floor / value for item, value in known
    ]
    labels = [item.target_id if item.counts else f"({item.target_id}; {item.detail})" for item, _ in known]
    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(known) + 1.5))
    colours = [
        ("tab:green" if margin >= 1 else "tab:red") if item.counts else "tab:gray"
        for (item, _), margin in zip(known, margins, strict=True)
    ]
    # By position: one target may be compared twice.
    axes.barh(range(len(known)), margins, color=colours, tick_label=labels)
    axes.axvline(1.0, color="black")
    axes.invert_yaxis()
    axes.set(xlabel="how many times better than the floor", title="figures against their floors")
    return _saved(pyplot, figure, directory / "margins.png")


def _saved(pyplot: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
