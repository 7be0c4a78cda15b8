"""Whether a secret stands on a command line of this application, where every user of the host can read it.

Rules of this module: it looks at processes and says yes or no. Spark passes the conf of a session that is built in
Python, and that of `spark-submit --conf`, to the JVM as arguments.
"""

from __future__ import annotations

import psutil

__all__ = ["stands_on_a_command_line"]


def stands_on_a_command_line(secret: str) -> bool:
    """Of this process, those that it comes from, and those that it has started."""
    this = psutil.Process()
    return any(_is_told(process, secret) for process in (this, *this.parents(), *this.children(recursive=True)))


def _is_told(process: psutil.Process, secret: str) -> bool:
    try:
        return any(argument == secret or argument.endswith(f"={secret}") for argument in process.cmdline())
    except psutil.Error:  # it has ended, or is another user's
        return False
