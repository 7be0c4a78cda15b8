"""Locations: what a user writes for a directory, a path or a URL, and the directory that it means.

Rules of this module: text in, directories out. It decides which storage a location is in; what is done there is
`durable_directory`'s and `object_directory`'s.

    /state/here, state/here, ~/state     a path; `~` and relative ones are those of the process that reads them
    file:///state/here                   the same path
    s3://bucket/state, gs://..., ...     an object store, by the protocols and the packages of fsspec
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.checkpoint.storage.object_directory import ObjectDirectory
from qstate.errors import ConfigError

__all__ = ["NO_OPTIONS", "absolute", "directory_of", "is_url", "open_directory"]

#: For locations whose storage needs none, or finds them in its environment.
NO_OPTIONS: Mapping[str, Any] = {}

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)(::|:/)")
_LOCAL = frozenset(("file", "local"))


def is_url(location: str | Path) -> bool:
    """Whether a location is in an object store. Raises `ConfigError` for a URL that cannot be one."""
    text = str(location)
    match = isinstance(location, str) and _URL.match(text)
    if not match:
        return False
    protocol = match[1].lower()
    if protocol in _LOCAL and match[2] != "::":
        return False
    if not text.startswith("://", match.end(1)):
        raise ConfigError(f"{text!r} is no location: expected a path, or a URL such as s3://bucket/state")
    parts = urlsplit(text)
    if parts.password is not None:
        raise ConfigError(
            f"a location must not hold a password, as it is written to logs: put it into the storage options "
            f"({protocol}://{parts.hostname}{parts.path})"
        )
    if protocol == "memory":
        raise ConfigError(
            f"{text!r} would be in the memory of one process, but driver and task managers are several: name a "
            "directory, or an object store"
        )
    return True


def absolute(location: str | Path) -> str:
    """A location as any process of this host would write it. Raises `ConfigError`."""
    if is_url(location):
        return str(location).rstrip("/")
    try:
        return str(_path(location).expanduser().absolute())
    except RuntimeError as exc:  # the ~ of a user that does not exist
        raise ConfigError(f"{str(location)!r} is no location: {exc}") from exc


def open_directory(location: str | Path, options: Mapping[str, Any] = NO_OPTIONS) -> Directory:
    """The directory at a location; nothing is made there. `options` are those of its store, if it is in one.

    Raises `ConfigError` for a location that cannot be one, and when the package for its protocol is missing.
    """
    if is_url(location):
        return ObjectDirectory.at(str(location), options)
    return DurableDirectory(_path(location), make=False)


def directory_of(directory: Path | Directory) -> Directory:
    """A directory on a local disk may be given as its path."""
    return directory if isinstance(directory, Directory) else DurableDirectory(directory, make=False)


def _path(location: str | Path) -> Path:
    if isinstance(location, str) and (match := _URL.match(location)) and match[1].lower() in _LOCAL:
        return Path(unquote(urlsplit(location).path))
    return Path(location)
