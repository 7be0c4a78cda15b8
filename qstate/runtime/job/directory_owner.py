"""The claim of one driver on a checkpoint directory, so that two jobs do not use it at a time.

Rules of this module: it knows the file `job.lock` and nothing else of the directory.

    on a file system    `job.lock` is locked (flock) by the driver that uses the directory; the system unlocks it
                        when the driver dies. A second driver is refused
    in an object store  nobody can tell whether a driver lives, so the last one to come has the directory: `job.lock`
                        holds its token. The one before is cut off: the epoch logs fence its task managers, and the
                        token keeps it from opening them again, and from writing the manifest

A token is looked at before an act, not in one step with it. What is written in between is at worst the manifest, by a
driver that bound an operator in the same moment; the epoch logs fence exactly (see `qstate.checkpoint.log.epoch_log`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import stat
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.checkpoint.storage.object_directory import ObjectDirectory
from qstate.errors import CheckpointError, ConfigError, JobError
from qstate.storage_faults import BY_CHECKPOINT_DIR, storage_fault

__all__ = ["LOCK_FILE", "DirectoryOwner", "OwnerByLock", "OwnerByToken", "check_owner", "take_ownership"]

log = logging.getLogger(__name__)

LOCK_FILE = "job.lock"
#: Bytes of what a driver writes into it.
LARGEST_NOTE = 1 << 16


class DirectoryOwner(ABC):
    """Made with `take_ownership`; `close` gives the directory back."""

    #: What other processes of the job call `check_owner` with; empty for an owner by lock.
    token = ""

    @abstractmethod
    def check(self) -> None:
        """Raise `JobError` when the directory is another driver's by now."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


def take_ownership(files: Directory) -> DirectoryOwner:
    """Make this driver the owner. Raises `ConfigError` when another job has the directory, it cannot be written, or its
    store cannot fence writers."""
    try:
        if isinstance(files, ObjectDirectory):
            files.check_exclusive()
            return OwnerByToken(files)
        assert isinstance(files, DurableDirectory)
        return OwnerByLock(files)
    except OSError as exc:
        why = storage_fault(exc, files.path, BY_CHECKPOINT_DIR)
        raise ConfigError(f"checkpoint_dir {files.path} cannot be written: {why}") from exc


def check_owner(files: Directory, token: str) -> None:
    """Raise `JobError` when the directory is not this owner's any more, `CheckpointError` when that is not known."""
    if not token:
        return  # it is locked
    try:
        found = _noted(files)
    except OSError as exc:
        raise CheckpointError(f"cannot read {files.path / LOCK_FILE}: {exc}") from exc
    if found.get("owner") != token:
        raise JobError(
            f"another job has opened {files.path} since this one did, which is cut off by that; stop this job, and "
            "give every job a checkpoint_dir of its own"
        )


class OwnerByLock(DirectoryOwner):
    """Locked by the system, as long as this process lives."""

    def __init__(self, files: DurableDirectory) -> None:
        _warn_of_others(files.path)
        self._lock = os.fdopen(files.open_lock(LOCK_FILE), "rb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self._lock.close()
                raise ConfigError(
                    f"checkpoint_dir {files.path} is in use by another running job; stop that job, or give this one a "
                    "directory of its own"
                ) from exc
            log.warning("checkpoint_dir %s cannot be locked (%s): make sure that one job uses it", files.path, exc)

    def fileno(self) -> int:
        """The descriptor that holds the lock."""
        return self._lock.fileno()

    def check(self) -> None:
        """A lock is not lost."""

    def close(self) -> None:
        self._lock.close()


class OwnerByToken(DirectoryOwner):
    """Whoever came last has it."""

    def __init__(self, files: ObjectDirectory) -> None:
        self._files = files
        self.token = uuid4().hex
        before = _noted(files)
        if before:
            log.warning(
                "%s was opened by process %s on host %s, which has not closed it. What is in an object store cannot be "
                "locked: if that job still runs, it is cut off now",
                files.path,
                before.get("pid"),
                before.get("host"),
            )
        note = {"owner": self.token, "pid": os.getpid(), "host": socket.gethostname()}
        files.replace(LOCK_FILE, json.dumps(note).encode())

    def check(self) -> None:
        check_owner(self._files, self.token)

    def close(self) -> None:
        with suppress(OSError):  # the next one warns of a driver that has not closed it
            if _noted(self._files).get("owner") == self.token:
                self._files.remove(LOCK_FILE)


def _warn_of_others(path: Path) -> None:
    """A directory that the user has made stays as it is, but what others write there is what the job restores."""
    found = path.stat()
    if found.st_mode & stat.S_IWOTH:
        log.warning("every user of this host can change the checkpoints in %s: chmod o-w is missing there", path)
    elif found.st_uid not in (os.geteuid(), 0) and not found.st_mode & stat.S_ISGID:
        log.warning("the checkpoints in %s can be changed by another user, to whom that directory belongs", path)


def _noted(files: Directory) -> dict[str, Any]:
    try:
        found = json.loads(files.read(LOCK_FILE, LARGEST_NOTE))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
