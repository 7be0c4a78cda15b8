"""How commands end: a closed pipe and Ctrl-C end them quietly, by their signals; a full disk is an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from qstate.cli import main as cli
from tests.cli.test_command_line import ROOT, run
from tests.project.served_job import serve, serve_history

COMMAND = [sys.executable, "-m", "qstate"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("form", ["table", "json", "jsonl", "csv"])
def test_a_closed_pipe_ends_a_command_quietly(tmp_path: Path, form: str) -> None:
    entries = {str(number): "x" * 100 for number in range(3000)}
    with serve(tmp_path, contents={"many": entries}) as (host, port):
        command = [*COMMAND, "scan", "nyc", "many", "--format", form, "--proxy", f"{host}:{port}"]
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
        assert started.stdout is not None and started.stderr is not None
        assert started.stdout.readline()
        started.stdout.close()
        errors = started.stderr.read()
        started.stderr.close()
        assert (started.wait(60), errors) == (-signal.SIGPIPE, b"")


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with serve(tmp_path) as (host, port), Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "jobs", "--proxy", f"{host}:{port}"]
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False)
    assert (answer.returncode, answer.stderr) == (cli.ERROR, "qstate: No space left on device\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["get", "nyc", "lastTemperature", "JFK"], cli.SUCCESS),
        (["scan", "nyc", "lastTemperature"], cli.SUCCESS),
        (["get", "nyc", "colour", "JFK"], cli.ERROR),
        (["shell"], cli.ERROR),
        (["token", "--digest"], cli.ERROR),
        (["get", "--nonsense"], cli.ERROR),
    ],
)
def test_without_an_input_and_a_stream_of_errors_none_comes_as_output(
    tmp_path: Path, arguments: list[str], code: int
) -> None:
    with serve(tmp_path) as (host, port):
        closing = ["sh", "-c", '"$@" <&- 2>&-', "sh", *COMMAND, *arguments]
        environment = {**ENVIRONMENT, "QSTATE_PROXY": f"{host}:{port}"}
        answer = subprocess.run(closing, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert (answer.returncode, answer.stderr, bool(answer.stdout)) == (code, "", code == cli.SUCCESS)


@pytest.mark.parametrize(("key", "code"), [("JFK", cli.SUCCESS), ("XXX", cli.NO)])
def test_without_an_output_the_exit_code_is_that_of_the_command(tmp_path: Path, key: str, code: int) -> None:
    with serve(tmp_path) as (host, port):
        command = [*COMMAND, "get", "nyc", "lastTemperature", key, "--proxy", f"{host}:{port}"]
        closing = ["sh", "-c", '"$@" >&-', "sh", *command]
        answer = subprocess.run(closing, capture_output=True, text=True, env=ENVIRONMENT, timeout=60, check=False)
    assert (answer.returncode, answer.stderr) == (code, "")


def test_ctrl_c_ends_a_watch_quietly(tmp_path: Path) -> None:
    with serve_history(tmp_path, job="nyc") as ((host, port), _):
        command = [*COMMAND, "watch", "nyc", "lastTemperature", "--from-epoch", "0", "--proxy", f"{host}:{port}"]
        started = subprocess.Popen(
            [*command, "--format", "jsonl"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT
        )
        assert started.stdout is not None
        assert started.stdout.readline()
        started.send_signal(signal.SIGINT)
        _, errors = started.communicate(timeout=60)
    assert (started.returncode, errors) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["COMMAND", "qstate --help"]),
        (["get"], ["JOB, STATE, KEY", "qstate get --help"]),
        (["scan", "nyc", "last", "--prox", "x"], ["unknown arguments: --prox", "qstate scan --help"]),
        (["get", "a", "b", "c", "--format", "xml"], ["'xml'", "json"]),
        (["checkpoint"], ["COMMAND", "qstate checkpoint --help"]),
        (["states", "nyc", "\x1b[2J"], ["\\x1b[2J"]),
    ],
)
def test_a_mistake_is_one_line_that_says_where_help_is(arguments: list[str], parts: list[str]) -> None:
    answer = run(*arguments)
    assert (answer.returncode, answer.stdout, answer.stderr.count("\n")) == (cli.ERROR, "", 1)
    assert answer.stderr.startswith("qstate: ")
    for part in parts:
        assert part in answer.stderr
