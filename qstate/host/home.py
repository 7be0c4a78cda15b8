"""Paths that begin with `~`.

Rules of this module: text in, a path out.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["in_home"]


def in_home(path: str | Path) -> Path:
    """The path with the home directory in place of `~`.

    `Path.expanduser` raises `RuntimeError` where there is none: for a user whom the system does not know, as in a
    container. Here it is a path of a file that does not exist then, and never one in the working directory.
    """
    found = os.path.expanduser(path)  # noqa: PTH111  # see above
    return Path("/", found) if found.startswith("~") else Path(found)
