"""Laws of functions that fork: a child that returns into the task manager's code ends there and changes nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from qstate.descriptors import ReducingStateDescriptor
from qstate.operators.checkpointed import CheckpointedFunction
from qstate.serializers import MessagePackSerializer
from tests.either_backend import EITHER_BACKEND
from tests.functions import add
from tests.runtime.job.functions import Close, Open, Totals
from tests.runtime.job.running_job import RunningJob, kill, rows_batch

JobOf = Callable[..., RunningJob]
BACKENDS = pytest.mark.parametrize("backend", EITHER_BACKEND)


def go_on() -> None:
    """Returns normally."""


class Fork:
    """Forks once, and lets the child do `then`."""

    def __init__(self, directory: Path, then: Callable[[], None] = go_on) -> None:
        self.child = directory / "child"
        self._then = then

    def __call__(self) -> None:
        if self.child.exists():
            return
        pid = os.fork()
        if not pid:
            self._then()
            return
        written = self.child.with_suffix(".new")
        written.write_text(str(pid))
        written.rename(self.child)
        ended = psutil.Process(pid)
        try:
            ended.wait(20)  # the child has ended before the parent continues
        except psutil.TimeoutExpired:
            ended.kill()
            raise


def fail() -> None:
    raise ValueError("in the child")


def leave() -> None:
    sys.exit(3)


class Flowing(Totals):
    """Yields a row before and after the mischief."""

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.total.add(row.amount)
        yield row.key, self.total.get()
        if row.key == "mischief" and self._mischief is not None:
            self._mischief()
        yield row.key, -self.total.get()


class ForksInDumps(MessagePackSerializer):
    """Forks when values are serialized: as the epoch is sealed."""

    def __init__(self, mischief: Callable[[], None]) -> None:
        self._mischief = mischief

    def dumps(self, value: Any) -> bytes:
        self._mischief()
        return super().dumps(value)


class AtTheSeal(Totals):
    def open(self, context: Any) -> None:
        assert self._mischief is not None
        self.total = context.get_reducing_state(
            ReducingStateDescriptor(
                "total", int, reduce_function=add, serializer=ForksInDumps(self._mischief)
            ).queryable("totalAmount")
        )


def assert_nothing_came_of_it(job: RunningJob) -> None:
    """The task manager continues, with all its files, and its log says that the child has ended."""
    assert job.epoch(1, rows_batch(("a", 1)))[0] == ("a", 3)
    before = job.task_manager()
    assert Path(before.unix_path).parent.exists()
    assert "a forked child came back" in job.log_text()
    kill(before)
    job.successor_of(before)
    assert job.totals("a", "mischief") == {"a": 3, "mischief": 1}
    assert job.epoch(2, rows_batch(("a", 1)))[0] == ("a", 4)


ROWS = rows_batch(("a", 1), ("mischief", 1), ("a", 1))


@BACKENDS
@pytest.mark.parametrize("then", [go_on, fail, leave], ids=["returns", "raises", "exits"])
def test_child_that_returns_from_a_row_duplicates_nothing(
    job_of: JobOf, tmp_path: Path, backend: str, then: Callable[[], None]
) -> None:
    job = job_of(Totals(Fork(tmp_path, then)), backend=backend)
    assert job.epoch(0, ROWS) == [("a", 1), ("mischief", 1), ("a", 2)]
    assert_nothing_came_of_it(job)


def test_child_of_a_generator_duplicates_nothing(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Flowing(Fork(tmp_path)))
    rows = [("a", 1), ("a", -1), ("mischief", 1), ("mischief", -1), ("a", 2), ("a", -2)]
    assert job.epoch(0, ROWS) == rows
    assert_nothing_came_of_it(job)


@BACKENDS
def test_child_that_returns_while_values_are_serialized_seals_nothing(
    job_of: JobOf, tmp_path: Path, backend: str
) -> None:
    job = job_of(AtTheSeal(Fork(tmp_path)), backend=backend)
    assert job.epoch(0, ROWS) == [("a", 1), ("mischief", 1), ("a", 2)]
    assert_nothing_came_of_it(job)


def test_child_that_returns_from_open_opens_nothing(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Open(Fork(tmp_path)))
    assert job.epoch(0, ROWS) == [("a", 1), ("mischief", 1), ("a", 2)]
    assert_nothing_came_of_it(job)


class InHook(Totals, CheckpointedFunction):
    """Forks in one of its hooks."""

    def __init__(self, mischief: Callable[[], None], hook: str) -> None:
        super().__init__(mischief)
        self._hook = hook

    def _reach(self, hook: str) -> None:
        if hook == self._hook and self._mischief is not None:
            self._mischief()

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, int]]:
        self.total.add(row.amount)
        yield row.key, self.total.get()

    def initialize_state(self, context: Any) -> None:
        self._reach("initialize_state")

    def snapshot_state(self, context: Any) -> None:
        self._reach("snapshot_state")


@pytest.mark.parametrize("hook", ["initialize_state", "snapshot_state"])
def test_child_that_returns_from_a_hook_seals_nothing(job_of: JobOf, tmp_path: Path, hook: str) -> None:
    job = job_of(InHook(Fork(tmp_path), hook))
    assert job.epoch(0, ROWS) == [("a", 1), ("mischief", 1), ("a", 2)]
    assert_nothing_came_of_it(job)


def test_child_that_returns_from_close_removes_nothing(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Close(Fork(tmp_path)))
    job.epoch(0, ROWS)
    process = psutil.Process(job.task_manager().pid)
    job.stop()
    process.wait(10)
    assert job.log_text().count("a forked child came back") == 1
    assert "Traceback" not in job.log_text()


def test_child_that_does_not_return_is_left_alone(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals(in_another_process))
    assert job.epoch(0, ROWS) == [("a", 1), ("mischief", 1), ("a", 2)]
    assert "a forked child" not in job.log_text()


def in_another_process() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(abs, [-1, 2]) == [1, 2]


def test_child_ends_when_it_is_told_to(job_of: JobOf, tmp_path: Path) -> None:
    """`multiprocessing` ends the processes of a pool with SIGTERM."""
    job = job_of(Totals(end_a_child))
    assert job.epoch(0, ROWS) == [("a", 1), ("mischief", 1), ("a", 2)]


def end_a_child() -> None:
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        os.write(tell, b"1")
        signal.sigwait([signal.SIGUSR1])  # no signal that anybody sends
        os._exit(0)
    os.read(told, 1)
    os.kill(child, signal.SIGTERM)
    try:
        assert psutil.Process(child).wait(10) == -signal.SIGTERM
    except psutil.TimeoutExpired:
        os.kill(child, signal.SIGKILL)
        raise


def test_child_of_the_driver_stops_nothing(job_of: JobOf) -> None:
    """A child that exits runs its parent's exit handlers."""
    job = job_of(Totals())
    job.epoch(0, ROWS)
    before = job.task_manager()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        child = os.fork()
    if not child:
        job.manager.stop()
        os._exit(0)
    psutil.Process(child).wait(30)
    assert job.task_manager() == before
    assert job.manager.checkpoint_dir.exists()
    assert job.totals("a") == {"a": 2}
