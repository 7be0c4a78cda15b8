"""Laws of lost task managers, at any moment: nothing is lost or counted twice, and errors say what happened."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from qstate.errors import CheckpointError, FencedError, JobError
from qstate.runtime.relay import data_channel
from qstate.runtime.relay.data_channel import FrameKind, SessionRequest, open_channel
from tests.runtime.job.functions import Hold, Once, Open, Totals, exit_at_once, kill_this_process
from tests.runtime.job.running_job import QUERY, Background, RunningJob, end_of, kill, many_rows, rows_batch, until

JobOf = Callable[..., RunningJob]
PARTS = ["heap", "rocksdb"]


@pytest.mark.parametrize("backend", PARTS)
def test_state_is_queryable_again_without_another_epoch(backend: str, job_of: JobOf) -> None:
    job = job_of(Totals(), backend=backend)
    job.epoch(0, rows_batch(("a", 1)))
    job.epoch(1, rows_batch(("a", 2)))
    for _ in range(3):
        lost = job.task_manager()
        kill(lost)
        job.successor_of(lost)
        assert job.totals("a") == {"a": 3}
    assert job.epoch(2, rows_batch(("a", 4))) == [("a", 7)]


def test_the_relay_repeats_an_epoch_whose_task_manager_is_lost(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals(Once(tmp_path / "flag", kill_this_process)))
    job.epoch(0, rows_batch(("a", 1)))
    batches = [rows_batch(("a", 1), ("b", 2)), rows_batch(("mischief", 1)), rows_batch(("a", 1))]
    assert job.epoch(1, *batches) == [("a", 2), ("b", 2), ("mischief", 1), ("a", 3)]
    assert job.totals("a", "b", "mischief") == {"a": 3, "b": 2, "mischief": 1}


def test_a_loss_after_the_epoch_was_sealed_and_before_the_relay_heard_counts_once(job_of: JobOf) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    sealed = len(list(job.epoch_log().glob("*.log")))
    batch = rows_batch(("a", 2), ("b", 1))
    request = pickle.dumps(SessionRequest("it", 0, 1, 500, QUERY, job.declarations["it"]))
    channel = open_channel(job.task_manager(), job.manager.secret, same_host=True, silent=lambda: None)
    try:
        frames = [
            (FrameKind.OPEN, request),
            (FrameKind.SCHEMA, batch.schema.serialize()),
            (FrameKind.BATCH, batch.serialize()),
            (FrameKind.END, end_of(batch)),
        ]
        for kind, payload in frames:
            for _ in channel.exchange(kind, payload):
                pass
        until(lambda: len(list(job.epoch_log().glob("*.log"))) > sealed, "the epoch is sealed")
        kill(job.task_manager())
    finally:
        channel.close()
    assert job.epoch(1, batch, attempt=501) == [("a", 3), ("b", 1)]
    assert job.totals("a", "b") == {"a": 3, "b": 1}


def test_a_task_manager_that_is_killed_as_it_starts_is_started_again(job_of: JobOf, tmp_path: Path) -> None:
    """In open(), which runs before the task manager's first session can be served."""
    job = job_of(Open(Once(tmp_path / "flag", kill_this_process)))
    assert job.epoch(0, rows_batch(("a", 1))) == [("a", 1)]


def test_function_that_always_ends_its_process_fails_the_query(job_of: JobOf) -> None:
    job = job_of(Totals(exit_at_once))
    with pytest.raises(JobError, match=r"task manager of 'it' subtask 0 was lost.*6 were lost"):
        job.epoch(0, rows_batch(("mischief", 1)))


def test_a_damaged_log_is_the_querys_error_and_the_task_manager_stays(job_of: JobOf) -> None:
    job = job_of(Totals())
    for epoch in range(3):
        job.epoch(epoch, rows_batch(("a", 1)))
    newest = max(job.epoch_log().glob("*.log"))
    sound = newest.read_bytes()
    newest.write_bytes(sound[: len(sound) // 2])
    lost = job.task_manager()
    kill(lost)
    with pytest.raises(CheckpointError, match=newest.name):
        job.epoch(3, rows_batch(("a", 1)))
    with pytest.raises(CheckpointError, match=newest.name):
        job.epoch(3, rows_batch(("a", 1)))
    assert job.task_manager().incarnation == lost.incarnation + 1, "no crash loop"
    newest.write_bytes(sound)
    assert job.epoch(3, rows_batch(("a", 1))) == [("a", 4)]


def test_a_damaged_newest_epoch_is_processed_again_when_spark_gives_it_again(job_of: JobOf) -> None:
    job = job_of(Totals())
    for epoch in range(3):
        job.epoch(epoch, rows_batch(("a", 1)))
    newest = max(job.epoch_log().glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:-1])
    kill(job.task_manager())
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 3)]
    assert job.totals("a") == {"a": 3}


def test_a_stopped_task_manager_is_replaced_and_its_relay_continues(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP is the hardest loss: no connection ends, and the process may continue later with all its state."""
    monkeypatch.setattr(data_channel, "SILENCE_S", 0.3)
    job = job_of(Totals(Once(tmp_path / "flag", Hold(tmp_path))), lease_s=1.5)
    job.epoch(0, rows_batch(("a", 1)))
    zombie = job.task_manager()
    running = Background(lambda: job.epoch(1, rows_batch(("a", 2), ("mischief", 1))))
    until((tmp_path / "reached").exists, "the function holds a row")
    os.kill(zombie.pid, signal.SIGSTOP)
    try:
        job.successor_of(zombie)
        assert running.result() == [("a", 3), ("mischief", 1)]
        sealed = sorted(job.epoch_log().iterdir())
    finally:
        (tmp_path / "go").touch()
        process = psutil.Process(zombie.pid)
        os.kill(zombie.pid, signal.SIGCONT)
    process.wait(20)
    assert sorted(job.epoch_log().iterdir()) == sealed, "it sealed nothing"
    assert job.totals("a", "mischief") == {"a": 3, "mischief": 1}
    assert job.epoch(2, rows_batch(("a", 4))) == [("a", 7)]


def test_a_stopped_task_manager_does_not_survive_its_job(job_of: JobOf, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(Totals(), lease_s=1.0)
    job.epoch(0, rows_batch(("a", 1)))
    zombie = job.task_manager()
    process = psutil.Process(zombie.pid)
    os.kill(zombie.pid, signal.SIGSTOP)
    try:
        job.successor_of(zombie)
        job.stop()
        process.wait(5)
    finally:
        if process.is_running():
            process.kill()


def test_newer_attempt_ends_one_that_is_inside_the_function(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals(Once(tmp_path / "flag", Hold(tmp_path))))
    older = Background(lambda: job.epoch(0, rows_batch(("a", 1), ("mischief", 1)), attempt=1))
    until((tmp_path / "reached").exists, "the function holds a row")
    newer = Background(lambda: job.epoch(0, rows_batch(("a", 1), ("mischief", 1)), attempt=2))
    with pytest.raises(FencedError, match="came after attempt"):
        older.result()
    (tmp_path / "go").touch()
    assert newer.result() == [("a", 1), ("mischief", 1)]
    assert job.totals("a") == {"a": 1}


def test_newer_attempt_ends_one_whose_relay_does_not_read(job_of: JobOf) -> None:
    job = job_of(Totals(fan_out=50))
    older = job.task(0, [many_rows(10_000) for _ in range(20)])
    next(older)  # and no further: the task manager fills the buffers and then waits
    assert job.epoch(0, rows_batch(("a", 1)))[0] == ("a", 1)
    older.close()
    assert job.totals("a", "k1") == {"a": 1, "k1": None}


def test_racing_attempts_of_one_epoch_count_once(job_of: JobOf) -> None:
    job = job_of(Totals())
    rows = [many_rows(5_000)]
    for epoch in range(5):
        racing = [
            Background(lambda number=number, epoch=epoch: job.epoch(epoch, *rows, attempt=number))
            for number in range(10 * epoch, 10 * epoch + 4)
        ]
        outcomes = []
        for task in racing:
            try:
                outcomes.append(len(task.result()))
            except Exception as exc:
                outcomes.append(type(exc).__name__)
        assert outcomes[-1] == 5_000, outcomes
        assert set(outcomes[:-1]) <= {5_000, "FencedError"}, outcomes
        assert job.totals("k1") == {"k1": 50 * (epoch + 1)}
