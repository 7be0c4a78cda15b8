"""The laws of routing: who is asked for which keys, and how the answers become one."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import FailureCode
from qstate.keys import key_group
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.routing.routed_get import LOOK_UP, Answer, Ask, Command, LookUp, Refuse, RoutedGet
from tests.runtime.routing.gets import (
    FINGERPRINT,
    GAP,
    KEYS,
    MAX_PARALLELISM,
    ONE,
    TWO,
    answer,
    asked,
    described,
    one_ask,
    routed,
    the_answer,
    value,
)


def test_one_owner_is_asked_for_all_keys_without_splitting() -> None:
    get = routed(known=ONE)
    (ask,) = asked(get.start(0.0))
    assert ask.keys is KEYS
    found = the_answer(answer(get, ask))
    assert found == Answer((1,) * len(KEYS), tuple(map(value, KEYS)), FINGERPRINT, True)
    assert get.finished


def test_each_owner_is_asked_for_its_own_keys_in_order() -> None:
    asks = asked(routed().start(0.0))
    for ask in asks:
        mine = [key for key in KEYS if key_group(key, MAX_PARALLELISM) in ask.owner.key_groups]
        assert list(ask.keys) == mine
    assert sorted(key for ask in asks for key in ask.keys) == sorted(KEYS)  # type: ignore[type-var]
    assert {ask.owner.port for ask in asks} == {1, 2}


@pytest.mark.parametrize("reverse", [False, True])
def test_answers_in_any_order_are_merged_in_the_order_of_the_keys(reverse: bool) -> None:
    get = routed()
    first, second = sorted(asked(get.start(0.0)), key=lambda ask: ask.owner.port, reverse=reverse)
    assert answer(get, first) == []
    found = the_answer(answer(get, second))
    assert found.results == tuple(map(value, KEYS))
    assert found.epochs == tuple(1 if key_group(key, MAX_PARALLELISM) < 8 else 2 for key in KEYS)


def test_repeated_keys_each_get_their_result() -> None:
    get = routed(keys=("a", "b", "a", "a"))
    commands = [done for ask in get.start(0.0) for done in answer(get, ask)]
    assert the_answer(commands).results == (value("a"), value("b"), value("a"), value("a"))


def test_no_keys_is_answered_at_once() -> None:
    assert routed(keys=()).start(0.0) == [Answer((), (), FINGERPRINT, True)]


def test_not_found_is_a_result() -> None:
    get, ask = one_ask()
    assert get.on_values(ask.part, (4,), (None,), FINGERPRINT, 0.0) == [Answer((4,), (None,), FINGERPRINT, True)]


def test_an_unknown_location_is_looked_up_first() -> None:
    get = routed(known=None)
    assert get.start(0.0) == [LookUp(None)]
    assert {ask.owner.port for ask in asked(get.on_located(TWO, 0.1))} == {1, 2}


def test_a_retry_that_could_not_start_before_the_deadline_is_not_waited_for() -> None:
    get, ask = one_ask(deadline=1.5)
    details = {"retry_after_ms": 60_000}
    assert get.on_failure(ask.part, FailureCode.OVERLOADED, details, 1.0) == [Refuse(FailureCode.OVERLOADED, details)]


def test_an_answer_that_is_still_out_at_the_deadline_is_deadline_exceeded() -> None:
    get = routed(deadline=2.0)
    first, second = asked(get.start(0.0))
    answer(get, first)
    assert get.wake_at == 2.0
    found = the_answer(get.on_time(2.0))
    by_key = dict(zip(KEYS, found.results, strict=True))
    assert all(by_key[key] == value(key) for key in first.keys)
    assert all(by_key[key] == FailureCode.DEADLINE_EXCEEDED for key in second.keys)


def test_a_look_up_that_is_still_out_at_the_deadline_is_deadline_exceeded() -> None:
    get = routed(known=None, deadline=2.0)
    get.start(0.0)
    assert get.on_time(2.0) == [Refuse(FailureCode.DEADLINE_EXCEEDED, {})]


def test_a_key_that_waits_for_another_try_at_the_deadline_keeps_its_failure() -> None:
    get, ask = one_ask(deadline=2.0)
    get.on_failure(ask.part, FailureCode.RESTORING, {}, 1.9)
    assert get.on_time(2.5) == [Refuse(FailureCode.RESTORING, {})]


def test_a_key_that_is_being_tried_again_at_the_deadline_keeps_its_failure() -> None:
    get, ask = one_ask(("a", "b"), deadline=2.0)
    get.on_values(ask.part, (-1, 1), (int(FailureCode.RESTORING), b"b"), FINGERPRINT, 1.0)
    asked(get.on_time(get.wake_at))
    assert the_answer(get.on_time(2.0)).results == (FailureCode.RESTORING, b"b")


def test_a_key_whose_owner_says_that_the_time_is_over_keeps_its_failure() -> None:
    get = routed(KEYS[:1], ONE, deadline=10.0)
    (first,) = asked(get.start(0.0))
    assert get.on_failure(first.part, FailureCode.EPOCH_NOT_REACHED, {"epoch": 3}, 0.0) == []
    (second,) = asked(get.on_time(get.wake_at))
    found = get.on_failure(second.part, FailureCode.DEADLINE_EXCEEDED, {}, 5.0)
    assert found == [Refuse(FailureCode.EPOCH_NOT_REACHED, {"epoch": 3})]


def test_a_lookup_that_is_tried_again_at_the_deadline_keeps_its_failure() -> None:
    get = routed(known=None, deadline=2.0)
    get.start(0.0)
    get.on_unreached(LOOK_UP, {"host": "h"}, 1.0)
    assert get.on_time(get.wake_at) == [LookUp(None)]
    assert get.on_time(2.0) == [Refuse(FailureCode.UNAVAILABLE, {"host": "h"})]
    assert get.unreached == set(range(len(KEYS)))


def test_a_deadline_in_the_past_sends_nothing() -> None:
    assert routed(deadline=1.0).start(1.0) == [Refuse(FailureCode.DEADLINE_EXCEEDED, {})]


def test_several_keys_that_fit_no_message_are_halved_until_the_bad_key_is_alone() -> None:
    get, ask = one_ask(("a", "b"))
    left, right = asked(get.on_unsendable(ask.part, FailureCode.MALFORMED, {}, 0.0))
    assert get.on_unsendable(left.part, FailureCode.MALFORMED, {}, 0.0) == []
    assert the_answer(answer(get, right)).results == (FailureCode.MALFORMED, value("b"))


def test_several_keys_that_are_too_large_together_are_asked_in_halves() -> None:
    get, ask = one_ask(("a", "b", "c"))
    left, right = asked(get.on_failure(ask.part, FailureCode.TOO_LARGE, {}, 0.0))
    assert (left.keys, right.keys) == (("a",), ("b", "c"))
    assert answer(get, right) == []
    found = the_answer(get.on_failure(left.part, FailureCode.TOO_LARGE, {}, 0.0))
    assert found.results == (FailureCode.TOO_LARGE, value("b"), value("c"))


def bounded(most_bytes: int, known: LocationTable) -> RoutedGet:
    return RoutedGet(KEYS, deadline=10.0, random=Random(7), table=known, most_bytes=most_bytes)


def test_with_a_bound_keys_that_are_too_large_together_end_the_get() -> None:
    get = bounded(1000, TWO)
    first, second = asked(get.start(0.0))
    details = {"field": "answer"}
    assert get.on_failure(first.part, FailureCode.TOO_LARGE, details, 0.0) == [Refuse(FailureCode.TOO_LARGE, details)]
    assert get.finished and answer(get, second) == []


@pytest.mark.parametrize("spare", [0, -1])
def test_answers_of_several_owners_are_added_up_to_the_bound(spare: int) -> None:
    size = sum(len(value(key)) for key in KEYS)
    get = bounded(size + spare, TWO)
    first, second = asked(get.start(0.0))
    assert answer(get, first) == []
    (last,) = answer(get, second)
    if spare:
        assert isinstance(last, Refuse) and last.code == FailureCode.TOO_LARGE
    else:
        assert isinstance(last, Answer) and last.results == tuple(map(value, KEYS))


@pytest.mark.parametrize("late", ["values", "failure", "unreached", "located", "lookup failed", "time"])
def test_events_after_the_end_are_ignored(late: str) -> None:
    get, ask = one_ask()
    the_answer(answer(get, ask))
    events = {
        "values": lambda: answer(get, ask),
        "failure": lambda: get.on_failure(ask.part, FailureCode.INTERNAL, {}, 0.0),
        "unreached": lambda: get.on_unreached(ask.part, {}, 0.0),
        "located": lambda: get.on_located(TWO, 0.0),
        "lookup failed": lambda: get.on_failure(LOOK_UP, FailureCode.UNKNOWN_JOB, {}, 0.0),
        "time": lambda: get.on_time(100.0),
    }
    assert events[late]() == []


def test_a_second_answer_to_one_part_is_ignored() -> None:
    get = routed()
    first, second = asked(get.start(0.0))
    assert answer(get, first) == []
    assert get.on_failure(first.part, FailureCode.INTERNAL, {}, 0.0) == []
    assert the_answer(answer(get, second)).results == tuple(map(value, KEYS))


def test_an_answer_with_another_number_of_keys_fails_the_part() -> None:
    get, ask = one_ask(("a", "b"))
    (refusal,) = get.on_values(ask.part, (1,), (b"x",), FINGERPRINT, 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.code == FailureCode.INTERNAL


@pytest.mark.parametrize("unsound", [1.5, None, 2**63, "\ud800", ("a", None), [1]])
def test_a_key_that_cannot_be_hashed_fails_alone(unsound: Any) -> None:
    get = routed(keys=("a", unsound, "b"))
    commands = [done for ask in get.start(0.0) for done in answer(get, ask)]
    assert the_answer(commands).results == (value("a"), FailureCode.WRONG_KEY_TYPE, value("b"))


ANSWERS = ["values", "mixed", "retry", "moved", "fatal", "unreached"]
EVENTS = st.sampled_from([*ANSWERS, "located", "gap", "another", "lookup", "no proxy", "time"])


@given(st.lists(EVENTS, max_size=40), st.randoms(use_true_random=False), st.sampled_from([None, ONE, TWO, GAP]))
def test_whatever_happens_each_get_ends_once_by_its_deadline_with_one_result_per_key(
    events: list[str], random: Any, known: LocationTable | None
) -> None:
    get = routed(known=known)
    keys_of: dict[int, Ask] = {}
    ends: list[Command] = []
    now = 0.0

    def note(commands: list[Command]) -> None:
        keys_of.update({command.part: command for command in commands if isinstance(command, Ask)})
        ends.extend(command for command in commands if isinstance(command, Answer | Refuse))

    note(get.start(now))
    for event in events:
        now += 0.02
        ask = random.choice(list(keys_of.values())) if keys_of else None
        if event == "located":
            note(get.on_located(random.choice([ONE, TWO]), now))
        elif event == "gap":
            note(get.on_located(GAP, now))
        elif event == "another":
            note(get.on_located(described(random.choice("abc"), *TWO.owners), now))
        elif event == "no proxy":
            note(get.on_unreached(LOOK_UP, {}, now, hopeless=random.choice([True, False])))
        elif event == "lookup":
            note(get.on_failure(LOOK_UP, random.choice([FailureCode.UNAVAILABLE, FailureCode.UNKNOWN_JOB]), {}, now))
        elif event == "time" or ask is None:
            note(get.on_time(now))
        elif event == "values":
            note(answer(get, ask, now, random.choice([FINGERPRINT, *"abc"])))
        elif event == "mixed":
            results = [random.choice([b"v", None, 8, 5, 19]) for _ in ask.keys]
            epochs = [-1 if isinstance(result, int) else 3 for result in results]
            note(get.on_values(ask.part, tuple(epochs), tuple(results), random.choice([FINGERPRINT, *"abc"]), now))
        elif event == "unreached":
            note(get.on_unreached(ask.part, {}, now))
        else:
            code = {
                "retry": FailureCode.RESTORING,
                "moved": FailureCode.UNKNOWN_STATE_ID,
                "fatal": FailureCode.INTERNAL,
            }
            note(get.on_failure(ask.part, code[event], {}, now))
    note(get.on_time(10.0))
    assert get.finished
    assert len(ends) == 1
    if isinstance(ends[0], Answer):
        assert len(ends[0].results) == len(ends[0].epochs) == len(KEYS)
        for key, result in zip(KEYS, ends[0].results, strict=True):
            assert result in (value(key), b"v", None) or isinstance(result, int)
