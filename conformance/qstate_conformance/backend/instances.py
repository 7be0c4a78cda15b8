"""Opens a subject's backends for a law: each in an empty directory of its own, all of them closed in the end.

Rules of this module: it knows directories and how to open; what is done with a backend is the law's matter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from qstate.backends import Change, StateBackend
from qstate.keys import DEFAULT_MAX_PARALLELISM, KeyGroupRange
from qstate_conformance.backend.states import TABLES, TIMERS, TWIN_TIMERS
from qstate_conformance.subjects import BackendSubject

__all__ = ["Instances", "declare", "opened", "sealed"]


class Instances:
    """A context manager; inside, `open` gives empty backends that know every state of `states.STATES`."""

    def __init__(self, subject: BackendSubject) -> None:
        self.subject = subject
        self._scratch = tempfile.TemporaryDirectory(prefix="qstate-conformance-", ignore_cleanup_errors=True)
        self._opened: list[StateBackend] = []
        self._numbers = count()

    def __enter__(self) -> Instances:
        return self

    def __exit__(self, *exc_info: object) -> None:
        try:
            for backend in self._opened:
                backend.close()
        finally:
            self._scratch.cleanup()

    def directory(self) -> Path:
        """A new empty directory."""
        directory = Path(self._scratch.name) / str(next(self._numbers))
        directory.mkdir()
        return directory

    def open(
        self,
        key_groups: KeyGroupRange | None = None,
        *,
        max_parallelism: int = DEFAULT_MAX_PARALLELISM,
        of: BackendSubject | None = None,
    ) -> StateBackend:
        """An empty backend, of another subject when `of` is given."""
        groups = KeyGroupRange(0, max_parallelism) if key_groups is None else key_groups
        subject = self.subject if of is None else of
        backend = subject.open(self.directory(), key_groups=groups, max_parallelism=max_parallelism)
        self._opened.append(backend)
        declare(backend)
        return backend

    def restored(self, epoch: int, changes: Sequence[Change], key_groups: KeyGroupRange | None = None) -> StateBackend:
        """A new backend that was restored from the changes."""
        backend = self.open(key_groups)
        backend.restore(epoch, changes)
        return backend


def declare(backend: StateBackend) -> None:
    """Ask for every state of `states.STATES`, so that the backend can be restored."""
    for state in TABLES.values():
        backend.table(state)
    for timers in (TIMERS, TWIN_TIMERS):
        backend.timers(timers)


@contextmanager
def opened(subject: BackendSubject, *, begin: bool = True) -> Iterator[StateBackend]:
    """One empty backend, in its first epoch, 0, or before it."""
    with Instances(subject) as instances:
        backend = instances.open()
        if begin:
            backend.begin(0)
        yield backend


def sealed(backend: StateBackend, epoch: int) -> list[Change]:
    """Commit, and return all changes of the commit."""
    return list(backend.commit(epoch))
