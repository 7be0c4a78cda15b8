"""The checkpoint directory of a job, as its driver sees it: made, held by one job at a time, and whose it is.

Rules of this module: it owns the directory and two files in it. What the epoch logs beside them hold is none of its
business.

    job.lock       locked (flock) by the driver that uses the directory; the system unlocks it when the driver dies
    queries.json   operator uid -> id of the streaming query whose epochs its state is made of

A query's id comes from its checkpointLocation. Spark numbers the epochs of each query from 0, so state that was made
by one query would take another's epochs for its own: it would skip rows, or replay old ones, without a word.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import IO

from qstate.errors import ConfigError, JobError

__all__ = ["CheckpointHome"]

log = logging.getLogger(__name__)

LOCK_FILE = "job.lock"
QUERIES_FILE = "queries.json"

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class CheckpointHome:
    """Made by the job manager; `close` lets go of the directory, and removes it if it was a temporary one.

    `setting` is the config's `checkpoint_dir`: `~` is expanded, a relative path is the driver's. Raises `ConfigError`
    when it cannot be a directory on a disk, cannot be written, or another running job has it.
    """

    def __init__(self, setting: str, job: str) -> None:
        self._temporary = not setting
        self.path = Path(tempfile.mkdtemp(prefix=f"qstate-{job}-")) if not setting else _made(setting)
        self._lock = self._locked()
        self._queries: dict[str, str] = {}
        self._stored = self._read()

    def bind(self, operator: str, query: str) -> None:
        """An operator's state belongs to one streaming query, for good. Raises `JobError` for another one."""
        running, stored = self._queries.get(operator), self._stored.get(operator)
        if running is not None and running != query:
            raise JobError(
                f"operator {operator!r} is driven by streaming query {running} already and cannot be driven by "
                f"{query} as well. Write its result from one query (foreachBatch can write to several places), "
                "restart a stopped query with its own checkpointLocation, or start a new Job"
            )
        if stored is not None and stored != query:
            raise JobError(
                f"the state of operator {operator!r} in {self.path} was made by streaming query {stored} and cannot be "
                f"driven by {query}, whose epochs are others: restart with the checkpointLocation of that query, or "
                "begin anew with an empty checkpoint_dir and a new checkpointLocation"
            )
        self._queries[operator] = query
        if stored is None:
            self._write({**self._stored, operator: query})

    def operators_of(self, query: str) -> list[str]:
        """The operators that this query drives in this job."""
        return [operator for operator, bound in self._queries.items() if bound == query]

    def bound(self) -> list[str]:
        """The operators that have been driven in this job."""
        return list(self._queries)

    def fileno(self) -> int:
        """The descriptor that holds the lock."""
        return self._lock.fileno()

    def close(self) -> None:
        """Idempotent."""
        self._lock.close()
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def _locked(self) -> IO[bytes]:
        try:
            lock = (self.path / LOCK_FILE).open("ab")
        except OSError as exc:
            raise ConfigError(f"checkpoint_dir {self.path} cannot be written: {exc.strerror}") from exc
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
                lock.close()
                raise ConfigError(
                    f"checkpoint_dir {self.path} is in use by another running job; stop that job, or give this one a "
                    "directory of its own"
                ) from exc
            log.warning("checkpoint_dir %s cannot be locked (%s): make sure that one job uses it", self.path, exc)
        return lock

    def _read(self) -> dict[str, str]:
        path = self.path / QUERIES_FILE
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as exc:
            self._lock.close()
            raise ConfigError(f"{path} cannot be read ({exc}); restore it, or begin with an empty directory") from exc
        return {str(operator): str(query) for operator, query in found.items()}

    def _write(self, queries: dict[str, str]) -> None:
        path = self.path / QUERIES_FILE
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(queries, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError as exc:
            raise JobError(f"cannot write {path}: {exc}") from exc
        self._stored = queries


def _made(setting: str) -> Path:
    if _URL.match(setting):
        raise ConfigError(
            f"checkpoint_dir must be a directory that the driver and the executors mount, got the URL {setting!r}"
        )
    try:
        path = Path(setting).expanduser().absolute()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as exc:  # RuntimeError: the ~ of a user that does not exist
        raise ConfigError(f"checkpoint_dir {setting!r} cannot be made: {exc}") from exc
    return path
