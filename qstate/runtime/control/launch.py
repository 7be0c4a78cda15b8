"""Starts a task manager or standby process as a daemon, with its parameters on its standard input.

Rules of this module: it starts processes and does not watch them. The job manager decides who may start which; a task
manager itself decides when to end (lease, executor gone, stop). The started process is `daemonize.py`, which starts
the task manager and ends when that is up or has failed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from qstate.host.private_files import own_directory
from qstate.runtime.control import daemonize
from qstate.runtime.control.addresses import Bootstrap
from qstate.runtime.control.process_log import OpenedLog

__all__ = ["StartedTaskManager", "start_task_manager"]

#: Prefix of the directory, in a host's temporary directory, with the logs of all jobs of one user.
LOGS_PREFIX = "qstate-logs-"

#: Left alone, glibc raises both thresholds to as much as 32 and 64 MiB when large blocks are freed, and every arena
#: keeps so much: a task manager that changed 4 million keys on rocksdb grew to 600 MiB. With a fixed threshold, which
#: is far above the lists of a batch of rows, it has half of that. What the environment says comes first.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


_TASK_MANAGER = "qstate.runtime.tasks.task_manager"
_STANDBY = "qstate.runtime.standby.job_standby"


@dataclass(frozen=True, slots=True)
class StartedTaskManager:
    """A running start: its order, the `daemonize` process, whose exit status is the outcome, and the log."""

    order: Bootstrap
    process: subprocess.Popen[bytes]
    log: OpenedLog


def start_task_manager(bootstrap: Bootstrap) -> StartedTaskManager:
    """Start a task manager, or a standby, with this interpreter, `sys.path`, environment and working directory.

    The caller closes the log.

    A session of its own keeps it out of the signals that Spark's worker daemon sends to its process group.
    Raises `OSError` when the process cannot be made, `ConfigError` when its log cannot be written.
    """
    log = OpenedLog(_log_file(bootstrap))
    order = replace(bootstrap, log_file=str(log.path))
    module = _TASK_MANAGER if bootstrap.standby is None else _STANDBY
    paths = [entry or str(Path.cwd()) for entry in sys.path]
    try:
        process = subprocess.Popen(
            # isolated and without site: it needs only the standard library, and little memory
            [sys.executable, "-I", "-S", daemonize.__file__, module],
            stdin=subprocess.PIPE,
            stdout=log.fileno(),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**_MALLOC, **os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))},
        )
    except BaseException:
        log.close()
        raise
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # the process has failed already: see its exit status and log
        process.stdin.write(pickle.dumps(order))
    return StartedTaskManager(order, process, log)


def _log_file(bootstrap: Bootstrap) -> Path:
    """Not in the checkpoint directory: that may be in an object store, or be deleted when the job is stopped."""
    configured = bootstrap.config.log_dir
    directory = Path(configured) if configured else own_directory(LOGS_PREFIX)
    return directory / f"{bootstrap.job}-{bootstrap.name.replace(' ', '-')}.log"
