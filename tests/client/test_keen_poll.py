"""The poll that stays awake where that pays: it tells what happens either way, and when it is keen."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from qstate.runtime.keen_poll import AT_ONCE_S, LONELY_WAITS, LONG_S, KeenPoll

Pair = tuple[socket.socket, socket.socket]


class Clock:
    """Time that passes by so much whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.step = AT_ONCE_S / 100

    def __call__(self) -> float:
        self.now += self.step
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def poll(pair: Pair, clock: Clock) -> KeenPoll:
    poll = KeenPoll(clock)
    poll.register(pair[0], select.POLLIN)
    return poll


def answered(poll: KeenPoll, pair: Pair, times: int = 1) -> None:
    """Waits that end at once, with what has arrived."""
    ours, theirs = pair
    for _ in range(times):
        theirs.send(b"x")
        assert poll.wait(5.0) == [(ours.fileno(), select.POLLIN)]
        assert ours.recv(2) == b"x"


def test_it_is_keen_only_after_many_answers_at_once_without_company(poll: KeenPoll, pair: Pair, clock: Clock) -> None:
    answered(poll, pair, LONELY_WAITS - 1)
    assert not poll.keen(clock.now)
    answered(poll, pair)
    assert poll.keen(clock.now)
    answered(poll, pair)  # as it does when it is
    assert poll.keen(clock.now)
    poll.company()
    assert not poll.keen(clock.now)
    answered(poll, pair, LONELY_WAITS)
    assert poll.keen(clock.now)


def test_a_caller_who_pauses_is_not_waited_for_awake(poll: KeenPoll, pair: Pair, clock: Clock) -> None:
    answered(poll, pair, LONELY_WAITS)
    assert not poll.keen(clock.now + 2 * AT_ONCE_S)


def test_slow_answers_end_it_and_fast_ones_bring_it_back(poll: KeenPoll, pair: Pair, clock: Clock) -> None:
    answered(poll, pair, LONELY_WAITS)
    clock.step = LONG_S
    answered(poll, pair, 3)
    clock.step = AT_ONCE_S / 100
    assert not poll.keen(clock.now)
    answered(poll, pair, 30)
    assert poll.keen(clock.now)


@pytest.mark.parametrize("keen", [False, True])
def test_nothing_within_the_time_is_nothing(poll: KeenPoll, pair: Pair, clock: Clock, keen: bool) -> None:
    answered(poll, pair, LONELY_WAITS * keen)
    assert poll.keen(clock.now) is keen
    assert poll.wait(AT_ONCE_S / 2) == []
    assert poll.wait(0.02) == []


def test_what_comes_while_it_stays_awake_is_told(poll: KeenPoll, pair: Pair, clock: Clock) -> None:
    ours, theirs = pair
    answered(poll, pair, LONELY_WAITS)
    looks = 0

    class Sender:
        def __call__(self) -> float:
            nonlocal looks
            looks += 1
            if looks == 20:
                theirs.send(b"x")
            return clock()

    poll._clock = Sender()
    assert poll.wait(5.0) == [(ours.fileno(), select.POLLIN)]
    assert looks < 25


def test_a_look_does_not_wait_and_changes_nothing(poll: KeenPoll, clock: Clock) -> None:
    before = clock.now
    assert poll.wait(0.0) == []
    assert clock.now == before


def test_a_socket_that_is_unregistered_is_not_told_of(poll: KeenPoll, pair: Pair) -> None:
    pair[1].send(b"x")
    poll.unregister(pair[0])
    assert poll.wait(0.001) == []
    with pytest.raises(KeyError):
        poll.unregister(pair[0])
