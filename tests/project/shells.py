"""Runs a page of the documentation as its reader does: writes its files and types its commands into shells."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from itertools import zip_longest
from pathlib import Path

import psutil

from qstate.runtime.control.processes import await_ends
from tests.project.documentation import ROOT, Block, Page

TIMEOUT_S = 120.0
PAUSE_S = 0.1
#: How the task managers' logs say where queries are answered.
_STARTED = re.compile(r"^(\S+ \S+) INFO .*Started the Queryable State Proxy Server @ (\S+:\d+)$", re.MULTILINE)
_LOG_TIME = "%Y-%m-%d %H:%M:%S,%f"


class Shells:
    """A directory, the shell in which command after command is typed, and others in which something keeps running.

    Pages say port 9069; the job serves at the first one that is free. So `qstate` and the Python files get the
    address that the job's task managers logged.
    """

    def __init__(self, directory: Path) -> None:
        self._output = directory / "output"
        self._directory = directory / "page"
        self._directory.mkdir()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started_at = datetime.now()
        commands = directory / "bin"
        commands.mkdir()
        python = shlex.quote(sys.executable)
        _script(commands / "python", f'exec {python} "$@"')
        _script(commands / "qstate", f'exec {python} -m qstate.cli.main "$@" ${{PROXY:+--proxy $PROXY}}')
        #: Where the job's logs are.
        self._temporary = directory / "tmp"
        self._temporary.mkdir()
        self._path = f"{commands}{os.pathsep}{os.environ['PATH']}"

    def act_out(self, page: Page) -> None:
        """Every block of the page that is a file or a command, in order; commands must print what the page says."""
        blocks = page.blocks
        for block, following in zip_longest(blocks, blocks[1:]):
            if block.language == "python" and block.title:
                self._write(block.title, block.text)
            elif block.language == "bash" and block.title:
                self.start(block.title, block.text)
            elif block.language == "bash":
                says = following.text if following is not None and following.language == "text" else None
                self._type(block, says)

    def start(self, shell: str, command: str) -> None:
        """Run a command that keeps running, after Ctrl-C for the one before it in this shell."""
        self.interrupt(shell)
        self._started_at = datetime.now()
        with self._output.open("ab") as file:
            self._running[shell] = subprocess.Popen(
                ["bash", "-ec", f"exec {command}"],
                cwd=self._directory,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def until(self, command: str, says: str) -> None:
        """Type a command again and again until it prints what it should: a micro-batch takes its time."""
        deadline = time.monotonic() + TIMEOUT_S
        answer = None
        while answer is None or answer.stdout != says:
            assert time.monotonic() < deadline, (
                f"{command!r}: {answer}, not {says!r}. The job: {self._output.read_text()}"
            )
            assert all(started.poll() is None for started in self._running.values()), self._output.read_text()
            if self._proxy():
                answer = self._answer(command)
            else:
                threading.Event().wait(PAUSE_S)

    def interrupt(self, shell: str) -> None:
        """Ctrl-C: every process in the shell gets the signal, and all of them end."""
        started = self._running.pop(shell, None)
        if started is None:
            return
        processes = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
        os.killpg(started.pid, signal.SIGINT)
        started.wait(TIMEOUT_S)
        alive = await_ends(processes, TIMEOUT_S)
        assert not alive

    def close(self) -> None:
        """End what still runs."""
        for started in self._running.values():
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()

    def _type(self, block: Block, says: str | None) -> None:
        *before, last = block.text.strip().splitlines() if says is not None else [block.text, ""]
        answer = self._answer("\n".join(before))
        assert answer.returncode == 0, f"line {block.line}: {answer.stderr}"
        if says is not None:
            self.until(last, says)

    def _answer(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-ec", command],
            cwd=self._directory,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def _write(self, name: str, text: str) -> None:
        host, _, port = self._proxy().rpartition(":")
        text = text.replace('"localhost", 9069', f'"{host}", {port}') if port else text
        (self._directory / name).write_text(text)

    def _proxy(self) -> str:
        """The proxy that the job started last logged, or nothing while there is none."""
        logs = self._temporary.glob("qstate-logs-*/*.log")
        logged = [found for log in logs for found in _STARTED.findall(log.read_text())]
        at, address = max(logged, default=("", ""))
        return address if at and datetime.strptime(at, _LOG_TIME) >= self._started_at else ""

    def _environment(self) -> dict[str, str]:
        own = {"PATH": self._path, "PYTHONPATH": str(ROOT), "PROXY": self._proxy(), "TMPDIR": str(self._temporary)}
        return {**os.environ, **own}


def _script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)
