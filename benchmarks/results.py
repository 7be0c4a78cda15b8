"""The results of a run: comparisons with a target, plain figures, and growth curves.

Rules of this module: data and what follows from it, in a form that JSON holds. It measures and draws nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from benchmarks.targets import TARGETS, Target

__all__ = ["Comparison", "Curve", "Figure", "Findings", "Report"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Ours beside theirs: one sample per round, in `unit`. Without samples of either, `missing` says why.

    A target in a unit of its own needs nothing of theirs. A comparison that does not count is shown beside those
    that do.
    """

    target_id: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float] = ()
    their_name: str = ""
    detail: str = ""
    missing: str = ""
    counts: bool = True

    @property
    def target(self) -> Target:
        return TARGETS[self.target_id]

    @property
    def value(self) -> float | None:
        """What the target is held against: the ratio of the medians, or our median; None when not measured."""
        if self.ours and self.target.unit != "x":
            return median(self.ours)
        return median(self.ours) / median(self.theirs) if self.ours and self.theirs else None

    @property
    def verdict(self) -> str:
        """The outcome: `met`, `met, stretch too`, `NOT MET` or `not measured`."""
        if self.value is None:
            return "not measured"
        if not self.target.met(self.value):
            return "NOT MET"
        return "met, stretch too" if self.target.stretched(self.value) else "met"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "target": asdict(self.target), "value": self.value, "verdict": self.verdict}


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure without a target, for comparison."""

    name: str
    unit: str
    samples: Sequence[float]

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "median": median(self.samples)}


@dataclass(frozen=True, slots=True)
class Curve:
    """A growth curve: for each line its points (x, y)."""

    name: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(slots=True)
class Findings:
    """The results of one family of benchmarks."""

    comparisons: list[Comparison] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        self.comparisons += other.comparisons
        self.figures += other.figures
        self.curves += other.curves


@dataclass(slots=True)
class Report:
    """A whole run: machine, versions, duration of each family, and results."""

    machine: Mapping[str, Any]
    sizes: Mapping[str, Any]
    findings: Findings = field(default_factory=Findings)
    #: family -> seconds, and the load of the machine as it began: on a busy machine the figures are worth less
    families: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_json(self) -> str:
        found = self.findings
        return json.dumps(
            {
                "machine": dict(self.machine),
                "sizes": dict(self.sizes),
                "families": self.families,
                "comparisons": [comparison.to_json() for comparison in found.comparisons],
                "figures": [figure.to_json() for figure in found.figures],
                "curves": [asdict(curve) for curve in found.curves],
            },
            indent=2,
        )
