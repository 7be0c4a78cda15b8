"""The command `qstate check`: looks for Python, Java and the optional packages.

Rules of this module: arguments in, the findings of `qstate.installation` out, as a table.
"""

from __future__ import annotations

import argparse
from typing import Any

from qstate.cli.output.tables import table
from qstate.errors import ConfigError
from qstate.installation import FEATURES, Finding, check_installation

__all__ = ["add_check_command"]

GOOD, NOT_GOOD = 0, 1


def add_check_command(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    check = commands.add_parser("check", help="look for Python, Java and the optional packages")
    check.add_argument(
        "features",
        nargs="*",
        metavar="FEATURE",
        help=f"features to check: {', '.join(FEATURES)} (default: all; those not installed may be absent)",
    )
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    unknown = [feature for feature in arguments.features if feature not in FEATURES]
    if unknown:
        raise ConfigError(f"unknown feature {unknown[0]!r}; valid are: {', '.join(FEATURES)}")
    findings = check_installation(arguments.features)
    for line in table([_row(finding) for finding in findings]):
        print(line)
    return GOOD if all(finding.good for finding in findings if finding.needed) else NOT_GOOD


def _row(finding: Finding) -> tuple[str, ...]:
    status = "ok" if finding.good else "MISSING" if finding.needed else "absent"
    remedy = f"-> {finding.remedy}" if finding.remedy else ""
    return status, finding.feature, finding.subject, finding.found, remedy
