"""Laws of log lines: in the JSON form, each record of qstate's processes is one object in one line."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from qstate.errors import JobError
from qstate.host.log_lines import JsonLines, LogLines
from tests.runtime.job.functions import Totals, fail, write_to_stdout
from tests.runtime.job.running_job import RunningJob, rows_batch

JobOf = Callable[..., RunningJob]
FIELDS = {"time", "level", "logger", "message", "job", "process"}


def formatted(record: logging.LogRecord) -> dict[str, Any]:
    text = JsonLines(LogLines("json", "alerts", "3")).format(record)
    assert text.isascii() and len(text.splitlines()) == 1
    found: dict[str, Any] = json.loads(text)
    return found


def record(message: str, *args: object, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord("qstate.x", logging.WARNING, "x.py", 1, message, args, exc_info)


@pytest.mark.parametrize("text", ["plain", "two\nlines", 'a "quote" {}', "\u2028 \x1b[31m \x00", "\udc80"])
def test_any_message_is_one_line_and_comes_back(text: str) -> None:
    found = formatted(record("got %s", text))
    assert found.keys() == FIELDS
    assert found["message"] == f"got {text}"
    assert (found["level"], found["logger"], found["job"], found["process"]) == ("WARNING", "qstate.x", "alerts", "3")
    age = datetime.now(timezone.utc) - datetime.fromisoformat(found["time"])
    assert timedelta(0) <= age < timedelta(minutes=1)


def test_an_exception_is_a_field_with_its_traceback() -> None:
    try:
        raise ValueError("of\ntwo lines")
    except ValueError:
        found = formatted(record("failed", exc_info=sys.exc_info()))
    assert found["message"] == "failed"
    assert "Traceback" in found["exception"] and "of\ntwo lines" in found["exception"]


def test_a_task_manager_and_its_snapshot_process_write_json_and_leave_prints_alone(job_of: JobOf) -> None:
    job = job_of(Totals(mischief=write_to_stdout), log_format="json", snapshot_interval=1)
    job.epoch(0, rows_batch(("mischief", 1)))
    job.epoch(1, rows_batch(("a", 1)))
    job.wait_for_snapshots()
    lines = job.log_text().splitlines()
    assert "a line of the user's own" in lines
    found = [json.loads(line) for line in lines if line != "a line of the user's own"]
    assert all(one.keys() >= FIELDS and (one["job"], one["process"]) == ("job", "0") for one in found)
    loggers = {one["logger"] for one in found}
    assert "__main__" in loggers, "the snapshot process"
    assert any("is the state as of epoch 0" in one["message"] for one in found)
    assert any("Started the Queryable State Proxy Server" in one["message"] for one in found)


def test_the_failure_of_a_function_is_one_line_with_its_traceback(job_of: JobOf) -> None:
    job = job_of(Totals(mischief=fail), log_format="json")
    with pytest.raises(JobError):
        job.epoch(0, rows_batch(("mischief", 1)))
    found = [json.loads(line) for line in job.log_text().splitlines()]
    (failure,) = [one for one in found if "exception" in one]
    assert "as the test wants" in failure["exception"] and failure["level"] == "WARNING"


def test_serve_writes_json_on_demand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "qstate.cli.main", "serve", str(tmp_path), "--log-format", "json"]
    ports = ["--port", "0", "--server-port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*command, *ports], text=True, env=os.environ, **pipes) as process:
        assert process.stdout is not None and process.stdout.readline().startswith("serving")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    found = [json.loads(line) for line in errors.splitlines()]
    assert found and all((one.keys(), one["process"]) == (FIELDS, "standby") for one in found)
