"""Laws of time in a running job: one time an epoch for all subtasks, and timers that fire once, whatever is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from qstate.checkpoint import open_source, write_savepoint
from qstate.checkpoint.storage.locations import open_directory
from qstate.descriptors import ReducingStateDescriptor
from qstate.keys import key_group, subtask_of
from qstate.operators.functions import KeyedProcessFunction
from qstate.operators.time.epoch_time import EventTime
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.functions import Once, kill_this_process
from tests.runtime.job.running_job import RunningJob, kill

JobOf = Callable[..., RunningJob]
TIMED = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC"))])
EVENT_TIME = EventTime("at", 10)
START = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Alarms(KeyedProcessFunction):
    """Registers a timer 5 ms after each row, and emits (key, time) of each that fires, with the rows so far."""

    def __init__(self, mischief: Callable[[], None] | None = None) -> None:
        self._mischief = mischief

    def open(self, context: Any) -> None:
        self.rows = context.get_reducing_state(
            ReducingStateDescriptor("rows", int, reduce_function=add).queryable("totalAmount")
        )

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.rows.add(1)
        context.timers.register_event_time(context.timestamp + 5)
        if row.key == "mischief" and self._mischief is not None:
            self._mischief()
        yield f"{row.key} sees", -1 if context.watermark is None else context.watermark

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[str, int]]:
        self.rows.add(100)
        yield context.current_key, timestamp


def rows(*found: tuple[str, int]) -> pa.RecordBatch:
    times = [START + timedelta(milliseconds=at) for _, at in found]
    return pa.RecordBatch.from_arrays([pa.array([key for key, _ in found], pa.string()), pa.array(times)], schema=TIMED)


@pytest.fixture(params=EITHER_BACKEND)
def alarms(request: pytest.FixtureRequest, job_of: JobOf) -> JobOf:
    def make(function: KeyedProcessFunction | None = None, **settings: Any) -> RunningJob:
        chosen = {"backend": request.param, **settings}
        return job_of(function or Alarms(), input_schema=TIMED, event_time=EVENT_TIME, **chosen)

    return make


def test_the_watermark_and_the_timers_of_a_subtask_are_told(alarms: JobOf) -> None:
    job = alarms()
    job.epoch(0, rows(("a", 100), ("b", 200)))
    (found,) = job.manager.statistics().subtasks
    assert (found.watermark_ms, found.state.timers) in ((None, 0), (None, None))
    job.epoch(1, rows(("a", 50)))
    (found,) = job.manager.statistics().subtasks
    assert found.watermark_ms == 190
    if job.config.backend == "heap":  # as of the committed epoch 0
        assert found.state.timers == 2


def of_subtask(number: int, parallelism: int = 2) -> str:
    """A key of this subtask."""
    return next(key for key in map(str, range(1000)) if subtask_of(key_group(key, 128), parallelism, 128) == number)


def test_timers_fire_when_rows_of_earlier_epochs_have_moved_the_watermark(alarms: JobOf) -> None:
    job = alarms()
    assert job.epoch(0, rows(("a", 100), ("b", 200))) == [("a sees", -1), ("b sees", -1)]
    assert job.epoch(1, rows(("a", 50))) == [("a", 105), ("a sees", 190)]
    assert job.epoch(2) == [("a", 55)]
    assert job.epoch(3) == []
    assert job.totals("a", "b") == {"a": 202, "b": 1}


def test_all_subtasks_have_the_watermark_of_the_greatest_time_in_any(alarms: JobOf) -> None:
    job = alarms(parallelism=2)
    one, other = of_subtask(0), of_subtask(1)
    job.epoch(0, rows((one, 100)))
    job.epoch(0, rows((other, 500)), subtask=1)
    assert job.epoch(1) == [(one, 105)]
    assert job.epoch(1, rows((other, 7)), subtask=1) == [(f"{other} sees", 490)]


def test_lost_task_manager_repeats_the_epoch_with_its_time_and_timers(alarms: JobOf, tmp_path: Path) -> None:
    job = alarms(Alarms(Once(tmp_path / "flag", kill_this_process)))
    job.epoch(0, rows(("a", 100), ("b", 200)))
    assert job.epoch(1, rows(("mischief", 50))) == [("a", 105), ("mischief sees", 190)]
    assert job.epoch(2) == [("mischief", 55)]
    assert job.totals("a", "mischief") == {"a": 101, "mischief": 101}


def test_timers_and_watermark_survive_the_loss_of_a_task_manager(alarms: JobOf) -> None:
    job = alarms()
    job.epoch(0, rows(("a", 100), ("b", 200)))
    job.epoch(1)
    lost = job.task_manager()
    kill(lost)
    job.successor_of(lost)
    assert job.epoch(2, rows(("c", 205))) == [("c sees", 190)]
    assert job.epoch(3, rows(("c", 216))) == [("c sees", 195)]
    assert job.epoch(4) == [("b", 205)]


def test_another_driver_continues_with_the_watermark_of_all_subtasks(alarms: JobOf) -> None:
    one, other = of_subtask(0), of_subtask(1)
    job = alarms(parallelism=2)
    job.epoch(0, rows((one, 100)))
    job.epoch(0, rows((other, 500)), subtask=1)
    job.stop()
    again = alarms(parallelism=2)
    assert again.epoch(1, rows((one, 7))) == [(one, 105), (f"{one} sees", 490)]
    assert again.epoch(1, subtask=1) == []


def test_another_driver_gives_a_half_sealed_epoch_the_time_that_it_had(alarms: JobOf) -> None:
    one, other = of_subtask(0), of_subtask(1)
    job = alarms(parallelism=2)
    job.epoch(0, rows((one, 100)))
    job.epoch(0, rows((other, 200)), subtask=1)
    sealed = job.epoch(1, rows((one, 900)))
    assert sealed == [(one, 105), (f"{one} sees", 190)]
    job.stop()
    again = alarms(parallelism=2)
    assert again.epoch(1, rows((other, 7)), subtask=1) == [(f"{other} sees", 190)]
    assert again.epoch(1, rows((one, 900))) == sealed
    assert again.epoch(2, subtask=1) == [(other, 12), (other, 205)]


def test_another_driver_gives_a_half_sealed_epoch_the_processing_time_that_it_had(job_of: JobOf) -> None:
    job = job_of(Deadlines(), parallelism=2)
    ((_, decided),) = job.epoch(0, rows_of_keys(of_subtask(0)))
    job.stop()
    again = job_of(Deadlines(), parallelism=2)
    assert again.epoch(0, rows_of_keys(of_subtask(1)), subtask=1) == [(of_subtask(1), decided)]


@pytest.mark.parametrize("parallelism", [1, 3, 5])
def test_timers_and_watermark_move_to_another_parallelism(alarms: JobOf, parallelism: int) -> None:
    one, other = of_subtask(0), of_subtask(1)
    job = alarms(parallelism=2)
    job.epoch(0, rows((one, 100)))
    job.epoch(0, rows((other, 500)), subtask=1)
    job.stop()
    again = alarms(parallelism=parallelism)
    fired = [again.epoch(1, subtask=number) for number in range(parallelism)]
    assert [row for of_subtask in fired for row in of_subtask] == [(one, 105)]
    moved = subtask_of(key_group(other, 128), parallelism, 128)
    for number in range(parallelism):
        assert again.epoch(2, *[rows((other, 600))] * (number == moved), subtask=number) == (
            [(f"{other} sees", 490)] if number == moved else []
        )


@pytest.mark.parametrize("other", ["heap", "rocksdb"])
def test_timers_and_watermark_are_in_savepoints(alarms: JobOf, job_of: JobOf, tmp_path: Path, other: str) -> None:
    job = alarms()
    job.epoch(0, rows(("a", 100), ("b", 200)))
    job.epoch(1)
    job.manager.finalize("query-1", 1)
    job.stop()
    target = open_directory(str(tmp_path / "savepoint"))
    write_savepoint(open_source(str(tmp_path / "checkpoint")), target)
    again = job_of(
        Alarms(),
        input_schema=TIMED,
        event_time=EVENT_TIME,
        backend=other,
        checkpoint_dir=str(tmp_path / "another"),
        restore_from=str(tmp_path / "savepoint"),
    )
    assert again.epoch(0, rows(("c", 216)), query="query-2") == [("c sees", 190)]
    assert again.epoch(1, query="query-2") == [("b", 205)]


def test_timer_of_processing_time_fires_in_the_first_epoch_after_it(job_of: JobOf) -> None:
    job = job_of(Deadlines())
    ((_, first),) = job.epoch(0, rows_of_keys("a"))
    ((_, second),) = job.epoch(1)
    assert second >= first
    assert job.epoch(2) == []


class Deadlines(KeyedProcessFunction):
    """Emits the processing time of each row, and of the epoch after it."""

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        context.timers.register_processing_time(context.processing_time)
        yield row.key, context.processing_time

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[str, int]]:
        assert timestamp <= context.processing_time
        yield context.current_key, context.processing_time


def rows_of_keys(*keys: str) -> pa.RecordBatch:
    schema = pa.schema([("key", pa.string()), ("amount", pa.int64())])
    return pa.RecordBatch.from_arrays([pa.array(keys), pa.array([1] * len(keys))], schema=schema)
