"""The jobs of this driver that have not been stopped, by name.

Rules of this module: a name belongs to one job at a time, because clients distinguish jobs only by name. A notebook's
cell that creates a job may run again: the earlier job is then stopped, with its queries. In other programs it is
stopped unless one of its queries runs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from qstate.errors import ConfigError
from qstate.spark.queries import StreamingQueries

__all__ = ["LiveJob", "LiveJobs"]


@dataclass(frozen=True)
class LiveJob:
    """A job in the registry. `deletes_state` returns whether `stop` deletes state."""

    name: str
    queries: StreamingQueries
    deletes_state: Callable[[], bool]
    stop: Callable[[], None]


class LiveJobs:
    """The registry. Any thread may call it."""

    def __init__(self) -> None:
        self._jobs: dict[str, LiveJob] = {}
        self._lock = threading.Lock()

    def stop_earlier(self, name: str, *, in_notebook: bool) -> None:
        """Stop the job of this name, if there is one.

        A query of it that runs is stopped in a notebook, where a cell has been run again, with a warning. Elsewhere it
        raises `ConfigError`: a program that makes two jobs of one name has a mistake.
        """
        with self._lock:
            job = self._jobs.get(name)
        if job is None:
            return
        running = job.queries.running_with_mark()
        if running and in_notebook:
            job.queries.stop_with_mark()
            labels = ", ".join(repr(label or query) for query, label in running.items())
            warnings.warn(f"the earlier job {name!r} is stopped, with its query {labels}", stacklevel=3)
        elif running:
            queries = ", ".join(f"{label!r} ({query})" if label else query for query, label in running.items())
            raise ConfigError(
                f"a job {name!r} is up in this driver and its streaming query {queries} runs: stop the query "
                "(query.stop()) and create the job again, call stop() of that job, or choose another name"
            )
        if job.deletes_state():
            warnings.warn(
                f"the earlier job {name!r} is stopped, which deletes its state, because that is in a temporary "
                "directory; with checkpoint_dir=... the new job would continue with the state",
                stacklevel=3,
            )
        job.stop()

    def add(self, job: LiveJob) -> None:
        """A job is up. Raises `ConfigError` when another job of the same name is up."""
        with self._lock:
            if job.name in self._jobs:
                raise ConfigError(f"a job {job.name!r} is up in this driver: stop it first, or choose another name")
            self._jobs[job.name] = job

    def remove(self, job: LiveJob) -> None:
        """A job has been stopped, or was never added. Idempotent."""
        with self._lock:
            if self._jobs.get(job.name) is job:
                del self._jobs[job.name]
