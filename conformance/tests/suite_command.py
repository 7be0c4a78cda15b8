"""The command line, run as a third party runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120.0


def suite(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`qstate-conformance` with these arguments, in the directory of the suite's sources."""
    return python("-m", "qstate_conformance", *arguments, variables=variables)


def python(
    *arguments: str, directory: Path = ROOT, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **(variables or {})}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
