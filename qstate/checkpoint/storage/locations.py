"""Locations: the path or URL that a user writes for a directory, and the directory that it names.

Rules of this module: text in, directories out. It only chooses the storage; `local_directory` and `object_directory`
implement it.

    /state/here, state/here, ~/state     a path; `~` and relative paths are those of the process that opens them
    file:///state/here                   the same path
    s3://bucket/state, gs://..., ...     an object store, by the protocols and the packages of fsspec
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.checkpoint.storage.object_directory import ObjectDirectory
from qstate.errors import ConfigError
from qstate.setting_values import without_password

__all__ = ["NO_OPTIONS", "absolute", "directory_of", "is_url", "open_directory"]

#: For a storage that needs no options, or takes them from its environment.
NO_OPTIONS: Mapping[str, Any] = {}

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(::|:/)")
_LOCAL = frozenset(("file", "local"))


def is_url(location: str | Path) -> bool:
    """Whether a location is in an object store. Raises `ConfigError` for an invalid URL."""
    text = str(location)
    match = isinstance(location, str) and _URL.match(text)
    if not match:
        return False
    protocol = match[1].lower()
    if protocol in _LOCAL and match[2] != "::":
        return False
    _check_characters(text, "strict")
    if not text.startswith("://", match.end(1)):
        shown = without_password(text)
        raise ConfigError(f"{shown!r} is no location: expected a path, or a URL such as s3://bucket/state")
    parts = _split(text)
    if _has_password(parts):
        raise ConfigError(
            "a location must not hold a password, as it is written to logs: put it into the storage options "
            f"({without_password(text)})"
        )
    if protocol == "memory":
        raise ConfigError(
            f"{text!r} would be in the memory of one process, but driver and task managers are several: name a "
            "directory, or an object store"
        )
    return True


def absolute(location: str | Path) -> str:
    """The location that means the same to every process of this host. Raises `ConfigError`."""
    if is_url(location):
        return str(location).rstrip("/")
    try:
        return str(_path(location).expanduser().absolute())
    except RuntimeError as exc:  # the ~ of a user that does not exist
        raise ConfigError(f"{str(location)!r} is no location: {exc}") from exc


def open_directory(location: str | Path, options: Mapping[str, Any] = NO_OPTIONS) -> Directory:
    """The directory at a location; does not create it. `options` are those of the object store, if it is in one.

    Raises `ConfigError` for an invalid location, and when the package for its protocol is missing.
    """
    if is_url(location):
        return ObjectDirectory.at(str(location), options)
    return DurableDirectory(_path(location), make=False)


def directory_of(directory: Path | Directory) -> Directory:
    """The directory; a path means a directory on a local disk. Raises `ConfigError` for a path that cannot be."""
    return directory if isinstance(directory, Directory) else DurableDirectory(_path(directory), make=False)


def _path(location: str | Path) -> Path:
    """The path of a location on a local disk. Raises `ConfigError` for a path that the system cannot take."""
    if isinstance(location, str) and (match := _URL.match(location)) and match[1].lower() in _LOCAL:
        location = unquote(_split(location).path)
    _check_characters(str(location), "surrogateescape")  # a file's name need not be UTF-8
    return Path(location)


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as exc:  # such as for "s3://[bucket"
        raise ConfigError(
            f"{without_password(url)!r} is no location: {exc}; expected a path, or a URL such as s3://bucket/state"
        ) from exc


def _has_password(parts: SplitResult) -> bool:
    if parts.password is not None:
        return True
    try:
        parts.port  # noqa: B018  # it is checked when it is read
    except ValueError:  # a password with a slash in it, as secret keys of S3 may have
        return True
    return False


def _check_characters(location: str, errors: str) -> None:
    """Raise `ConfigError` for characters that no path can have. `errors` are those of `str.encode`."""
    try:
        found = "a NUL character" if b"\0" in location.encode(errors=errors) else ""
    except UnicodeEncodeError:
        found = "a character that has no form in UTF-8"
    if found:
        raise ConfigError(
            f"{without_password(location)!r} is no location: it has {found}; expected a path or a URL without it"
        )
