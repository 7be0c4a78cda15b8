"""Laws of `qstate.runtime.job.location_registry`: a queryable name has one operator, and its owners come and go."""

from __future__ import annotations

import pytest

from qstate.errors import JobError, UnknownState
from qstate.keys import KeyGroupRange
from qstate.runtime.job.location_registry import PublishedStates
from qstate.runtime.routing.location import Owner

LOW = Owner(KeyGroupRange(0, 64), "127.0.0.1", 9067, b"a" * 16)
TOTAL = {"name": "total", "kind": "value"}
HIGH = Owner(KeyGroupRange(64, 128), "127.0.0.1", 9068, b"b" * 16)


def test_two_operators_cannot_have_one_queryable_name() -> None:
    states = PublishedStates("job", 128)
    states.claim("one", [{"name": "total"}])
    states.claim("one", [{"name": "total"}])
    with pytest.raises(JobError, match=r"'total'.*'one'.*'other'"):
        states.claim("other", [{"name": "total"}])


def test_an_operators_states_are_those_that_it_claimed_last() -> None:
    states = PublishedStates("job", 128)
    states.claim("one", [TOTAL, {"name": "old"}])
    states.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    states.claim("one", [{"name": "total", "kind": "list"}, {"name": "new"}])
    assert states.describe() == [{"name": "new"}, {"name": "total", "kind": "list"}]
    assert states.locate("total").owners == (), "what it holds is of another kind"
    states.publish({"name": "old"}, subtask=0, manager=0, owner=LOW)
    states.claim("other", [{"name": "old"}])
    assert states.locate("old").owners == ()


def test_a_claim_that_is_refused_changes_nothing() -> None:
    states = PublishedStates("job", 128)
    states.claim("one", [{"name": "total"}])
    states.claim("other", [{"name": "mean"}])
    with pytest.raises(JobError):
        states.claim("other", [{"name": "total"}])
    assert states.describe() == [{"name": "mean"}, {"name": "total"}]


def test_an_unclaimed_name_is_an_unknown_state() -> None:
    with pytest.raises(UnknownState):
        PublishedStates("job", 128).locate("nothing")


def test_a_lost_task_manager_leaves_a_gap_and_its_successor_fills_it() -> None:
    states = PublishedStates("job", 128)
    states.claim("one", [TOTAL])
    states.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    states.publish(TOTAL, subtask=1, manager=1, owner=HIGH)
    assert states.locate("total").owners == (LOW, HIGH)
    states.withdraw(manager=0)
    assert states.locate("total").owners == (HIGH,)
    states.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    assert states.locate("total").owners == (LOW, HIGH)


def test_a_state_that_is_described_in_another_way_has_the_owners_that_say_so_alone() -> None:
    states = PublishedStates("job", 128)
    states.claim("one", [TOTAL])
    states.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    another = {**TOTAL, "kind": "reducing"}
    states.claim("one", [another])
    assert (states.locate("total").state, states.locate("total").owners) == (another, ())
    states.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    states.publish(another, subtask=1, manager=1, owner=HIGH)
    assert states.locate("total").owners == (HIGH,)
