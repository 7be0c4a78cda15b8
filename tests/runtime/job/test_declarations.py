"""Laws of operators that are declared again in one job, as when a notebook's cell is run again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstate.descriptors import ReducingStateDescriptor
from qstate.errors import JobError, UnknownState
from qstate.runtime.client.sync_client import QueryableStateClient
from tests.functions import add
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, kill, rows_batch

JobOf = Callable[..., RunningJob]


class Renamed(Totals):
    """The same state under another queryable name."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("sum")
        )


def test_the_newest_declaration_counts_and_the_state_is_kept(job_of: JobOf) -> None:
    job = job_of(Totals())
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]
    job.add_operator("it", Totals(fan_out=2))
    assert job.totals("a") == {"a": 1}  # served as before until its query is started
    assert job.epoch(1, rows_batch(("a", 10))) == [("a", 11), ("a", 11)]
    assert job.totals("a") == {"a": 11}


def test_a_declaration_that_was_never_started_can_be_replaced(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.add_operator("it", Totals(fan_out=2))
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1), ("a", 1)]


def test_an_operator_whose_query_runs_is_not_declared_again(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    with pytest.raises(JobError, match=rf"'it'.*streaming query {QUERY}.*runs: stop it first.*a uid of its own"):
        job.add_operator("it", Totals(fan_out=2), running={QUERY: None})
    job.add_operator("it", Totals(fan_out=2), running={"another": "named"})
    with pytest.raises(JobError, match=rf"streaming query 'totals' \({QUERY}\)"):
        job.add_operator("it", Totals(), running={QUERY: "totals"})
    assert job.epoch(1, rows_batch(("a", 1))) == [("a", 2), ("a", 2)]


def test_a_query_of_an_earlier_declaration_is_refused(job_of: JobOf) -> None:
    job = job_of(Totals())
    earlier = job.declarations["it"]
    job.add_operator("it", Totals(fan_out=2))
    job.epoch(0, rows_batch(("a", 1)))
    with pytest.raises(JobError, match=r"'it' has been declared again since.*need a uid each"):
        job.epoch(1, rows_batch(("a", 1)), declaration=earlier)
    assert job.totals("a") == {"a": 1}
    assert job.epoch(1, rows_batch(("a", 1))) == [("a", 2), ("a", 2)]


def test_names_and_types_are_those_of_the_newest_declaration(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    job.add_operator("it", Renamed())
    job.epoch(1, rows_batch(("a", 1)))
    with QueryableStateClient(*job.manager.wait_for_proxy(20.0)) as client:
        assert client.get(JOB, "sum", "a").get() == 2
        assert [state["name"] for state in client.states(JOB)] == ["sum"]
        with pytest.raises(UnknownState):
            client.get(JOB, "totalAmount", "a")


def test_a_restarted_task_manager_has_the_newest_declaration(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    job.add_operator("it", Totals(fan_out=2))
    lost = job.task_manager()
    kill(lost)
    job.successor_of(lost)
    assert job.totals("a") == {"a": 1}
    assert job.epoch(1, rows_batch(("a", 1))) == [("a", 2), ("a", 2)]
