"""Decides whether a sealed epoch that Spark repeats may be answered with its stored results.

Rules of this module: it decides and makes the errors. The caller finds out which rows were stored and which come now.

    sealed with the same rows                its stored results
    sealed with other rows                   refused: the new rows would never reach the state. `allow_changed_input`:
                                             its stored results, and a warning
    rows unknown (an older qstate sealed it) its stored results

Spark repeats an epoch that it has committed when it has lost its record of that (`commits/n`). The state must then
not be computed again, because later epochs and readers have used it: only an exact replay is possible.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.errors import JobError

__all__ = ["ReplayedEpoch", "older_than_state"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayedEpoch:
    """A sealed epoch of a subtask that Spark repeats. `committed`: Spark is known to have committed it before."""

    operator: str
    subtask: int
    epoch: int
    checkpoint_dir: Any
    committed: bool

    def check(self, stored: EpochInput | None, given: EpochInput, *, allow_changed: bool) -> None:
        """Raise `JobError` unless the epoch was sealed with the rows that come now."""
        if stored is None:
            if self.committed:
                raise self.refused("an older qstate sealed it, without a digest of its rows")
            return
        if stored.may_be(given):
            if stored.columns != given.columns:
                log.info("%s: its columns have changed, so only the number of rows was compared", self._name)
            return
        what = f"{self._name} was sealed with {stored}, but comes with {given}"
        if not allow_changed:
            raise JobError(
                f"{what}: Spark has planned it again, and these rows would never reach the state. Either the query's "
                f"checkpointLocation and {self.checkpoint_dir} (checkpoint_dir) do not belong together: bring back a "
                "pair that does. Or Spark computes different rows each time (uuid(), rand(), a changed file, another "
                "program): make the input repeatable. allow_changed_input=True continues with the stored results, "
                "without these rows"
            )
        log.warning("%s; allow_changed_input permits that, so the stored results are used", what)

    def refused(self, why: str) -> JobError:
        """The error for an epoch that Spark had committed and that cannot be replayed exactly."""
        already = f"Spark had committed epoch {self.epoch} already, and {why}"
        return older_than_state(self.operator, self.epoch, self.checkpoint_dir, already)

    @property
    def _name(self) -> str:
        return f"operator {self.operator!r} subtask {self.subtask}: epoch {self.epoch}"


def older_than_state(operator: str, epoch: int, checkpoint_dir: Any, why: str) -> JobError:
    """The error for an epoch that is older than the state."""
    return JobError(
        f"operator {operator!r}: epoch {epoch} is due, but its state in {checkpoint_dir} is newer: {why}. "
        "The query's checkpointLocation is older than the state; bring back the one that belongs to it, or start from "
        "a savepoint of that time"
    )
