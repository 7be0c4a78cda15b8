"""The statistics of a job: what its processes serve, and what its subtasks process.

Rules of this module: values that are sent between processes, and their text. It counts nothing, and does not know who
counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from qstate.backends.contract import StateSizes
from qstate.runtime.control.statistics import StatisticsSnapshot

__all__ = ["JobStatistics", "ProcessStatistics", "StandbyStatistics", "SubtaskStatistics"]


@dataclass(frozen=True, slots=True)
class SubtaskStatistics:
    """The figures of one subtask of an operator, as of the end of an epoch. Counts begin when the subtask is opened.

    `epoch` is the epoch sealed last, -1 for none. `epochs` counts the epochs that were processed and sealed, `replayed`
    those whose stored results were sent again, `abandoned` the attempts that failed or were cut off. `rows_in`,
    `rows_out`, `epoch_s`, `commit_s` and `checkpoint_bytes` are sums over the sealed epochs. `epoch_s` are the seconds
    from the beginning of an epoch to its seal, with the wait for its rows; `commit_s` those of the part after the last
    row. `checkpoint_bytes` were written for the epochs; snapshots do not count.

    `watermark_ms` is that of the epoch, in milliseconds since 1970-01-01 UTC, None without one. `state` is as of the
    newest committed epoch. `snapshot_epoch` is the epoch of the newest snapshot, and `snapshot_at` the time at which it
    was ready, in seconds since 1970-01-01 UTC; None without one.
    """

    operator: str
    subtask: int
    epoch: int = -1
    epochs: int = 0
    replayed: int = 0
    abandoned: int = 0
    rows_in: int = 0
    rows_out: int = 0
    epoch_s: float = 0.0
    commit_s: float = 0.0
    checkpoint_bytes: int = 0
    watermark_ms: int | None = None
    state: StateSizes = field(default_factory=StateSizes)
    snapshot_epoch: int | None = None
    snapshot_at: float | None = None


@dataclass(frozen=True, slots=True)
class StandbyStatistics:
    """What a standby follows: the served epoch of each operator, the number of looks, and of those that failed."""

    epochs: tuple[tuple[str, int], ...]
    looks: int
    failed_looks: int


@dataclass(frozen=True, slots=True)
class ProcessStatistics:
    """The counts of one process since it started.

    `name` is a task manager's index, "standby 0" and so on for the standbys of a job, or "standby" for one alone.
    `server` and `proxy` are None when the process has no such endpoint, when statistics are switched off, and when the
    process did not answer (then `reachable` is False). `subtasks` are those of a task manager by operator and index,
    `restarts` counts how often it was replaced by another process, and `standby` is what only a standby has.
    """

    name: str
    server: StatisticsSnapshot | None
    proxy: StatisticsSnapshot | None
    reachable: bool = True
    subtasks: tuple[SubtaskStatistics, ...] = ()
    restarts: int = 0
    standby: StandbyStatistics | None = None

    def lines(self) -> Iterator[str]:
        """The figures as text."""
        state = "" if self.reachable else ", does not answer"
        yield f"process {self.name}: {self.restarts} restarts{state}"
        for name, counts in (("server", self.server), ("proxy", self.proxy)):
            if counts is not None:
                yield f"  {name}: {_served(counts)}"
        for one in self.subtasks:
            yield f"  operator {one.operator!r} subtask {one.subtask}: {_processed(one)}"
        for operator, epoch in () if self.standby is None else self.standby.epochs:
            yield f"  operator {operator!r}: serves epoch {epoch}"


@dataclass(frozen=True, slots=True, repr=False)
class JobStatistics:
    """The statistics of a job, from one moment. `processes` are its running task managers, by index, then its standbys.

    `repr` gives all figures as text, one line for each subtask.
    """

    job: str
    processes: tuple[ProcessStatistics, ...]

    @property
    def subtasks(self) -> tuple[SubtaskStatistics, ...]:
        """The subtasks of all task managers."""
        return tuple(one for process in self.processes for one in process.subtasks)

    @property
    def proxies(self) -> StatisticsSnapshot | None:
        """The sums of all client proxies; None when none has counts."""
        return _sum(process.proxy for process in self.processes)

    @property
    def servers(self) -> StatisticsSnapshot | None:
        """The sums of all state servers; None when none has counts."""
        return _sum(process.server for process in self.processes)

    def __repr__(self) -> str:
        lines = (f"  {line}" for process in self.processes for line in process.lines())
        standbys = sum(process.name.startswith("standby") for process in self.processes)
        beside = f", {standbys} standby{'s' if standbys > 1 else ''}" if standbys else ""
        return "\n".join((f"job {self.job!r}: {len(self.processes) - standbys} task managers{beside}", *lines))


def _sum(counts: Iterator[StatisticsSnapshot | None]) -> StatisticsSnapshot | None:
    found = [one for one in counts if one is not None]
    return reduce(add, found) if found else None


def _served(counts: StatisticsSnapshot) -> str:
    mean = f", {counts.duration_s / counts.successes * 1000:.3f} ms on average" if counts.successes else ""
    throttled = f", throttled for {counts.throttled_s:.1f} s" if counts.throttled_s else ""
    return (
        f"{counts.requests:,} requests for {counts.keys:,} keys, {sum(counts.failures.values()):,} failures, "
        f"{counts.connections:,} connections{mean}{throttled}"
    )


def _processed(one: SubtaskStatistics) -> str:
    keys = sum(one.state.keys.values()) if one.state.keys else one.state.entries
    size = "" if keys is None else f", {keys:,} {'keys' if one.state.keys else 'entries'}"
    times = (
        ""
        if not one.epochs
        else (f", {one.epoch_s / one.epochs:.3f} s an epoch, {one.commit_s / one.epochs:.3f} s of it to commit")
    )
    return f"epoch {one.epoch}, {one.rows_in:,} rows in, {one.rows_out:,} rows out{times}{size}"
