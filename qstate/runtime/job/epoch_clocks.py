"""Decides the time of each epoch of each operator, once, for all its subtasks.

Rules of this module: it runs in the driver and keeps what subtasks report; it knows no rows and no files. The caller
gives it what the epoch logs have stored. `qstate.operators.time.epoch_time` has the rule for the watermark.

    epoch n begins in the first subtask    the time of epoch n is decided, from what all subtasks have reached
    epoch n begins in another subtask      the same time
    epoch n is sealed in a subtask         the subtask reports what it has reached, before its task returns

Spark begins epoch n + 1 when all tasks of epoch n have returned, so all reports of epoch n have arrived. A new driver
has no reports: then the logs say what was reached before epoch n, and, if a subtask has sealed it, the time of epoch n.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qstate.operators.time.epoch_time import EpochTime, EventTime, Reached, next_watermark
from qstate.operators.time.timers import FirstTimers

__all__ = ["EpochClocks", "StoredTime"]


@dataclass(frozen=True, slots=True)
class StoredTime:
    """What the logs of an operator say when its first epoch in this driver begins.

    `before`: what its subtasks had reached before the epoch, None for nothing. `sealed`: what those have reached that
    have sealed the epoch already, None if there is none.
    """

    before: Reached | None = None
    sealed: Reached | None = None


NO_TIME = EpochTime(None, 0)


@dataclass(slots=True)
class _Clock:
    """The clock of one operator."""

    event_times: Sequence[EventTime]
    keeps_time: bool
    reached: Reached | None = None
    #: Of each subtask that has sealed or replayed an epoch in this driver.
    first_timers: dict[int, FirstTimers] = field(default_factory=dict)
    epoch: int = -1
    time: EpochTime = NO_TIME
    lock: threading.Lock = field(default_factory=threading.Lock)


class EpochClocks:
    """The clocks of a job. Any thread may use them.

    `stored(uid, epoch)` reads the logs of an operator; it may wait for the storage.
    """

    def __init__(
        self,
        parallelism: int,
        stored: Callable[[str, int], StoredTime],
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._parallelism = parallelism
        self._stored = stored
        self._now_ms = now_ms
        #: One entry is replaced or read at a time, so no lock is needed.
        self._clocks: dict[str, _Clock] = {}

    def declare(self, uid: str, event_times: Sequence[EventTime], *, keeps_time: bool) -> None:
        """Add an operator, or replace its declaration. `keeps_time`: its subtasks certainly store what they reach."""
        found = self._clocks.get(uid)
        if found is None or (found.event_times, found.keeps_time) != (event_times, keeps_time):
            self._clocks[uid] = _Clock(event_times, keeps_time)

    def begin(self, uid: str, epoch: int, reached: Reached | None) -> EpochTime:
        """The time of an epoch that a subtask begins. `reached` is what that subtask has reached before."""
        clock = self._clocks[uid]
        with clock.lock:
            if clock.epoch != epoch:
                if clock.epoch < 0 and (clock.keeps_time or reached is not None):
                    self._begin_with_stored(uid, clock, epoch, reached)
                if clock.epoch != epoch:
                    self._decide(clock, epoch)
            return clock.time

    def sealed(self, uid: str, subtask: int, reached: Reached, first_timers: FirstTimers) -> None:
        """A subtask has sealed an epoch, or replayed it. Call before its task returns."""
        clock = self._clocks[uid]
        with clock.lock:
            clock.reached = _together(clock.reached, reached)
            clock.first_timers[subtask] = first_timers

    def timers_are_due(self, uid: str, now_ms: int | None = None) -> bool:
        """Whether another epoch would fire timers of an operator, or bring it nearer to that.

        `now_ms` is the processing time that counts, None for the clock's.
        As long as it is not known what timers there are, because not every subtask has sealed an epoch in this driver,
        another epoch brings that.
        """
        timers = list(self._clocks[uid].first_timers.values())
        if len(timers) < self._parallelism:
            return True
        watermark, now = self._horizon(uid), self._now_ms() if now_ms is None else now_ms
        return any(
            (first.processing_time is not None and first.processing_time <= now)
            or (first.event_time is not None and watermark is not None and first.event_time <= watermark)
            for first in timers
        )

    def _horizon(self, uid: str) -> int | None:
        """The watermark that the operator reaches without further rows, perhaps after several epochs."""
        clock = self._clocks[uid]
        if not clock.event_times:
            return None

        def followed(event_time: EventTime) -> list[int | None]:
            return [self._horizon(one) for one in event_time.follows if self._clocks[one].event_times]

        return next_watermark(clock.event_times, clock.reached, followed)

    def _begin_with_stored(self, uid: str, clock: _Clock, epoch: int, reached: Reached | None) -> None:
        stored = self._stored(uid, epoch)
        clock.reached = _together(clock.reached, stored.before, reached)
        if stored.sealed is not None:
            clock.epoch, clock.time = epoch, EpochTime(stored.sealed.watermark, stored.sealed.processing_time)

    def _decide(self, clock: _Clock, epoch: int) -> None:
        reached, watermark = clock.reached, None
        if clock.event_times:
            watermark = next_watermark(clock.event_times, reached, lambda one: self._followed(one.follows, epoch))
        earliest = max(clock.time.processing_time, 0 if reached is None else reached.processing_time)
        clock.epoch, clock.time = epoch, EpochTime(watermark, max(self._now_ms(), earliest))

    def _followed(self, uids: Sequence[str], epoch: int) -> list[int | None]:
        """The watermarks, in the epoch before, of operators with event time that have sealed or replayed their own."""
        clocks = [self._clocks[uid] for uid in uids]
        found = [clock.reached for clock in clocks if clock.event_times]
        return [None if one is None else one.before if one.epoch == epoch else one.watermark for one in found]


def _together(*found: Reached | None) -> Reached | None:
    return Reached.of_all(one for one in found if one is not None)
