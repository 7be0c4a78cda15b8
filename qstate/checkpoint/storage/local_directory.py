"""A directory on a mounted file system whose files survive a crash.

Rules of this module: system calls and nothing else. It must not know what the files hold. Errors are the `OSError` of
the system.

A crash of the process loses nothing that was written; a crash of the machine loses what was not synced. So a file
counts after `finish` (its bytes are on disk) and `sync` (its name is on disk).
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from qstate.checkpoint.storage.directory import TEMPORARY_SUFFIX, Directory
from qstate.host.private_files import create_file, make_directories, open_lock, open_regular

__all__ = ["DurableDirectory"]

#: Large enough that a segment of small changes is a handful of writes.
BUFFER_BYTES = 1 << 20

_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS))


class DurableDirectory(Directory):
    """A directory by its path. Creates it at once unless `make` is False."""

    path: Path

    def __init__(self, path: Path, *, make: bool = True) -> None:
        self.path = path
        if make:
            self.make()

    def joinpath(self, *parts: str) -> DurableDirectory:
        return DurableDirectory(self.path.joinpath(*parts), make=False)

    def make(self) -> None:
        for made in make_directories(self.path):
            _sync_directory(made.parent)

    def names(self) -> list[str]:
        try:
            return [entry.name for entry in self.path.iterdir()]
        except FileNotFoundError:
            return []

    def exists(self, name: str) -> bool:
        return (self.path / name).exists()

    def open(self, name: str) -> BinaryIO:
        return os.fdopen(open_regular(self.path / name), "rb", buffering=BUFFER_BYTES)

    def modified_at(self, name: str) -> float:
        return (self.path / name).stat().st_mtime

    def create(self, name: str) -> BinaryIO:
        return os.fdopen(create_file(self.path / name), "wb", buffering=BUFFER_BYTES)

    def finish(self, file: BinaryIO) -> None:
        with file:
            file.flush()
            os.fsync(file.fileno())

    def publish(self, temporary: str, name: str) -> None:
        # A hard link, not a rename: a rename would replace the file that another process has just put there.
        try:
            (self.path / name).hardlink_to(self.path / temporary)
        except OSError as exc:
            if exc.errno in _NO_LINKS:
                raise OSError(
                    exc.errno, "the file system has no hard links, use a directory on another one", str(self.path)
                ) from exc
            raise

    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        temporary = self.path / f"{name}-{uuid4().hex}{TEMPORARY_SUFFIX}"
        try:
            with os.fdopen(create_file(temporary), "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            temporary.replace(self.path / name)
            if durable:
                _sync_directory(self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def open_lock(self, name: str) -> int:
        """Open a file to lock it, and create it if needed; returns its descriptor. Raises `OSError`."""
        return open_lock(self.path / name)

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def remove_itself(self) -> None:
        with suppress(FileNotFoundError):
            self.path.rmdir()

    def sync(self) -> None:
        _sync_directory(self.path)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
