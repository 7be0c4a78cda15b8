"""The targets: what each measurement is held to.

Rules of this module: numbers and names. A floor is what must hold; a stretch is what the design could reach.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of ours to theirs, and the side of the floor that it has to be on."""

    id: str
    work: str
    floor: float
    stretch: float
    more_is_better: bool = True

    def met(self, ratio: float) -> bool:
        """Whether the floor holds."""
        return ratio >= self.floor if self.more_is_better else ratio <= self.floor

    def stretched(self, ratio: float) -> bool:
        """Whether even the stretch holds."""
        return ratio >= self.stretch if self.more_is_better else ratio <= self.stretch


_ALL = (
    Target("P1", "temperature alerts on the heap backend, against transformWithState", 7, 15),
    Target("P2", "temperature alerts on the rocksdb backend, against transformWithState", 5, 12),
    Target("P3", "latest value per key, against foreachBatch into Redis (pipelined MSET)", 2.5, 5),
    Target("P4 direct", "one get at a time, direct, p50, against Redis GET", 1.2, 0.8, more_is_better=False),
    Target("P4 proxy", "one get at a time, through the proxy, p50, against Redis GET", 2.2, 1.4, more_is_better=False),
    Target("P5", "64 gets in flight, asyncio, direct, against Redis GET in 64 tasks", 8, 18),
    Target("P6", "get_many of 100 keys, direct, against Redis MGET", 1.0, 2.0),
    Target("P7", "pipeline under 10,000 gets/s, against without", 0.90, 0.97),
    Target("P8", "live get while the pipeline is saturated, p99, against idle", 12, 4, more_is_better=False),
    Target(
        "P9", "commit of an epoch that changed 1 % of the keys, against writing all", 0.03, 0.015, more_is_better=False
    ),
    Target("P10", "restore, against unpickling the same dictionary", 5, 2, more_is_better=False),
    Target("P11", "resident memory of a task manager with rocksdb, against 512 MiB", 1.0, 0.5, more_is_better=False),
    Target("P12", "commit of as many changes, against among a tenth of the keys", 1.5, 1.2, more_is_better=False),
    Target("P13", "pipeline with a snapshot every few epochs, against without", 0.90, 0.97),
)
TARGETS = {target.id: target for target in _ALL}
