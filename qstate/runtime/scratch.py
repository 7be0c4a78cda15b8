"""The scratch directory of a task manager, and the clearing away of those whose owners were killed.

Rules of this module: directories, files and locks; it knows nothing of what is kept in them. A directory belongs to
whoever holds the lock on the file in it; the system lets go of that with the process, whichever way it ends.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import tempfile
from pathlib import Path

__all__ = ["ScratchDirectory"]

log = logging.getLogger(__name__)

PREFIX = "qstate-scratch-"
LOCK_FILE = "owner.lock"


class ScratchDirectory:
    """A new directory, private to the user. `remove` frees it; what a killed owner left, the next one removes.

    Raises `OSError` when it cannot be made.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = (self.path / LOCK_FILE).open("ab")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        _remove_abandoned()

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_abandoned() -> None:
    for directory in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        try:
            with (directory / LOCK_FILE).open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory, ignore_errors=True)
        except OSError as exc:  # in use, another user's, half made, or being removed
            log.debug("scratch directory %s is left alone: %s", directory, exc)
            continue
