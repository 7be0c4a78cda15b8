"""A value of another type than declared: refused when the epoch is sealed, and the entry is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor
from qstate.errors import SerializationError
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import RunningJob, rows_batch

JobOf = Callable[..., RunningJob]


class Strays(Totals):
    """Totals that writes text into what it declared as integers, at amount 13."""

    def open(self, context: Any) -> None:
        self.total = context.get_reducing_state(
            ReducingStateDescriptor("total", int, reduce_function=add).queryable("totalAmount")
        )
        self.recent = context.get_list_state(ListStateDescriptor("recent", int))
        self.labels = context.get_map_state(MapStateDescriptor("labels", int))

    def process_element(self, row: Any, context: Any) -> Any:
        wrong = row.amount == 13
        self.recent.add("thirteen" if wrong else row.amount)
        self.labels.put("last", row.amount)
        return super().process_element(row, context)


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_the_epoch_fails_with_the_entry_named_and_the_state_is_as_it_was(backend: str, job_of: JobOf) -> None:
    job = job_of(Strays(), backend=backend)
    job.epoch(0, rows_batch(("a", 1), ("b", 2)))
    process = job.task_manager().pid
    for _ in range(2):
        with pytest.raises(
            SerializationError,
            match="operator 'it' subtask 0: state 'recent', key 'b': it is declared as int: "
            "expected int, got 'thirteen' of type str; write what is declared, or declare what is written",
        ):
            job.epoch(1, rows_batch(("a", 4), ("b", 13)))
        assert job.totals("a", "b") == {"a": 1, "b": 2}
    assert job.epoch(1, rows_batch(("a", 4), ("b", 5))) == [("a", 5), ("b", 7)]
    assert job.totals("a", "b") == {"a": 5, "b": 7}
    assert job.task_manager().pid == process
