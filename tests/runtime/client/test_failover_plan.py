"""The laws of failover, by plain calls: no socket, no clock, no sleep."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import FailureCode, Retry
from qstate.runtime.client.failover_plan import (
    ATTEMPT_TIMEOUT_S,
    DOWN_S,
    JOB,
    SHORT_ATTEMPT_TIMEOUT_S,
    STARTING,
    Attempt,
    CircuitBreaker,
    FailoverPlan,
)
from qstate.runtime.routing.routed_get import LAST_TRY_S

DEADLINE = 10.0
FALLBACK = 1
ABOUT_THE_REQUEST = [FailureCode.WRONG_KEY_TYPE, FailureCode.MALFORMED, FailureCode.TOO_LARGE]
MAY_PASS = [code for code in FailureCode if code.retry is not Retry.FATAL]
FATAL = [code for code in FailureCode if code.retry is Retry.FATAL and code is not FailureCode.DEADLINE_EXCEEDED]
SETTLED_AT_THE_JOB = [code for code in FATAL if code not in STARTING]


def new_plan(
    keys: int = 1, endpoints: int = 2, deadline: float = DEADLINE, breaker: CircuitBreaker | None = None
) -> FailoverPlan:
    return FailoverPlan(keys, endpoints, deadline=deadline, breaker=breaker or CircuitBreaker(), random=Random(7))


def after(
    plan: FailoverPlan, *codes: int, now: float = 0.0, unresponsive: bool = False, hopeless: bool = False
) -> Attempt:
    """The attempt after one that ended so; UNAVAILABLE means that the address was not reached."""
    unreached = [index for index, code in enumerate(codes) if code == FailureCode.UNAVAILABLE]
    attempt = plan.ended(codes, now, unresponsive=unresponsive, unreached=unreached, hopeless=hopeless)
    assert attempt is not None
    return attempt


def test_the_job_is_asked_first_for_every_key() -> None:
    attempt = new_plan(keys=3).start(1.0)
    assert (attempt.endpoint, list(attempt.positions), attempt.start) == (JOB, [0, 1, 2], 1.0)
    assert attempt.until == 1.0 + ATTEMPT_TIMEOUT_S


def test_an_answer_of_the_job_is_the_end() -> None:
    plan = new_plan(keys=2)
    plan.start(0.0)
    assert plan.ended([0, 0], 0.1, unresponsive=False) is None
    assert plan.verdicts == [0, 0]


@pytest.mark.parametrize("code", [*MAY_PASS, *STARTING, FailureCode.DEADLINE_EXCEEDED, FailureCode.UNAVAILABLE])
def test_a_failure_of_the_job_that_may_pass_goes_to_the_fallback_at_once(code: FailureCode) -> None:
    plan = new_plan()
    plan.start(0.0)
    attempt = after(plan, code, now=0.2)
    assert (attempt.endpoint, attempt.start) == (FALLBACK, 0.2)
    assert plan.ended([0], 0.3, unresponsive=False) is None
    assert plan.verdicts == [1]


@pytest.mark.parametrize("code", [*SETTLED_AT_THE_JOB, 4711])
def test_another_fatal_failure_of_the_job_is_the_outcome(code: int) -> None:
    plan = new_plan()
    plan.start(0.0)
    assert plan.ended([code], 0.2, unresponsive=False) is None
    assert plan.verdicts == [0]


@pytest.mark.parametrize("endpoint", [JOB, FALLBACK])
def test_a_key_that_was_sent_when_the_connection_broke_is_asked_for_nowhere_else(endpoint: int) -> None:
    plan = new_plan(endpoints=3)
    plan.start(0.0)
    if endpoint == FALLBACK:
        after(plan, FailureCode.RESTORING, now=0.1)
    assert plan.ended([FailureCode.UNAVAILABLE], 0.2, unresponsive=True) is None
    assert plan.verdicts == [endpoint]


def test_when_no_endpoint_was_ever_reached_there_is_one_more_round() -> None:
    plan = new_plan()
    plan.start(0.0)
    assert after(plan, FailureCode.UNAVAILABLE, hopeless=True).endpoint == FALLBACK
    again = after(plan, FailureCode.UNAVAILABLE, hopeless=True)
    assert (again.endpoint, again.start) == (JOB, LAST_TRY_S)
    assert after(plan, FailureCode.UNAVAILABLE, now=LAST_TRY_S, hopeless=True).endpoint == FALLBACK
    assert plan.ended([FailureCode.UNAVAILABLE], LAST_TRY_S, unresponsive=True, unreached=[0], hopeless=True) is None
    assert plan.verdicts == [2]


def test_an_endpoint_that_was_reached_before_is_waited_for() -> None:
    plan = new_plan()
    plan.start(0.0)
    for number in range(12):
        after(plan, FailureCode.UNAVAILABLE, hopeless=number % 2 == 0)


def test_only_the_keys_without_an_answer_are_asked_for_again() -> None:
    plan = new_plan(keys=4)
    plan.start(0.0)
    attempt = after(plan, 0, FailureCode.UNAVAILABLE, FailureCode.FORBIDDEN, FailureCode.RESTORING, now=0.1)
    assert attempt.positions == [1, 3]
    assert plan.ended([0, 0], 0.2, unresponsive=False) is None
    assert plan.verdicts == [0, 1, 0, 1]


@pytest.mark.parametrize("code", ABOUT_THE_REQUEST)
def test_a_failure_about_the_request_is_the_outcome_from_any_endpoint(code: FailureCode) -> None:
    plan = new_plan()
    plan.start(0.0)
    after(plan, FailureCode.UNAVAILABLE)
    assert plan.ended([code], 0.1, unresponsive=False) is None
    assert plan.verdicts == [1]


@pytest.mark.parametrize("code", [code for code in FATAL if code not in (*ABOUT_THE_REQUEST, FailureCode.UNAVAILABLE)])
def test_a_fallback_that_cannot_help_does_not_end_the_wait_for_the_job(code: FailureCode) -> None:
    plan = new_plan(endpoints=3)
    plan.start(0.0)
    assert after(plan, FailureCode.UNAVAILABLE, now=0.1).endpoint == 1
    assert after(plan, code, now=0.2).endpoint == 2
    again = after(plan, code, now=0.3)
    assert again.endpoint == JOB
    assert again.start > 0.3
    assert plan.ended([0], 0.4, unresponsive=False) is None
    assert plan.verdicts == [3]


def test_when_every_endpoint_fails_for_good_the_jobs_failure_is_the_outcome() -> None:
    plan = new_plan(keys=2)
    plan.start(0.0)
    after(plan, FailureCode.UNKNOWN_JOB, FailureCode.UNAVAILABLE, now=0.1)
    again = after(plan, FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_JOB, now=0.2)
    assert (again.endpoint, again.positions) == (JOB, [1])
    assert plan.verdicts == [0, 0]


def test_a_demand_that_the_fallback_cannot_meet_goes_back_to_the_job() -> None:
    plan = new_plan()
    plan.start(0.0)
    after(plan, FailureCode.UNAVAILABLE)
    assert after(plan, FailureCode.EPOCH_NOT_REACHED, now=0.1).endpoint == JOB


def test_failures_that_may_end_an_attempt_early_are_tried_once_more_at_the_job() -> None:
    plan = new_plan()
    tries = plan.start(0.0).tries
    assert {code for code, number in tries.items() if number == 1} == {
        FailureCode.UNAVAILABLE,
        FailureCode.SHUTTING_DOWN,
    }
    assert {code for code, number in tries.items() if number == 2} == {
        *STARTING,
        FailureCode.UNKNOWN_KEY_GROUP_LOCATION,
        FailureCode.RESTORING,
    }
    assert set(after(plan, FailureCode.UNAVAILABLE).tries.values()) == {1}


def test_there_is_time_for_the_fallback_however_short_the_deadline() -> None:
    plan = new_plan(deadline=0.2)
    first = plan.start(0.0)
    assert first.until == 0.1
    second = after(plan, FailureCode.DEADLINE_EXCEEDED, now=first.until)
    assert second.until > 0.14
    assert new_plan(deadline=0.03).start(0.0).until == 0.03


def test_attempts_grow_with_every_round_and_pauses_lie_between() -> None:
    plan = new_plan(deadline=1000.0)
    attempt: Attempt | None = plan.start(0.0)
    found: list[Attempt] = []
    while attempt is not None and len(found) < 8:
        found.append(attempt)
        attempt = plan.ended([FailureCode.DEADLINE_EXCEEDED], attempt.until, unresponsive=False)
    assert [attempt.endpoint for attempt in found] == [JOB, FALLBACK] * 4
    times = [attempt.until - attempt.start for attempt in found]
    assert times == pytest.approx([ATTEMPT_TIMEOUT_S * factor for factor in (1, 1, 2, 2, 4, 4, 8, 8)])
    pauses = [later.start - earlier.until for earlier, later in pairwise(found)]
    assert [pause > 0 for pause in pauses] == [False, True] * 3 + [False]


@given(
    st.lists(st.sampled_from([*FailureCode, 0, 4711]), max_size=60),
    st.floats(0.001, 20.0),
    st.integers(1, 4),
    st.floats(0.0, 3.0),
)
def test_a_plan_ends_by_its_deadline_and_every_attempt_lies_within(
    codes: list[int], deadline: float, endpoints: int, delay: float
) -> None:
    plan = new_plan(endpoints=endpoints, deadline=deadline)
    attempt: Attempt | None = plan.start(0.0)
    attempts = 0
    while attempt is not None:
        assert attempt.start < deadline
        assert attempt.start < attempt.until <= deadline
        attempts += 1
        code = codes.pop() if codes else FailureCode.UNAVAILABLE
        attempt = plan.ended([code], min(attempt.until, attempt.start + delay), unresponsive=False, unreached=[0])
        assert attempts < 100_000
    assert plan.verdicts[0] < attempts


def test_an_overloaded_endpoint_is_not_asked_before_its_pause_ends() -> None:
    plan = new_plan()
    plan.start(0.0)
    attempt = plan.ended([FailureCode.OVERLOADED], 0.1, unresponsive=False, wait_s=2.0)
    assert attempt is not None and (attempt.endpoint, attempt.start) == (FALLBACK, 0.1)
    back = after(plan, FailureCode.UNAVAILABLE, now=0.2)
    assert (back.endpoint, back.start) == (JOB, 2.1)


def test_an_endpoint_whose_pause_outlasts_the_deadline_is_skipped() -> None:
    plan = new_plan()
    plan.start(0.0)
    assert plan.ended([FailureCode.OVERLOADED], 0.1, unresponsive=False, wait_s=60.0) is not None
    again = after(plan, FailureCode.UNAVAILABLE, now=0.2)
    assert (again.endpoint, len(plan.attempts)) == (FALLBACK, 3)
    assert again.start > 0.2
    assert plan.ended([FailureCode.OVERLOADED], 0.3, unresponsive=False, wait_s=60.0) is None
    assert plan.verdicts == [0]


# --- the circuit breaker ---------------------------------------------------------------------------------------


def lose(breaker: CircuitBreaker, now: float) -> None:
    plan = new_plan(breaker=breaker)
    plan.start(now)
    after(plan, FailureCode.UNAVAILABLE, now=now, unresponsive=True)


def test_after_a_failure_the_job_is_asked_last_for_a_while() -> None:
    breaker = CircuitBreaker()
    lose(breaker, 0.0)
    plan = new_plan(breaker=breaker)
    assert plan.start(DOWN_S / 2).endpoint == FALLBACK
    assert after(plan, FailureCode.UNAVAILABLE, now=DOWN_S / 2).endpoint == JOB


def test_one_query_tries_a_job_that_was_down_and_the_others_ask_it_last() -> None:
    breaker = CircuitBreaker()
    lose(breaker, 0.0)
    probe, other = new_plan(breaker=breaker), new_plan(breaker=breaker)
    assert probe.start(DOWN_S).endpoint == JOB
    assert other.start(DOWN_S).endpoint == FALLBACK
    probe.ended([0], DOWN_S + 0.1, unresponsive=False)
    assert new_plan(breaker=breaker).start(DOWN_S + 0.1).endpoint == JOB


@pytest.mark.parametrize("code", [*MAY_PASS, *STARTING])
def test_a_job_that_answers_anything_is_not_down(code: FailureCode) -> None:
    breaker = CircuitBreaker()
    plan = new_plan(breaker=breaker)
    plan.start(0.0)
    after(plan, code)
    assert new_plan(breaker=breaker).start(0.0).endpoint == JOB


def test_a_failure_that_is_noticed_late_does_not_override_a_later_answer() -> None:
    breaker = CircuitBreaker()
    slow, quick = new_plan(breaker=breaker), new_plan(breaker=breaker)
    slow.start(0.0)
    quick.start(0.1)
    quick.ended([0], 0.2, unresponsive=False)
    after(slow, FailureCode.DEADLINE_EXCEEDED, now=0.5, unresponsive=True)
    assert new_plan(breaker=breaker).start(0.6).endpoint == JOB


def test_a_job_without_an_owner_for_some_keys_gets_little_time_for_a_while() -> None:
    breaker = CircuitBreaker()
    plan = new_plan(keys=2, breaker=breaker)
    plan.start(0.0)
    after(plan, 0, FailureCode.UNKNOWN_KEY_GROUP_LOCATION, now=0.5)
    assert new_plan(breaker=breaker).start(0.5).until == 0.5 + SHORT_ATTEMPT_TIMEOUT_S
    later = 0.5 + DOWN_S
    assert new_plan(breaker=breaker).start(later).until == later + ATTEMPT_TIMEOUT_S


def test_a_demand_that_is_not_met_yet_does_not_shorten_the_time_of_others() -> None:
    breaker = CircuitBreaker()
    plan = new_plan(breaker=breaker)
    plan.start(0.0)
    after(plan, FailureCode.EPOCH_NOT_REACHED, now=0.4)
    assert new_plan(breaker=breaker).start(0.5).until == 0.5 + ATTEMPT_TIMEOUT_S
