"""Where the processes of a job are, and what a task manager process is told when it starts.

Rules of this module: values that travel between the driver, the executors and the task managers.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from qstate.config import JobConfig

__all__ = ["Bootstrap", "RestoredSubtask", "TaskManagerAddress", "host_id"]


@dataclass(frozen=True, slots=True)
class TaskManagerAddress:
    """Where a task manager is: for relays (`unix_path` on its own host, else `host:data_port`) and for queries.

    `executor_pid` is the process that it goes down with, 0 when it was started by the driver.
    """

    index: int
    incarnation: int
    host_id: str
    pid: int
    host: str
    data_port: int
    unix_path: str
    server: tuple[str, int]
    proxy: tuple[str, int] | None
    executor_pid: int


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """All that a new task manager process is told. Travels over its standard input, never on a command line."""

    job: str
    index: int
    incarnation: int
    job_manager: tuple[str, int]
    secret: bytes = field(repr=False)
    config: JobConfig
    #: Its location: a path, or a URL.
    checkpoint_dir: str
    #: What `JobDirectory.owner_token` says.
    owner_token: str
    layout: int
    parallelism: int
    local: bool
    executor_pid: int = 0
    #: Where its standard output and standard error go.
    log_file: str = ""


@dataclass(frozen=True, slots=True)
class RestoredSubtask:
    """State that a subtask began with: as of which epoch (-1: from before epoch 0), and where it was."""

    operator: str
    subtask: int
    epoch: int
    source: str

    def __str__(self) -> str:
        return f"operator {self.operator!r} subtask {self.subtask}: state as of epoch {self.epoch} from {self.source}"


def host_id() -> str:
    """Names this host among a cluster's: processes with the same id share a file system and Unix sockets."""
    return socket.gethostname()
