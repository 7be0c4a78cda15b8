"""Which task manager holds which subtasks, and which incarnation of it is current.

Rules of this module: it decides, from events, and owns no socket, process, thread or clock; the job manager acts
on its decisions. Task manager `index` holds the subtask indexes `index * slots` up to `(index + 1) * slots`, of
every operator of the job.

    absent --start--> starting --registered--> alive --gone--> absent
                      starting --gone, overdue, given up----> absent

Each start gets a new incarnation number. A process that registers with a number other than the current one is left
over from an earlier start and is refused: two incarnations never serve at the same time.

A task manager that is lost again and again is restarted after longer and longer pauses: something ends it, and
restarting it as fast as it dies would only keep the host busy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from qstate.errors import FencedError
from qstate.runtime.control.addresses import TaskManagerAddress

__all__ = ["Assignments", "Phase"]

#: Two losses this far apart are unrelated.
QUIET_S = 60.0
#: This many losses in a row lead to an immediate restart; the pause after each further one doubles.
PROMPT_RESTARTS = 5
SLOWEST_RESTART_S = 30.0


class Phase(Enum):
    """The state of a task manager's current incarnation."""

    ABSENT = "absent"
    STARTING = "starting"
    ALIVE = "alive"


@dataclass(frozen=True, slots=True)
class _Slot:
    phase: Phase = Phase.ABSENT
    incarnation: int = 0
    started_at: float = 0.0
    address: TaskManagerAddress | None = None
    losses: int = 0
    lost_at: float = -QUIET_S


class Assignments:
    """The task managers of one job, and its standbys. Not thread-safe: the job manager holds its lock.

    Standbys have the indexes after those of the task managers, and hold no subtask.
    """

    def __init__(self, parallelism: int, slots: int, start_timeout_s: float, standbys: int = 0) -> None:
        self._managers = -(-parallelism // slots)
        self._slots = [_Slot() for _ in range(self._managers + standbys)]
        self._per_manager = slots
        self._start_timeout_s = start_timeout_s

    def __len__(self) -> int:
        return len(self._slots)

    def index_of(self, subtask: int) -> int:
        return subtask // self._per_manager

    def address(self, index: int) -> TaskManagerAddress | None:
        return self._slots[index].address

    def alive(self) -> list[TaskManagerAddress]:
        """The task managers that are up."""
        return [slot.address for slot in self._slots[: self._managers] if slot.address is not None]

    def alive_standbys(self) -> list[TaskManagerAddress]:
        """The standbys that are up."""
        return [slot.address for slot in self._slots[self._managers :] if slot.address is not None]

    @property
    def standbys(self) -> range:
        """The indexes of the standbys."""
        return range(self._managers, len(self._slots))

    def standby_of(self, index: int) -> int | None:
        """The number of the standby with this index, None for a task manager."""
        return index - self._managers if index >= self._managers else None

    def start(self, index: int, now: float) -> int | None:
        """Begin a start and return the new incarnation; None when one is alive or starting."""
        slot = self._slots[index]
        overdue = slot.phase is Phase.STARTING and now - slot.started_at > self._start_timeout_s
        if slot.phase is not Phase.ABSENT and not overdue:
            return None
        self._slots[index] = replace(
            slot, phase=Phase.STARTING, incarnation=slot.incarnation + 1, started_at=now, address=None
        )
        return slot.incarnation + 1

    def is_current(self, index: int, incarnation: int) -> bool:
        """Whether this incarnation is the one that is alive."""
        slot = self._slots[index]
        return slot.phase is Phase.ALIVE and slot.incarnation == incarnation

    def registered(self, address: TaskManagerAddress) -> None:
        """A task manager is up. Raises `FencedError` unless it is the incarnation that was started last."""
        slot = self._slots[address.index]
        if slot.phase is not Phase.STARTING or slot.incarnation != address.incarnation:
            raise FencedError(
                f"task manager {address.index} incarnation {address.incarnation} came too late: "
                f"incarnation {slot.incarnation} is {slot.phase.value}"
            )
        self._slots[address.index] = replace(slot, phase=Phase.ALIVE, address=address)

    def gone(self, index: int, incarnation: int, now: float) -> bool:
        """An incarnation was lost or could not be started. False when it was not the current one."""
        slot = self._slots[index]
        if slot.incarnation != incarnation or slot.phase is Phase.ABSENT:
            return False
        losses = slot.losses + 1 if now - slot.lost_at < QUIET_S else 1
        self._slots[index] = _Slot(Phase.ABSENT, slot.incarnation, losses=losses, lost_at=now)
        return True

    def give_up(self, index: int, incarnation: int) -> bool:
        """The process that had to start this incarnation is gone. False when the incarnation is not starting."""
        slot = self._slots[index]
        if slot.incarnation != incarnation or slot.phase is not Phase.STARTING:
            return False
        self._slots[index] = replace(slot, phase=Phase.ABSENT)
        return True

    def restart_at(self, index: int) -> float:
        """When to restart a lost task manager; in the past for the first few losses."""
        slot = self._slots[index]
        late = slot.losses - PROMPT_RESTARTS
        return slot.lost_at + (min(2.0 ** min(late, 10), SLOWEST_RESTART_S) if late > 0 else 0.0)
