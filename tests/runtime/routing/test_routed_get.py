"""The laws of routing, by plain calls: no socket, no clock, no sleep."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.errors import FailureCode, Retry
from qstate.keys import Key, KeyGroupRange, key_group
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.routing.routed_get import LAST_TRY_S, Answer, Ask, Command, LookUp, Refuse, RoutedGet, backoff_s

MAX_PARALLELISM = 16
KEYS: tuple[Key, ...] = tuple(f"key-{number}" for number in range(40))
RETRY_HERE = [code for code in FailureCode if code.retry is Retry.RETRY_HERE]
LOOK_UP_AGAIN = [code for code in FailureCode if code.retry is Retry.LOOK_UP_AGAIN]
FATAL = [code for code in FailureCode if code.retry is Retry.FATAL]


def owner(start: int, stop: int, port: int) -> Owner:
    return Owner(KeyGroupRange(start, stop), "127.0.0.1", port, port.to_bytes(16, "big"))


def table(*owners: Owner) -> LocationTable:
    return LocationTable("job", {"name": "state"}, MAX_PARALLELISM, owners)


ONE = table(owner(0, 16, 1))
TWO = table(owner(0, 8, 1), owner(8, 16, 2))
GAP = table(owner(0, 8, 1))


def routed(keys: tuple[Key, ...] = KEYS, known: LocationTable | None = TWO, deadline: float = 10.0) -> RoutedGet:
    return RoutedGet(keys, deadline=deadline, random=Random(7), table=known)


def value(key: Key) -> bytes:
    return f"value of {key!r}".encode()


def answer(get: RoutedGet, ask: Command, now: float = 0.0) -> list[Command]:
    assert isinstance(ask, Ask)
    return get.on_values(ask.part, (ask.owner.port,) * len(ask.keys), tuple(map(value, ask.keys)), now)


def asked(commands: list[Command]) -> list[Ask]:
    assert all(isinstance(command, Ask) for command in commands), commands
    return [command for command in commands if isinstance(command, Ask)]


def the_answer(commands: list[Command]) -> Answer:
    assert len(commands) == 1
    assert isinstance(commands[0], Answer), commands
    return commands[0]


def test_one_owner_is_asked_for_all_keys_without_splitting() -> None:
    get = routed(known=ONE)
    (ask,) = asked(get.start(0.0))
    assert ask.keys is KEYS
    found = the_answer(answer(get, ask))
    assert found == Answer((1,) * len(KEYS), tuple(map(value, KEYS)))
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
    assert routed(keys=()).start(0.0) == [Answer((), ())]


def test_not_found_is_a_result() -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    assert get.on_values(ask.part, (4,), (None,), 0.0) == [Answer((4,), (None,))]


def test_an_unknown_location_is_looked_up_first() -> None:
    get = routed(known=None)
    assert get.start(0.0) == [LookUp(None)]
    assert {ask.owner.port for ask in asked(get.on_located(TWO, 0.1))} == {1, 2}


@pytest.mark.parametrize("code", FATAL)
def test_a_fatal_refusal_is_final_and_keeps_its_details(code: FailureCode) -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    assert get.on_failure(ask.part, code, {"fact": 1}, 0.0) == [Refuse(code, {"fact": 1})]
    assert get.finished


@pytest.mark.parametrize("code", FATAL)
def test_a_fatal_key_does_not_spoil_the_others(code: FailureCode) -> None:
    get = routed(keys=("a", "b"), known=ONE)
    (ask,) = asked(get.start(0.0))
    found = the_answer(get.on_values(ask.part, (-1, 5), (int(code), b"v"), 0.0))
    assert found == Answer((-1, 5), (code, b"v"))


@pytest.mark.parametrize("code", [code for code in FATAL if code is not FailureCode.TOO_LARGE])
def test_a_fatal_part_does_not_spoil_the_others(code: FailureCode) -> None:
    get = routed()
    refused, answered = asked(get.start(0.0))
    assert get.on_failure(refused.part, code, {}, 0.0) == []
    found = the_answer(answer(get, answered))
    by_key = dict(zip(KEYS, found.results, strict=True))
    assert all(by_key[key] == code for key in refused.keys)
    assert all(by_key[key] == value(key) for key in answered.keys)
    assert all((epoch == -1) == isinstance(result, int) for epoch, result in zip(*found, strict=True))


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
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    assert get.on_values(ask.part, (-1,), (code,), 0.0) == [Refuse(code, {})]


@pytest.mark.parametrize("code", RETRY_HERE)
@pytest.mark.parametrize("whole", [True, False], ids=["refusal", "key"])
def test_retry_here_asks_the_same_owner_after_the_back_off(code: FailureCode, whole: bool) -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    if whole:
        assert get.on_failure(ask.part, code, {}, 1.0) == []
    else:
        assert get.on_values(ask.part, (-1,), (int(code),), 1.0) == []
    due = get.wake_at
    assert 1.0025 <= due <= 1.005
    assert get.on_time(due - 0.001) == []
    (again,) = asked(get.on_time(due))
    assert again.owner == ask.owner
    assert again.part != ask.part
    the_answer(answer(get, again, due))


@pytest.mark.parametrize("code", LOOK_UP_AGAIN)
def test_look_up_again_drops_the_location_after_the_back_off(code: FailureCode) -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    assert get.on_failure(ask.part, code, {}, 1.0) == []
    assert get.on_time(get.wake_at) == [LookUp(ONE)]
    moved = table(owner(0, 16, 9))
    (again,) = asked(get.on_located(moved, 1.1))
    assert again.owner.port == 9
    the_answer(answer(get, again, 1.2))


def test_an_owner_that_cannot_be_reached_is_looked_up_again_and_then_has_no_location() -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
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


AT_PROXY = LocationTable("job", {"name": "state"}, 1, (Owner(KeyGroupRange(0, 1), "127.0.0.1", 9069, b""),))


def test_a_proxy_that_cannot_be_reached_is_tried_until_the_deadline() -> None:
    get = routed(keys=("a",), known=AT_PROXY)
    (ask,) = asked(get.start(0.0))
    assert get.on_unreached(ask.part, {}, 1.0) == []
    now, stale = get.wake_at, AT_PROXY
    while not get.finished:
        assert get.on_time(now) == [LookUp(stale)]
        get.on_lookup_unreached({"reason": "refused"}, now)
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
        assert get.on_lookup_unreached({}, 1.0, hopeless=True) == []
    assert get.wake_at == 1.0 + LAST_TRY_S
    assert get.on_time(get.wake_at) == [LookUp(known)]
    refusal = get.on_lookup_unreached({"reason": "refused"}, 1.3, hopeless=True)
    assert refusal == [Refuse(FailureCode.UNAVAILABLE, {"reason": "refused", "tries": 2})]
    assert get.hopeless
    assert get.unreached == {0}


def test_a_state_whose_connection_ended_is_looked_up_at_once() -> None:
    get = routed(keys=("a",), known=AT_PROXY)
    (ask,) = asked(get.start(0.0))
    assert get.on_outdated(ask.part, 0.5) == [LookUp(AT_PROXY)]
    (again,) = asked(get.on_located(AT_PROXY, 0.6))
    # After the second end there is a pause: a peer that accepts and closes must not be flooded.
    assert get.on_outdated(again.part, 0.7) == []
    assert get.wake_at > 0.7
    assert get.on_time(get.wake_at) == [LookUp(AT_PROXY)]
    (last,) = asked(get.on_located(AT_PROXY, 0.8))
    the_answer(get.on_values(last.part, (1,), (b"v",), 0.9))


def test_values_of_another_description_are_asked_for_again() -> None:
    get = routed()
    first, second = asked(get.start(0.0))
    assert answer(get, first) == []
    get.on_failure(second.part, FailureCode.UNKNOWN_STATE_ID, {}, 0.0)
    assert get.on_time(get.wake_at) == [LookUp(TWO)]
    another = LocationTable("job", {"name": "state", "kind": "list"}, MAX_PARALLELISM, ONE.owners)
    (again,) = asked(get.on_located(another, 0.1))
    assert again.keys == KEYS
    assert the_answer(answer(get, again)).epochs == (1,) * len(KEYS)


def test_a_key_that_failed_for_good_is_not_asked_for_again_under_another_description() -> None:
    get = routed(keys=("a", "b", "c"), known=ONE)
    (ask,) = asked(get.start(0.0))
    results = (int(FailureCode.UNAVAILABLE), b"old", int(FailureCode.UNKNOWN_STATE_ID))
    assert get.on_values(ask.part, (-1, 1, -1), results, 0.0) == []
    assert get.on_time(get.wake_at) == [LookUp(ONE)]
    another = LocationTable("job", {"name": "state", "kind": "list"}, MAX_PARALLELISM, ONE.owners)
    (again,) = asked(get.on_located(another, 0.1))
    assert again.keys == ("b", "c")
    found = the_answer(get.on_values(again.part, (2, 2), (b"new", None), 0.2))
    assert found == Answer((-1, 2, 2), (FailureCode.UNAVAILABLE, b"new", None))


def test_only_the_keys_that_failed_are_asked_again() -> None:
    get = routed(keys=("a", "b", "c"), known=ONE)
    (ask,) = asked(get.start(0.0))
    results = (b"1", int(FailureCode.RESTORING), b"3")
    assert get.on_values(ask.part, (1, -1, 1), results, 0.0) == []
    (again,) = asked(get.on_time(get.wake_at))
    assert again.keys == ("b",)
    assert the_answer(get.on_values(again.part, (2,), (b"2",), 0.1)) == Answer((1, 2, 1), (b"1", b"2", b"3"))


def test_keys_that_failed_differently_are_retried_separately() -> None:
    get = routed(keys=("a", "b", "c"), known=ONE)
    (ask,) = asked(get.start(0.0))
    results = (int(FailureCode.RESTORING), int(FailureCode.KEY_GROUP_NOT_OWNED), int(FailureCode.INTERNAL))
    assert get.on_values(ask.part, (-1, -1, -1), results, 0.0) == []
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
    assert get.on_lookup_failed(code, {"job": "job"}, 0.1) == [Refuse(code, {"job": "job"})]


@pytest.mark.parametrize("code", RETRY_HERE + LOOK_UP_AGAIN)
def test_a_look_up_that_may_succeed_is_tried_again(code: FailureCode) -> None:
    get = routed(known=None)
    get.start(0.0)
    assert get.on_lookup_failed(code, {}, 0.1) == []
    assert 0.1 < get.wake_at <= 0.105
    assert get.on_time(get.wake_at) == [LookUp(None)]
    assert len(asked(get.on_located(TWO, 0.2))) == 2


def test_overloaded_waits_at_least_as_long_as_asked() -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    get.on_failure(ask.part, FailureCode.OVERLOADED, {"retry_after_ms": 700}, 1.0)
    assert get.wake_at >= 1.7


@pytest.mark.parametrize("nonsense", [-5, 0, True, "soon", None, float("nan")])
def test_a_nonsensical_retry_after_is_the_usual_back_off(nonsense: Any) -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    get.on_failure(ask.part, FailureCode.OVERLOADED, {"retry_after_ms": nonsense}, 1.0)
    assert 1.0025 <= get.wake_at <= 1.005


def test_a_retry_that_could_not_start_before_the_deadline_is_not_waited_for() -> None:
    get = routed(keys=("a",), known=ONE, deadline=1.5)
    (ask,) = asked(get.start(0.0))
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
    get = routed(keys=("a",), known=ONE, deadline=2.0)
    (ask,) = asked(get.start(0.0))
    get.on_failure(ask.part, FailureCode.RESTORING, {}, 1.9)
    assert get.on_time(2.5) == [Refuse(FailureCode.RESTORING, {})]


def test_a_key_that_is_being_tried_again_at_the_deadline_keeps_its_failure() -> None:
    get = routed(keys=("a", "b"), known=ONE, deadline=2.0)
    (ask,) = asked(get.start(0.0))
    get.on_values(ask.part, (-1, 1), (int(FailureCode.RESTORING), b"b"), 1.0)
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
    get.on_lookup_unreached({"host": "h"}, 1.0)
    assert get.on_time(get.wake_at) == [LookUp(None)]
    assert get.on_time(2.0) == [Refuse(FailureCode.UNAVAILABLE, {"host": "h"})]
    assert get.unreached == set(range(len(KEYS)))


def test_a_deadline_in_the_past_sends_nothing() -> None:
    assert routed(deadline=1.0).start(1.0) == [Refuse(FailureCode.DEADLINE_EXCEEDED, {})]


def test_several_keys_that_fit_no_message_are_halved_until_the_bad_key_is_alone() -> None:
    get = routed(keys=("a", "b"), known=ONE)
    (ask,) = asked(get.start(0.0))
    left, right = asked(get.on_unsendable(ask.part, FailureCode.MALFORMED, {}, 0.0))
    assert get.on_unsendable(left.part, FailureCode.MALFORMED, {}, 0.0) == []
    assert the_answer(answer(get, right)).results == (FailureCode.MALFORMED, value("b"))


def test_several_keys_that_are_too_large_together_are_asked_in_halves() -> None:
    get = routed(keys=("a", "b", "c"), known=ONE)
    (ask,) = asked(get.start(0.0))
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


@pytest.mark.parametrize("late", ["values", "failure", "unreached", "outdated", "located", "lookup failed", "time"])
def test_events_after_the_end_are_ignored(late: str) -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    the_answer(answer(get, ask))
    events = {
        "values": lambda: answer(get, ask),
        "failure": lambda: get.on_failure(ask.part, FailureCode.INTERNAL, {}, 0.0),
        "unreached": lambda: get.on_unreached(ask.part, {}, 0.0),
        "outdated": lambda: get.on_outdated(ask.part, 0.0),
        "located": lambda: get.on_located(TWO, 0.0),
        "lookup failed": lambda: get.on_lookup_failed(FailureCode.UNKNOWN_JOB, {}, 0.0),
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
    get = routed(keys=("a", "b"), known=ONE)
    (ask,) = asked(get.start(0.0))
    (refusal,) = get.on_values(ask.part, (1,), (b"x",), 0.0)
    assert isinstance(refusal, Refuse)
    assert refusal.code == FailureCode.INTERNAL


@pytest.mark.parametrize("unsound", [1.5, None, True, 2**63, "\ud800", ("a", None), [1]])
def test_a_key_that_cannot_be_hashed_fails_alone(unsound: Any) -> None:
    get = routed(keys=("a", unsound, "b"))
    commands = [done for ask in get.start(0.0) for done in answer(get, ask)]
    assert the_answer(commands).results == (value("a"), FailureCode.WRONG_KEY_TYPE, value("b"))


def test_back_off_doubles_from_5_to_200_ms_less_a_jitter_of_up_to_half() -> None:
    random = Random(1)
    for attempt in [*range(12), 10_000]:
        longest = min(0.2, 0.005 * 2**attempt) if attempt < 20 else 0.2
        delays = [backoff_s(attempt, random) for _ in range(200)]
        assert all(longest / 2 <= delay <= longest for delay in delays)
        assert max(delays) - min(delays) > longest / 4


def test_back_off_grows_with_each_failure_of_a_key() -> None:
    get = routed(keys=("a",), known=ONE)
    (ask,) = asked(get.start(0.0))
    now = 0.0
    for attempt in range(8):
        get.on_failure(ask.part, FailureCode.RESTORING, {}, now)
        longest = min(0.2, 0.005 * 2**attempt)
        assert longest / 2 <= get.wake_at - now <= longest
        now = get.wake_at
        (ask,) = asked(get.on_time(now))


ANSWERS = ["values", "mixed", "retry", "moved", "fatal", "unreached", "outdated"]
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
            note(get.on_located(LocationTable("job", {"name": random.choice("abc")}, MAX_PARALLELISM, TWO.owners), now))
        elif event == "no proxy":
            note(get.on_lookup_unreached({}, now, hopeless=random.choice([True, False])))
        elif event == "lookup":
            note(get.on_lookup_failed(random.choice([FailureCode.UNAVAILABLE, FailureCode.UNKNOWN_JOB]), {}, now))
        elif event == "time" or ask is None:
            note(get.on_time(now))
        elif event == "values":
            note(answer(get, ask, now))
        elif event == "mixed":
            results = [random.choice([b"v", None, 8, 5, 19]) for _ in ask.keys]
            epochs = [-1 if isinstance(result, int) else 3 for result in results]
            note(get.on_values(ask.part, tuple(epochs), tuple(results), now))
        elif event == "unreached":
            note(get.on_unreached(ask.part, {}, now))
        elif event == "outdated":
            note(get.on_outdated(ask.part, now))
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
