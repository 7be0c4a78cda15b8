"""Timers of keys: registered by a function, and fired when the time of an epoch has reached them.

Rules of this module: it knows the backend's queues, the current key and the time of the epoch. It does not know how a
queue stores timers, nor how the operator emits rows.

An epoch first fires the timers that its time makes due, then its rows are processed: the rows of an epoch come after
its watermark, as in Flink. Event-time timers come before processing-time timers, and in each domain the earliest first.
A timer that is registered while timers fire fires in the same epoch if it is due; one that a row registers fires in a
later epoch.

A function over whole batches gets several due timers at once. All of them have fired when it gets them. So to delete
one of them has no effect any more, and one that is registered again fires again. The queue has all other timers: one
that is deleted there does not fire, and one that is registered for a due time fires in a later batch of the epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from enum import Enum
from itertools import repeat
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa

from qstate.backends.contract import Timer, TimerQueue
from qstate.descriptors import TimerDescriptor
from qstate.errors import JobError
from qstate.keys import Key, Namespace, check_key, encode_key
from qstate.operators.columns.column_values import column_values, timestamp_milliseconds
from qstate.operators.many_keys import Namespaces, Values, check_many, listed
from qstate.operators.time.epoch_time import milliseconds_of

__all__ = [
    "EVENT_TIME_TIMERS",
    "NO_FIRST_TIMERS",
    "NO_TIMERS",
    "NO_TIMERS_WITHOUT_KEY",
    "PROCESSING_TIME_TIMERS",
    "FirstTimers",
    "NoEventTime",
    "TimeDomain",
    "TimerService",
    "Timers",
]

EVENT_TIME_TIMERS = TimerDescriptor("__qstate.event_time_timers")
PROCESSING_TIME_TIMERS = TimerDescriptor("__qstate.processing_time_timers")

#: Timers that are taken from the queue at once.
TAKEN_AT_ONCE = 10_000

#: The place of a timer in the order of a queue.
_Order = tuple[int, bytes, bytes]


class TimeDomain(Enum):
    """The time that a timer waits for."""

    EVENT_TIME = "event_time"
    PROCESSING_TIME = "processing_time"


class FirstTimers(NamedTuple):
    """The times of the earliest timers of a subtask, None where there is none."""

    event_time: int | None
    processing_time: int | None


#: No timers at all.
NO_FIRST_TIMERS = FirstTimers(None, None)


class Timers:
    """The timers of one time domain: those in the backend's queue, and those taken from it that have not fired yet."""

    def __init__(self, queue: TimerQueue) -> None:
        self._queue = queue
        #: Timers in their order; those from `_at` on have not fired yet. The queue has all timers after the last one.
        self._taken: list[Timer] = []
        self._at = 0

    def add(self, timer: Timer) -> None:
        """Register a timer."""
        place, is_taken = self._place(timer)
        if place is None:
            self._queue.add(timer)
        elif not is_taken:
            self._taken.insert(place, timer)

    def remove(self, timer: Timer) -> None:
        """Delete a timer, if it is registered."""
        place, is_taken = self._place(timer)
        if place is None:
            self._queue.remove(timer)
        elif is_taken:
            del self._taken[place]

    def _place(self, timer: Timer) -> tuple[int | None, bool]:
        """Where the timer is or belongs among those taken, and whether it is there. None: the queue has its place."""
        taken = self._taken
        if self._at == len(taken) or timer.time > taken[-1].time:
            return None, False
        order = _order(timer)
        if order > _order(taken[-1]):
            return None, False
        place = bisect_left(taken, order, self._at, key=_order)
        return place, _order(taken[place]) == order  # not the timers themselves: the namespaces 1 and True are equal

    def due(self, upto: int | None) -> Iterator[Timer]:
        """The timers up to and including a time, in their order; also those that are registered meanwhile."""
        for taken in self.batches(upto):
            self._taken, self._at = taken, 0
            while self._at < len(self._taken):
                self._at += 1
                yield self._taken[self._at - 1]
            self.discard()

    def batches(self, upto: int | None) -> Iterator[list[Timer]]:
        """The same in batches. All timers of a batch have fired when it is given; the queue has all others."""
        while upto is not None and (taken := self._queue.take(upto, TAKEN_AT_ONCE)):
            yield taken

    def first(self) -> int | None:
        """The time of the earliest timer."""
        return self._queue.first()

    def discard(self) -> None:
        """Forget the timers that were taken. After a failure, the rollback of the backend brings them back."""
        self._taken, self._at = [], 0


class NoEventTime(Timers):
    """The event-time timers of an operator whose rows have no event time."""

    def add(self, timer: Timer) -> None:
        raise JobError(
            "an event-time timer never fires here, because the stream has no event time: call withWatermark() on the "
            "stream before key_by, and keep one timestamp column with a watermark; of two streams, on both"
        )


class TimerService:
    """Registers and deletes timers of the current key: `context.timers`.

    A time is an integer, in milliseconds since 1970-01-01 UTC, or a datetime with a time zone. A key has one timer for
    each time, time domain and namespace: to register it twice is the same as once. Raises `JobError` for another time,
    or where there is no current key.

    The methods whose names end with `_many` take keys and a time for each, for functions over whole batches. The times
    are a sequence, an Arrow array (of integers, or of timestamps with a time zone) or a NumPy array of integers.
    `namespaces` has the namespace of each key; without it, all are in the namespace of this object. They raise
    `JobError` where there is a current key, for another time, and unless there is one time for each key; `WrongKeyType`
    for what cannot be a key of the stream or a namespace.
    """

    __slots__ = ("_cursor", "_event_time", "_namespace", "_processing_time")

    def __init__(self, cursor: Any, event_time: Timers, processing_time: Timers, namespace: Namespace = None) -> None:
        self._cursor = cursor
        self._event_time = event_time
        self._processing_time = processing_time
        self._namespace = namespace

    def in_namespace(self, namespace: Namespace) -> TimerService:
        """The timers of another namespace, such as a window. None is the namespace of `context.timers`."""
        if namespace is not None:
            check_key(namespace)
        return TimerService(self._cursor, self._event_time, self._processing_time, namespace)

    def register_event_time(self, time: int | datetime) -> None:
        """Have `on_timer` called for the current key once the watermark has reached this time."""
        timer = self._timer(time)
        self._event_time.add(timer)

    def register_processing_time(self, time: int | datetime) -> None:
        """Have `on_timer` called for the current key once the processing time has reached this time."""
        timer = self._timer(time)
        self._processing_time.add(timer)

    def delete_event_time(self, time: int | datetime) -> None:
        """Delete the current key's event-time timer of this time, if it is registered."""
        timer = self._timer(time)
        self._event_time.remove(timer)

    def delete_processing_time(self, time: int | datetime) -> None:
        """Delete the current key's processing-time timer of this time, if it is registered."""
        timer = self._timer(time)
        self._processing_time.remove(timer)

    def register_event_time_many(self, keys: Sequence[Key], times: Values, namespaces: Namespaces = None) -> None:
        """Register an event-time timer of each key. A key may come several times."""
        for timer in self._timers("register_event_time_many()", keys, times, namespaces):
            self._event_time.add(timer)

    def register_processing_time_many(self, keys: Sequence[Key], times: Values, namespaces: Namespaces = None) -> None:
        """Register a processing-time timer of each key. A key may come several times."""
        for timer in self._timers("register_processing_time_many()", keys, times, namespaces):
            self._processing_time.add(timer)

    def delete_event_time_many(self, keys: Sequence[Key], times: Values, namespaces: Namespaces = None) -> None:
        """Delete each key's event-time timer of the time given for it, if it is registered."""
        for timer in self._timers("delete_event_time_many()", keys, times, namespaces):
            self._event_time.remove(timer)

    def delete_processing_time_many(self, keys: Sequence[Key], times: Values, namespaces: Namespaces = None) -> None:
        """Delete each key's processing-time timer of the time given for it, if it is registered."""
        for timer in self._timers("delete_processing_time_many()", keys, times, namespaces):
            self._processing_time.remove(timer)

    def _timer(self, time: int | datetime) -> Timer:
        key: Key = self._cursor.current_key
        hash(key)  # raises `JobError` where there is no current key
        return Timer(time if type(time) is int else _milliseconds(time), self._namespace, key)

    def _timers(self, call: str, keys: Sequence[Key], times: Values, namespaces: Namespaces) -> Iterator[Timer]:
        """The timers of a call for many keys, all of them checked."""
        if isinstance(times, int | datetime):
            raise JobError(f"context.timers.{call} takes one time for each key, got {times!r}")
        found = _all_milliseconds(times)
        columns = [found] if namespaces is None else [found, namespaces]
        check_many(f"context.timers.{call}", self._cursor, keys, columns)
        for namespace in () if namespaces is None else namespaces:
            if namespace is not None:
                check_key(namespace)
        return map(Timer, found, repeat(self._namespace) if namespaces is None else namespaces, keys)


class _NoTimers(TimerService):
    """`context.timers` of a function that cannot have any; `why` says so."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        self._why = why

    def _timer(self, time: Any) -> NoReturn:
        raise JobError(self._why)

    def _timers(self, *arguments: Any) -> NoReturn:
        self._timer(arguments)

    def in_namespace(self, namespace: Namespace) -> TimerService:
        return self


NO_TIMERS: TimerService = _NoTimers(
    "a function that uses context.timers must define on_timer(self, timestamp, context), and a KeyedBatchFunction must "
    "define on_timers(self, timers, context)"
)
#: Those of a function over a stream without a key.
NO_TIMERS_WITHOUT_KEY: TimerService = _NoTimers("timers belong to keys, and the stream has none: use key_by()")


def _milliseconds(time: Any) -> int:
    if type(time) is bool or not isinstance(time, int | datetime):
        raise JobError(f"the time of a timer is milliseconds as an int, or a datetime with a time zone, got {time!r}")
    if isinstance(time, int):
        return int(time)
    if time.tzinfo is None:
        raise JobError(f"the time of a timer needs a time zone, as datetime.now(timezone.utc) has, got {time!r}")
    return milliseconds_of(time)


def _all_milliseconds(times: Values) -> Sequence[int]:
    """The times in milliseconds. Raises as `_milliseconds`."""
    read: Callable[[pa.Array], list[Any]] = column_values
    if isinstance(times, pa.Array | pa.ChunkedArray) and pa.types.is_timestamp(times.type) and times.type.tz:
        read = timestamp_milliseconds
    elif isinstance(times, np.ndarray) and times.dtype.kind in "mM":
        times = list(times)  # refused one by one: `tolist` would make integers of some units
    return [time if type(time) is int else _milliseconds(time) for time in listed(times, read)]


def _order(timer: Timer) -> _Order:
    return timer.time, encode_key(timer.namespace), encode_key(timer.key)
