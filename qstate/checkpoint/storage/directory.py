"""Directories whose files are written once: what the epoch log, the snapshots and the savepoints stand on.

Rules of this module: what a storage has to do, not how. One method for each step that a crash can fall between, and
none that knows what the files hold. Errors are `OSError`; whatever else a storage raises its class translates.

    DurableDirectory    on a file system that is mounted: hard links, and fsync for what has to survive a power loss
    ObjectDirectory     in an object store, through fsspec: conditional puts; what was put is durable

The step that everything rests on is `publish`: of all that want a name, on any machine, exactly one gets it.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

__all__ = ["TEMPORARY_SUFFIX", "AnyDirectory", "Directory", "Named"]

#: The names of files that are still being written end so; nobody but their writer asks for them.
TEMPORARY_SUFFIX = ".tmp"


class Named(Protocol):
    """Where something is, as text: `str(path)`, and `path / name` for what is in it. A `Path` is one."""

    def __truediv__(self, name: str, /) -> Named: ...


class Directory(ABC):
    """The files of one directory, by name. It need not be there: without `make`, it is one that holds nothing yet."""

    #: Where it is, for messages and to be opened again: `str(path)` is a location.
    path: Named

    @abstractmethod
    def joinpath(self, *parts: str) -> Directory:
        """The directory below this one."""

    @abstractmethod
    def make(self) -> None:
        """Let it be there, durably, with its parents; whoever adds files calls it first."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all files and directories in it, as they are now; none when it is not there."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file of that name. Raises `OSError` when that cannot be known."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """A file for reading, which can seek. Raises `FileNotFoundError`."""

    def read(self, name: str, limit: int) -> bytes:
        """All of a small file; of one that is longer, one byte more than the limit. Raises `FileNotFoundError`."""
        with self.open(name) as file:
            size = min(file.seek(0, io.SEEK_END), limit + 1)
            file.seek(0)
            return file.read(size)

    @abstractmethod
    def modified_at(self, name: str) -> float:
        """When a file was written, in seconds since the epoch of `time.time`."""

    @abstractmethod
    def create(self, name: str) -> BinaryIO:
        """A new file for writing. Raises `FileExistsError`, here or when the file is finished."""

    @abstractmethod
    def finish(self, file: BinaryIO) -> None:
        """Put what was written to a created file in place, and close it."""

    @abstractmethod
    def publish(self, temporary: str, name: str) -> None:
        """Give a finished file its name: at once, and only if nobody has it. Raises `FileExistsError`.

        Whatever else it raises, the file may have its name, or get it yet: `exists` tells. The temporary one may be
        left; it is to be removed.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Put a small file in place of the one of that name, if there is one; readers see the old or the new one.

        Without `durable`, a power loss may bring the old one back. When it raises, the old one stays.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def remove_itself(self) -> None:
        """Let it be gone, if it is there; it has to be empty. Raises `OSError`, such as when it is not."""

    @abstractmethod
    def sync(self) -> None:
        """Make the names that were given durable."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directory) and str(self.path) == str(other.path)

    def __hash__(self) -> int:
        return hash(str(self.path))


#: What is a directory on a local disk may be given as its path.
AnyDirectory = TypeVar("AnyDirectory", Path, Directory)
