"""Runs a page of the documentation as its reader does: writes its files and types its commands into shells."""

from __future__ import annotations

import os
import re
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
    address that the job's task managers logged. `python` and `qstate` are those of the environment that runs this.
    """

    def __init__(self, directory: Path) -> None:
        # A program that a shell runs in the background ignores Ctrl-C, and so would all that it starts.
        self._on_interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
        #: What is typed happens here.
        self.directory = directory / "page"
        self.directory.mkdir()
        self._outputs = directory / "outputs"
        self._outputs.mkdir()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._started_at = datetime.now()
        #: Where the job's logs are.
        self._temporary = directory / "tmp"
        self._temporary.mkdir()

    @property
    def proxy(self) -> tuple[str, int]:
        """Where the job answers queries."""
        host, _, port = self._proxy().rpartition(":")
        return host, int(port)

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
        if self.interrupt(shell):
            self._started_at = datetime.now()
        with (self._outputs / shell).open("ab") as file:
            self._running[shell] = subprocess.Popen(
                ["bash", "-ec", f"exec {self._at_the_job(command)}"],
                cwd=self.directory,
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
            assert time.monotonic() < deadline, f"{command!r}: {answer}, not {says!r}. The shells: {self._printed()}"
            self._check_running()
            if self._proxy():
                answer = self._answer(command)
            else:
                threading.Event().wait(PAUSE_S)

    def wait_for(self, shell: str, pattern: str) -> re.Match[str]:
        """Wait until the command that runs in this shell has printed something."""
        deadline = time.monotonic() + TIMEOUT_S
        while (found := re.search(pattern, (self._outputs / shell).read_text())) is None:
            assert time.monotonic() < deadline, f"{shell} does not print {pattern!r}. The shells: {self._printed()}"
            self._check_running()
            threading.Event().wait(PAUSE_S)
        return found

    def interrupt(self, shell: str) -> bool:
        """Ctrl-C: every process in the shell gets the signal, and all of them end. False when nothing runs in it."""
        started = self._running.pop(shell, None)
        if started is None:
            return False
        processes = [psutil.Process(started.pid), *psutil.Process(started.pid).children(recursive=True)]
        os.killpg(started.pid, signal.SIGINT)
        started.wait(TIMEOUT_S)
        alive = await_ends(processes, TIMEOUT_S)
        assert not alive
        return True

    def close(self) -> None:
        """End what still runs."""
        for started in self._running.values():
            if started.poll() is None:
                os.killpg(started.pid, signal.SIGKILL)
                started.wait()
        signal.signal(signal.SIGINT, self._on_interrupt)

    def _check_running(self) -> None:
        assert all(started.poll() is None for started in self._running.values()), self._printed()

    def _printed(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self._outputs.iterdir()}

    def _type(self, block: Block, says: str | None) -> None:
        *before, last = block.text.strip().splitlines() if says is not None else [block.text, ""]
        answer = self._answer("\n".join(before))
        assert answer.returncode == 0, f"line {block.line}: {answer.stderr}"
        if says is not None:
            self.until(last, says)

    def _answer(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-ec", command],
            cwd=self.directory,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(self._at_the_job(text))

    def _at_the_job(self, text: str) -> str:
        """The text with the job's address in place of the pages' one."""
        host, _, port = self._proxy().rpartition(":")
        if not port:
            return text
        return text.replace('"localhost", 9069', f'"{host}", {port}').replace("localhost:9069", f"{host}:{port}")

    def _proxy(self) -> str:
        """The proxy that the job started last logged, or nothing while there is none."""
        logs = self._temporary.glob("qstate-logs-*/*.log")
        logged = [found for log in logs for found in _STARTED.findall(log.read_text())]
        at, address = max(logged, default=("", ""))
        return address if at and datetime.strptime(at, _LOG_TIME) >= self._started_at else ""

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "QSTATE_PROXY": self._proxy(),
            "TMPDIR": str(self._temporary),
        }
