"""Runs `qstate` in a real terminal, and looks at every byte that it sends there."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from tests.cli.test_command_line import ROOT

#: Terminals turn a line feed into a carriage return and a line feed.
ALLOWED = {"\r", "\n"}


def shown_on_terminal(*arguments: str, **environment: str) -> tuple[int, str]:
    """Run `qstate` with its output on a terminal. Returns the exit code, and all that the terminal got."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "qstate", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment},
    )
    os.close(theirs)
    found = b""
    try:
        while piece := os.read(ours, 1 << 16):
            found += piece
    except OSError:  # Linux ends a terminal whose other side is closed with EIO
        pass
    finally:
        os.close(ours)
    return process.wait(60), found.decode()


def obeyed(text: str) -> set[str]:
    """The characters that a terminal would obey, or show as something else than they are."""
    return {one for one in text if not one.isprintable()} - ALLOWED
