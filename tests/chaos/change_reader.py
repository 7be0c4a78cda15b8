"""A subscriber that follows a state all the time, and checks every change.

What it knows is what `CommittedReader` knows. So it notices a change that is missing, comes twice, is of another value
than the epoch left, comes before its epoch is committed, or after a later one of its key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qstate.client import ChangeBatch, QueryableStateClient
from qstate.errors import Compacted, QStateError

__all__ = ["ChangeReader"]

PAUSE_S = 0.05
PATIENCE_S = 5.0
STATE = "totalAmount"


class ChangeReader:
    """A thread, from `with` on. It continues with the token of the last batch, at any of the `addresses`."""

    def __init__(
        self,
        job: str,
        addresses: Callable[[], Sequence[tuple[str, int]]],
        expected: Sequence[Mapping[str, int]],
        checkpoint: Path,
    ) -> None:
        self._job = job
        self._addresses = addresses
        self._expected = expected
        self._commits = checkpoint / "commits"
        self._begin: dict[str, Any] = {"from_epoch": 0}
        self._last: dict[str, int] = {}
        self._ending = threading.Event()
        self._progress = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="change reader")
        #: What must not have been, in words; empty when all is well.
        self.violations: list[str] = []
        self.changes: dict[tuple[str, int], int] = {}
        self.complete = -1
        #: The first epoch that was given: those before it were not stored any more.
        self.first = 0

    def __enter__(self) -> ChangeReader:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ending.set()
        self._thread.join()

    def wait_for(self, epoch: int, timeout_s: float) -> bool:
        """Wait until everything up to this epoch was given."""
        with self._progress:
            return self._progress.wait_for(lambda: self.complete >= epoch, timeout_s)

    def missing(self, upto: int) -> list[tuple[str, int]]:
        """The changes up to this epoch that were not given: of keys whose value another epoch has left."""
        return [
            (key, epoch)
            for epoch in range(self.first, upto + 1)
            for key, value in self._expected[epoch].items()
            if (epoch == 0 or self._expected[epoch - 1].get(key) != value) and (key, epoch) not in self.changes
        ]

    def _run(self) -> None:
        turn = 0
        while not self._ending.wait(PAUSE_S):
            addresses = self._addresses()
            turn += 1
            if not addresses:
                continue
            try:
                with QueryableStateClient(*addresses[turn % len(addresses)], timeout_s=PATIENCE_S) as client:
                    options = {"patience_s": PATIENCE_S, "progress_s": 0.5, **self._begin}
                    with client.subscribe(self._job, STATE, **options) as subscription:
                        while not self._ending.is_set():
                            batch = subscription.next_batch(0.5)
                            if batch is not None:
                                self._take(batch)
            except Compacted as exc:
                self.first = int(str(exc.details["oldest_epoch"]))
                self._begin = {"from_epoch": self.first}
            except (QStateError, OSError):  # a server that cannot answer says so; the token loses nothing
                continue

    def _take(self, batch: ChangeBatch) -> None:
        for change in batch:
            key, epoch, value = str(change.key), change.epoch, change.value
            if (key, epoch) in self.changes:
                self.violations.append(f"the change of {key} in epoch {epoch} came twice")
            if epoch < self._last.get(key, -1):
                self.violations.append(f"the change of {key} in epoch {epoch} came after that of {self._last[key]}")
            if not (self._commits / str(epoch)).exists():
                self.violations.append(f"{key} changed in epoch {epoch}, which Spark has not committed")
            expected = self._expected[epoch].get(key) if epoch < len(self._expected) else None
            if value != expected:
                self.violations.append(f"{key} became {value!r} in epoch {epoch}, which left {expected!r}")
            self.changes[key, epoch] = int(str(value))
            self._last[key] = epoch
        with self._progress:
            self.complete = batch.complete
            self._progress.notify_all()
        if batch.token is not None:
            self._begin = {"token": batch.token}
