"""Laws of the timers of an operator: which fire, in which order, also while functions register and delete others."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from qstate.backends.contract import StateBackend, Timer
from qstate.keys import encode_key
from qstate.operators.time import timers as module
from qstate.operators.time.timers import EVENT_TIME_TIMERS, Timers
from tests.operators.running import empty_heap

#: The place of a timer in the order of a queue.
Order = tuple[int, bytes, bytes]

UPTO = 6

#: Few of each, so that they meet. True equals 1 in Python, but they are different namespaces.
TIMERS = st.builds(Timer, st.integers(0, UPTO + 2), st.sampled_from([None, 1, True, "window"]), st.sampled_from("jk"))
#: Whether to register the timer; if not, to delete it.
ACTIONS = st.lists(st.tuples(st.booleans(), TIMERS), max_size=6)


class Registered:
    """Timers, and a set that gets the same timers."""

    def __init__(self, backend: StateBackend, actions: list[tuple[bool, Timer]]) -> None:
        self.timers = Timers(backend.timers(EVENT_TIME_TIMERS))
        self.held: set[Order] = set()
        self.run(actions)

    def run(self, actions: list[tuple[bool, Timer]]) -> None:
        for registers, timer in actions:
            if registers:
                self.timers.add(timer)
                self.held.add(order(timer))
            else:
                self.timers.remove(timer)
                self.held.discard(order(timer))

    def check_rest(self) -> None:
        """No timer is due any more, and the others are those of the set."""
        assert all(time > UPTO for time, _, _ in self.held)
        assert self.timers.first() == (min(self.held)[0] if self.held else None)
        assert [order(timer) for timer in self.timers.due(UPTO + 2)] == sorted(self.held)


@example([(True, Timer(1, None, "j")), (True, Timer(2, True, "j"))], [[(True, Timer(2, 1, "j"))]], 4)
@example([(True, Timer(1, None, "j")), (True, Timer(2, True, "j"))], [[(False, Timer(2, 1, "j"))]], 4)
@given(ACTIONS, st.lists(ACTIONS, max_size=12), st.integers(1, 4))
def test_due_timers_fire_as_those_of_a_set_would(
    before: list[tuple[bool, Timer]], programs: list[list[tuple[bool, Timer]]], at_once: int
) -> None:
    """At each step, the earliest of all timers registered fires, until none is due. A program runs when one fires."""
    with empty_heap() as backend, patch.object(module, "TAKEN_AT_ONCE", at_once):
        backend.begin(0)
        both = Registered(backend, before)
        remaining = iter(programs)
        for fired in both.timers.due(UPTO):
            expected = min(both.held)
            assert expected[0] <= UPTO and order(fired) == expected
            both.held.remove(expected)
            both.run(next(remaining, []))
        both.check_rest()


@given(ACTIONS, st.lists(ACTIONS, max_size=12), st.integers(1, 4))
def test_batches_have_the_earliest_due_timers_of_a_set(
    before: list[tuple[bool, Timer]], programs: list[list[tuple[bool, Timer]]], at_once: int
) -> None:
    """A program runs when a batch is handed out: all timers of the batch have fired then."""
    with empty_heap() as backend, patch.object(module, "TAKEN_AT_ONCE", at_once):
        backend.begin(0)
        both = Registered(backend, before)
        remaining = iter(programs)
        assert list(both.timers.batches(None)) == []
        for fired in both.timers.batches(UPTO):
            assert list(map(order, fired)) == [one for one in sorted(both.held) if one[0] <= UPTO][:at_once]
            both.held.difference_update(map(order, fired))
            both.run(next(remaining, []))
        both.check_rest()


def order(timer: Timer) -> Order:
    return timer.time, encode_key(timer.namespace), encode_key(timer.key)
