"""Laws of `qstate.runtime.job.assignments`: one incarnation of a task manager is current at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qstate.errors import FencedError
from qstate.runtime.control.addresses import TaskManagerAddress
from qstate.runtime.job.assignments import Assignments

ADDRESS = TaskManagerAddress(0, 1, "host", 1234, "127.0.0.1", 1, "/tmp/x", ("127.0.0.1", 2), ("127.0.0.1", 3), 99)


def test_second_start_is_refused_while_one_runs() -> None:
    assignments = Assignments(parallelism=2, slots=1, start_timeout_s=60)
    assert assignments.start(0, now=0.0) == 1
    assert assignments.start(0, now=1.0) is None
    assert assignments.start(1, now=1.0) == 1


def test_a_start_that_takes_too_long_is_given_to_another() -> None:
    assignments = Assignments(parallelism=1, slots=1, start_timeout_s=60)
    assert assignments.start(0, now=0.0) == 1
    assert assignments.start(0, now=61.0) == 2
    with pytest.raises(FencedError, match="too late"):
        assignments.registered(ADDRESS)
    assignments.registered(replace(ADDRESS, incarnation=2))
    assert assignments.alive() == [replace(ADDRESS, incarnation=2)]


def test_lost_task_manager_gets_a_next_incarnation() -> None:
    assignments = Assignments(parallelism=1, slots=1, start_timeout_s=60)
    assignments.start(0, now=0.0)
    assignments.registered(ADDRESS)
    assert assignments.start(0, now=1.0) is None
    assert assignments.gone(0, incarnation=1, now=1.0)
    assert assignments.address(0) is None
    assert assignments.start(0, now=1.0) == 2


def test_a_late_loss_does_not_remove_the_next_incarnation() -> None:
    assignments = Assignments(parallelism=1, slots=1, start_timeout_s=60)
    assignments.start(0, now=0.0)
    assignments.registered(ADDRESS)
    assignments.gone(0, incarnation=1, now=1.0)
    assignments.start(0, now=1.0)
    assignments.registered(replace(ADDRESS, incarnation=2))
    assert not assignments.gone(0, incarnation=1, now=1.0)
    assert assignments.address(0) is not None


def test_slots_share_a_task_manager() -> None:
    assignments = Assignments(parallelism=5, slots=2, start_timeout_s=60)
    assert len(assignments) == 3
    assert [assignments.index_of(subtask) for subtask in range(5)] == [0, 0, 1, 1, 2]


def test_a_start_can_be_ordered_again_when_its_starter_is_gone() -> None:
    assignments = Assignments(parallelism=1, slots=1, start_timeout_s=60)
    assignments.start(0, now=0.0)
    assert assignments.give_up(0, incarnation=1)
    assert assignments.start(0, now=1.0) == 2
    assignments.registered(replace(ADDRESS, incarnation=2))
    assert not assignments.give_up(0, incarnation=2), "it is up, so the starter is not needed any more"
    assert assignments.is_current(0, 2)
    assert not assignments.is_current(0, 1)


def test_task_manager_that_is_lost_again_and_again_restarts_after_longer_pauses() -> None:
    assignments = Assignments(parallelism=1, slots=1, start_timeout_s=60)
    waits = []
    now = 0.0
    for incarnation in range(1, 20):
        assert assignments.start(0, now) == incarnation
        assignments.registered(replace(ADDRESS, incarnation=incarnation))
        assert assignments.gone(0, incarnation, now)
        waits.append(assignments.restart_at(0) - now)
        now = assignments.restart_at(0)
    assert waits[:5] == [0.0] * 5
    assert waits[5:9] == [2.0, 4.0, 8.0, 16.0]
    assert set(waits[9:]) == {30.0}
    assignments.start(0, now + 100)
    assignments.registered(replace(ADDRESS, incarnation=20))
    assignments.gone(0, 20, now + 100)
    assert assignments.restart_at(0) == now + 100
