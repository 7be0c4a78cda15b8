"""The scratch directory of a task manager, and the removal of those whose owners were killed.

Rules of this module: directories, files and locks; it does not know what the directories contain. A directory belongs
to the process that holds the lock on the lock file in it. The system releases the lock when the process ends, even when
it is killed.

All users share the temporary directory. So this module only looks at directories of this user, and creates files only
in a directory that this process has created (see `qstate.host.private_files`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from qstate.errors import ConfigError
from qstate.host.forks import end_forked_child
from qstate.host.private_files import create_file, make_directories, open_own, own_directories
from qstate.host.storage_faults import BY_TMPDIR, storage_fault, usable

__all__ = ["ScratchDirectory", "temporary_directory"]

log = logging.getLogger(__name__)

PREFIX = "qstate-scratch-"
LOCK_FILE = "owner.lock"


class ScratchDirectory:
    """A new directory, private to the user, that `remove` removes. The next one removes those of killed owners.

    Raises `ConfigError` when it cannot be created.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.path = temporary_directory(PREFIX)
        with usable(self.path, BY_TMPDIR, f"cannot write {self.path}"):
            self._lock = _locked(self.path)
        _remove_abandoned()

    def remove(self) -> None:
        """Idempotent."""
        end_forked_child(self._pid)  # the directory belongs to the parent
        if not self._lock.closed:
            _remove(self.path)
            self._lock.close()


def temporary_directory(prefix: str, parent: Path | None = None) -> Path:
    """A new directory, private to the user, in the temporary directory or in `parent`. Raises `ConfigError`."""
    try:
        if parent is not None:
            make_directories(parent)
        return Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except OSError as exc:
        where = Path(exc.filename).parent if exc.filename else parent
        raise ConfigError(f"cannot create a directory in {where}: {storage_fault(exc, where, BY_TMPDIR)}") from exc


def _locked(directory: Path) -> BinaryIO:
    """Create the lock file, locked before it gets its name: no process finds it unlocked."""
    unnamed = directory / f"{LOCK_FILE}.new"
    lock = os.fdopen(create_file(unnamed), "wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(directory / LOCK_FILE)
    return lock


def _remove_abandoned() -> None:
    try:
        found = own_directories(PREFIX)
    except OSError as exc:  # such as for a temporary directory that this user may not list
        log.debug("abandoned scratch directories are not looked for: %s", exc)
        return
    for directory in found:
        try:
            with os.fdopen(open_own(directory / LOCK_FILE), "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(directory)
        except OSError as exc:  # in use, being created, or being removed
            log.debug("scratch directory %s is left alone: %s", directory, exc)


def _remove(directory: Path) -> None:
    """Remove the lock file last: until then, the directory differs from one that is just being created."""
    with suppress(OSError):
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK_FILE:
                entry.unlink(missing_ok=True)
        shutil.rmtree(directory, ignore_errors=True)
