"""Processes that start and end: none outlives its driver, none is left by stop()."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from qstate.runtime.control.processes import await_ends, runs
from tests.either_backend import EITHER_BACKEND
from tests.spark.functions_under_test import Total
from tests.spark.generated import amounts
from tests.spark.streams import run_to_end, until

DRIVER = """
import sys
from pathlib import Path
from tests.spark.functions_under_test import Total
from tests.spark.generated import amounts
from tests.spark.streams import LOCAL, FileStream, run_to_end, start_spark
from qstate.spark import Job

work = Path(sys.argv[1])
session = start_spark(LOCAL)
job = Job(session, "orphans", parallelism=2, proxy_ports="0", server_ports="0")
stream = FileStream(session, work / "input")
for table in amounts(batches=1, rows_a_batch=100, keys=10):
    stream.add(table)
run_to_end(job.key_by(stream.read(), "key").process(Total(), "key string, total bigint", uid="total"), work / "c")
print(*(manager.pid for manager in job.manager.task_managers()), flush=True)
sys.stdin.read()
"""

#: Loses the JVM, asks the job for its figures, and stops the job.
WITHOUT_ITS_JVM = """
import sys
from tests.spark.streams import LOCAL, start_spark
from qstate.errors import JobError
from qstate.spark import Job

session = start_spark(LOCAL)
job = Job(session, "job", checkpoint_dir=sys.argv[1], parallelism=2, proxy_ports="0", server_ports="0")
jvm = session.sparkContext._gateway.proc
jvm.kill()
jvm.wait()
for call in (job.statistics, lambda: job.savepoint(sys.argv[1]), lambda: job.proxy_address):
    try:
        call()
    except JobError as exc:
        print(exc)
job.stop()
print(job)
"""


def test_no_process_outlives_a_killed_driver(tmp_path: Path) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    try:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        started = [psutil.Process(pid) for pid in pids]
        started += psutil.Process(driver.pid).children(recursive=True)
    finally:
        driver.kill()
        driver.communicate()
    alive = await_ends(started, 10)
    assert [process.cmdline() for process in alive] == []


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_stop_ends_every_task_manager_and_removes_its_files(
    backend: str, spark: Any, stream_of: Any, job_of: Any, tmp_path: Path
) -> None:
    job = job_of(spark, backend=backend)
    stream = stream_of(spark, *amounts(batches=1, rows_a_batch=100, keys=10))
    run_to_end(
        job.key_by(stream.read(), "key").process(Total(), "key string, total bigint", uid="total"), tmp_path / "c"
    )
    managers = job.manager.task_managers()
    assert len(managers) == 2
    scratch = [Path(manager.unix_path).parent for manager in managers]
    assert all(directory.exists() for directory in scratch)
    job.stop()
    job.stop()
    until(
        lambda: not any(psutil.pid_exists(manager.pid) and alive(manager.pid) for manager in managers), "they end", 10
    )
    assert not any(directory.exists() for directory in scratch)
    assert not job.manager.checkpoint_dir.exists()


def alive(pid: int) -> bool:
    try:
        return runs(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def test_a_job_whose_jvm_is_killed_says_so_and_stops(tmp_path: Path) -> None:
    program = [sys.executable, "-c", WITHOUT_ITS_JVM, str(tmp_path)]
    shown = subprocess.run(program, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=120)
    *errors, stopped = shown.stdout.splitlines() or [shown.stderr]
    expected = rf"Spark's driver, a JVM .* has ended, .* state of job 'job' is in {tmp_path}\. To continue, start this"
    assert [bool(re.search(expected, error)) for error in errors] == [True] * 3, shown
    assert stopped.endswith("stopped>"), shown.stderr
