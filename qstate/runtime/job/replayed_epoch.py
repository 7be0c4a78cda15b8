"""Whether a sealed epoch that comes again may be answered with its stored results.

Rules of this module: it decides, and words the refusals. What was stored, and what comes, is the caller's to find out.

    sealed with the rows that come now       its stored results
    with others                              refused: the new rows would never reach the state. `allow_changed_input`:
                                             its stored results, and a warning
    nobody stored what its rows were         its stored results (a checkpoint of an older qstate)

Spark gives an epoch again that it has committed when it has lost its record of that (`commits/n`). Then the
state must not be computed again, because the next epochs and readers have built on it: only an exact replay will do.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.errors import JobError

__all__ = ["ReplayedEpoch", "from_the_future"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayedEpoch:
    """A sealed epoch of a subtask that comes again. `committed`: Spark is known to have committed it before."""

    operator: str
    subtask: int
    epoch: int
    checkpoint_dir: Any
    committed: bool

    def check(self, stored: EpochInput | None, given: EpochInput, *, allow_changed: bool) -> None:
        """Raise `JobError` unless the rows that are given now are those that it was sealed with."""
        if stored is None:
            if self.committed:
                raise self.refused("an older qstate sealed it, without what identifies its rows")
            return
        if stored.may_be(given):
            if stored.columns != given.columns:
                log.info("%s: its columns are others now, so only the rows were counted", self._name)
            return
        what = f"{self._name} was sealed with {stored}, but comes with {given}"
        if not allow_changed:
            raise JobError(
                f"{what}: Spark has planned it again, and these rows would never reach the state. Either the query's "
                f"checkpointLocation and {self.checkpoint_dir} (checkpoint_dir) do not belong together: bring back a "
                "pair that does. Or the query's input is not the same each time that Spark computes it (uuid(), "
                "rand(), a file that was changed, another program): make it so. allow_changed_input=True goes on with "
                "the stored results, without the rows that come now"
            )
        log.warning("%s; allow_changed_input permits that, and the stored results are given", what)

    def refused(self, why: str) -> JobError:
        """The refusal of an epoch that Spark had committed and that cannot be replayed exactly."""
        already = f"Spark had committed epoch {self.epoch} already, and {why}"
        return from_the_future(self.operator, self.epoch, self.checkpoint_dir, already)

    @property
    def _name(self) -> str:
        return f"operator {self.operator!r} subtask {self.subtask}: epoch {self.epoch}"


def from_the_future(operator: str, epoch: int, checkpoint_dir: Any, why: str) -> JobError:
    """The refusal of an epoch that the state has left behind."""
    return JobError(
        f"operator {operator!r}: epoch {epoch} is due, but its state in {checkpoint_dir} is from the future: {why}. "
        "The query's checkpointLocation is older than the state; bring back the one that belongs to it, or start from "
        "a savepoint of that time"
    )
