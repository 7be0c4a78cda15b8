"""The beginning of a process that `launch` has started: its parameters, its log, the word that it is up; and its end.

Rules of this module: what task managers and standbys have in common before they do their work. It starts nothing.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import pickle
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from queue import Empty, SimpleQueue

from qstate.host.line_limit import report_withheld
from qstate.host.log_lines import LogLines, configure_logs
from qstate.runtime.control.addresses import Bootstrap
from qstate.runtime.control.process_log import ProcessLog

__all__ = ["End", "begin_process"]

log = logging.getLogger(__name__)


def begin_process() -> tuple[Bootstrap, Callable[[], None]]:
    """Read the parameters from standard input, and write the log from now on.

    Returns the parameters, and a function to call once when the process is up. The argument of the process is the
    descriptor of a pipe that gets a byte then: see `qstate.runtime.control.daemonize`.
    """
    tell = int(sys.argv[1])
    os.set_inheritable(tell, False)
    bootstrap: Bootstrap = pickle.load(sys.stdin.buffer)
    with Path(os.devnull).open("rb") as nothing:  # not just closed: the next socket would become the standard input
        os.dup2(nothing.fileno(), 0)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # keeps the user's prints when the process is killed
    faulthandler.enable()  # a crash in compiled code leaves a stack in the log
    name = bootstrap.name.removeprefix("task manager ")
    configure_logs(LogLines(bootstrap.config.log_format, bootstrap.job, name))
    log.info("%s, incarnation %d: process %d", bootstrap.name, bootstrap.incarnation, os.getpid())
    if bootstrap.log_file:
        ProcessLog(Path(bootstrap.log_file)).start(report_withheld)
    sys.setswitchinterval(bootstrap.config.switch_interval_s)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def up() -> None:
        os.write(tell, b"1")
        os.close(tell)

    return bootstrap, up


class End:
    """The request to end the process. Any thread may make it, and so may the handler of a signal.

    A `threading.Event` would not do. The thread that waits may hold its lock when it runs the handler, and would then
    wait for itself for ever. A handler can use a `SimpleQueue` at any moment.
    """

    def __init__(self) -> None:
        #: Why the process ends: the first reason. Empty while it does not.
        self.reason = ""
        self._requests: SimpleQueue[None] = SimpleQueue()

    def request(self, reason: str) -> None:
        """Make the process end."""
        self.reason = self.reason or reason
        self._requests.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a request. False: there is none after the timeout. One thread only."""
        if not self.reason:
            with suppress(Empty):
                self._requests.get(timeout=timeout_s)
        return bool(self.reason)
