"""The addresses of a job's processes, and the parameters that a task manager process starts with.

Rules of this module: values that are sent between the driver, the executors and the task managers; no behaviour.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass, field

from qstate.config import JobConfig

__all__ = ["Bootstrap", "RestoredSubtask", "TaskManagerAddress", "host_id"]


@dataclass(frozen=True, slots=True)
class TaskManagerAddress:
    """The addresses of a task manager: for relays (`unix_path` on its own host, else `host:data_port`) and for queries.

    `executor_pid` is the executor process that it ends with, 0 when the driver started it. `metrics` is the address of
    its own metrics, None without.
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
    metrics: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """The parameters of a new task manager process. Sent over its standard input, never on a command line."""

    job: str
    index: int
    incarnation: int
    job_manager: tuple[str, int]
    secret: bytes = field(repr=False)
    config: JobConfig
    #: The location of the checkpoint directory: a path, or a URL.
    checkpoint_dir: str
    #: `JobDirectory.owner_token`.
    owner_token: str
    layout: int
    parallelism: int
    local: bool
    executor_pid: int = 0
    #: The file for its standard output and standard error.
    log_file: str = ""
    #: The number of a standby, which holds no subtask and serves the committed state of all; None for a task manager.
    standby: int | None = None

    @property
    def name(self) -> str:
        """The process, for messages and the name of its log."""
        return f"task manager {self.index}" if self.standby is None else f"standby {self.standby}"


@dataclass(frozen=True, slots=True)
class RestoredSubtask:
    """The state that a subtask began with: as of which epoch (-1: from before epoch 0), and from which files."""

    operator: str
    subtask: int
    epoch: int
    source: str

    def __str__(self) -> str:
        return f"operator {self.operator!r} subtask {self.subtask}: state as of epoch {self.epoch} from {self.source}"


def host_id() -> str:
    """The id of this host in a cluster: processes with the same id share a file system and Unix sockets."""
    return socket.gethostname()
