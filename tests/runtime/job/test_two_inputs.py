"""Laws of a running job whose operator has two inputs: each row counts once, for the input that it came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from qstate.descriptors import ReducingStateDescriptor
from qstate.errors import JobError
from qstate.operators.functions import KeyedCoProcessFunction
from qstate.testing.inputs import HarnessInputs, Input
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.functions import Once, kill_this_process
from tests.runtime.job.running_job import RunningJob, kill

JobOf = Callable[..., RunningJob]
START = datetime(1970, 1, 1, tzinfo=timezone.utc)
DELAY = timedelta(milliseconds=10)
INPUTS = HarnessInputs(
    [
        Input(columns={"key": str, "amount": int, "at": datetime}, key_by="key", event_time="at", delay=DELAY),
        Input(columns={"to": str, "amount": int, "at": datetime}, key_by="to", event_time="at"),
    ],
    order_by="at",
)


class Balances(KeyedCoProcessFunction):
    """Adds the amounts of the first input and takes off those of the second. Emits the balance when a timer fires."""

    def __init__(self, mischief: Callable[[], None] | None = None) -> None:
        self._mischief = mischief

    def open(self, context: Any) -> None:
        self.balance = context.get_reducing_state(
            ReducingStateDescriptor("balance", int, reduce_function=add).queryable("totalAmount")
        )

    def process_element1(self, row: Any, context: Any) -> None:
        self.balance.add(row.amount)
        context.timers.register_event_time(context.timestamp + 5)

    def process_element2(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.balance.add(-row.amount)
        if row.to == "mischief" and self._mischief is not None:
            self._mischief()
        yield row.to, self.balance.get()

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[str, int]]:
        yield f"{context.current_key} at {timestamp}", self.balance.get()


def rows(first: list[tuple[str, int, int]], second: list[tuple[str, int, int]]) -> pa.RecordBatch:
    timed = ([(key, amount, START + timedelta(milliseconds=at)) for key, amount, at in one] for one in (first, second))
    return INPUTS.batch(*timed)


@pytest.fixture(params=EITHER_BACKEND)
def balances(request: pytest.FixtureRequest, job_of: JobOf) -> JobOf:
    def make(function: KeyedCoProcessFunction | None = None, **settings: Any) -> RunningJob:
        return job_of(function or Balances(), inputs=INPUTS, **{"backend": request.param, **settings})

    return make


def test_epoch_with_rows_of_both_inputs_survives_a_lost_task_manager(balances: JobOf, tmp_path: Path) -> None:
    job = balances(Balances(Once(tmp_path / "killed", kill_this_process)))
    assert job.epoch(0, rows([("a", 5, 100), ("mischief", 9, 100)], [])) == []
    assert job.epoch(1, rows([("a", 1, 120)], [("a", 2, 110), ("mischief", 2, 130)])) == [("a", 3), ("mischief", 7)]
    assert (tmp_path / "killed").exists()
    assert job.totals("a", "mischief") == {"a": 4, "mischief": 7}


def test_row_that_comes_again_from_the_other_input_is_another_row(balances: JobOf) -> None:
    job = balances()
    job.epoch(0, rows([("a", 5, 100)], []))
    assert job.epoch(0, rows([("a", 5, 100)], [])) == []
    with pytest.raises(JobError, match="was sealed with 1 rows"):
        job.epoch(0, rows([], [("a", 5, 100)]))


def test_lesser_watermark_counts_and_is_restored(balances: JobOf, tmp_path: Path) -> None:
    places = {"checkpoint_dir": str(tmp_path / "state")}
    job = balances(**places)
    job.epoch(0, rows([("a", 5, 100), ("b", 7, 200)], []))
    assert job.epoch(1, rows([], [("x", 0, 104)])) == [("x", 0)]
    kill(job.task_manager())
    assert job.epoch(2, rows([], [("x", 0, 150)])) == [("x", 0)], "the watermark is 104"
    job.stop()
    again = balances(**places)
    assert again.epoch(3) == [("a at 105", 5)], "the watermark is 150"
    assert again.epoch(4, rows([], [("x", 0, 300)])) == [("x", 0)]
    assert again.epoch(5) == [], "the watermark is 190, that of the first input"
    again.epoch(6, rows([("b", 1, 230)], []))
    assert again.epoch(7) == [("b at 205", 8)]
