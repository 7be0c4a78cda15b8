"""Adds up the figures of one subtask, at the ends of its epochs.

Rules of this module: the thread that processes the epochs reports, any thread reads. It is not called for a row or a
batch. What it cannot find out is missing from the figures, and fails no epoch.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace

from qstate.backends.contract import StateSizes
from qstate.errors import QStateError
from qstate.host.line_limit import limited
from qstate.runtime.control.job_statistics import SubtaskStatistics
from qstate.runtime.tasks.subtask_restore import SubtaskParts

__all__ = ["EpochFigures", "SubtaskMeter"]

log = limited(logging.getLogger(__name__))


@dataclass(slots=True)
class EpochFigures:
    """What is measured while an epoch is processed; times are of `time.monotonic`."""

    began_at: float
    watermark_ms: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    input_ended_at: float = 0.0


class SubtaskMeter:
    """The figures of an open subtask."""

    def __init__(self, parts: SubtaskParts) -> None:
        self._parts = parts
        #: Replaced as a whole, so that readers need no lock.
        sealed = parts.restored.sealed
        self._figures = SubtaskStatistics(parts.spec.uid, parts.place.subtask, -1 if sealed is None else sealed)
        self._snapshot = _restored_snapshot(parts)
        self.committed()

    def sealed(self, epoch: int, measured: EpochFigures) -> None:
        """An epoch was processed and sealed."""
        now, before = time.monotonic(), self._figures
        self._figures = replace(
            before,
            epoch=epoch,
            epochs=before.epochs + 1,
            rows_in=before.rows_in + measured.rows_in,
            rows_out=before.rows_out + measured.rows_out,
            epoch_s=before.epoch_s + now - measured.began_at,
            commit_s=before.commit_s + now - measured.input_ended_at,
            checkpoint_bytes=self._parts.log.sealed_bytes,
            watermark_ms=measured.watermark_ms,
        )

    def replayed(self) -> None:
        """The stored results of an epoch were sent again."""
        self._figures = replace(self._figures, replayed=self._figures.replayed + 1)

    def abandoned(self) -> None:
        """An attempt of an epoch failed or was cut off."""
        self._figures = replace(self._figures, abandoned=self._figures.abandoned + 1)

    def committed(self) -> None:
        """The epoch sealed last is known to be committed, and so is all state."""
        try:
            sizes = self._parts.backend.sizes()
        except Exception:  # a backend may be a third party's
            log.exception("%s: the backend cannot tell the size of its state", self._parts.name)
            sizes = StateSizes()
        self._figures = replace(self._figures, state=sizes)

    def statistics(self) -> SubtaskStatistics:
        """The newest figures. Any thread."""
        epoch, at = self._parts.snapshotter.last or self._snapshot
        return replace(self._figures, snapshot_epoch=epoch, snapshot_at=at)


def _restored_snapshot(parts: SubtaskParts) -> tuple[int | None, float | None]:
    """The epoch and time of the newest snapshot that the log began with."""
    newest = parts.log.bases[0]
    if newest is None:
        return None, None
    with suppress(OSError, QStateError):  # a snapshot process may just have replaced it
        return newest.epoch, parts.place.log_directory(parts.spec.uid).modified_at(newest.name)
    return newest.epoch, None
