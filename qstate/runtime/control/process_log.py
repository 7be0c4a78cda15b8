"""The log of a process: its standard output and standard error, in files of a bounded size and number.

Rules of this module: files and descriptors. It knows neither loggers nor what is written.

    job-task-manager-0.log       what is being written, by one incarnation of the task manager after the other
    job-task-manager-0.log.1     what was written before that, and so on up to .4

Loggers, `print`, native code and a crash all write to the descriptors 1 and 2. So these are what is turned over: the
file gets another name, and the descriptors a new file. Processes may share a log, as when a task manager is replaced
that has not ended yet. Each looks for itself, and one whose file has lost its name takes the one that has it now.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from qstate.errors import ConfigError
from qstate.private_files import create_file, make_directories, open_own
from qstate.storage_faults import BY_LOG_DIR, storage_fault

__all__ = ["OpenedLog", "ProcessLog"]

#: A file that has got so long is not written any further.
LOG_BYTES = 10 << 20
#: Files kept beside the one that is being written.
KEPT_FILES = 4
#: How often a process looks how long its log has got.
LOOK_S = 1.0
TAIL_BYTES = 2000

_OUTPUTS = (1, 2)
#: Others may be making or renaming the same file.
_MOST_OPENINGS = 100


class OpenedLog:
    """A log that a process is about to be started with. Raises `ConfigError` when it cannot be written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_directories(path.parent)
            self._file = _open(path)
        except OSError as exc:
            why = storage_fault(exc, path, BY_LOG_DIR)
            raise ConfigError(f"the log {path} cannot be written (see log_dir): {why}") from exc
        self._start = os.fstat(self._file).st_size

    def fileno(self) -> int:
        """The descriptor to start the process with."""
        return self._file

    def tail(self) -> str:
        """The end of what was written since, whatever has become of the file's name."""
        end = os.fstat(self._file).st_size
        size = min(TAIL_BYTES, max(end - self._start, 0))
        return os.pread(self._file, size, end - size).decode(errors="replace")

    def close(self) -> None:
        """Idempotent. The process goes on writing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class ProcessLog:
    """Keeps the log of this process, which its standard output and standard error go to, within its bounds."""

    def __init__(self, path: Path, *, limit: int = LOG_BYTES, kept: int = KEPT_FILES) -> None:
        self._path = path
        self._limit = limit
        self._kept = kept

    def start(self, *besides: Callable[[], None]) -> None:
        """Look every second, for as long as the process lives; call these functions then, too."""
        threading.Thread(target=self._watch, args=besides, name="qstate-log", daemon=True).start()

    def look(self) -> None:
        """Go on in a new file if this one has got too long. Where that cannot be, this one begins again."""
        if os.fstat(_OUTPUTS[0]).st_size < self._limit:
            return
        try:
            self._turn_over()
        except OSError:  # nobody could be told but by the log itself
            with suppress(OSError):
                os.ftruncate(_OUTPUTS[0], 0)

    def _watch(self, *besides: Callable[[], None]) -> None:
        pause = threading.Event()
        while not pause.wait(LOOK_S):
            self.look()
            for call in besides:
                call()

    def _turn_over(self) -> None:
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
    raise FileNotFoundError(f"{path} keeps coming and going")
