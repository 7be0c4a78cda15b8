"""The figures of jobs, from their metrics: read while somebody asks for them.

Rules of this module: it reads the addresses that the gateway was started with, and no others. It decides nothing about
who may see figures; `reads` asks the query port whether the caller may see the job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from qstate.errors import QStateError
from qstate.host.line_limit import limited
from qstate.runtime.control.readings import Figures, Reading, SubtaskFigures, compare, read, url_of

__all__ = ["JobFigures"]

log = limited(logging.getLogger(__name__))

INTERVAL_S = 2.0
#: The metrics are read for so long after the last question.
WANTED_S = 15.0


class _Source:
    """The metrics at one address: the last two readings."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.figures: Figures | None = None
        self.reading: Reading | None = None

    @property
    def job(self) -> str:
        """The job that these metrics are of, empty as long as that is not known."""
        up = () if self.reading is None else self.reading.samples["qstate_up"]
        return next((dict(labels).get("job", "") for labels in up), "")

    async def look(self) -> None:
        before = self.reading
        try:
            self.reading = await asyncio.to_thread(read, self.url)
        except QStateError as exc:
            self.figures = self.reading = None
            log.warning("no figures: %s", exc)
            return
        if before is not None:
            self.figures = compare(before, self.reading)


class JobFigures:
    """The figures of all jobs whose metrics are known. Use it in one event loop; close it."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._sources = [_Source(url_of(address)) for address in addresses]
        self._wanted_until = 0.0
        self._looking: asyncio.Task[None] | None = None

    def summary(self, job: str) -> dict[str, Any] | None:
        """The figures of the whole job; None without any, or before there are two readings."""
        source = self._of(job)
        return None if source is None or source.figures is None else _summary(source.figures)

    def details(self, job: str) -> dict[str, Any]:
        """The figures of a job's subtasks, servers and standbys."""
        source = self._of(job)
        if source is None or source.figures is None:
            return {"subtasks": [], "serving": [], "standby": []}
        found = asdict(source.figures)
        return {name: found[name] for name in ("subtasks", "serving", "standby")}

    def keys(self, job: str, state: str | None) -> int | None:
        """The number of keys of the state of this descriptor, where the job's backend counts them.

        None, too, when several operators have a state of this name.
        """
        source = self._of(job)
        if source is None or source.reading is None:
            return None
        counted = source.reading.samples.get("qstate_state_keys", {}).items()
        found = [
            (named.get("operator"), value)
            for named, value in ((dict(labels), value) for labels, value in counted)
            if named.get("state") == state
        ]
        return int(sum(value for _, value in found)) if len({operator for operator, _ in found}) == 1 else None

    def _of(self, job: str) -> _Source | None:
        self._wanted_until = time.monotonic() + WANTED_S
        if self._sources and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return next((source for source in self._sources if source.job == job), None)

    async def _look(self) -> None:
        while time.monotonic() < self._wanted_until:
            began = time.monotonic()
            await asyncio.gather(*(source.look() for source in self._sources))
            await asyncio.sleep(max(0.0, began + INTERVAL_S - time.monotonic()))
        for source in self._sources:  # a later reading would be compared with one of long ago
            source.figures = source.reading = None

    async def close(self) -> None:
        """Read nothing more. Idempotent."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])


def _summary(figures: Figures) -> dict[str, Any]:
    tasks, at = figures.subtasks, figures.at
    epochs = [one.epoch for one in tasks] or [one.epoch for one in figures.standby]
    watermark = _combined(min, tasks, "watermark")
    snapshot_at = _combined(min, tasks, "snapshot_at")
    servers = [one.requests_per_s for one in figures.serving if one.endpoint == "server"]
    reads = [per_s for per_s in servers if per_s is not None]
    return {
        "at": at,
        "interval_s": figures.interval_s,
        "rows_in_per_s": _combined(sum, tasks, "rows_in_per_s"),
        "rows_out_per_s": _combined(sum, tasks, "rows_out_per_s"),
        "reads_per_s": sum(reads) if reads else None,
        "epoch": min(epochs, default=None),
        "newest_epoch": max(epochs, default=None),
        "epoch_s": _combined(max, tasks, "epoch_s"),
        "commit_s": _combined(max, tasks, "commit_s"),
        "watermark": watermark,
        "lag_s": None if watermark is None else at - watermark,
        **{name: _combined(sum, tasks, name) for name in ("state_keys", "state_entries", "state_bytes", "timers")},
        "snapshot_at": snapshot_at,
        "snapshot_age_s": None if snapshot_at is None else at - snapshot_at,
        "subtasks": len(tasks),
        "restarts": figures.restarts,
        "abandoned": sum(one.abandoned for one in tasks),
        "silent": list(figures.silent),
    }


def _combined(combine: Callable[[Any], Any], tasks: Sequence[SubtaskFigures], name: str) -> Any:
    """The figure of all subtasks that have it, None if none has."""
    found = [value for value in (getattr(one, name) for one in tasks) if value is not None]
    return combine(found) if found else None
