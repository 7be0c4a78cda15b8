"""A function that does not return: the log says where it is, and the job may end it."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import psutil
import pytest

from qstate.config import JobConfig
from qstate.errors import FencedError, JobError
from qstate.operators.functions import KeyedProcessFunction
from qstate.runtime.control.processes import await_ends
from qstate.runtime.tasks import subtask, watchdog
from qstate.runtime.tasks.watchdog import Watchdog
from tests.operators.running import Calls, batch, heap, operator_of
from tests.operators.test_steps import Gate
from tests.runtime.job.functions import Hold, Once, Open, Totals
from tests.runtime.job.running_job import Background, RunningJob, rows_batch, until

JobOf = Callable[..., RunningJob]


def test_the_log_says_which_row_and_where_again_and_again(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals(Hold(tmp_path)), element_warning_s=0.2)
    task = Background(lambda: job.epoch(0, rows_batch(("a", 1), ("mischief", 7))))
    told = "operator 'it' subtask 0, function Totals, key 'mischief': process_element has not returned for "
    until(lambda: job.log_text().count(told) >= 3, "it is logged three times")
    logged = job.log_text()
    times = [float(found) for found in re.findall(re.escape(told) + r"([\d.]+) s\n", logged)]
    assert times[0] < 2 * times[1] and all(one * 1.5 < other for one, other in pairwise(times))
    assert "\nRow: Row(key='mischief', amount=7)\nIt is at:\n  File " in logged
    assert "threading.Event().wait(0.02)" in logged or "while not self.go.exists()" in logged
    (tmp_path / "go").touch()
    assert task.result() == [("a", 1), ("mischief", 7)]


def test_an_open_that_hangs_is_in_the_log(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Open(Hold(tmp_path)), element_warning_s=0.2)
    task = Background(lambda: job.epoch(0, rows_batch(("a", 1))))
    until(lambda: "operator 'it' subtask 0, function Open: open has not returned for" in job.log_text(), "it is told")
    (tmp_path / "go").touch()
    assert task.result() == [("a", 1)]


def test_a_timeout_fails_the_epoch_and_nothing_sealed_is_lost(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals(Once(tmp_path / "flag", Hold(tmp_path))), element_timeout_s=0.5)
    job.epoch(0, rows_batch(("a", 1), ("b", 2)))
    hung = job.task_manager()
    with pytest.raises(
        JobError,
        match=r"(?s)operator 'it' subtask 0, function Totals, key 'mischief': process_element has not returned for .* s"
        r"\nRow: Row\(key='mischief', amount=7\)\nIt is at:\n  File .*more than element_timeout_s allows \(0.5 s\)",
    ):
        job.epoch(1, rows_batch(("a", 1), ("mischief", 7)))
    hung_process = [psutil.Process(hung.pid)] if psutil.pid_exists(hung.pid) else []
    assert await_ends(hung_process, 15.0) == []
    successor = job.successor_of(hung)
    assert job.totals("a", "b", "mischief") == {"a": 1, "b": 2, "mischief": None}
    assert job.epoch(1, rows_batch(("a", 1), ("mischief", 7))) == [("a", 2), ("mischief", 7)]
    assert job.task_manager() == successor


def test_an_open_that_takes_too_long_fails_the_epoch(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Open(Once(tmp_path / "flag", Hold(tmp_path))), element_timeout_s=0.2, start_timeout_s=5)
    with pytest.raises(
        JobError, match=r"(?s)function Open: open has not returned for .*more than start_timeout_s allows"
    ):
        job.epoch(0, rows_batch(("a", 1)))
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]


class Backtracks(KeyedProcessFunction):
    """Keeps the interpreter's lock for longer than the lease, as a regular expression can."""

    def __init__(self, seconds: float, flag: Path) -> None:
        self._seconds = seconds
        self._flag = flag

    def process_element(self, row: Any, context: Any) -> Any:
        if not self._flag.exists():
            self._flag.touch()
            began = time.perf_counter()
            sum(range(10_000_000))  # one call into C, which keeps the interpreter's lock
            sum(range(int(10_000_000 * self._seconds / (time.perf_counter() - began))))


def test_who_holds_the_interpreter_is_in_the_log(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Backtracks(4.0, tmp_path / "flag"), lease_s=1.5)
    assert job.epoch(0, rows_batch(("a", 1))) == []
    until(lambda: "(most recent call first)" in job.log_text(), "the stack is in the log")
    assert re.search(r"Timeout \(0:00:00.75.*\)!(.|\n)*in process_element", job.log_text())


def test_the_stacks_are_logged_before_the_job_manager_ends_the_process() -> None:
    oldest_heartbeat = 1 / 4  # of the lease, at the last inspection: `TaskManager._watch`
    assert oldest_heartbeat + watchdog.HELD_PART < 0.9


class Clock:
    """A watchdog that inspects when the test calls it, and its reports."""

    def __init__(self, **settings: Any) -> None:
        self.expired: list[tuple[int, str]] = []
        self.watchdog = Watchdog(JobConfig(**settings), lambda thread, error: self.expired.append((thread, str(error))))

    def look(self, now: float, thread: threading.Thread) -> None:
        assert thread.ident is not None
        frames: dict[int, FrameType] = {thread.ident: sys._current_frames()[thread.ident]}
        self.watchdog.look(now, frames)


def test_only_a_call_that_stays_at_one_row_is_logged_at_growing_intervals(caplog: pytest.LogCaptureFixture) -> None:
    gates = [Gate(), Gate()]
    clock = Clock(element_timeout_s=1000)
    with heap() as backend:
        operator = operator_of(Calls(lambda function, row, context: gates[row.at](row)), backend)
        operator.open()
        rows = batch([("a", 1.5, 0), ("a", 1.5, 1)])
        thread = threading.Thread(target=lambda: operator.process(rows), daemon=True)
        thread.start()
        assert gates[0].reached.wait(30)
        told = []
        for now in (0, 59, 60, 61, 119, 121, 239, 240, 241, 999):
            clock.look(now, thread)
            told.append(len(caplog.records))
        assert told == [0, 0, 1, 1, 1, 2, 2, 3, 3, 4]
        gates[0].opened.set()
        assert gates[1].reached.wait(30)
        clock.look(1_500, thread)
        clock.look(1_559, thread)
        assert len(caplog.records) == 4, "another row of the same key has just begun"
        assert clock.expired == []
        clock.look(2_500, thread)
        assert [thread for thread, _ in clock.expired] == [thread.ident]
        gates[1].opened.set()
        thread.join(30)


def test_warnings_can_be_turned_off(caplog: pytest.LogCaptureFixture) -> None:
    gate, clock = Gate(), Clock(element_warning_s=0)
    with heap() as backend:
        operator = operator_of(Calls(lambda function, row, context: gate(row)), backend)
        operator.open()
        thread = threading.Thread(target=lambda: operator.process(batch([("a", 1.5, 0)])), daemon=True)
        thread.start()
        assert gate.reached.wait(30)
        for now in (0, 1e6):
            clock.look(now, thread)
        gate.opened.set()
        thread.join(30)
    assert not caplog.records
    assert not clock.expired


class Impatient(Totals):
    """Totals in a task manager in which a newer attempt waits for only half a second."""

    def open(self, context: Any) -> None:
        subtask.CUT_TIMEOUT_S = 0.5
        super().open(context)


def test_a_newer_attempt_that_waits_too_long_says_why(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Impatient(Once(tmp_path / "flag", Hold(tmp_path))))
    older = Background(lambda: job.epoch(0, rows_batch(("mischief", 1)), attempt=1))
    until((tmp_path / "reached").exists, "the function holds the row")
    with pytest.raises(JobError, match=r"(?s)still inside the user's function after 0 s, in operator 'it' .*File "):
        job.epoch(0, rows_batch(("mischief", 1)), attempt=2)
    (tmp_path / "go").touch()
    with pytest.raises((FencedError, JobError)):
        older.result()
