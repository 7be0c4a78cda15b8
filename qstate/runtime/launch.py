"""Starting a task manager process: detached, told everything over its standard input.

Rules of this module: it starts processes and forgets them. Who may start which is the job manager's decision;
when they end is their own (lease, executor gone, stop). What is started is `detach.py`, which starts the task
manager itself and ends when that is up or has failed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from qstate.checkpoint.locations import is_url
from qstate.runtime import detach
from qstate.runtime.assignment import Bootstrap

__all__ = ["KILLED_STATUS", "log_path", "start_task_manager"]

#: How the process that was started ends when its task manager was killed before it was up: worth another try.
KILLED_STATUS = detach.KILLED_STATUS


def log_path(bootstrap: Bootstrap) -> Path:
    """The log of one incarnation."""
    return _log_directory(bootstrap) / f"{bootstrap.job}-task-manager-{bootstrap.index}-{bootstrap.incarnation}.log"


def _log_directory(bootstrap: Bootstrap) -> Path:
    if bootstrap.config.log_dir:
        return Path(bootstrap.config.log_dir)
    if is_url(bootstrap.checkpoint_dir):  # nothing can be appended to an object
        return Path(tempfile.gettempdir()) / f"qstate-{bootstrap.job}-logs-{bootstrap.owner}"
    return Path(bootstrap.checkpoint_dir) / "logs"


def start_task_manager(bootstrap: Bootstrap) -> subprocess.Popen[bytes]:
    """Start one, with this interpreter, `sys.path`, environment and working directory.

    A session of its own keeps it out of the signals that Spark's worker daemon sends to its process group.
    Raises `OSError` when the process or its log file cannot be made.
    """
    log_file = log_path(bootstrap)
    log_file.parent.mkdir(parents=True, exist_ok=True)
    paths = [entry or str(Path.cwd()) for entry in sys.path]
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            # isolated and without site: it needs the standard library only, and should be gone from memory soon
            [sys.executable, "-I", "-S", detach.__file__, "qstate.runtime.task_manager"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it has failed already: its exit status and log say so
        process.stdin.write(pickle.dumps(bootstrap))
    return process
