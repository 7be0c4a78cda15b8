"""Which attempt of which epoch may run: the fencing of one operator subtask.

Rules of this module: a state machine without I/O. It decides; the caller rolls back, replays and closes connections.
An attempt is a number that is higher for every try of an epoch, such as Spark's task attempt id. A relay that
reconnects must bring a higher number, too: two connections with one number could not be distinguished.

An epoch is Spark's batch id. Spark starts epoch n + 1 only when it has committed n. So an attempt of an epoch older
than the newest one seen is a zombie: to answer it would disturb the epoch that Spark runs now. Spark repeats the
newest sealed epoch when the sink failed, when the driver was restarted, or when it evaluates one batch twice. The
subtask then answers from the log.

    open(e, a), first match                                    decision            afterwards
    e is older than the newest epoch opened or sealed          FencedError         as before
    e is sealed                                                Replay              as before
    e was opened by a newer attempt, or a is running it        FencedError         as before
    nothing was opened since the last seal                     Process             (e, a) running
    an attempt ran or runs without having been sealed          Process(rollback)   (e, a) running, the other cut off
"""

from __future__ import annotations

from dataclasses import dataclass

from qstate.errors import FencedError

__all__ = ["EpochAttempts", "Process", "Replay"]


@dataclass(frozen=True, slots=True)
class Process:
    """Process the epoch's input.

    `rollback`: the caller must first undo the writes of another attempt. `gap`: epochs between the newest sealed one
    (or the first, 0) and this one never reached the subtask. That is legal, but worth a line in the log.
    """

    rollback: bool
    gap: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """The epoch is sealed: skip its input and return its stored output."""

    epoch: int


class EpochAttempts:
    """The newest sealed epoch and the attempt that is running, if any."""

    def __init__(self, sealed: int | None = None) -> None:
        """`sealed` is the newest epoch in the log, None when there is none."""
        self._sealed = -1 if sealed is None else sealed
        self._epoch = self._sealed
        self._attempt: int | None = None
        self._running = False
        self._unsealed_writes = False

    @property
    def sealed(self) -> int | None:
        """The newest sealed epoch."""
        return None if self._sealed < 0 else self._sealed

    @property
    def running(self) -> tuple[int, int] | None:
        """The epoch and attempt that may write now."""
        return (self._epoch, self._attempt) if self._running and self._attempt is not None else None

    def open(self, epoch: int, attempt: int) -> Process | Replay:
        """Decide what an attempt at an epoch may do. Raises `FencedError` when it must not run; see the table above."""
        if epoch < self._epoch:
            raise FencedError(f"epoch {epoch} is older than epoch {self._epoch}, which was started after it")
        if epoch == self._sealed:
            return Replay(epoch)
        if epoch == self._epoch and self._attempt is not None:
            if attempt < self._attempt:
                raise FencedError(f"attempt {attempt} of epoch {epoch} was cut off by attempt {self._attempt}")
            if attempt == self._attempt and self._running:
                raise FencedError(f"attempt {attempt} of epoch {epoch} is running already; use a higher attempt number")
        decision = Process(rollback=self._unsealed_writes, gap=epoch != self._sealed + 1)
        self._epoch, self._attempt, self._running, self._unsealed_writes = epoch, attempt, True, True
        return decision

    def check(self, epoch: int, attempt: int) -> None:
        """Raise `FencedError` unless this attempt is the running one. Call it before you process its input."""
        if self.running != (epoch, attempt):
            running = f"attempt {self._attempt} of epoch {self._epoch}" if self._running else "none"
            raise FencedError(f"attempt {attempt} of epoch {epoch} was cut off; running is {running}")

    def seal(self, epoch: int, attempt: int) -> None:
        """Record that the attempt's epoch is in the log. Raises `FencedError` unless the attempt is the running one."""
        self.check(epoch, attempt)
        self._sealed, self._attempt, self._running, self._unsealed_writes = epoch, None, False, False

    def abandon(self, epoch: int, attempt: int) -> bool:
        """Stop an attempt; returns whether it was the running one. The next `open` then asks for a rollback."""
        if self.running != (epoch, attempt):
            return False
        self._running = False
        return True
