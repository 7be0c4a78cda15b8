"""The memory of a process, as Linux counts it.

Rules of this module: it looks, and sets the kernel's own maximum back. It measures no time.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["MIB", "forget_peak", "peak_mib", "resident_mib"]

MIB = 2**20


def resident_mib(pid: int | None = None) -> float:
    """The resident memory of a process, of this one by default."""
    found: int = psutil.Process(pid).memory_info().rss
    return found / MIB


def peak_mib(pid: int | None = None) -> float:
    """The most that the process had at any time; what it has now where the system does not report that."""
    with suppress(OSError):
        for name, _, value in (line.partition(":") for line in _proc(pid, "status").read_text().splitlines()):
            if name == "VmHWM":
                return int(value.split()[0]) * 1024 / MIB
    return resident_mib(pid)


def forget_peak() -> None:
    """Let `peak_mib` of this process begin again. It stays as it is where the system cannot do that."""
    with suppress(OSError):
        _proc(None, "clear_refs").write_text("5")


def _proc(pid: int | None, name: str) -> Path:
    return Path("/proc") / ("self" if pid is None else str(pid)) / name
