"""Laws of `qstate.runtime.job.location_registry`: a queryable name has one operator, and its owners come and go."""

from __future__ import annotations

import pickle
from random import Random

import pytest

from qstate.errors import JobError, UnknownState
from qstate.keys import KeyGroupRange
from qstate.runtime.job.location_registry import LocationRegistry
from qstate.runtime.routing.location import LocationTable, Owner

LOW = Owner(KeyGroupRange(0, 64), "127.0.0.1", 9067, b"a" * 16)
TOTAL = {"name": "total", "kind": "value"}
HIGH = Owner(KeyGroupRange(64, 128), "127.0.0.1", 9068, b"b" * 16)


def test_two_operators_cannot_have_one_queryable_name() -> None:
    registry = LocationRegistry("job", 128)
    registry.register("one", [{"name": "total"}])
    registry.register("one", [{"name": "total"}])
    with pytest.raises(JobError, match=r"'total'.*'one'.*'other'"):
        registry.register("other", [{"name": "total"}])


def test_an_operators_states_are_those_that_it_registered_last() -> None:
    registry = LocationRegistry("job", 128)
    registry.register("one", [TOTAL, {"name": "old"}])
    registry.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    registry.register("one", [{"name": "total", "kind": "list"}, {"name": "new"}])
    assert registry.describe() == [{"name": "new"}, {"name": "total", "kind": "list"}]
    assert registry.locate("total").owners == (), "what it holds is of another kind"
    registry.publish({"name": "old"}, subtask=0, manager=0, owner=LOW)
    registry.register("other", [{"name": "old"}])
    assert registry.locate("old").owners == ()


def test_a_registration_that_is_refused_changes_nothing() -> None:
    registry = LocationRegistry("job", 128)
    registry.register("one", [{"name": "total"}])
    registry.register("other", [{"name": "mean"}])
    with pytest.raises(JobError):
        registry.register("other", [{"name": "total"}])
    assert registry.describe() == [{"name": "mean"}, {"name": "total"}]


def test_an_unregistered_name_is_an_unknown_state() -> None:
    with pytest.raises(UnknownState):
        LocationRegistry("job", 128).locate("nothing")


def test_a_lost_task_manager_leaves_a_gap_and_its_successor_fills_it() -> None:
    registry = LocationRegistry("job", 128)
    registry.register("one", [TOTAL])
    registry.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    registry.publish(TOTAL, subtask=1, manager=1, owner=HIGH)
    assert registry.locate("total").owners == (LOW, HIGH)
    registry.withdraw(manager=0)
    assert registry.locate("total").owners == (HIGH,)
    registry.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    assert registry.locate("total").owners == (LOW, HIGH)


def test_a_state_with_a_new_description_has_only_owners_with_that_description() -> None:
    registry = LocationRegistry("job", 128)
    registry.register("one", [TOTAL])
    registry.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    another = {**TOTAL, "kind": "reducing"}
    registry.register("one", [another])
    assert (registry.locate("total").state, registry.locate("total").owners) == (another, ())
    registry.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    registry.publish(another, subtask=1, manager=1, owner=HIGH)
    assert registry.locate("total").owners == (HIGH,)


def test_all_that_ask_get_one_table_until_an_owner_changes() -> None:
    registry = LocationRegistry("job", 128)
    registry.register("one", [TOTAL, {"name": "mean"}])
    registry.publish(TOTAL, subtask=0, manager=0, owner=LOW)
    total, mean = registry.pickled("total"), registry.pickled("mean")
    assert registry.pickled("total") is total
    registry.publish(TOTAL, subtask=1, manager=1, owner=HIGH)
    assert registry.pickled("total") != total
    assert registry.pickled("total") is registry.pickled("total")
    assert registry.pickled("mean") is mean
    registry.withdraw(manager=7)
    assert registry.pickled("mean") is mean


@pytest.mark.parametrize("seed", range(5))
def test_whatever_happens_the_table_is_that_of_the_present_owners(seed: int) -> None:
    """Against a model that keeps a list of owners and makes each table from it."""
    random = Random(seed)
    registry = LocationRegistry("job", 128)
    registry.register("one", [TOTAL])
    owners: dict[int, tuple[int, Owner]] = {}
    for step in range(300):
        manager, subtask = random.randrange(4), random.randrange(8)
        if random.random() < 0.3:
            registry.withdraw(manager)
            owners = {one: at for one, at in owners.items() if at[0] != manager}
        else:
            owner = Owner(KeyGroupRange.of_subtask(subtask, 8, 128), "host", manager, step.to_bytes(16, "big"))
            registry.publish(TOTAL, subtask, manager, owner)
            owners[subtask] = manager, owner
        expected = LocationTable("job", TOTAL, 128, tuple(owner for _, (_, owner) in sorted(owners.items())))
        assert registry.locate("total") == expected
        assert pickle.loads(registry.pickled("total")) == expected
