"""Completion: what the engine says, and what bash, zsh and fish make of it in a real terminal."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pexpect
import pytest

from qstate.cli import main as cli
from qstate.cli.completion.engine import Candidate, complete
from qstate.cli.completion.names import PATIENCE_S, LiveNames
from qstate.cli.completion.shells import SCRIPTS, split_line
from tests.cli.test_command_line import ROOT, run
from tests.project.served_job import serve

TIMEOUT_S = 30
#: A job and a state whose names a shell would run, or split.
EVIL, STATE = "evil $(touch pwned) `touch pwned`;touch pwned", 'it\'s "a" state'


class Fixed:
    def of(self, placeholder: str, given: object, incomplete: str) -> Iterable[Candidate]:
        return {"JOB": [Candidate("nyc"), Candidate("n\x1byc"), Candidate("")], "STATE": [Candidate("last")]}.get(
            placeholder, ()
        )


def texts(*words: str) -> list[str]:
    return [one.text for one in complete(cli._parser(), words[:-1], words[-1], Fixed()).candidates]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sc"], ["scan"]),
        (["checkpoint", "s"], ["show"]),
        (["get", "--is"], ["--isolation"]),
        (["get", "--isolation", ""], ["live", "committed"]),
        (["get", "--isolation=c"], ["--isolation=committed"]),
        (["get", "--keys", ""], ["nyc"]),
        (["get", "--json", ""], ["nyc"]),
        (["get", "--proxy", "a:1", ""], ["nyc"]),
        (["get", ""], ["nyc"]),
        (["get", "nyc", ""], ["last"]),
        (["get", "nyc", "last", ""], []),
        (["get", "--size", "nyc", "l"], ["last"]),
        (["get", "--", "-"], []),
        (["check", "sp"], []),
        (["states", "nyc", ""], []),
        (["no-such-command", ""], []),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_what_may_come_next(words: list[str], found: list[str]) -> None:
    assert texts(*words) == found


@pytest.mark.parametrize("words", [["checkpoint", "show", ""], ["get", "--tls-ca", ""], ["savepoint", "a", ""]])
def test_places_are_left_to_the_shell(words: list[str]) -> None:
    assert complete(cli._parser(), words[:-1], words[-1], Fixed()).places


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("qstate ge", ["qstate", "ge"]),
        ("qstate get ", ["qstate", "get", ""]),
        ("qstate get my\\ jo", ["qstate", "get", "my jo"]),
        ("qstate get my\\ ", ["qstate", "get", "my "]),
        ("qstate get 'my", None),
    ],
)
def test_a_line_of_bash_is_split_as_bash_does(line: str, words: list[str] | None) -> None:
    assert split_line(line) == words


def test_profiles_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "qstate").mkdir()
    (tmp_path / "qstate" / "profiles.toml").write_text("[flights]\n[payments]\n")
    assert run("__complete", "bash", "qstate jobs --profile f").stdout == "flights\n"
    assert run("__complete", "zsh", "get", "--namespace", "f").stdout == ""


def test_a_proxy_that_is_silent_delays_completion_for_a_moment_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ["states", "--proxy", "{}:{}".format(*silent.getsockname())]
        before = time.monotonic()
        assert complete(cli._parser(), words, "", LiveNames()).candidates == []
        assert time.monotonic() - before < PATIENCE_S + 2.0


def test_a_mistake_in_the_settings_completes_nothing() -> None:
    assert complete(cli._parser(), ["states", "--proxy", "nowhere"], "", LiveNames()).candidates == []
    answer = run("__complete", "bash", "qstate states ", QSTATE_PROXY="nowhere")
    assert (answer.returncode, answer.stdout, answer.stderr) == (cli.SUCCESS, "", "")


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serve(tmp_path_factory.mktemp("served"), job=EVIL, contents={STATE: {"key": "value"}}) as (host, port):
        yield f"{host}:{port}"


@pytest.fixture(params=SCRIPTS)
def shell(request: pytest.FixtureRequest, proxy: str, tmp_path: Path) -> Iterator[pexpect.spawn]:
    """An interactive shell that completes `qstate`."""
    name = request.param
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    commands = tmp_path / "bin"
    commands.mkdir()
    command = commands / "qstate"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m qstate "$@"\n')
    command.chmod(0o755)
    with _started(name, proxy, commands, tmp_path) as started:
        yield started


@contextmanager
def _started(name: str, proxy: str, commands: Path, home: Path) -> Iterator[pexpect.spawn]:
    arguments = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"], "fish": ["--no-config", "-i"]}[name]
    environment = {
        **{variable: value for variable, value in os.environ.items() if not variable.startswith("QSTATE_")},
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "QSTATE_PROXY": proxy,
        "TERM": "xterm" if name != "fish" else "dumb",
        "PS1": "ready> ",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
    }
    child = pexpect.spawn(
        name, arguments, cwd=home, env=environment, timeout=TIMEOUT_S, encoding="utf-8", dimensions=(50, 250)
    )
    loads = {
        "bash": 'eval "$(qstate completion bash)"',
        "zsh": 'autoload -Uz compinit; compinit -D -u; eval "$(qstate completion zsh)"',
        "fish": "function fish_prompt; echo 'ready> '; end; qstate completion fish | source",
    }
    try:
        child.sendline(loads[name] + "; echo load''ed")
        child.expect("loaded\r?\n")
        yield child
    finally:
        child.close(force=True)


def typed(shell: pexpect.spawn, line: str, then: str) -> str:
    """Type a line with tabulators, wait until the shell has added to it, and press Enter. Returns what was printed."""
    shell.send(line)
    shell.expect(re.escape(then), timeout=TIMEOUT_S)
    shell.send("\recho do''ne\r")
    shell.expect("done\r?\n")
    return str(shell.before)


def test_commands_and_options_are_completed_in_a_shell(shell: pexpect.spawn) -> None:
    shell.send("qstate compl\t")
    shell.expect("completion")
    assert "usage: qstate completion" in typed(shell, " --he\t", "--help")


def test_names_of_others_are_completed_as_one_word_that_is_not_run(shell: pexpect.spawn, tmp_path: Path) -> None:
    printed = typed(shell, "qstate states ev\t", "pwned")
    assert "NAME" in printed and STATE in printed, printed
    assert not (tmp_path / "pwned").exists()


def test_a_state_is_completed_after_its_job(shell: pexpect.spawn, tmp_path: Path) -> None:
    shell.send("qstate scan ev\t")
    shell.expect("pwned")
    printed = typed(shell, " it\t", "state")
    assert re.search(r"key\s+-\s+0\s+value", printed), printed
    assert not (tmp_path / "pwned").exists()
