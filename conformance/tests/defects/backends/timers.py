"""Defects of timers. Each names the law that catches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from qstate.backends import Change, ChangeOp, Timer
from qstate.keys import KeyGroupRange
from tests.defects.backends.epochs import Telling
from tests.defects.backends.sound import DictBackend, PlainBackend, PlainTimers, TimersProxy, WithTimers

_LAWS = "backend.timers."


class TimersInOrderOfAddition(WithTimers):
    """Timers of one take come in the order in which they were added."""

    caught_by = _LAWS + "timers_come_in_the_order_of_their_times_namespaces_and_keys"

    class queue(TimersProxy):
        def add(self, timer: Timer) -> None:
            self.__dict__.setdefault("added", []).append(timer)
            super().add(timer)

        def take(self, upto: int, limit: int) -> list[Timer]:
            return sorted(super().take(upto, limit), key=self.__dict__.get("added", []).index)


class NegativeTimesLast(WithTimers):
    """Times are compared as unsigned numbers."""

    caught_by = _LAWS + "timers_come_in_the_order_of_their_times_namespaces_and_keys"

    class queue(TimersProxy):
        def take(self, upto: int, limit: int) -> list[Timer]:
            return sorted(super().take(upto, limit), key=lambda timer: timer.time % 2**64)


class TakeIgnoresItsLimit(WithTimers):
    """`take` gives all timers that are due."""

    caught_by = _LAWS + "take_ends_at_its_time_or_its_limit"

    class queue(TimersProxy):
        def take(self, upto: int, limit: int) -> list[Timer]:
            return super().take(upto, 10**6)


class TakeEndsBeforeItsTime(WithTimers):
    """The timers of the time `upto` itself are left."""

    caught_by = _LAWS + "take_ends_at_its_time_or_its_limit"

    class queue(TimersProxy):
        def take(self, upto: int, limit: int) -> list[Timer]:
            return super().take(max(upto - 1, -(2**63)), limit)


class RolledBackTimersStayTaken(PlainBackend):
    """A rollback does not bring back the timers that the failed epoch took."""

    caught_by = _LAWS + "every_history_of_a_timer_is_undone_by_a_rollback"

    def rollback(self) -> None:
        for queue in self._timers.values():
            queue.committed &= queue.held
        super().rollback()


class RolledBackTimersStayAdded(PlainBackend):
    """A rollback keeps the timers that the failed epoch added: the next attempt fires them twice."""

    caught_by = _LAWS + "every_history_of_a_timer_is_undone_by_a_rollback"

    def rollback(self) -> None:
        for queue in self._timers.values():
            queue.committed |= queue.held
        super().rollback()


class TimersLostOnRestore(DictBackend):
    """A restore keeps one timer of each key."""

    caught_by = _LAWS + "rescaling_keeps_every_timer_once"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        seen: dict[object, Change] = {}
        for change in changes:
            is_timer = change.state in self._timers
            seen[change[1:5] if is_timer else len(seen)] = change
        super().restore(epoch, seen.values())


class ForeignTimersKept(PlainBackend):
    """A restore keeps the timers of all key groups."""

    caught_by = _LAWS + "rescaling_keeps_every_timer_once"

    def restore(self, epoch: int, changes: Iterable[Change]) -> None:
        kept = list(changes)
        super().restore(epoch, kept)
        for change in kept:
            if change.state in self._timers:
                self._timers[change.state].load(change)
        for queue in self._timers.values():
            queue.committed = set(queue.held)


class TimerRemovalNotTold(Telling):
    """A commit has no change for a timer that was removed or taken."""

    caught_by = _LAWS + "every_history_of_a_timer_is_told_by_its_commit"

    def altered(self, changes: list[Change]) -> list[Change]:
        return [one for one in changes if one.op is not ChangeOp.MAP_REMOVE or one.state not in self._timers]


class TimerTwiceInACommit(Telling):
    """A commit repeats the change of an added timer."""

    caught_by = _LAWS + "a_timer_that_is_added_twice_is_one"

    def altered(self, changes: list[Change]) -> list[Change]:
        return [*changes, *(one for one in changes if one.state in self._timers)]


class TimerEntriesOfTheRunningEpoch(PlainBackend):
    """`entries` has the timers as of now."""

    caught_by = _LAWS + "entries_do_not_show_the_timers_of_the_running_epoch"

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        for queue in self._timers.values():
            queue.committed = set(queue.held)
        return super().entries(key_groups)


class TimerThatNeverWasTold(PlainBackend):
    """A timer that an epoch added and removed is a removal of its commit."""

    caught_by = _LAWS + "every_history_of_a_timer_is_told_by_its_commit"

    def commit(self, epoch: int) -> list[Change]:
        gone = [
            queue._told(ChangeOp.MAP_REMOVE, timer)
            for queue in self._timers.values()
            for timer in set(queue.__dict__.pop("added", ())) - queue.held
        ]
        told = super().commit(epoch)
        return [*told, *(change for change in gone if change not in told)]

    def timers(self, descriptor: object) -> PlainTimers:
        queue = super().timers(descriptor)  # type: ignore[arg-type]
        if type(queue) is PlainTimers:
            queue.__class__ = _Noting
        return queue


class _Noting(PlainTimers):
    def add(self, timer: Timer) -> None:
        self.__dict__.setdefault("added", []).append(timer)
        super().add(timer)


class WideTimesAccepted(PlainBackend):
    """A time may have more than 64 bits until the commit."""

    caught_by = _LAWS + "a_time_of_more_than_64_bits_is_refused"

    def timers(self, descriptor: object) -> PlainTimers:
        queue = super().timers(descriptor)  # type: ignore[arg-type]
        if type(queue) is PlainTimers:
            queue.__class__ = _Wide
        return queue


class _Wide(PlainTimers):
    def remove(self, timer: Timer) -> None:
        self.held.discard(timer)
