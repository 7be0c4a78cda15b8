"""Who decides the time of an epoch, and from what: the job manager's clocks, without a job."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from qstate.operators.time.epoch_time import EpochTime, EventTime, Reached, next_watermark
from qstate.operators.time.timers import NO_FIRST_TIMERS, FirstTimers
from qstate.runtime.job.epoch_clocks import EpochClocks, StoredTime

BY_TIME = EventTime("at", delay_ms=10)
NOTHING = StoredTime()


def clocks(stored: StoredTime = NOTHING, now: Iterator[int] | None = None, **event_times: EventTime) -> EpochClocks:
    times = count(1000) if now is None else now
    made = EpochClocks(2, lambda uid, epoch: stored, lambda: next(times))
    for uid, event_time in (event_times or {"it": BY_TIME}).items():
        made.declare(uid, (event_time,), keeps_time=True)
    return made


def reached(epoch: int, greatest: int | None, watermark: int | None = None, before: int | None = None) -> Reached:
    return Reached(epoch, before, watermark, 7, (greatest,))


def test_all_subtasks_of_an_epoch_get_one_time() -> None:
    made = clocks()
    assert {made.begin("it", 0, None) for _ in range(3)} == {EpochTime(None, 1000)}
    assert made.begin("it", 1, None) == EpochTime(None, 1001)


def test_watermark_follows_the_greatest_time_of_all_subtasks_less_the_delay() -> None:
    made = clocks()
    made.begin("it", 0, None)
    made.sealed("it", 0, reached(0, 50), NO_FIRST_TIMERS)
    made.sealed("it", 0, reached(0, 70), NO_FIRST_TIMERS)
    made.sealed("it", 0, reached(0, None), NO_FIRST_TIMERS)
    assert made.begin("it", 1, None).watermark == 60


def test_reports_of_a_running_epoch_do_not_change_its_time() -> None:
    made = clocks()
    made.begin("it", 0, None)
    made.sealed("it", 0, reached(0, 50), NO_FIRST_TIMERS)
    first = made.begin("it", 1, None)
    made.sealed("it", 0, reached(1, 90, first.watermark), NO_FIRST_TIMERS)
    assert made.begin("it", 1, None) == first
    assert made.begin("it", 2, None).watermark == 80


def test_watermark_and_processing_time_never_go_back() -> None:
    made = clocks(now=iter([1000, 900, 1100]))
    made.begin("it", 0, None)
    made.sealed("it", 0, reached(0, 50, watermark=45), NO_FIRST_TIMERS)
    assert made.begin("it", 1, None) == EpochTime(45, 1000)
    assert made.begin("it", 2, None) == EpochTime(45, 1100)


def test_first_epoch_of_a_driver_continues_from_what_the_logs_have() -> None:
    made = clocks(StoredTime(before=reached(4, 70, watermark=30)))
    assert made.begin("it", 5, reached(4, 20, watermark=30)).watermark == 60


def test_epoch_that_a_subtask_has_sealed_keeps_its_time_in_another_driver() -> None:
    made = clocks(StoredTime(before=reached(4, 70, watermark=30), sealed=reached(5, 95, watermark=60)))
    assert made.begin("it", 5, None) == EpochTime(60, 7)
    made.sealed("it", 0, reached(5, 95, watermark=60), NO_FIRST_TIMERS)
    assert made.begin("it", 6, None).watermark == 85


def test_operator_without_event_time_has_no_watermark_and_reads_no_logs() -> None:
    def unread(uid: str, epoch: int) -> StoredTime:
        raise AssertionError("the logs were read")

    made = EpochClocks(2, unread, lambda: 5)
    made.declare("it", (), keeps_time=False)
    assert made.begin("it", 3, None) == EpochTime(None, 5)


def test_operator_whose_subtask_has_stored_its_time_continues_from_the_logs() -> None:
    made = EpochClocks(2, lambda uid, epoch: StoredTime(before=reached(4, None)), lambda: 5)
    made.declare("it", None, keeps_time=False)
    assert made.begin("it", 5, reached(4, None)) == EpochTime(None, 7), "the clock of this driver is behind"


def test_later_operator_has_the_watermark_that_the_earlier_one_had_an_epoch_before() -> None:
    made = clocks(first=BY_TIME, second=EventTime("at", 10, ("first",), has_source=False))
    expected = [None, None, 40, 60]
    for epoch, greatest in enumerate([50, 70, 90, 95]):
        watermark = made.begin("first", epoch, None).watermark
        before = expected[epoch]
        made.sealed("first", 0, reached(epoch, greatest, watermark, before), NO_FIRST_TIMERS)
        assert made.begin("second", epoch, None).watermark == before


def test_later_operator_follows_an_earlier_one_that_only_replays_after_a_restart() -> None:
    made = clocks(first=BY_TIME, second=EventTime("at", 10, ("first",), has_source=False))
    made.sealed("first", 0, reached(5, 95, watermark=60, before=40), NO_FIRST_TIMERS)
    assert made.begin("second", 5, None).watermark == 40


@pytest.mark.parametrize(
    ("first", "due"),
    [
        (FirstTimers(None, None), False),
        (FirstTimers(60, None), True),
        (FirstTimers(61, None), False),
        (FirstTimers(None, 1000), True),
        (FirstTimers(None, 5000), False),
    ],
)
def test_timers_are_due_by_the_next_watermark_and_by_the_clock(first: FirstTimers, due: bool) -> None:
    made = clocks()
    made.begin("it", 0, None)
    made.sealed("it", 0, reached(0, 70), FirstTimers(None, None))
    made.sealed("it", 1, reached(0, 50), first)
    assert made.timers_are_due("it") is due


def test_timers_may_be_due_until_every_subtask_has_reported() -> None:
    made = clocks()
    assert made.timers_are_due("it")
    made.begin("it", 0, None)
    made.sealed("it", 0, reached(0, 70), FirstTimers(None, None))
    assert made.timers_are_due("it")


def test_timers_of_a_later_operator_are_due_by_what_the_earlier_one_reaches() -> None:
    made = clocks(first=BY_TIME, second=EventTime("at", 10, ("first",), has_source=False))
    for uid in ("first", "second"):
        for subtask in (0, 1):
            made.begin(uid, 0, None)
            made.sealed(uid, subtask, reached(0, 70), FirstTimers(60, None) if uid == "second" else NO_FIRST_TIMERS)
    assert made.timers_are_due("second") and not made.timers_are_due("first")


@pytest.mark.parametrize(
    ("event_time", "followed", "expected"),
    [
        (EventTime("at", 10, (), True), [], 60),
        (EventTime("at", 10, ("a",), True), [50], 50),
        (EventTime("at", 10, ("a",), True), [None], None),
        (EventTime("at", 10, ("a", "b"), False), [80, 90], 80),
        (EventTime("at", 10, ("a",), False), [], 60),
    ],
)
def test_least_input_counts(event_time: EventTime, followed: list[int | None], expected: int | None) -> None:
    assert next_watermark([event_time], reached(0, 70), lambda _: followed) == expected
