"""The command line, run as a third party runs it: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from qstate_conformance.outcomes import Outcome
from qstate_conformance.reports import json

ROOT = Path(__file__).parents[1]
#: A whole area on a slow subject takes half a minute on a machine that has nothing else to do.
TIMEOUT_S = 900.0


def suite(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """`qstate-conformance` with these arguments, in the directory of the suite's sources."""
    return python("-m", "qstate_conformance", *arguments, variables=variables)


def outcome_of(reports: Path, *arguments: str) -> Outcome:
    """What a run of the command gave, which reports to an empty directory.

    Whole areas run like this and not in the test's process: CPython 3.11 gives the last 16 KiB of its stack back and
    takes them again whenever a call crosses their border, and below two pytests a law's innermost loop may do just
    that, which doubles the time.
    """
    ran = suite(*arguments, "--report", str(reports))
    (report,) = reports.glob("*.json")
    (outcome,) = json.read(report.read_text(encoding="utf-8"))
    assert ran.returncode == outcome.exit_code, ran.stderr
    return outcome


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
