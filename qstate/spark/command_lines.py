"""Checks whether a secret is on a command line of this application, where every user of the host can read it.

Rules of this module: it only reads processes. Spark passes the conf of a session that is built in Python, and that of
`spark-submit --conf`, to the JVM as arguments.
"""

from __future__ import annotations

import psutil

__all__ = ["is_on_a_command_line"]


def is_on_a_command_line(secret: str) -> bool:
    """Whether this process, one of its ancestors or one of its descendants has the secret as an argument."""
    this = psutil.Process()
    return any(_has_argument(process, secret) for process in (this, *this.parents(), *this.children(recursive=True)))


def _has_argument(process: psutil.Process, secret: str) -> bool:
    try:
        return any(argument == secret or argument.endswith(f"={secret}") for argument in process.cmdline())
    except psutil.Error:  # the process has ended, or is another user's
        return False
