"""Laws of the task managers' logs: bounded, whole, private, not among the checkpoints, and there when an error names
them."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from qstate.config import JobConfig
from qstate.errors import ConfigError, JobError
from qstate.host.private_files import own_directories
from qstate.runtime.control.launch import LOGS_PREFIX
from qstate.runtime.control.process_log import OpenedLog
from qstate.runtime.job.job_manager import JobManager
from tests.runtime.job.functions import Open, Totals, fail
from tests.runtime.job.other_user import OtherUser, other_user, shared_temporary
from tests.runtime.job.running_job import Background, RunningJob, kill, rows_batch

__all__ = ["other_user", "shared_temporary"]

JobOf = Callable[..., RunningJob]

SOON_S = 20.0
#: Writes numbered lines by all that a process writes with, and looks after each, as it does every second otherwise.
WRITER = """
import logging, os, subprocess, sys
from pathlib import Path
from qstate.runtime.control.process_log import ProcessLog
log = ProcessLog(Path(sys.argv[1]), limit=1000, kept=2)
logging.basicConfig(format="%(message)s")
sys.stdout.reconfigure(line_buffering=True)
writers = [
    lambda line: print(line),
    lambda line: logging.warning(line),
    lambda line: os.write(1, line.encode() + b"\\n"),
    lambda line: os.write(2, line.encode() + b"\\n"),
    lambda line: subprocess.run(["echo", line]),
]
first, count, asked = int(sys.argv[2]), int(sys.argv[3]), "-" in sys.argv
for number in range(first, first + count):
    writers[number % len(writers)](f"line {number:05d}")
    log.look()
    if asked:
        input()
"""


def write(path: Path, first: int, count: int) -> None:
    log = OpenedLog(path)
    command = [sys.executable, "-c", WRITER, str(path), str(first), str(count)]
    subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=120, check=True)
    log.close()


def lines_of(path: Path) -> list[int]:
    """The numbers of the lines in the files of a log, the oldest first."""
    files = [path.with_name(f"{path.name}.{number}") for number in range(9, 0, -1)]
    text = "".join(file.read_text() for file in (*files, path) if file.exists())
    return [int(line) for line in re.findall(r"^line (\d+)$", text, re.MULTILINE)]


def test_log_is_bounded_and_has_the_newest_lines_of_all_writers(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "a.log"
    write(path, 0, 400)
    assert sorted(file.name for file in path.parent.iterdir()) == ["a.log", "a.log.1", "a.log.2"]
    assert all(file.stat().st_size <= 1000 + len("line 00000\n") for file in path.parent.iterdir())
    found = lines_of(path)
    assert found == list(range(found[0], 400)) and len(found) > 180


def test_next_process_appends_to_the_log(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    write(path, 0, 10)
    write(path, 10, 10)
    assert lines_of(path) == list(range(20))
    assert not path.with_name("a.log.1").exists()


def test_processes_that_share_a_log_both_stay_within_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = OpenedLog(path)
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), "0", "400", "-"],
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
    ) as sharing:
        log.close()
        assert sharing.stdin is not None
        for part in range(4):
            write(path, 1000 * part, 200)
            sharing.stdin.write("\n" * 100)
            sharing.stdin.flush()
        sharing.communicate(timeout=60)
    assert sharing.returncode == 0
    files = list(tmp_path.iterdir())
    assert {file.name for file in files} == {"a.log", "a.log.1", "a.log.2"}
    assert all(file.stat().st_size <= 2500 for file in files)


@pytest.mark.parametrize("obstacle", ["removed", "a file", "another's"])
def test_log_without_a_directory_is_bounded_too(tmp_path: Path, obstacle: str) -> None:
    path = tmp_path / "logs" / "a.log"
    log = OpenedLog(path)
    command = [sys.executable, "-c", WRITER, str(path), "0", "300", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, text=True) as process:
        path.unlink()
        if obstacle == "another's":
            path.symlink_to(tmp_path / "made")
        else:
            path.parent.rmdir()
        if obstacle == "a file":
            path.parent.touch()
        process.communicate("\n" * 300, timeout=60)
    assert process.returncode == 0
    if obstacle == "removed":
        assert path.stat().st_size <= 1100 and lines_of(path)[-1] == 299
    assert os.fstat(log.fileno()).st_size <= 1100
    assert not (tmp_path / "made").exists()
    log.close()


def test_end_of_a_renamed_log_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("of the process before\n")
    for fate in (lambda: None, lambda: path.rename(tmp_path / "b.log"), path.unlink):
        log = OpenedLog(path)
        os.write(log.fileno(), b"it says \xff why\n")
        fate()
        assert log.tail() == "it says � why\n"
        os.write(log.fileno(), b"x" * 5000)
        assert log.tail() == "x" * 2000
        log.close()
        log.close()


TRAPS: dict[str, Callable[[Path], None]] = {
    "a FIFO": lambda path: os.mkfifo(path),
    "a link": lambda path: path.symlink_to(path.parent / "made"),
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("trap", TRAPS.values(), ids=TRAPS)
def test_nothing_but_a_regular_file_is_a_log(trap: Callable[[Path], None], tmp_path: Path) -> None:
    trap(tmp_path / "a.log")
    with pytest.raises(ConfigError, match=r"the log .*a\.log cannot be written \(see log_dir\)"):
        Background(lambda: OpenedLog(tmp_path / "a.log")).result(SOON_S)
    assert not (tmp_path / "made").exists()


def test_a_file_of_another_user_is_no_log(shared_temporary: Path, other_user: OtherUser) -> None:
    other_user("touch a.log; chmod 666 a.log")
    with pytest.raises(ConfigError, match="belongs to another user"):
        OpenedLog(shared_temporary / "a.log")


def test_logs_are_the_users_alone_and_not_among_the_checkpoints(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    (log,) = job.logs()
    assert log == tmp_path / "logs" / "job-task-manager-0.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert stat.S_IMODE(log.parent.stat().st_mode) == 0o700
    assert not (tmp_path / "checkpoint" / "logs").exists()
    first = job.task_manager()
    kill(first)
    second = job.successor_of(first)
    for manager in (first, second):
        assert f"task manager 0, incarnation {manager.incarnation}: process {manager.pid}\n" in log.read_text()


def test_logs_without_log_dir_are_in_a_private_directory_and_stay(
    job_of: JobOf, shared_temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(shared_temporary))
    (shared_temporary / f"{LOGS_PREFIX}0").symlink_to("/")
    job = job_of(Open(fail), log_dir="", checkpoint_dir="")
    with pytest.raises(JobError, match="as the test wants"):
        job.epoch(0, rows_batch(("a", 1)))
    job.stop()
    (directory,) = own_directories(LOGS_PREFIX)
    assert directory.parent == shared_temporary and not directory.is_symlink()
    assert [path.name for path in directory.iterdir()] == ["job-task-manager-0.log"]
    assert "as the test wants" in job.log_text()


def test_the_log_that_an_error_names_is_there_when_the_job_has_been_stopped(job_of: JobOf) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job = job_of(Totals(), server_ports=str(taken.getsockname()[1]), checkpoint_dir="")
        with pytest.raises(JobError, match="a task manager ended as it started; its log, ") as failed:
            job.epoch(0, rows_batch(("a", 1)))
    job.stop()
    named = re.search(r"its log, (\S+) on \S+, ends with:\n(.*)", str(failed.value), re.DOTALL)
    assert named is not None
    assert "no free port" in named[2] and named[2] in Path(named[1]).read_text()


def test_impossible_log_directory_is_reported(job_of: JobOf, tmp_path: Path) -> None:
    job = job_of(Totals(), log_dir=str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"the log .*file/job-task-manager-0\.log cannot be written \(see log_dir\)"):
        job.epoch(0, rows_batch(("a", 1)))


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("/dev/null", "log_dir must be a directory, .*: /dev/null is none"),
        ("/dev/null/logs", "log_dir must be a directory, .*: /dev/null is none; got '?/dev/null/logs"),
        ("s3://bucket/logs", "log_dir must be a local directory"),
    ],
)
def test_impossible_log_directory_is_refused_when_the_job_is_made(
    place: str, message: str, local: bool, tmp_path: Path
) -> None:
    config = JobConfig(log_dir=place, checkpoint_dir=str(tmp_path / "state"))
    with pytest.raises(ConfigError, match=message):
        JobManager("job", config, parallelism=1, host="127.0.0.1", local=local)
    assert not (tmp_path / "state").exists()


def test_a_relative_log_directory_is_the_drivers(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for setting, expected in [("here", tmp_path / "here"), ("~/there", tmp_path / "home" / "there")]:
        job = job_of(Totals(), log_dir=setting, checkpoint_dir="")
        assert job.manager.config.log_dir == str(expected)
        job.stop()
    assert tempfile.gettempdir()
