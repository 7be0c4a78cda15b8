"""Makes one driver the owner of a checkpoint directory, so that two jobs do not use it at the same time.

Rules of this module: it knows the file `job.lock` and nothing else of the directory.

    on a file system    the driver that uses the directory holds a lock (flock) on `job.lock`; the system releases it
                        when the driver dies. A second driver is refused
    in an object store  no driver can tell whether another one is alive, so the newest driver owns the directory:
                        `job.lock` holds its token. The driver before is fenced: the epoch logs fence its task
                        managers, and the token check keeps it from opening the logs again and writing the manifest

The check of the token and the write after it are not atomic. At worst, a fenced driver that binds an operator at that
moment writes the manifest. The epoch logs fence exactly (see `qstate.checkpoint.log.epoch_log`).
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
from qstate.host.storage_faults import BY_CHECKPOINT_DIR, usable

__all__ = [
    "LOCK_FILE",
    "DirectoryOwner",
    "OwnerByLock",
    "OwnerByToken",
    "check_closed",
    "check_owner",
    "take_ownership",
]

log = logging.getLogger(__name__)

LOCK_FILE = "job.lock"
#: The most bytes that are read of it.
LARGEST_NOTE = 1 << 16


class DirectoryOwner(ABC):
    """The driver's ownership of a checkpoint directory. Made by `take_ownership`; `close` ends it."""

    #: What other processes of the job call `check_owner` with; empty for an owner by lock.
    token = ""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""


def take_ownership(files: Directory) -> DirectoryOwner:
    """Make this driver the owner. Raises `ConfigError` when another job has the directory, it cannot be written, or its
    store cannot fence writers."""
    with usable(files.path, BY_CHECKPOINT_DIR, f"checkpoint_dir {files.path} cannot be written"):
        if isinstance(files, ObjectDirectory):
            files.check_exclusive()
            return OwnerByToken(files)
        assert isinstance(files, DurableDirectory)
        return OwnerByLock(files)


def check_closed(files: Directory) -> None:
    """Raise `ConfigError` when a driver has opened the directory, in an object store, and has not closed it.

    On a file system, `take_ownership` itself refuses a directory that is in use.
    """
    with usable(files.path, BY_CHECKPOINT_DIR, f"checkpoint_dir {files.path} cannot be read"):
        found = _noted(files) if isinstance(files, ObjectDirectory) else {}
    if found:
        raise ConfigError(
            f"checkpoint_dir {files.path} was opened by process {found.get('pid')!r:.20} on host "
            f"{found.get('host')!r:.80}, which has not closed it: stop that job. If it runs no more, remove "
            f"{LOCK_FILE} from the directory"
        )


def check_owner(files: Directory, token: str) -> None:
    """Raise `JobError` when another driver owns the directory now, `CheckpointError` when the owner cannot be read."""
    if not token:
        return  # the directory is locked
    try:
        found = _noted(files)
    except OSError as exc:
        raise CheckpointError(f"cannot read {files.path / LOCK_FILE}: {exc}") from exc
    if found.get("owner") != token:
        raise JobError(
            f"another job has opened {files.path} after this job did, so this job may not use it any more; stop this "
            "job, and give every job a checkpoint_dir of its own"
        )


class OwnerByLock(DirectoryOwner):
    """An owner by lock: the system holds the lock as long as this process lives."""

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
            log.warning("checkpoint_dir %s cannot be locked (%s): make sure that only one job uses it", files.path, exc)

    def fileno(self) -> int:
        """The descriptor that holds the lock."""
        return self._lock.fileno()

    def close(self) -> None:
        self._lock.close()


class OwnerByToken(DirectoryOwner):
    """An owner by token: the newest driver owns the directory."""

    def __init__(self, files: ObjectDirectory) -> None:
        self._files = files
        self.token = uuid4().hex
        before = _noted(files)
        if before:
            log.warning(
                "%s was opened by process %s on host %s, which has not closed it. A directory in an object store "
                "cannot be locked: if that job still runs, it cannot use the directory any more",
                files.path,
                before.get("pid"),
                before.get("host"),
            )
        note = {"owner": self.token, "pid": os.getpid(), "host": socket.gethostname()}
        files.replace(LOCK_FILE, json.dumps(note).encode())

    def close(self) -> None:
        with suppress(OSError):  # the next driver then warns that this one has not closed the directory
            if _noted(self._files).get("owner") == self.token:
                self._files.remove(LOCK_FILE)


def _warn_of_others(path: Path) -> None:
    """The user's own directory keeps its permissions; but the job restores whatever another user writes there."""
    found = path.stat()
    if found.st_mode & stat.S_IWOTH:
        log.warning("every user of this host can change the checkpoints in %s: run chmod o-w on it", path)
    elif found.st_uid not in (os.geteuid(), 0) and not found.st_mode & stat.S_ISGID:
        log.warning("the checkpoints in %s can be changed by another user, who owns that directory", path)


def _noted(files: Directory) -> dict[str, Any]:
    try:
        found = json.loads(files.read(LOCK_FILE, LARGEST_NOTE))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
