"""Checks that qstate's checkpoint directory and Spark's checkpointLocation do not overlap.

Rules of this module: it knows the file names of both, and how locations are written. Spark and qstate each treat
everything in their directory as their own, and a user who removes one directory would lose both.

Both may be in one directory, and one may be in the other, as long as they use different names there.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from qstate.checkpoint.manifest import MANIFEST_FILE
from qstate.checkpoint.storage.directory import Directory
from qstate.errors import ConfigError, JobError

__all__ = ["check_apart", "check_not_sparks"]

SPARKS_NAMES = frozenset(("metadata", "offsets", "commits", "sources", "state"))
#: The names of qstate's directories: the task managers' logs, and one for each operator.
_OWN_DIRECTORY = re.compile(r"logs|.*-[0-9a-f]{16}")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
#: Hadoop's names of stores, with those of fsspec.
_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}
_WHAT_TO_DO = (
    "give each a directory of its own, side by side, and keep, copy and restore the two together; what qstate has "
    f"stored can be moved: {MANIFEST_FILE}, final.json and the directories of the operators"
)


def check_not_sparks(files: Directory) -> None:
    """Raise `ConfigError` when a directory is a checkpointLocation of Spark."""
    names = set(files.names())
    if "metadata" in names and names & {"offsets", "commits"}:
        raise ConfigError(
            f"checkpoint_dir {files.path} is the checkpointLocation of a streaming query: Spark's metadata and offsets "
            f"are in it; {_WHAT_TO_DO}"
        )


def check_apart(checkpoint_dir: Any, location: str) -> None:
    """Raise `JobError` when a query's checkpointLocation and the checkpoint directory would use the same names."""
    own, sparks = _parts(str(checkpoint_dir)), _parts(location)
    inside_sparks, inside_own = own[len(sparks) :], sparks[len(own) :]
    if own[: len(sparks)] == sparks:
        shared = not inside_sparks or inside_sparks[0] in SPARKS_NAMES
    else:
        shared = sparks[: len(own)] == own and _OWN_DIRECTORY.fullmatch(inside_own[0]) is not None
    if shared:
        raise JobError(
            f"the query's checkpointLocation {location} and checkpoint_dir {checkpoint_dir} are the same directory, or "
            f"one is where the other writes: {_WHAT_TO_DO}"
        )


def _parts(location: str) -> tuple[str, ...]:
    """A location as the names from its root on: first the scheme and the store of a URL, or "" for a path."""
    if _URL.match(location) and not location.startswith("file://"):
        parts = urlsplit(location)
        names = tuple(name for name in parts.path.split("/") if name)
        return (_SCHEMES.get(parts.scheme, parts.scheme), parts.netloc, *names)
    path = os.path.realpath(re.sub("^file:(//)?(?=/)", "", location))  # Spark writes paths without escapes
    return ("", *Path(path).parts)
