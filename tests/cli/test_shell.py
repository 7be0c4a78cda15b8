"""`qstate shell` in a real terminal, against a served job."""

from __future__ import annotations

import argparse
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from qstate.cli import main as cli
from qstate.cli.shell.prompt import _history
from qstate.cli.shell.session import Session
from tests.cli.test_command_line import ROOT, assert_one_line_error, run
from tests.project.served_job import CONTENTS, serve, serve_history
from tests.runtime.job.other_user import OtherUser, other_user, shared_temporary

__all__ = ["other_user", "shared_temporary"]

TIMEOUT_S = 30
JOB = "nyc"


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve_history(tmp_path_factory.mktemp("served"), job=JOB) as ((host, port), _):
        yield f"{host}:{port}"


@pytest.fixture
def shell(proxy: str, tmp_path: Path) -> Iterator[pexpect.spawn]:
    child = started(proxy, tmp_path)
    child.expect("Ctrl-D the shell")
    yield child
    child.close(force=True)


def started(proxy: str, home: Path, *arguments: str) -> pexpect.spawn:
    environment = {
        **{variable: value for variable, value in os.environ.items() if not variable.startswith("QSTATE_")},
        "PYTHONPATH": str(ROOT),
        "XDG_STATE_HOME": str(home / "state"),
        "XDG_CONFIG_HOME": str(home),
        "TERM": "xterm",
        "NO_COLOR": "1",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "LC_ALL": "C.UTF-8",
    }
    command = ["-m", "qstate", "shell", *arguments, "--proxy", proxy]
    return pexpect.spawn(
        sys.executable, command, env=environment, timeout=TIMEOUT_S, encoding="utf-8", dimensions=(40, 120)
    )


def tabulated(shell: pexpect.spawn, begins: str, rest: str) -> None:
    """Type the beginning of a word and the tabulator key, and wait for the rest of it."""
    shell.send(f"{begins}\t" if rest else begins)
    shell.expect(re.escape(rest))


def test_commands_take_the_job_and_the_state_that_were_chosen(shell: pexpect.spawn, tmp_path: Path) -> None:
    shell.send("use nyc\r")
    shell.expect("qstate nyc>")
    shell.send("use nyc lastTemperature\r")
    shell.expect("qstate nyc/lastTemperature>")
    shell.send("get --format json JFK\r")
    shell.expect(r"71\.06\r\n")
    shell.send("qstate get JFK\r")
    shell.expect(r"71\.06\r\n")
    shell.send("use\r")
    shell.expect("qstate>")
    shell.send("get nyc lastTemperature JFK\r")
    shell.expect(r"71\.06\r\n")
    shell.send("exit\r")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == cli.SUCCESS
    history = tmp_path / "state" / "qstate" / "history"
    assert "get --format json JFK" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700


def test_commands_jobs_states_and_options_are_completed(shell: pexpect.spawn) -> None:
    for begins, rest in (("us", "e"), ("ny", "c"), ("la", "stTemperature")):
        tabulated(shell, begins, rest)
    shell.send("\r")
    shell.expect("qstate nyc/lastTemperature>")
    for begins, rest in (("ge", "t"), ("JFK ", ""), ("--form", "at"), ("jsonl ", "")):
        tabulated(shell, begins, rest)
    shell.send("\r")
    shell.expect(r"71\.06\r\n")


def test_ctrl_c_ends_the_command_and_not_the_shell(shell: pexpect.spawn) -> None:
    shell.send("watch nyc lastTemperature --from-epoch 0 --format jsonl\r")
    shell.expect('"epoch": 2')
    shell.send("\x03")
    shell.expect("qstate>")
    shell.send("half a line\x03")
    shell.expect("qstate>")
    shell.send("jobs\r")
    shell.expect("JOB\r\nnyc\r\n")
    shell.send("\x04")
    shell.expect(pexpect.EOF)
    shell.close()
    assert shell.exitstatus == cli.SUCCESS


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("frobnicate", "invalid choice: 'frobnicate'"),
        ("get", "the following arguments are required: JOB, STATE, KEY; see: qstate get --help"),
        ("get 'nyc", "No closing quotation: end the quotes"),
        ("get nyc noSuchState JFK", "no queryable state of that name"),
        ("use noSuchJob", "no job of that name"),
        ("use nyc noSuchState", "no queryable state of that name"),
        ("serve somewhere", "invalid choice: 'serve'"),
        ("help scan", r"usage: qstate scan \[OPTION"),
        ("help", "choose a job, and a state"),
        ("# a comment", "qstate> "),
    ],
)
def test_a_mistake_is_told_and_the_shell_goes_on(
    capsys: pytest.CaptureFixture[str], proxy: str, line: str, says: str
) -> None:
    connection = argparse.Namespace(profile=None, proxy=[proxy])
    session = Session(cli._parser, cli.run, connection)
    session.execute(line)
    printed = capsys.readouterr()
    assert re.search(says, printed.out + printed.err + session.prompt)
    assert session.prompt == "qstate> " and not session.over


def test_a_name_of_others_is_printable_in_the_prompt(tmp_path: Path) -> None:
    evil = "\x1b[2Jevil"
    with serve(tmp_path, job=evil) as (host, port):
        session = Session(cli._parser, cli.run, argparse.Namespace(profile=None, proxy=[f"{host}:{port}"]))
        assert session.run(["use", evil]) == cli.SUCCESS
    assert session.prompt == "qstate \\x1b[2Jevil> "


def test_a_shell_begins_with_a_job_and_a_state_and_completes_keys(tmp_path: Path) -> None:
    with serve(tmp_path) as (host, port):
        child = started(f"{host}:{port}", tmp_path, JOB, "byPlace")
        try:
            child.expect("qstate nyc/byPlace>")
            # What the shell tells the terminal has numbers, too. It writes the f that is typed, and then the other.
            for begins, shown in (("get ", "JFK"), ("", r"(?<![\d\[?;])7(?!\d)"), ("f", "(?s)f.*f")):
                child.send(f"{begins}\t")
                child.expect(shown)
            child.send("\r")
            child.expect("AAE=")
        finally:
            child.close(force=True)
    assert ("JFK", 7, b"\xff") in CONTENTS["byPlace"][None]


def test_a_history_that_cannot_be_kept_is_told(proxy: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("in the way")
    child = started(proxy, tmp_path)
    try:
        child.expect("lines are not kept in .*history")
        child.expect("qstate>")
    finally:
        child.close(force=True)


def test_a_history_that_others_could_read_is_closed(proxy: str, tmp_path: Path) -> None:
    history = tmp_path / "state" / "qstate" / "history"
    history.parent.mkdir(parents=True)
    history.touch(0o666)
    history.chmod(0o666)
    child = started(proxy, tmp_path)
    try:
        child.expect("qstate>")
        assert stat.S_IMODE(history.stat().st_mode) == 0o600
    finally:
        child.close(force=True)


def test_a_shell_without_a_terminal_says_what_to_do() -> None:
    assert_one_line_error(run("shell"), "for a terminal", "a command of its own")


def test_a_shell_without_its_package_says_what_to_install(proxy: str) -> None:
    code = (
        "import sys; sys.modules['prompt_toolkit'] = None\n"
        "from qstate.cli.shell.prompt import open_prompt\nopen_prompt(None)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert "pip install 'spark-qstate[shell]'" in answer.stderr


def test_a_history_where_others_can_put_files_is_not_kept(
    shared_temporary: Path, other_user: OtherUser, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(shared_temporary))
    other_user("mkdir -m 777 qstate")
    assert type(_history()).__name__ == "InMemoryHistory"
    assert "lines are not kept in" in capsys.readouterr().err
    monkeypatch.setenv("XDG_STATE_HOME", str(shared_temporary / "own"))
    if os.geteuid() == shared_temporary.stat().st_uid:  # else this process takes itself for another user
        assert type(_history()).__name__ == "FileHistory"
