"""A process has ended when it is a zombie, whether its parent asks for its exit code or not."""

from __future__ import annotations

import subprocess
import sys

import psutil

from qstate.runtime.control.processes import await_ends, runs


def test_zombie_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        assert runs(process)
        assert await_ends([process], 0.0) == [process]
        assert child.stdin is not None
        child.stdin.close()
        assert await_ends([process], 30.0) == []
        assert process.status() == psutil.STATUS_ZOMBIE, "this test has not asked for the exit code yet"
    assert not runs(process)
