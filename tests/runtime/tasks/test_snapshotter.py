"""The process that writes snapshots: it never outlives its task manager, and its failure affects nothing else."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint import EpochLog, LogIdentity
from qstate.config import JobConfig
from qstate.keys import encode_key
from qstate.runtime.control.processes import runs
from qstate.runtime.tasks.snapshotter import Snapshotter
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import RunningJob, rows_batch, until

JobOf = Callable[..., RunningJob]
IDENTITY = LogIdentity("job", "it", 0, 1, 128)


def sealed_log(directory: Path, entries: int = 10) -> None:
    log = EpochLog.open(directory, IDENTITY)
    log.seal(
        0, [Change(ChangeOp.PUT, "s", 0, encode_key(None), encode_key(number), b"", b"x") for number in range(entries)]
    )


def snapshots(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("*.snapshot")]


def test_snapshot_is_written_after_snapshot_interval_final_epochs(tmp_path: Path) -> None:
    sealed_log(tmp_path)
    snapshotter = Snapshotter(tmp_path, JobConfig(snapshot_interval=3))
    for _ in range(2):
        snapshotter.epoch_is_final(0)
    assert snapshotter._process is None
    snapshotter.epoch_is_final(0)
    until(lambda: snapshots(tmp_path) == ["000000000002.snapshot"], "the snapshot is there")
    snapshotter.close()
    snapshotter.close()


def test_no_interval_means_no_snapshots(tmp_path: Path) -> None:
    snapshotter = Snapshotter(tmp_path, JobConfig(snapshot_interval=0))
    snapshotter.epoch_is_final(0)
    assert snapshotter._process is None
    snapshotter.close()


def test_snapshot_that_takes_too_long_is_cancelled(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sealed_log(tmp_path, entries=200_000)
    snapshotter = Snapshotter(tmp_path, JobConfig(snapshot_interval=1, snapshot_timeout_s=0.01))
    snapshotter.epoch_is_final(0)
    until(lambda: "took longer than snapshot_timeout_s" in caplog.text, "it is cancelled")
    snapshotter.close()
    assert snapshots(tmp_path) == []


def test_failed_snapshot_is_logged_and_the_next_one_is_tried(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sealed_log(tmp_path)
    newest = tmp_path / "000000000002.log"
    sound = newest.read_bytes()
    sealed_by_another = EpochLog.open(tmp_path, IDENTITY)
    sealed_by_another.seal(1, [])
    newest.write_bytes(b"damaged")
    snapshotter = Snapshotter(tmp_path, JobConfig(snapshot_interval=1))
    snapshotter.epoch_is_final(1)
    until(lambda: "no snapshot of epoch 1" in caplog.text, "the failure is said")
    newest.write_bytes(sound)
    until(lambda: not snapshotter._waiting or not snapshotter._waiting.is_alive(), "the first one has ended")
    snapshotter.epoch_is_final(1)
    until(lambda: len(snapshots(tmp_path)) == 1, "the next one is made")
    snapshotter.close()


def test_options_of_the_storage_are_no_arguments(tmp_path: Path) -> None:
    sealed_log(tmp_path)
    config = JobConfig(snapshot_interval=1, checkpoint_storage_options={"secret": "of nobody"})
    snapshotter = Snapshotter(tmp_path, config)
    snapshotter.epoch_is_final(0)
    assert snapshotter._process is not None
    assert str(tmp_path) in snapshotter._process.args
    assert "of nobody" not in str(snapshotter._process.args)
    until(lambda: len(snapshots(tmp_path)) == 1, "it is made with them")
    snapshotter.close()


def test_process_ends_with_its_standard_input(tmp_path: Path) -> None:
    """When a task manager is killed, its pipe to the process ends."""
    sealed_log(tmp_path, entries=200_000)
    command = [sys.executable, "-m", "qstate.checkpoint.log.snapshot_process", str(tmp_path), "0", "2", "none"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(pickle.dumps({}))
    process.stdin.close()
    assert process.wait(30) == 1
    assert snapshots(tmp_path) == []


def test_killed_task_manager_leaves_no_snapshot_process(job_of: JobOf) -> None:
    job = job_of(Totals(), snapshot_interval=1)
    job.epoch(0, rows_batch(*((f"key {number}", 1) for number in range(50_000))))
    job.epoch(1, rows_batch(("a", 1)))
    manager = psutil.Process(job.task_manager().pid)
    children = manager.children()
    os.kill(manager.pid, signal.SIGKILL)
    until(lambda: not any(map(runs, children)), "they end")
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 2)]
