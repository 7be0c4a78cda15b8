"""Starts the processes that write snapshots of a subtask's epoch log.

Rules of this module: it decides when, starts the process and ends it. A snapshot is made from files, so a process of
its own can write it: the operator's thread does not wait for it, and does not share its interpreter with it. The
process watches its standard input, so it ends with the task manager, even when that is killed.
"""

from __future__ import annotations

import logging
import pickle
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import directory_of
from qstate.config import JobConfig
from qstate.host.log_lines import configured_logs
from qstate.runtime.control.daemonize import command_of

__all__ = ["Snapshotter"]

log = logging.getLogger(__name__)


class Snapshotter:
    """The operator's thread reports each final epoch; every `snapshot_interval` epochs it starts a snapshot."""

    def __init__(self, directory: Path | Directory, config: JobConfig) -> None:
        self._location = str(directory_of(directory).path)
        self._config = config
        self._epochs = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: threading.Thread | None = None
        #: The epoch of the newest snapshot that it has made, and when that was ready, by `time.time`.
        self.last: tuple[int, float] | None = None

    def epoch_is_final(self, epoch: int) -> None:
        """Start a snapshot if one is due and none is running. Never raises: the next epoch tries again."""
        self._epochs += 1
        interval = self._config.snapshot_interval
        if not interval or self._epochs < interval or (self._waiting and self._waiting.is_alive()):
            return
        config = self._config
        arguments = [self._location, str(epoch), str(config.retained_snapshots), config.checkpoint_compression]
        arguments += configured_logs()
        try:
            self._process = subprocess.Popen(
                command_of("qstate.checkpoint.log.snapshot_process", *arguments), stdin=subprocess.PIPE
            )
        except OSError as exc:
            log.warning("no snapshot of epoch %d in %s: %s", epoch, self._location, exc)
            return
        with suppress(OSError):  # the process has failed already: `_wait` sees its exit status
            self._tell(self._process)
        self._epochs = 0
        # A daemon, because the process must end even when a function that hangs keeps the subtask from closing.
        self._waiting = threading.Thread(
            target=self._wait, args=(self._process, epoch), name="qstate-snapshot", daemon=True
        )
        self._waiting.start()

    def close(self) -> None:
        """End a running snapshot; what it has written is ignored. Idempotent."""
        if self._process is not None:
            self._process.kill()
        if self._waiting is not None:
            self._waiting.join()

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        """Send the storage options. Not as arguments: every user of the host can read those, and they may be secret."""
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(dict(self._config.checkpoint_storage_options)))
        process.stdin.flush()

    def _wait(self, process: subprocess.Popen[bytes], epoch: int) -> None:
        try:
            status = process.wait(self._config.snapshot_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
            log.warning("the snapshot of epoch %d took longer than snapshot_timeout_s and was cancelled", epoch)
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        if status == 0:
            self.last = epoch, time.time()
        if status not in (0, -signal.SIGKILL):  # the process itself has logged the cause
            log.warning("no snapshot of epoch %d in %s", epoch, self._location)
