"""Laws of the request quota: who uses more of the processor than it allows waits, and nobody else does."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.runtime.serving.sharing.request_quota import (
    BURST_S,
    IDLE_S,
    LEAST_S,
    MOST_PEERS,
    PAUSE_S,
    RequestQuota,
)
from tests.runtime.serving.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


def used(quota: RequestQuota, clock: Clock, seconds: float, *peers: str, work_s: float = 0.001) -> dict[str, float]:
    """How much these peers use in so long when each works whenever it may."""
    found, until = dict.fromkeys(peers, 0.0), clock() + seconds
    while clock() < until:
        for peer in peers:
            if not quota.wait_s(peer):
                quota.charge(peer, work_s)
                found[peer] += work_s
        clock.now += work_s
    return found


def test_peer_may_use_its_share_and_one_burst(clock: Clock) -> None:
    found = used(RequestQuota(0.25, clock), clock, 10.0, "one")
    assert found["one"] == pytest.approx(10.0 * 0.25 + BURST_S, abs=0.005)


def test_peers_that_want_more_share_it_in_equal_parts(clock: Clock) -> None:
    found = used(RequestQuota(0.2, clock), clock, 10.0, "one", "two", "three", "four")
    assert list(found.values()) == pytest.approx([10.0 * 0.05 + BURST_S] * 4, abs=0.005)


def test_peer_that_needs_less_does_not_wait_and_leaves_the_rest_to_others(clock: Clock) -> None:
    quota = RequestQuota(0.2, clock)
    greedy = 0.0
    for _ in range(10):
        greedy += used(quota, clock, 1.0, "greedy")["greedy"]
        assert not quota.wait_s("modest")
        quota.charge("modest", 0.015)
    assert greedy == pytest.approx(10.0 * 0.2 - 0.15 + BURST_S, abs=0.02)


def test_wait_ends_when_it_said(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    quota.charge("one", 0.5)
    wait_s = quota.wait_s("one")
    assert wait_s == pytest.approx((0.5 - BURST_S + PAUSE_S) / 0.1)
    clock.now += wait_s - 0.001
    assert quota.wait_s("one")
    clock.now += 0.002
    assert not quota.wait_s("one")


def test_wait_is_worth_its_cost(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    quota.charge("one", BURST_S + 0.000_01)
    assert quota.wait_s("one") > PAUSE_S / 0.1
    clock.now += PAUSE_S / 0.1 + 0.001
    assert not quota.wait_s("one")
    quota.charge("one", PAUSE_S / 2)
    assert not quota.wait_s("one")


def test_what_is_not_used_is_not_saved(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    clock.now += 1000.0
    quota.charge("one", BURST_S - PAUSE_S + 0.1)
    assert quota.wait_s("one") == pytest.approx(1.0)


def test_lifted_quota_lets_nobody_wait_and_gives_no_burst_when_it_applies_again(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    quota.lift()
    clock.now += IDLE_S
    assert used(quota, clock, 1.0, "one")["one"] == pytest.approx(1.0, abs=0.005)
    quota.apply()
    assert used(quota, clock, 1.0, "one")["one"] == pytest.approx(0.1, abs=0.005)


def test_quota_applies_for_a_while_after_it_was_lifted(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    quota.charge("one", 1.0)
    quota.lift()
    clock.now += IDLE_S - 0.001
    assert quota.wait_s("one")
    clock.now += 0.002
    assert not quota.wait_s("one")


def test_quota_applies_while_one_of_two_needs_it(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    quota.lift()
    quota.apply()
    quota.apply()
    quota.lift()
    clock.now += 2 * IDLE_S
    quota.charge("one", 1.0)
    assert quota.wait_s("one")
    quota.lift()
    clock.now += IDLE_S
    assert not quota.wait_s("one")


def test_nobody_owes_more_than_a_burst_when_the_quota_applies_again(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    quota.charge("before", 10.0)
    quota.lift()
    clock.now += IDLE_S
    quota.charge("while", 10.0)
    quota.apply()
    assert quota.wait_s("before") <= 2 * PAUSE_S / 0.1
    quota.charge("while", 0.001)
    assert quota.wait_s("while") <= 2 * (0.001 + PAUSE_S) / 0.1


def test_no_quota_lets_nobody_wait(clock: Clock) -> None:
    quota = RequestQuota(0.0, clock)
    quota.charge("one", 100.0)
    assert not quota.wait_s("one")


def test_peers_that_are_counted_are_bounded(clock: Clock) -> None:
    quota = RequestQuota(0.1, clock)
    for number in range(MOST_PEERS + 1):
        quota.charge(f"peer {number}", 2 * BURST_S)
    assert quota.wait_s(f"peer {MOST_PEERS - 1}")
    assert not quota.wait_s(f"peer {MOST_PEERS}")


@pytest.mark.hypothesis
@example([("a", 0.01, 0.1), ("b", 0.125, 0.0)])  # paid to the last bit, but for rounding
@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.floats(0.0001, 0.2), st.sampled_from((0.0, 0.001, 0.1, 3.0))), max_size=40
    )
)
def test_peers_owe_what_an_account_of_each_one_says(charges: list[tuple[str, float, float]]) -> None:
    clock = Clock()
    quota = RequestQuota(0.1, clock)
    owed: dict[str, float] = {}
    for peer, seconds, passed in charges:
        quota.charge(peer, seconds)
        owed[peer] = owed.get(peer, 0.0) + seconds
        clock.now += passed
        left = passed * 0.1
        while owed and left > LEAST_S:
            part = min(left / len(owed), min(owed.values()))
            left -= part * len(owed)
            owed = {one: rest - part for one, rest in owed.items() if rest - part > LEAST_S}
        for one in "abcd":
            over = owed.get(one, 0.0) - (BURST_S - PAUSE_S)
            waits = over * len(owed) / 0.1 if owed.get(one, 0.0) > BURST_S else None
            if waits is not None:
                assert quota.wait_s(one) == pytest.approx(waits, abs=1e-6)
            elif over < -1e-9:
                assert not quota.wait_s(one)
