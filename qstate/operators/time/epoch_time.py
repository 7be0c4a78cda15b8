"""The time of an epoch, and how it follows from the rows of earlier epochs.

Rules of this module: values and one rule without I/O. It knows no rows, no files and no clock.

All times are milliseconds since 1970-01-01 UTC, as in Flink and in Spark's watermarks.

    time of epoch n     decided once, before any subtask begins the epoch; stored with the epoch by each subtask;
                        the same when the epoch is processed again
    processing time     the clock of the driver when the first subtask begins the epoch
    watermark           the greatest event time of the rows before epoch n, over all subtasks, less the delay.
                        It never goes back. None until a row has had an event time.
                        Of several inputs, the one with the least counts, and it is None until each has had a row

**Operators in a row.** The rows that a later operator gets in epoch n come from the earlier operator's epoch n, and so
from timers up to its watermark of epoch n. So the later operator's watermark of epoch n is the earlier operator's
watermark of epoch n - 1: no timer fires before a row that the earlier operator may still send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import zip_longest
from typing import NamedTuple

__all__ = ["EpochTime", "EventTime", "Reached", "milliseconds_of", "next_watermark"]

_1970 = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


class EpochTime(NamedTuple):
    """The time of an epoch, for all subtasks of an operator. `watermark` is None while there is none."""

    watermark: int | None
    processing_time: int


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where the event time of the rows of one input of an operator comes from.

    `column` is the column with the event time, null in the rows of other inputs; `delay_ms` is the delay of its
    watermark. `follows` are the uids of the operators that the rows come from; `has_source` says whether rows also come
    from elsewhere.
    """

    column: str
    delay_ms: int
    follows: tuple[str, ...] = ()
    has_source: bool = True


class Reached(NamedTuple):
    """How far the time of an operator has come, as of an epoch: of one subtask, or of all together.

    `watermark` and `processing_time` are those of the epoch, `before` is the watermark of the epoch before it.
    `greatest` has the greatest event time of a row up to the epoch for each input, None for none.
    """

    epoch: int
    before: int | None
    watermark: int | None
    processing_time: int
    greatest: Sequence[int | None]

    @classmethod
    def of_all(cls, found: Iterable[Reached]) -> Reached | None:
        """What several subtasks have reached together; None when there is none."""
        reached = list(found)
        if not reached:
            return None
        return cls(
            max(one.epoch for one in reached),
            _latest(one.before for one in reached),
            _latest(one.watermark for one in reached),
            max(one.processing_time for one in reached),
            tuple(map(_latest, zip_longest(*(one.greatest for one in reached)))),
        )

    def greatest_of(self, number: int) -> int | None:
        """The greatest event time of an input; None also where a program before had fewer inputs."""
        return self.greatest[number] if number < len(self.greatest) else None


def milliseconds_of(moment: datetime) -> int:
    """A moment, which has a time zone, in milliseconds since 1970-01-01 UTC, rounded down."""
    return (moment - _1970) // _MILLISECOND


def next_watermark(
    event_times: Sequence[EventTime],
    reached: Reached | None,
    followed: Callable[[EventTime], Sequence[int | None]],
) -> int | None:
    """The watermark of the epoch after those that all subtasks together have reached.

    `event_times` are those of the operator's inputs, at least one. `followed` gives the watermarks, in the epoch
    before, of those operators with event time that the rows of an input come from.
    """
    bounds: list[int | None] = []
    for number, event_time in enumerate(event_times):
        earlier = followed(event_time)
        bounds += earlier
        if event_time.has_source or not earlier:
            greatest = None if reached is None else reached.greatest_of(number)
            bounds.append(None if greatest is None else greatest - event_time.delay_ms)
    least = None if None in bounds else min((bound for bound in bounds if bound is not None), default=None)
    return _latest((least, None if reached is None else reached.watermark))


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)
