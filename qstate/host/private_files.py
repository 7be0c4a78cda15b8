"""Creates and opens files safely in directories that other users of the host can reach.

Rules of this module: system calls only; it knows no file's contents. All code that creates or opens a file of qstate's
in such a directory uses this module. Errors are `OSError`.

    create      directories with mode 0700, files with 0600, for any umask, and never through a link. In a directory
                with the set-group-ID bit (`chmod g+s`) the group gets the rights that it has on that directory
    read        regular files only: opening a FIFO waits for its other end, and reading a device may never end
    trust       files of settings: only those that no other user can change, or could have put there
    find        in a shared directory, such as the temporary one: only directories of this user that no other user can
                write to

Opening does not wait (O_NONBLOCK) and the descriptor is not inherited (O_CLOEXEC).
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = [
    "NotRegular",
    "check_secret",
    "create_file",
    "is_own_directory",
    "make_directories",
    "open_lock",
    "open_own",
    "open_regular",
    "open_trusted",
    "own_directories",
    "own_directory",
]

OWNER_BITS = 0o700
GROUP_BITS = 0o070
#: A file is not a program.
FILE_BITS = 0o660

_GUARDED = os.O_NONBLOCK | os.O_CLOEXEC


class NotRegular(OSError):
    """The path is a directory, a FIFO, a socket or a device."""


def open_regular(path: Path) -> int:
    """Open a regular file, or a link to one, for reading; returns the descriptor. Raises `NotRegular`, `OSError`."""
    _check_regular(path.stat(), path)  # before opening, because opening a device can have an effect
    return _checked(os.open(path, os.O_RDONLY | _GUARDED), path)


def open_trusted(path: Path) -> int:
    """Open a file of settings as `open_regular` does. Also raises `PermissionError` for a file that all users can
    write to, or that somebody else has put into a directory that all users can write to."""
    found = open_regular(path)
    status = os.fstat(found)
    shared = Path(os.path.realpath(path)).parent.stat().st_mode & stat.S_IWOTH
    if status.st_mode & stat.S_IWOTH or (shared and status.st_uid not in (os.geteuid(), 0)):
        os.close(found)
        raise PermissionError(
            errno.EPERM, "other users can change it: chmod o-w it, and keep it in a directory of your own", str(path)
        )
    return found


def check_secret(descriptor: int, path: Path) -> None:
    """Raise `PermissionError` unless an open file with a secret belongs to this user, and no other user can read it."""
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "holds a token, and belongs to another user", str(path))
    if status.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "holds a token, and other users can read it: chmod 600 it", str(path))


def open_own(path: Path, flags: int = 0) -> int:
    """Open an existing regular file of this user for reading and writing; returns the descriptor.

    `flags` are further ones of `os.open`. Raises `NotRegular`, `PermissionError` for another user's file or one that
    somebody else may have linked there, and `OSError`, such as for a symbolic link.
    """
    found = _checked(os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags | _GUARDED), path)
    status = os.fstat(found)
    why = ""
    if status.st_uid != os.geteuid():
        why = "belongs to another user"
    elif status.st_nlink > 1 and not is_own_directory(path.parent):
        why = "has another name, and other users can create files beside it"
    if why:
        os.close(found)
        raise PermissionError(errno.EPERM, why, str(path))
    return found


def open_lock(path: Path) -> int:
    """Open a file to lock it, and create it if needed; returns the descriptor. Raises `NotRegular`, `OSError`."""
    try:
        return create_file(path)
    except FileExistsError:
        return _checked(os.open(path, os.O_RDWR | os.O_NOFOLLOW | _GUARDED), path)


def create_file(path: Path, flags: int = 0) -> int:
    """Create a file for reading and writing; returns the descriptor. Raises `FileExistsError`.

    `flags` are further ones of `os.open`.
    """
    found = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags | _GUARDED, OWNER_BITS & FILE_BITS)
    group = _group_bits(path.parent)
    if group:
        os.fchmod(found, (OWNER_BITS | group) & FILE_BITS)
    return found


def make_directories(path: Path) -> list[Path]:
    """Create a directory and its missing parents; returns those that it created, outer ones first. Raises `OSError`."""
    missing = [path] if not path.is_dir() else []
    while missing and not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    missing.reverse()
    for directory in missing:
        try:
            directory.mkdir(OWNER_BITS)
        except FileExistsError:
            if not directory.is_dir():
                raise
        else:
            _share(directory)
    return missing


def own_directory(prefix: str) -> Path:
    """This user's directory of that prefix in the temporary directory, created if needed. Raises `OSError`.

    Other users cannot block it: their directories of that prefix do not count.
    """
    found = own_directories(prefix)
    return found[0] if found else Path(tempfile.mkdtemp(prefix=prefix))


def own_directories(prefix: str) -> list[Path]:
    """All directories of this user with that prefix in the temporary directory, by name. Raises `OSError`.

    A directory that cannot be looked at, such as another user's FUSE mount, does not count.
    """
    found = []
    with os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith(prefix):
                with suppress(OSError):  # it was removed meanwhile, or cannot be looked at
                    if _is_own(entry.stat(follow_symlinks=False)):
                        found.append(Path(entry.path))
    return sorted(found)


def is_own_directory(path: Path) -> bool:
    """Whether a path, or the link there, leads to a directory of this user that no other user can write to.

    Raises `OSError`.
    """
    return _is_own(path.stat())


def _is_own(found: os.stat_result) -> bool:
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _checked(descriptor: int, path: Path) -> int:
    try:
        _check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_regular(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotRegular(errno.EINVAL, "is no regular file", str(path))


def _group_bits(directory: Path) -> int:
    """The group's rights for a new file or directory in this directory."""
    mode = directory.stat().st_mode
    return mode & GROUP_BITS if mode & stat.S_ISGID else 0


def _share(directory: Path) -> None:
    group = _group_bits(directory.parent)
    if group:
        directory.chmod(OWNER_BITS | group | (directory.stat().st_mode & stat.S_ISGID))
