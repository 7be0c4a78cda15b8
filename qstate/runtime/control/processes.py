"""Whether processes of this host that are no children of this one have ended.

Rules of this module: it looks at processes and ends none. A zombie has ended: it has freed everything but its exit
code. Its parent may never ask for it, as in a container whose first process does not care for orphans.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import psutil

__all__ = ["await_ends", "runs"]

#: The pause between two looks.
PAUSE_S = 0.01


def runs(process: psutil.Process) -> bool:
    """Whether the process has not ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def await_ends(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait until the processes have ended. Returns those that still run after the timeout."""
    until = time.monotonic() + timeout_s
    while (left := [process for process in processes if runs(process)]) and time.monotonic() < until:
        time.sleep(PAUSE_S)
    return left
