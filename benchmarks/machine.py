"""The machine and the versions, which every report needs to be read.

Rules of this module: it looks and reports. Nothing of the user or the network is in it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil

import qstate
from benchmarks.optional_packages import version_of

__all__ = ["busy", "describe"]

_PACKAGES = (
    "pyspark",
    "pyarrow",
    "pandas",
    "protobuf",
    "msgpack",
    "msgspec",
    "xxhash",
    "rocksdict",
    "redis",
    "hiredis",
    "uvloop",
)


def describe() -> dict[str, Any]:
    """Processor, memory, system, load and the versions of all software involved."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "java": _first_line("java", "-version"),
        "redis-server": _first_line("redis-server", "--version"),
        "qstate": qstate.__version__,
        **{name: version_of(name) for name in _PACKAGES},
    }


def busy() -> str:
    """A warning when other programs use the machine; empty when it is quiet."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < 0.3 * cores:
        return ""
    return f"the machine was busy before the first benchmark (load {load:.1f} on {cores} cores): figures are unsafe"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _first_line(command: str, argument: str) -> str:
    path = shutil.which(command)
    if path is None:
        return "-"
    done = subprocess.run([path, argument], capture_output=True, text=True, timeout=30, check=False)
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else "-"
