"""The target of each measurement: its floor and its stretch.

Rules of this module: numbers and names. A floor is what must hold; a stretch is what the design could reach.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["TARGETS", "Target"]


@dataclass(frozen=True, slots=True)
class Target:
    """The side of the floor that a figure has to be on: a ratio of ours to theirs, or ours alone in its unit."""

    id: str
    work: str
    floor: float
    stretch: float
    more_is_better: bool = True
    #: `x`: a ratio
    unit: str = "x"

    def met(self, value: float) -> bool:
        """Whether the floor holds."""
        return value >= self.floor if self.more_is_better else value <= self.floor

    def stretched(self, value: float) -> bool:
        """Whether the stretch holds."""
        return value >= self.stretch if self.more_is_better else value <= self.stretch


def _at_least(id: str, work: str, floor: float, stretch: float, unit: str = "x") -> Target:
    return Target(id, work, floor, stretch, unit=unit)


def _at_most(id: str, work: str, floor: float, stretch: float, unit: str = "x") -> Target:
    return Target(id, work, floor, stretch, more_is_better=False, unit=unit)


_ALL = (
    _at_least("P1", "temperature alerts on the heap backend, against transformWithState", 7, 15),
    _at_least("P2", "temperature alerts on the rocksdb backend, against transformWithState", 5, 12),
    _at_least("P2b", "temperature alerts, one large micro-batch: rocksdb against heap", 0.5, 0.8),
    _at_least("P3", "latest value per key, against foreachBatch into Redis (pipelined MSET)", 2.5, 5),
    _at_most("P4 direct", "one get at a time, direct, p50, against Redis GET", 1.5, 1.0),
    _at_most("P4 proxy", "one get at a time, through the proxy, p50, against Redis GET", 2.4, 1.5),
    _at_least("P5", "64 gets in flight, asyncio, direct, against Redis GET in 64 tasks", 6, 18),
    _at_least("P6", "get_many of 100 keys, direct, against Redis MGET", 0.6, 2.0),
    _at_least("P7", "pipeline under 10,000 gets/s, against without", 0.85, 0.97),
    _at_most("P8 one, p99", "live job that saturates the processors: one get at a time, p99", 10, 4, "ms"),
    _at_least("P8 64, gets/s", "the same, 64 gets in flight", 25_000, 50_000, "gets/s"),
    _at_most("P8 64, p99", "the same, 64 gets in flight, p99", 15, 6, "ms"),
    _at_least("P8b 64, gets/s", "live job at 10,000 rows/s, 64 gets in flight", 50_000, 100_000, "gets/s"),
    _at_least("P8b 256, gets/s", "the same, 256 gets in flight", 80_000, 160_000, "gets/s"),
    _at_most("P9", "commit of an epoch that changed 1 % of the keys, against writing all", 0.03, 0.015),
    _at_most("P10", "restore, against unpickling the same dictionary", 5, 2),
    _at_most("P11", "resident memory of a task manager with rocksdb", 512, 256, "MiB"),
    _at_most("P12", "commit of as many changes, against among a tenth of the keys", 1.5, 1.2),
    _at_least("P13", "pipeline with a snapshot every few epochs, against without", 0.90, 0.97),
    _at_least("P14 rows", "temperature alerts by whole batches, against row by row", 2, 3),
    _at_least("P14 ceiling", "the same, against a mapInArrow that drops everything", 0.5, 0.8),
    _at_least("P15 one", "changes of committed epochs to one subscriber", 200_000, 500_000, "changes/s"),
    _at_least("P15 hundred", "the same to 100 subscribers, in all", 500_000, 1_000_000, "changes/s"),
    _at_most("P15 p99", "from a commit to the delivery of its changes, p99", 100, 30, "ms"),
    _at_least("P15 cost", "rows/s beside 100 subscribers, against none", 0.85, 0.95),
    _at_least("P16", "scan of a committed state through the port, against an offline dump", 0.5, 1.0),
    _at_most("P17 standby", "longest gap in committed answers, a task manager is killed, one standby", 0.5, 0.1, "s"),
    _at_most("P17 alone", "the same without a standby", 5, 2, "s"),
    _at_least("P19", "timers of one epoch that fire, against rows of the function without timers", 0.3, 0.7),
    _at_least("P20", "stored state as a DataFrame, against Spark's statestore source with the same state", 0.1, 0.3),
)
TARGETS = {target.id: target for target in _ALL}
