"""Has snapshots of a subtask's epoch log made, in a process of their own.

Rules of this module: it decides when, starts the process and ends it. A snapshot is made of files, so nothing of the
operator's waits for it: not its thread, and not its interpreter, which a thread that merges would share. The process
ends with the task manager, whichever way that ends: it watches its standard input.
"""

from __future__ import annotations

import logging
import pickle
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import directory_of
from qstate.config import JobConfig

__all__ = ["Snapshotter"]

log = logging.getLogger(__name__)


class Snapshotter:
    """Told of each final epoch by the operator's thread; `snapshot_interval` of them make a snapshot."""

    def __init__(self, directory: Path | Directory, config: JobConfig) -> None:
        self._location = str(directory_of(directory).path)
        self._config = config
        self._epochs = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: threading.Thread | None = None

    def epoch_is_final(self, epoch: int) -> None:
        """Start a snapshot if one is due and none is being made. Never raises: the next epoch tries again."""
        self._epochs += 1
        interval = self._config.snapshot_interval
        if not interval or self._epochs < interval or (self._waiting and self._waiting.is_alive()):
            return
        config = self._config
        arguments = [self._location, str(epoch), str(config.retained_snapshots), config.checkpoint_compression]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "qstate.checkpoint.log.snapshot_process", *arguments], stdin=subprocess.PIPE
            )
        except OSError as exc:
            log.warning("no snapshot of epoch %d in %s: %s", epoch, self._location, exc)
            return
        with suppress(OSError):  # it has failed already: its exit status says so
            self._tell(self._process)
        self._epochs = 0
        # A daemon: when the user's function keeps the subtask from being closed, the process must end all the same.
        self._waiting = threading.Thread(
            target=self._wait, args=(self._process, epoch), name="qstate-snapshot", daemon=True
        )
        self._waiting.start()

    def close(self) -> None:
        """End what is being made; what it has written so far does not count. Idempotent."""
        if self._process is not None:
            self._process.kill()
        if self._waiting is not None:
            self._waiting.join()

    def _tell(self, process: subprocess.Popen[bytes]) -> None:
        """Not by arguments, which anybody on the host can read: credentials may be among the options."""
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(dict(self._config.checkpoint_storage_options)))
        process.stdin.flush()

    def _wait(self, process: subprocess.Popen[bytes], epoch: int) -> None:
        try:
            status = process.wait(self._config.snapshot_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
            log.warning("the snapshot of epoch %d took longer than snapshot_timeout_s and is given up", epoch)
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        if status not in (0, -signal.SIGKILL):  # what it was has been logged by the process itself
            log.warning("no snapshot of epoch %d in %s", epoch, self._location)
