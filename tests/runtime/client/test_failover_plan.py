"""The laws of going elsewhere, by plain calls: no socket, no clock, no sleep."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import FailureCode, Retry
from qstate.runtime.client.failover_plan import DOWN_S, HASTE_S, JOB, PATIENCE_S, STARTING, JobHealth, Journey, Leg
from qstate.runtime.routing.routed_get import LAST_TRY_S

DEADLINE = 10.0
FALLBACK = 1
ABOUT_THE_REQUEST = [FailureCode.WRONG_KEY_TYPE, FailureCode.MALFORMED, FailureCode.TOO_LARGE]
MAY_PASS = [code for code in FailureCode if code.retry is not Retry.FATAL]
FATAL = [code for code in FailureCode if code.retry is Retry.FATAL and code is not FailureCode.DEADLINE_EXCEEDED]
SETTLED_AT_THE_JOB = [code for code in FATAL if code not in STARTING]


def journey(keys: int = 1, ways: int = 2, deadline: float = DEADLINE, job: JobHealth | None = None) -> Journey:
    return Journey(keys, ways, deadline=deadline, job=job or JobHealth(), random=Random(7))


def after(get: Journey, *codes: int, now: float = 0.0, unheard: bool = False, hopeless: bool = False) -> Leg:
    """The leg after one that ended so; UNAVAILABLE means that the address was not reached."""
    unreached = [index for index, code in enumerate(codes) if code == FailureCode.UNAVAILABLE]
    leg = get.ended(codes, now, unheard=unheard, unreached=unreached, hopeless=hopeless)
    assert leg is not None
    return leg


def test_the_job_is_asked_first_for_every_key() -> None:
    leg = journey(keys=3).start(1.0)
    assert (leg.way, list(leg.positions), leg.start) == (JOB, [0, 1, 2], 1.0)
    assert leg.until == 1.0 + PATIENCE_S


def test_an_answer_of_the_job_is_the_end() -> None:
    get = journey(keys=2)
    get.start(0.0)
    assert get.ended([0, 0], 0.1, unheard=False) is None
    assert get.verdicts == [0, 0]


@pytest.mark.parametrize("code", [*MAY_PASS, *STARTING, FailureCode.DEADLINE_EXCEEDED, FailureCode.UNAVAILABLE])
def test_a_failure_of_the_job_that_may_pass_goes_to_the_fallback_at_once(code: FailureCode) -> None:
    get = journey()
    get.start(0.0)
    leg = after(get, code, now=0.2)
    assert (leg.way, leg.start) == (FALLBACK, 0.2)
    assert get.ended([0], 0.3, unheard=False) is None
    assert get.verdicts == [1]


@pytest.mark.parametrize("code", [*SETTLED_AT_THE_JOB, 4711])
def test_another_fatal_failure_of_the_job_is_the_outcome(code: int) -> None:
    get = journey()
    get.start(0.0)
    assert get.ended([code], 0.2, unheard=False) is None
    assert get.verdicts == [0]


@pytest.mark.parametrize("way", [JOB, FALLBACK])
def test_a_key_that_was_sent_when_the_connection_broke_is_asked_for_nowhere_else(way: int) -> None:
    get = journey(ways=3)
    get.start(0.0)
    if way == FALLBACK:
        after(get, FailureCode.RESTORING, now=0.1)
    assert get.ended([FailureCode.UNAVAILABLE], 0.2, unheard=True) is None
    assert get.verdicts == [way]


def test_when_nobody_was_ever_reached_there_is_one_more_round() -> None:
    get = journey()
    get.start(0.0)
    assert after(get, FailureCode.UNAVAILABLE, hopeless=True).way == FALLBACK
    again = after(get, FailureCode.UNAVAILABLE, hopeless=True)
    assert (again.way, again.start) == (JOB, LAST_TRY_S)
    assert after(get, FailureCode.UNAVAILABLE, now=LAST_TRY_S, hopeless=True).way == FALLBACK
    assert get.ended([FailureCode.UNAVAILABLE], LAST_TRY_S, unheard=True, unreached=[0], hopeless=True) is None
    assert get.verdicts == [2]


def test_who_was_reached_before_is_waited_for() -> None:
    get = journey()
    get.start(0.0)
    for number in range(12):
        after(get, FailureCode.UNAVAILABLE, hopeless=number % 2 == 0)


def test_only_the_keys_without_an_answer_go_on() -> None:
    get = journey(keys=4)
    get.start(0.0)
    leg = after(get, 0, FailureCode.UNAVAILABLE, FailureCode.FORBIDDEN, FailureCode.RESTORING, now=0.1)
    assert leg.positions == [1, 3]
    assert get.ended([0, 0], 0.2, unheard=False) is None
    assert get.verdicts == [0, 1, 0, 1]


@pytest.mark.parametrize("code", ABOUT_THE_REQUEST)
def test_a_failure_about_the_request_is_the_outcome_whoever_says_it(code: FailureCode) -> None:
    get = journey()
    get.start(0.0)
    after(get, FailureCode.UNAVAILABLE)
    assert get.ended([code], 0.1, unheard=False) is None
    assert get.verdicts == [1]


@pytest.mark.parametrize("code", [code for code in FATAL if code not in (*ABOUT_THE_REQUEST, FailureCode.UNAVAILABLE)])
def test_a_fallback_that_cannot_help_does_not_end_the_wait_for_the_job(code: FailureCode) -> None:
    get = journey(ways=3)
    get.start(0.0)
    assert after(get, FailureCode.UNAVAILABLE, now=0.1).way == 1
    assert after(get, code, now=0.2).way == 2
    again = after(get, code, now=0.3)
    assert again.way == JOB
    assert again.start > 0.3
    assert get.ended([0], 0.4, unheard=False) is None
    assert get.verdicts == [3]


def test_when_everybody_refuses_for_good_the_jobs_failure_is_the_outcome() -> None:
    get = journey(keys=2)
    get.start(0.0)
    after(get, FailureCode.UNKNOWN_JOB, FailureCode.UNAVAILABLE, now=0.1)
    again = after(get, FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_JOB, now=0.2)
    assert (again.way, again.positions) == (JOB, [1])
    assert get.verdicts == [0, 0]


def test_a_demand_that_the_fallback_cannot_meet_goes_back_to_the_job() -> None:
    get = journey()
    get.start(0.0)
    after(get, FailureCode.UNAVAILABLE)
    assert after(get, FailureCode.EPOCH_NOT_REACHED, now=0.1).way == JOB


def test_failures_that_may_end_a_leg_early_are_asked_for_again_once_at_the_job() -> None:
    get = journey()
    tries = get.start(0.0).tries
    assert {code for code, number in tries.items() if number == 1} == {
        FailureCode.UNAVAILABLE,
        FailureCode.SHUTTING_DOWN,
    }
    assert {code for code, number in tries.items() if number == 2} == {
        *STARTING,
        FailureCode.UNKNOWN_KEY_GROUP_LOCATION,
        FailureCode.RESTORING,
    }
    assert set(after(get, FailureCode.UNAVAILABLE).tries.values()) == {1}


def test_there_is_time_for_the_fallback_however_short_the_deadline() -> None:
    get = journey(deadline=0.2)
    first = get.start(0.0)
    assert first.until == 0.1
    second = after(get, FailureCode.DEADLINE_EXCEEDED, now=first.until)
    assert second.until > 0.14
    assert journey(deadline=0.03).start(0.0).until == 0.03


def test_legs_grow_with_every_round_and_pauses_lie_between() -> None:
    get = journey(deadline=1000.0)
    leg: Leg | None = get.start(0.0)
    found: list[Leg] = []
    while leg is not None and len(found) < 8:
        found.append(leg)
        leg = get.ended([FailureCode.DEADLINE_EXCEEDED], leg.until, unheard=False)
    assert [leg.way for leg in found] == [JOB, FALLBACK] * 4
    times = [leg.until - leg.start for leg in found]
    assert times == pytest.approx([PATIENCE_S * factor for factor in (1, 1, 2, 2, 4, 4, 8, 8)])
    pauses = [later.start - earlier.until for earlier, later in pairwise(found)]
    assert [pause > 0 for pause in pauses] == [False, True] * 3 + [False]


@given(
    st.lists(st.sampled_from([*FailureCode, 0, 4711]), max_size=60),
    st.floats(0.001, 20.0),
    st.integers(1, 4),
    st.floats(0.0, 3.0),
)
def test_a_journey_ends_by_its_deadline_and_every_leg_lies_within(
    codes: list[int], deadline: float, ways: int, delay: float
) -> None:
    get = journey(ways=ways, deadline=deadline)
    leg: Leg | None = get.start(0.0)
    legs = 0
    while leg is not None:
        assert leg.start < deadline
        assert leg.start < leg.until <= deadline
        legs += 1
        code = codes.pop() if codes else FailureCode.UNAVAILABLE
        leg = get.ended([code], min(leg.until, leg.start + delay), unheard=False, unreached=[0])
        assert legs < 100_000
    assert get.verdicts[0] < legs


def test_who_wants_to_be_left_alone_is_not_asked_sooner() -> None:
    get = journey()
    get.start(0.0)
    leg = get.ended([FailureCode.OVERLOADED], 0.1, unheard=False, wait_s=2.0)
    assert leg is not None and (leg.way, leg.start) == (FALLBACK, 0.1)
    back = after(get, FailureCode.UNAVAILABLE, now=0.2)
    assert (back.way, back.start) == (JOB, 2.1)


def test_who_wants_to_be_left_alone_beyond_the_deadline_is_passed_over() -> None:
    get = journey()
    get.start(0.0)
    assert get.ended([FailureCode.OVERLOADED], 0.1, unheard=False, wait_s=60.0) is not None
    again = after(get, FailureCode.UNAVAILABLE, now=0.2)
    assert (again.way, len(get.legs)) == (FALLBACK, 3)
    assert again.start > 0.2
    assert get.ended([FailureCode.OVERLOADED], 0.3, unheard=False, wait_s=60.0) is None
    assert get.verdicts == [0]


# --- the health of the job ---------------------------------------------------------------------------------------


def lose(job: JobHealth, now: float) -> None:
    get = journey(job=job)
    get.start(now)
    after(get, FailureCode.UNAVAILABLE, now=now, unheard=True)


def test_a_job_that_was_found_down_is_asked_last_for_a_while() -> None:
    job = JobHealth()
    lose(job, 0.0)
    get = journey(job=job)
    assert get.start(DOWN_S / 2).way == FALLBACK
    assert after(get, FailureCode.UNAVAILABLE, now=DOWN_S / 2).way == JOB


def test_one_query_tries_a_job_that_was_down_the_others_wait_for_what_it_finds() -> None:
    job = JobHealth()
    lose(job, 0.0)
    probe, other = journey(job=job), journey(job=job)
    assert probe.start(DOWN_S).way == JOB
    assert other.start(DOWN_S).way == FALLBACK
    probe.ended([0], DOWN_S + 0.1, unheard=False)
    assert journey(job=job).start(DOWN_S + 0.1).way == JOB


@pytest.mark.parametrize("code", [*MAY_PASS, *STARTING])
def test_a_job_that_answers_anything_is_not_down(code: FailureCode) -> None:
    job = JobHealth()
    get = journey(job=job)
    get.start(0.0)
    after(get, code)
    assert journey(job=job).start(0.0).way == JOB


def test_a_loss_that_is_noticed_late_does_not_count_against_a_later_answer() -> None:
    job = JobHealth()
    slow, quick = journey(job=job), journey(job=job)
    slow.start(0.0)
    quick.start(0.1)
    quick.ended([0], 0.2, unheard=False)
    after(slow, FailureCode.DEADLINE_EXCEEDED, now=0.5, unheard=True)
    assert journey(job=job).start(0.6).way == JOB


def test_a_job_without_an_owner_for_some_keys_gets_little_time_for_a_while() -> None:
    job = JobHealth()
    get = journey(keys=2, job=job)
    get.start(0.0)
    after(get, 0, FailureCode.UNKNOWN_KEY_GROUP_LOCATION, now=0.5)
    assert journey(job=job).start(0.5).until == 0.5 + HASTE_S
    later = 0.5 + DOWN_S
    assert journey(job=job).start(later).until == later + PATIENCE_S


def test_a_demand_that_is_not_met_yet_does_not_shorten_the_time_of_others() -> None:
    job = JobHealth()
    get = journey(job=job)
    get.start(0.0)
    after(get, FailureCode.EPOCH_NOT_REACHED, now=0.4)
    assert journey(job=job).start(0.5).until == 0.5 + PATIENCE_S
