"""The laws of retries and look-ups: which failure is final, what is asked again, when, and of whom."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from qstate.errors import FailureCode, Retry
from qstate.keys import KeyGroupRange
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.routing.routed_get import LAST_TRY_S, LOOK_UP, Answer, Ask, LookUp, Refuse, RoutedGet, backoff_s
from tests.runtime.routing.gets import (
    FINGERPRINT,
    GAP,
    KEYS,
    ONE,
    OTHER,
    TWO,
    answer,
    asked,
    described,
    one_ask,
    owner,
    routed,
    table,
    the_answer,
    value,
)

RETRY_HERE = [code for code in FailureCode if code.retry is Retry.RETRY_HERE]
LOOK_UP_AGAIN = [code for code in FailureCode if code.retry is Retry.LOOK_UP_AGAIN]
FATAL = [code for code in FailureCode if code.retry is Retry.FATAL]


@pytest.mark.parametrize("code", FATAL)
def test_a_fatal_refusal_is_final_and_keeps_its_details(code: FailureCode) -> None:
    get, ask = one_ask()
    assert get.on_failure(ask.part, code, {"fact": 1}, 0.0) == [Refuse(code, {"fact": 1})]
    assert get.finished


@pytest.mark.parametrize("code", FATAL)
def test_a_fatal_key_does_not_spoil_the_others(code: FailureCode) -> None:
    get, ask = one_ask(("a", "b"))
    found = the_answer(get.on_values(ask.part, (-1, 5), (int(code), b"v"), FINGERPRINT, 0.0))
    assert found == Answer((-1, 5), (code, b"v"), FINGERPRINT, False)


@pytest.mark.parametrize("code", [code for code in FATAL if code is not FailureCode.TOO_LARGE])
def test_a_fatal_part_does_not_spoil_the_others(code: FailureCode) -> None:
    get = routed()
    refused, answered = asked(get.start(0.0))
    assert get.on_failure(refused.part, code, {}, 0.0) == []
    found = the_answer(answer(get, answered))
    by_key = dict(zip(KEYS, found.results, strict=True))
    assert all(by_key[key] == code for key in refused.keys)
    assert all(by_key[key] == value(key) for key in answered.keys)
    pairs = zip(found.epochs, found.results, strict=True)
    assert all((epoch == -1) == isinstance(result, int) for epoch, result in pairs)


@pytest.mark.parametrize("code", [FailureCode.UNAVAILABLE, FailureCode.RESTORING, FailureCode.UNKNOWN_JOB])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_failure_with_a_number_of_tries_is_final_after_that_many(code: FailureCode, number: int) -> None:
    get = RoutedGet(("a",), deadline=10.0, random=Random(7), table=ONE, tries={code: number})
    commands = get.start(0.0)
    for _ in range(number - 1):
        (ask,) = asked(commands)
        assert get.on_failure(ask.part, code, {}, 0.0) == []
        commands = get.on_time(get.wake_at)
        if isinstance(commands[0], LookUp):
            commands = get.on_located(ONE, 0.0)
    (ask,) = asked(commands)
    assert get.on_failure(ask.part, code, {"fact": 1}, 0.0) == [Refuse(code, {"fact": 1})]


def test_failures_without_a_number_of_tries_are_retried_until_the_deadline() -> None:
    get = RoutedGet(("a",), deadline=10.0, random=Random(7), table=ONE, tries={FailureCode.UNAVAILABLE: 1})
    (ask,) = asked(get.start(0.0))
    assert get.on_failure(ask.part, FailureCode.OVERLOADED, {}, 0.0) == []
    assert not get.finished


@pytest.mark.parametrize("code", [100, 65_535])
def test_a_code_of_a_newer_peer_is_final(code: int) -> None:
    get, ask = one_ask()
    assert get.on_values(ask.part, (-1,), (code,), FINGERPRINT, 0.0) == [Refuse(code, {})]


@pytest.mark.parametrize("code", RETRY_HERE)
@pytest.mark.parametrize("whole", [True, False], ids=["refusal", "key"])
def test_retry_here_asks_the_same_owner_after_the_back_off(code: FailureCode, whole: bool) -> None:
    get, ask = one_ask()
    if whole:
        assert get.on_failure(ask.part, code, {}, 1.0) == []
    else:
        assert get.on_values(ask.part, (-1,), (int(code),), FINGERPRINT, 1.0) == []
    due = get.wake_at
    assert 1.0025 <= due <= 1.005
    assert get.on_time(due - 0.001) == []
    (again,) = asked(get.on_time(due))
    assert again.owner == ask.owner
    assert again.part != ask.part
    the_answer(answer(get, again, due))


@pytest.mark.parametrize("code", LOOK_UP_AGAIN)
def test_look_up_again_drops_the_location_after_the_back_off(code: FailureCode) -> None:
    get, ask = one_ask()
    assert get.on_failure(ask.part, code, {}, 1.0) == []
    assert get.on_time(get.wake_at) == [LookUp(ONE)]
    moved = table(owner(0, 16, 9))
    (again,) = asked(get.on_located(moved, 1.1))
    assert again.owner.port == 9
    the_answer(answer(get, again, 1.2))


def test_an_owner_that_cannot_be_reached_is_looked_up_again_and_then_has_no_location() -> None:
    get, ask = one_ask()
    assert get.on_unreached(ask.part, {"port": 1}, 1.0) == []
    assert get.on_time(get.wake_at) == [LookUp(ONE)]
    assert get.on_time(10.0) == [Refuse(FailureCode.UNKNOWN_KEY_GROUP_LOCATION, {"port": 1})]
    assert not get.unreached


def test_a_key_whose_owner_died_of_the_request_is_not_asked_for_again() -> None:
    get = routed()
    first, second = asked(get.start(0.0))
    assert get.on_failure(first.part, FailureCode.UNAVAILABLE, {"port": 1}, 0.0) == []
    by_key = dict(zip(KEYS, the_answer(answer(get, second)).results, strict=True))
    assert {by_key[key] for key in first.keys} == {FailureCode.UNAVAILABLE}
    assert all(by_key[key] == value(key) for key in second.keys)
    assert not get.unreached


AT_PROXY = table(Owner(KeyGroupRange(0, 16), "127.0.0.1", 9069, b""))


def test_a_proxy_that_cannot_be_reached_is_tried_until_the_deadline() -> None:
    get = routed(keys=("a",), known=AT_PROXY)
    (ask,) = asked(get.start(0.0))
    assert get.on_unreached(ask.part, {}, 1.0) == []
    now, stale = get.wake_at, AT_PROXY
    while not get.finished:
        assert get.on_time(now) == [LookUp(stale)]
        get.on_unreached(LOOK_UP, {"reason": "refused"}, now)
        now, stale = get.wake_at, None
    assert get.finished
    assert get.unreached == {0}


@pytest.mark.parametrize("known", [None, AT_PROXY])
def test_a_proxy_that_was_never_reached_is_tried_once_more(known: LocationTable | None) -> None:
    get = routed(keys=("a",), known=known)
    commands = get.start(0.0)
    if known is not None:
        (ask,) = asked(commands)
        assert get.on_unreached(ask.part, {}, 1.0, hopeless=True) == []
    else:
        assert get.on_unreached(LOOK_UP, {}, 1.0, hopeless=True) == []
    assert get.wake_at == 1.0 + LAST_TRY_S
    assert get.on_time(get.wake_at) == [LookUp(known)]
    refusal = get.on_unreached(LOOK_UP, {"reason": "refused"}, 1.3, hopeless=True)
    assert refusal == [Refuse(FailureCode.UNAVAILABLE, {"reason": "refused", "tries": 2})]
    assert get.hopeless
    assert get.unreached == {0}


@pytest.mark.parametrize("known", [ONE, AT_PROXY])
def test_values_of_another_description_than_the_locations_are_no_answer(known: LocationTable) -> None:
    get = routed(keys=("a", "b"), known=known)
    (ask,) = asked(get.start(0.0))
    assert get.on_values(ask.part, (1, 1), (b"new", None), OTHER, 0.0) == []
    assert get.on_time(get.wake_at) == [LookUp(known)]
    (again,) = asked(get.on_located(described(OTHER, *known.owners), 0.1))
    assert the_answer(get.on_values(again.part, (1, 1), (b"new", None), OTHER, 0.2)).fingerprint == OTHER


def test_failures_without_values_need_no_description() -> None:
    get, ask = one_ask(("a", "b"))
    assert get.on_values(ask.part, (-1, -1), (5, 19), "", 0.0) == []
    (again,) = asked(get.on_located(ONE, 0.1)) if get.on_time(get.wake_at) == [LookUp(ONE)] else ()
    assert again.keys == ("a",)


def test_values_of_another_description_are_asked_for_again() -> None:
    get = routed()
    first, second = asked(get.start(0.0))
    assert answer(get, first) == []
    get.on_failure(second.part, FailureCode.UNKNOWN_STATE_ID, {}, 0.0)
    assert get.on_time(get.wake_at) == [LookUp(TWO)]
    another = described(OTHER, *ONE.owners)
    (again,) = asked(get.on_located(another, 0.1))
    assert again.keys == KEYS
    assert the_answer(answer(get, again, fingerprint=OTHER)).epochs == (1,) * len(KEYS)


def test_a_key_that_failed_for_good_is_not_asked_for_again_under_another_description() -> None:
    get, ask = one_ask(("a", "b", "c"))
    results = (int(FailureCode.UNAVAILABLE), b"old", int(FailureCode.UNKNOWN_STATE_ID))
    assert get.on_values(ask.part, (-1, 1, -1), results, FINGERPRINT, 0.0) == []
    assert get.on_time(get.wake_at) == [LookUp(ONE)]
    another = described(OTHER, *ONE.owners)
    (again,) = asked(get.on_located(another, 0.1))
    assert again.keys == ("b", "c")
    found = the_answer(get.on_values(again.part, (2, 2), (b"new", None), OTHER, 0.2))
    assert found == Answer((-1, 2, 2), (FailureCode.UNAVAILABLE, b"new", None), OTHER, False)


def test_only_the_keys_that_failed_are_asked_again() -> None:
    get, ask = one_ask(("a", "b", "c"))
    results = (b"1", int(FailureCode.RESTORING), b"3")
    assert get.on_values(ask.part, (1, -1, 1), results, FINGERPRINT, 0.0) == []
    (again,) = asked(get.on_time(get.wake_at))
    assert again.keys == ("b",)
    assert the_answer(get.on_values(again.part, (2,), (b"2",), FINGERPRINT, 0.1)) == Answer(
        (1, 2, 1), (b"1", b"2", b"3"), FINGERPRINT, True
    )


def test_keys_that_failed_differently_are_retried_separately() -> None:
    get, ask = one_ask(("a", "b", "c"))
    results = (int(FailureCode.RESTORING), int(FailureCode.KEY_GROUP_NOT_OWNED), int(FailureCode.INTERNAL))
    assert get.on_values(ask.part, (-1, -1, -1), results, FINGERPRINT, 0.0) == []
    commands = get.on_time(0.005)
    assert [type(command) for command in commands] == [Ask, LookUp]
    assert isinstance(commands[0], Ask)
    assert commands[0].keys == ("a",)
    (moved,) = asked(get.on_located(table(owner(0, 16, 9)), 0.01))
    assert moved.keys == ("b",)
    assert answer(get, moved) == []
    found = the_answer(answer(get, commands[0]))
    assert found.results == (value("a"), value("b"), FailureCode.INTERNAL)


def test_a_location_replaced_meanwhile_is_not_looked_up_twice() -> None:
    get = routed()
    first, second = asked(get.start(0.0))
    get.on_failure(first.part, FailureCode.UNKNOWN_STATE_ID, {}, 0.0)
    assert get.on_time(0.005) == [LookUp(TWO)]
    (again,) = asked(get.on_located(table(owner(0, 8, 3), owner(8, 16, 2)), 0.01))
    get.on_failure(second.part, FailureCode.UNKNOWN_STATE_ID, {}, 0.01)
    (other,) = asked(get.on_time(0.02))
    assert (again.owner.port, other.owner.port) == (3, 2)


def test_parts_that_wait_for_one_location_share_the_look_up() -> None:
    get = routed()
    first, second = asked(get.start(0.0))
    get.on_unreached(first.part, {}, 0.0)
    get.on_unreached(second.part, {}, 0.0)
    assert get.on_time(0.005) == [LookUp(TWO)]
    assert len(asked(get.on_located(TWO, 0.01))) == 2


def test_keys_without_an_owner_wait_while_the_others_are_asked() -> None:
    get = routed(known=GAP)
    (ask,) = asked(get.start(0.0))
    assert answer(get, ask) == []
    assert get.on_time(get.wake_at) == [LookUp(GAP)]
    rest = asked(get.on_located(TWO, 0.1))
    assert [part.owner.port for part in rest] == [2]
    assert the_answer(answer(get, rest[0])).results == tuple(map(value, KEYS))


def test_a_gap_that_stays_ends_as_unknown_key_group_location() -> None:
    get = routed(keys=KEYS, known=table(), deadline=1.0)
    assert get.start(0.0) == []
    now = 0.0
    for _ in range(100):
        now = get.wake_at
        commands = get.on_time(now)
        if get.finished:
            break
        assert isinstance(commands[0], LookUp)
        commands = get.on_located(table(), now)
        if get.finished:
            break
    assert commands == [Refuse(FailureCode.UNKNOWN_KEY_GROUP_LOCATION, {})]
    assert now <= 1.0


@pytest.mark.parametrize("code", FATAL)
def test_a_fatal_look_up_refuses_the_get(code: FailureCode) -> None:
    get = routed(known=None)
    get.start(0.0)
    assert get.on_failure(LOOK_UP, code, {"job": "job"}, 0.1) == [Refuse(code, {"job": "job"})]


@pytest.mark.parametrize("code", RETRY_HERE + LOOK_UP_AGAIN)
def test_a_look_up_that_may_succeed_is_tried_again(code: FailureCode) -> None:
    get = routed(known=None)
    get.start(0.0)
    assert get.on_failure(LOOK_UP, code, {}, 0.1) == []
    assert 0.1 < get.wake_at <= 0.105
    assert get.on_time(get.wake_at) == [LookUp(None)]
    assert len(asked(get.on_located(TWO, 0.2))) == 2


def test_overloaded_waits_at_least_as_long_as_asked() -> None:
    get, ask = one_ask()
    get.on_failure(ask.part, FailureCode.OVERLOADED, {"retry_after_ms": 700}, 1.0)
    assert get.wake_at >= 1.7


@pytest.mark.parametrize("nonsense", [-5, 0, True, "soon", None, float("nan")])
def test_a_nonsensical_retry_after_is_the_usual_back_off(nonsense: Any) -> None:
    get, ask = one_ask()
    get.on_failure(ask.part, FailureCode.OVERLOADED, {"retry_after_ms": nonsense}, 1.0)
    assert 1.0025 <= get.wake_at <= 1.005


def test_back_off_doubles_from_5_to_200_ms_less_a_jitter_of_up_to_half() -> None:
    random = Random(1)
    for attempt in [*range(12), 10_000]:
        longest = min(0.2, 0.005 * 2**attempt) if attempt < 20 else 0.2
        delays = [backoff_s(attempt, random) for _ in range(200)]
        assert all(longest / 2 <= delay <= longest for delay in delays)
        assert max(delays) - min(delays) > longest / 4


def test_back_off_grows_with_each_failure_of_a_key() -> None:
    get, ask = one_ask()
    now = 0.0
    for attempt in range(8):
        get.on_failure(ask.part, FailureCode.RESTORING, {}, now)
        longest = min(0.2, 0.005 * 2**attempt)
        assert longest / 2 <= get.wake_at - now <= longest
        now = get.wake_at
        (ask,) = asked(get.on_time(now))


def test_keys_that_fail_are_given_up_at_the_time_for_tries_and_the_others_are_answered() -> None:
    get = RoutedGet(KEYS, deadline=10.0, random=Random(7), table=GAP, retry_until=1.0)
    (ask,) = asked(get.start(0.0))
    now, looked_up = 0.0, 0
    while get.wake_at < 1.0:
        now = get.wake_at
        assert get.on_time(now) == [LookUp(GAP)]
        assert get.on_located(GAP, now) == []
        looked_up += 1
    assert looked_up > 3
    assert get.on_time(1.0) == []
    assert get.wake_at == 10.0, "the owner still has until the deadline"
    found = the_answer(answer(get, ask, 5.0))
    for key, result in zip(KEYS, found.results, strict=True):
        owned = key in ask.keys
        assert result == (value(key) if owned else FailureCode.UNKNOWN_KEY_GROUP_LOCATION)


def test_without_time_for_tries_the_first_failure_is_final() -> None:
    get = RoutedGet(("a",), deadline=10.0, random=Random(7), table=ONE, retry_until=0.0)
    (ask,) = asked(get.start(0.0))
    assert get.on_failure(ask.part, FailureCode.RESTORING, {}, 0.1) == [Refuse(FailureCode.RESTORING, {})]


def test_a_key_that_waits_for_a_location_is_given_up_at_the_time_for_tries() -> None:
    get = RoutedGet(("a",), deadline=10.0, random=Random(7), table=ONE, retry_until=1.0)
    (ask,) = asked(get.start(0.0))
    assert get.on_failure(ask.part, FailureCode.UNKNOWN_STATE_ID, {}, 0.0) == []
    assert get.on_time(get.wake_at) == [LookUp(ONE)]
    assert get.wake_at == 1.0
    assert get.on_time(1.0) == [Refuse(FailureCode.UNKNOWN_STATE_ID, {})]
    assert get.on_located(ONE, 1.1) == []


def test_a_first_look_up_has_until_the_deadline() -> None:
    get = RoutedGet(("a",), deadline=10.0, random=Random(7), retry_until=1.0)
    assert get.start(0.0) == [LookUp(None)]
    assert get.on_time(1.0) == []
    (ask,) = asked(get.on_located(ONE, 2.0))
    the_answer(answer(get, ask, 3.0))
