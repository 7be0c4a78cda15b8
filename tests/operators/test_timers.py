"""Laws of the timers of an operator: which fire, in which order, also while functions register and delete others."""

from __future__ import annotations

from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from qstate.backends.contract import Timer
from qstate.keys import encode_key
from qstate.operators.time import timers as module
from qstate.operators.time.timers import EVENT_TIME_TIMERS, Timers
from tests.operators.running import empty_heap

UPTO = 6

#: Few of each, so that they meet. True equals 1 in Python, but they are different namespaces.
TIMERS = st.builds(Timer, st.integers(0, UPTO + 2), st.sampled_from([None, 1, True, "window"]), st.sampled_from("jk"))
#: Whether to register the timer; if not, to delete it.
ACTIONS = st.lists(st.tuples(st.booleans(), TIMERS), max_size=6)


@example([(True, Timer(1, None, "j")), (True, Timer(2, True, "j"))], [[(True, Timer(2, 1, "j"))]], 4)
@example([(True, Timer(1, None, "j")), (True, Timer(2, True, "j"))], [[(False, Timer(2, 1, "j"))]], 4)
@given(ACTIONS, st.lists(ACTIONS, max_size=12), st.integers(1, 4))
def test_due_timers_fire_as_those_of_a_set_would(
    before: list[tuple[bool, Timer]], programs: list[list[tuple[bool, Timer]]], at_once: int
) -> None:
    """At each step, the earliest of all timers registered fires, until none is due. A program runs when one fires."""
    held: dict[tuple[int, bytes, bytes], Timer] = {}

    def run(actions: list[tuple[bool, Timer]]) -> None:
        for registers, timer in actions:
            if registers:
                timers.add(timer)
                held[order(timer)] = timer
            else:
                timers.remove(timer)
                held.pop(order(timer), None)

    with empty_heap() as backend, patch.object(module, "TAKEN_AT_ONCE", at_once):
        backend.begin(0)
        timers = Timers(backend.timers(EVENT_TIME_TIMERS))
        run(before)
        remaining = iter(programs)
        for fired in timers.due(UPTO):
            expected = min(held)
            assert expected[0] <= UPTO and order(fired) == expected
            del held[expected]
            run(next(remaining, []))
        assert all(time > UPTO for time, _, _ in held)
        assert timers.first() == (min(held)[0] if held else None)
        assert sorted(map(order, timers.due(UPTO + 2))) == sorted(held)


def order(timer: Timer) -> tuple[int, bytes, bytes]:
    return timer.time, encode_key(timer.namespace), encode_key(timer.key)
