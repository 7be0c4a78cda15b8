"""Where a subtask lies in its job, and what is known when it is opened.

Rules of this module: it reads the checkpoint's manifest and the names of the subtask's own log. It opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import time_ns

from qstate.checkpoint.log.chain import LogIdentity, read_chain
from qstate.checkpoint.manifest import MANIFEST_FILE, JobManifest, subtask_directory
from qstate.checkpoint.sources.superseded_layouts import without_unused_layouts
from qstate.checkpoint.storage.directory import Directory
from qstate.config import JobConfig
from qstate.errors import JobError
from qstate.keys import KeyGroupRange
from qstate.operators.context import Subtask as OperatorSubtask

__all__ = ["Restart", "SubtaskPlace"]


@dataclass(frozen=True, slots=True)
class SubtaskPlace:
    """The place of a subtask: its job, its part of the key groups, and its directories."""

    job: str
    subtask: int
    parallelism: int
    config: JobConfig
    checkpoint_dir: Directory
    owner_token: str
    layout: int
    scratch_directory: Path

    @property
    def operator_subtask(self) -> OperatorSubtask:
        return OperatorSubtask(self.subtask, self.parallelism, self.config.max_parallelism)

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.operator_subtask.key_groups

    def identity(self, operator: str) -> LogIdentity:
        return LogIdentity(self.job, operator, self.subtask, self.parallelism, self.config.max_parallelism)

    def log_directory(self, operator: str) -> Directory:
        return subtask_directory(self.checkpoint_dir, operator, self.layout, self.subtask)

    def begins_elsewhere(self, operator: str) -> bool:
        """Whether the state comes from another layout, a savepoint or another job's checkpoint."""
        if read_chain(self.log_directory(operator), self.identity(operator)) is not None:
            return False
        manifest = self.manifest()
        return len(manifest.layouts) > 1 or manifest.restored_from is not None

    def other_results(self) -> str:
        """Where the results of an epoch are that is not in this subtask's own log, as the end of a sentence."""
        used = without_unused_layouts(self.checkpoint_dir, self.manifest())
        if used.layout == self.layout:
            return "its results are stored for another parallelism, or elsewhere"
        return (
            f"its results are stored for another parallelism: start the job with parallelism={used.parallelism} until "
            "the query has repeated the epoch"
        )

    def manifest(self) -> JobManifest:
        found = JobManifest.read(self.checkpoint_dir)
        if found is None:
            raise JobError(
                f"{self.checkpoint_dir.path} has no {MANIFEST_FILE} on this host, but the driver has written one: "
                "checkpoint_dir must be on storage that the driver and all executors share"
            )
        return found


@dataclass(frozen=True, slots=True)
class Restart:
    """What is known when a subtask is opened.

    `final` is the newest epoch that is known to be committed, `first_epoch` the epoch of the session that opens it
    (None without a session), and `opened_at_ms` the time, in milliseconds since 1970-01-01 UTC. `history` is that of
    the operator's epochs (`JobManifest.history_of`).
    """

    final: int = -1
    first_epoch: int | None = None
    opened_at_ms: int = field(default_factory=lambda: time_ns() // 1_000_000)
    history: str = ""
