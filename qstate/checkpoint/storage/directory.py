"""The storage interface of the epoch log, the snapshots and the savepoints: directories whose files are written once.

Rules of this module: it says what a storage has to do, not how. There is one method for each step that a crash can
separate from the next. No method knows what the files hold. Errors are `OSError`; each class translates other errors.
`doing` translates an `OSError` for the callers.

    DurableDirectory    on a mounted file system: hard links, and fsync for files that must survive a power loss
    ObjectDirectory     in an object store, through fsspec: conditional puts; an object is durable once it is put

Everything depends on `publish`: of all processes that want a name, on any machine, exactly one gets it.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, TypeVar

from qstate.errors import CheckpointError
from qstate.host.storage_faults import BY_CHECKPOINT_DIR, storage_fault

__all__ = ["TEMPORARY_SUFFIX", "AnyDirectory", "Directory", "Named", "doing"]

#: The end of the names of files that are still being written; only their writer uses them.
TEMPORARY_SUFFIX = ".tmp"


class Named(Protocol):
    """A path as text: `str(path)`, and `path / name` for a file in it. A `Path` is one."""

    def __truediv__(self, name: str, /) -> Named: ...


class Directory(ABC):
    """The files of one directory, by name. The directory need not exist; without `make` it may be an empty one."""

    #: Names the directory in messages, and opens it again: `str(path)` is a location.
    path: Named

    @abstractmethod
    def joinpath(self, *parts: str) -> Directory:
        """A directory below this one."""

    @abstractmethod
    def make(self) -> None:
        """Create the directory and its parents durably, if they do not exist. A writer calls it first."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of all files and directories in it now; empty when the directory does not exist."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether there is a file of that name. Raises `OSError` when the storage cannot know."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file for reading, with seeking. Raises `FileNotFoundError`."""

    def read(self, name: str, limit: int) -> bytes:
        """Read a file of up to `limit` bytes whole, `limit` + 1 bytes of a longer one. Raises `FileNotFoundError`."""
        with self.open(name) as file:
            size = min(file.seek(0, io.SEEK_END), limit + 1)
            file.seek(0)
            return file.read(size)

    @abstractmethod
    def modified_at(self, name: str) -> float:
        """When a file was written, in seconds as of `time.time`."""

    @abstractmethod
    def create(self, name: str) -> BinaryIO:
        """Create a file for writing. Raises `FileExistsError`, here or in `finish`."""

    @abstractmethod
    def finish(self, file: BinaryIO) -> None:
        """Make the bytes of a created file durable, and close it."""

    @abstractmethod
    def publish(self, temporary: str, name: str) -> None:
        """Give a finished file its name, atomically, and only if no file has it. Raises `FileExistsError`.

        After another error the file may have its name, or may still get it: `exists` says which. The temporary file
        may be left; the caller removes it.
        """

    @abstractmethod
    def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Write a small file, or replace it; readers see the old or the new one.

        Without `durable`, a power loss may bring the old one back. When it raises, the old one stays.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    @abstractmethod
    def remove_itself(self) -> None:
        """Remove the directory, if it exists; it must be empty. Raises `OSError`, such as when it is not."""

    @abstractmethod
    def sync(self) -> None:
        """Make new names durable."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Directory) and str(self.path) == str(other.path)

    def __hash__(self) -> int:
        return hash(str(self.path))


#: A directory on a local disk may also be a path.
AnyDirectory = TypeVar("AnyDirectory", Path, Directory)


@contextmanager
def doing(what: str, files: Directory) -> Iterator[None]:
    """Translate an `OSError` of a directory into a `CheckpointError` that says what could not be done, and why."""
    try:
        yield
    except OSError as exc:
        why = storage_fault(exc, files.path, BY_CHECKPOINT_DIR)
        raise CheckpointError(f"cannot {what}: {why}") from exc
