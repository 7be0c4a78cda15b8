"""Messages for a full file system: where, how much space is free, and how to make room.

Rules of this module: errors of the operating system in, text and errors of qstate out. It reads a file system's
statistics and changes nothing. All code that writes files uses these messages.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qstate.errors import ConfigError

__all__ = ["BY_CHECKPOINT_DIR", "BY_LOG_DIR", "BY_TMPDIR", "FULL", "storage_fault", "usable"]

#: How to make room, for each kind of file.
BY_CHECKPOINT_DIR = (
    "make room there, or use a directory on a larger file system (copy a stopped job's there, and name it with "
    "checkpoint_dir)"
)
BY_LOG_DIR = "make room there, or name a directory on a larger file system with log_dir"
BY_TMPDIR = "make room there, or start driver and executors with TMPDIR set to a directory on a larger file system"

#: The system's error codes for a file system that cannot store more.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)


def storage_fault(exc: OSError, path: object, remedy: str) -> str:
    """The text for an error of `path`, a `Path` or another location. The caller's message names the path.

    For a full file system it has the free space, and `remedy`.
    """
    if exc.errno not in FULL or not isinstance(path, Path):
        return str(exc)
    whose = " for this process (ulimit -f)" if exc.errno == errno.EFBIG else ""
    return f"{os.strerror(exc.errno)}{whose} ({_room(path)}); {remedy}"


@contextmanager
def usable(path: object, remedy: str, failure: str) -> Iterator[None]:
    """Translate an `OSError` of `path`, which a setting names, into a `ConfigError`: `failure`, and why."""
    try:
        yield
    except OSError as exc:
        raise ConfigError(f"{failure}: {storage_fault(exc, path, remedy)}") from exc


def _room(path: Path) -> str:
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        found = os.statvfs(there)
    except OSError as exc:
        return f"its free space is not known: {exc.strerror}"
    room = f"{found.f_bavail * found.f_frsize:,} of {found.f_blocks * found.f_frsize:,} bytes are free"
    # A file system without a limit on the number of files reports 0 of 0.
    return f"{room}, and no more files can be added" if found.f_files and not found.f_favail else room
