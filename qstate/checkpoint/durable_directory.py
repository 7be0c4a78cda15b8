"""A directory whose files are written once and survive a crash: the few system calls that the epoch log stands on.

Rules of this module: calls of the operating system and nothing else, one method for each step that a crash can
fall between. It must not know what the files hold. Errors are `OSError`, as the system gives them.

A crash of the process loses nothing that was written; a crash of the machine loses what was not synced. So a file
counts after `finish` (its bytes are on disk) and `sync` (its name is).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

__all__ = ["DurableDirectory"]

#: Large enough that a segment of small changes is a handful of writes.
BUFFER_BYTES = 1 << 20

_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))


class DurableDirectory:
    """The files of one directory, by name. Creates the directory, and its parents, durably."""

    def __init__(self, path: Path) -> None:
        self.path = path
        missing = [parent for parent in (path, *path.parents) if not parent.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for made in missing:
            _sync_directory(made.parent)

    def names(self) -> list[str]:
        """The names of all files, in no particular order."""
        return [entry.name for entry in self.path.iterdir()]

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def open(self, name: str) -> BinaryIO:
        """A file for reading. Raises `FileNotFoundError`."""
        return (self.path / name).open("rb", buffering=BUFFER_BYTES)

    def create(self, name: str) -> BinaryIO:
        """A new file for writing. Raises `FileExistsError`."""
        return (self.path / name).open("xb", buffering=BUFFER_BYTES)

    def finish(self, file: BinaryIO) -> None:
        """Put what was written to a created file on disk, and close it."""
        with file:
            file.flush()
            os.fsync(file.fileno())

    def publish(self, temporary: str, name: str) -> None:
        """Give a finished file its name: at once, and only if nobody has it. Raises `FileExistsError`.

        A hard link, not a rename: a rename would replace what another process put there a moment ago.
        """
        try:
            (self.path / name).hardlink_to(self.path / temporary)
        except OSError as exc:
            if exc.errno in _NO_LINKS:
                raise OSError(
                    exc.errno, "the file system has no hard links, use a directory on another one", str(self.path)
                ) from exc
            raise

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def sync(self) -> None:
        """Put the names of the directory on disk."""
        _sync_directory(self.path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
