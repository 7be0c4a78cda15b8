"""The report as pictures: one file per growth curve, and one with all ratios beside their floors.

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
    if any(comparison.ratio is not None for comparison in findings.comparisons):
        drawn.append(_draw_ratios(pyplot, findings, directory))
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


def _draw_ratios(pyplot: Any, findings: Findings, directory: Path) -> Path:
    """How far each ratio is from its floor; right of the line is better, whichever way the ratio goes."""
    known = [(item, item.ratio) for item in findings.comparisons if item.ratio is not None]
    margins = [
        ratio / item.target.floor if item.target.more_is_better else item.target.floor / ratio for item, ratio in known
    ]
    figure, axes = pyplot.subplots(figsize=(7, 0.5 * len(known) + 1.5))
    colours = ["tab:green" if margin >= 1 else "tab:red" for margin in margins]
    # By position: one target may be compared twice.
    axes.barh(range(len(known)), margins, color=colours, tick_label=[item.target_id for item, _ in known])
    axes.axvline(1.0, color="black")
    axes.invert_yaxis()
    axes.set(xlabel="how many times better than the floor", title="ratios against their floors")
    return _saved(pyplot, figure, directory / "ratios.png")


def _saved(pyplot: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
