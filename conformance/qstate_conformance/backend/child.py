"""Runs a scenario in a process of its own, which may crash, hang, be killed or grow without harm to the suite.

Rules of this module: it starts, talks to and ends the process; what happens inside is a function of `scenarios`. The
process writes one JSON object per line. At a pause it waits for a line on its standard input.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from qstate_conformance.subjects import BackendSubject

__all__ = ["Child", "run_in_child"]

#: A process that has said nothing for so long hangs.
SILENCE_S = 60.0
_TAIL = 2_000


class Child:
    """A running scenario. A context manager: the process is gone when it ends."""

    def __init__(
        self,
        subject: BackendSubject,
        scenario: str,
        directory: Path,
        arguments: Mapping[str, Any],
        home: Path | None = None,
    ) -> None:
        order = {"subject": subject.name, "options": dict(subject.options), "scenario": scenario,
                 "directory": str(directory), "arguments": dict(arguments)}  # fmt: skip
        self.scenario = scenario
        self._was_silent = False
        self._complaints = (directory.parent / f"{directory.name}.stderr").open("w+b")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qstate_conformance.backend.scenarios", json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            env=_environment(home),
            cwd=home,
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._complaints):
            if stream is not None:
                stream.close()

    def kill(self) -> None:
        """End the process as a power cut would: SIGKILL, which it cannot handle."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def says(self, silence_s: float = SILENCE_S) -> dict[str, Any]:
        """The next thing the process says. Fails when it ends or stays silent instead."""
        hung = threading.Timer(silence_s, self._end_silence)
        hung.start()
        try:
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
        finally:
            hung.cancel()
            hung.join()
        if not line.endswith(b"\n"):
            self._process.wait()
            what = f"was silent for {silence_s:.0f} s" if self._was_silent else self._end()
            raise AssertionError(f"the process of the scenario {self.scenario!r} {what}\n{self._said_last()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def go_on(self) -> None:
        """Let a process that pauses continue."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def _end_silence(self) -> None:
        self._was_silent = True
        self._process.kill()

    def _end(self) -> str:
        code = self._process.returncode
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    def _said_last(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read()[-_TAIL:].decode(errors="replace")


def run_in_child(
    subject: BackendSubject,
    scenario: str,
    directory: Path,
    *,
    home: Path | None = None,
    silence_s: float = SILENCE_S,
    **arguments: Any,
) -> dict[str, Any]:
    """The first thing that a scenario says: its result. A crash, an exception and a hang are `AssertionError`s."""
    with Child(subject, scenario, directory, arguments, home) as child:
        return child.says(silence_s)


def _environment(home: Path | None) -> dict[str, str]:
    """As here, and importing from the same places; `home` is where everything else would go by default."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
    if home is not None:
        for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            environment[name] = str(home)
    return environment
