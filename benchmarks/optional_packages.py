"""Optional packages of the benchmarks. Without one, a benchmark reports a gap or uses another package.

Rules of this module: it imports by name, and knows what to do when something is missing.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from collections.abc import Coroutine
from importlib.metadata import PackageNotFoundError, version
from typing import Any

__all__ = ["missing", "optional", "run_async", "version_of"]


def optional(name: str) -> Any:
    """The module, or None when it is not installed."""
    return None if missing(name) else importlib.import_module(name)


def missing(*names: str) -> str:
    """Why the first missing module is needed; empty when all are installed."""
    for name in names:
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # the parent package is not there
            found = None
        if found is None:
            return f"the Python package {name} is not installed; tox -e bench installs it"
    return ""


def version_of(distribution: str) -> str:
    """The installed version, or `-`."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "-"


def run_async(main: Coroutine[Any, Any, Any]) -> Any:
    """Run it on uvloop where that is installed."""
    return (optional("uvloop") or asyncio).run(main)
