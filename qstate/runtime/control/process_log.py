"""The log of a process: its standard output and standard error, in files of a bounded size and number.

Rules of this module: files and descriptors. It does not know loggers, nor the text of the log.

    job-task-manager-0.log       the current file, written by one incarnation of the task manager after the other
    job-task-manager-0.log.1     the file before, and so on up to .4

Loggers, `print`, native code and a crash all write to the descriptors 1 and 2. So a rotation renames the file and opens
a new one on these descriptors. Processes may share a log, for example a task manager and its successor. Each process
checks on its own, and a process whose file was renamed switches to the file that has the name now.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from qstate.host.private_files import create_file, make_directories, open_own
from qstate.host.storage_faults import BY_LOG_DIR, usable

__all__ = ["OpenedLog", "ProcessLog"]

#: A file of this size is rotated.
LOG_BYTES = 10 << 20
#: Rotated files that are kept.
KEPT_FILES = 4
#: How often a process checks the size of its log.
LOOK_S = 1.0
TAIL_BYTES = 2000

_OUTPUTS = (1, 2)
#: Other processes may be creating or renaming the same file.
_MOST_OPENINGS = 100


class OpenedLog:
    """A log that a new process will write. Raises `ConfigError` when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with usable(path, BY_LOG_DIR, f"the log {path} cannot be written (see log_dir)"):
            make_directories(path.parent)
            self._file = _open(path)
        self._start = os.fstat(self._file).st_size

    def fileno(self) -> int:
        """The descriptor to start the process with."""
        return self._file

    def tail(self) -> str:
        """The last `TAIL_BYTES` that were written since, even when the file was renamed."""
        end = os.fstat(self._file).st_size
        size = min(TAIL_BYTES, max(end - self._start, 0))
        return os.pread(self._file, size, end - size).decode(errors="replace")

    def close(self) -> None:
        """Close the descriptor; the process keeps its own. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class ProcessLog:
    """Rotates the log of this process, the file of its standard output and standard error."""

    def __init__(self, path: Path, *, limit: int = LOG_BYTES, kept: int = KEPT_FILES) -> None:
        self._path = path
        self._limit = limit
        self._kept = kept

    def start(self, *besides: Callable[[], None]) -> None:
        """Check the log every `LOOK_S` seconds, on a thread, and call these functions each time."""
        threading.Thread(target=self._watch, args=besides, name="qstate-log", daemon=True).start()

    def look(self) -> None:
        """Rotate the file if it is too long. Where that fails, truncate it."""
        if os.fstat(_OUTPUTS[0]).st_size < self._limit:
            return
        try:
            self._rotate()
        except OSError:  # there is no other place to report it
            with suppress(OSError):
                os.ftruncate(_OUTPUTS[0], 0)

    def _watch(self, *besides: Callable[[], None]) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            self.look()
            for call in besides:
                call()

    def _rotate(self) -> None:
        if self._has_its_name():
            for number in range(self._kept, 0, -1):
                with suppress(FileNotFoundError):
                    self._numbered(number - 1).rename(self._numbered(number))
        else:
            make_directories(self._path.parent)
        file = _open(self._path)
        for output in _OUTPUTS:
            os.dup2(file, output)
        os.close(file)

    def _has_its_name(self) -> bool:
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(_OUTPUTS[0]))
        except FileNotFoundError:
            return False

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}") if number else self._path


def _open(path: Path) -> int:
    for _ in range(_MOST_OPENINGS):
        try:
            return open_own(path, os.O_APPEND)
        except FileNotFoundError:
            with suppress(FileExistsError):
                return create_file(path, os.O_APPEND)
    raise FileNotFoundError(f"{path} cannot be opened: other processes keep creating and renaming it")
