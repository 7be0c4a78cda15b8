"""A task that finds out whether the executors can take part in a job.

Rules of this module: it runs in Spark's workers. It is pickled into Spark's closure with the job's ticket, as the relay
task is. It answers in words, because an error of a task would reach the user inside a traceback of Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from qstate.checkpoint.storage.locations import open_directory
from qstate.errors import QStateError
from qstate.runtime.control.addresses import host_id
from qstate.runtime.control.rpc import connect
from qstate.runtime.job.directory_owner import LOCK_FILE
from qstate.runtime.relay.relay import JobTicket

__all__ = ["ExecutorCheck"]


class ExecutorCheck:
    """The argument of `mapInArrow`: gives one row, whose column has what is wrong, or is empty."""

    SCHEMA: ClassVar[str] = "fault string"

    def __init__(self, ticket: JobTicket, checkpoint_dir: str, storage_options: Mapping[str, Any]) -> None:
        self._ticket = ticket
        self._checkpoint_dir = checkpoint_dir
        self._storage_options = dict(storage_options)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = sum(batch.num_rows for batch in batches)
        yield pa.RecordBatch.from_pydict({"fault": [self._connection() or self._directory()] * rows})

    def _connection(self) -> str:
        host, port = self._ticket.job_manager
        try:
            connect(host, port, self._ticket.secret).socket.close()
        except (OSError, QStateError) as exc:
            return (
                f"the executor on {host_id()} cannot reach the job manager, which is in the process that makes the "
                f"job, at {host}:{port} ({exc}): set job_manager_host to an address of this process that executors "
                "can connect to, and job_manager_ports to ports that a firewall lets in"
            )
        return ""

    def _directory(self) -> str:
        try:
            names = open_directory(self._checkpoint_dir, self._storage_options).names()
        except (OSError, QStateError) as exc:
            return self._not_shared(str(exc))
        return "" if LOCK_FILE in names else self._not_shared("another directory is there")

    def _not_shared(self, reason: str) -> str:
        return (
            f"the executor on {host_id()} cannot use checkpoint_dir {self._checkpoint_dir} ({reason}): set "
            "checkpoint_dir to a directory that this process and all executors share, or to the URL of an object store"
        )
