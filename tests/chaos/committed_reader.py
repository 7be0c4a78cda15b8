"""A reader that asks for committed values all the time, and checks every answer.

What it knows: the value of every key after each epoch, and from Spark's own files which epochs Spark has committed. So
it notices a value that was taken back, or is of no epoch at all; an epoch that was shown before Spark had committed it;
and a key that went back in epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qstate.client import ClientCache
from qstate.errors import NoCommittedEpoch, QStateError
from qstate.runtime.client.scanning import ScannedEntry
from qstate.runtime.client.sync_client import QueryableStateClient

__all__ = ["CommittedReader"]

PAUSE_S = 0.02
TIMEOUT_S = 2.0
#: After so many failed reads in a row, a client with a cache is replaced by one of the proxies that there are then.
MOST_FAILURES = 3


class CommittedReader:
    """A thread, from `with` on, that reads the total of some keys.

    `addresses` gives the proxies of the moment, `checkpoint` is the query's checkpointLocation. `expected` has an entry
    for each epoch; it may grow, as long as an epoch's is there before Spark commits it. With `standbys` it demands the
    epoch that it has seen of a key, because a standby may be behind the task manager that answered before. With a
    `cache` it keeps its client for as long as that gets answers.
    """

    def __init__(
        self,
        job: str,
        keys: Sequence[str],
        addresses: Callable[[], Sequence[tuple[str, int]]],
        expected: Sequence[Mapping[str, Hashable]],
        checkpoint: Path,
        *,
        standbys: bool = False,
        cache: ClientCache | None = None,
    ) -> None:
        self._job = job
        self._addresses = addresses
        self._expected = expected
        self._commits = checkpoint / "commits"
        self._keys = keys
        self._standbys = standbys
        self._cache = cache
        #: How many keys the cache has answered.
        self.hits = self._of_client = 0
        self._epochs: dict[str, int] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="committed reader")
        #: What must not have been, in words; empty when all is well.
        self.violations: list[str] = []
        self.answers = 0
        self.scans = 0
        #: The epochs that were seen.
        self.seen: set[int] = set()

    def __enter__(self) -> CommittedReader:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        turn = 0
        while not self._ending.wait(PAUSE_S):
            addresses = list(self._addresses())
            if not addresses:
                continue
            turn += 1
            try:
                (host, port), *proxies = addresses[turn % len(addresses) :] + addresses[: turn % len(addresses)]
                with QueryableStateClient(
                    host, port, proxies=proxies, timeout_s=TIMEOUT_S, cache=self._cache
                ) as client:
                    if self._cache is None:
                        self._read(client, scans=not turn % 3)
                    else:
                        self._of_client = 0
                        self._read_cached(client)
            except NoCommittedEpoch:
                self._check_nothing_was_committed()
            except (QStateError, OSError):  # who cannot answer, or not yet, says so; that is no wrong answer
                continue

    def _read(self, client: QueryableStateClient, *, scans: bool) -> None:
        if scans:
            self._check_scan([*client.scan(self._job, "totalAmount", isolation="committed")])
        elif not self._standbys:
            for key, view in client.get_many(self._job, "totalAmount", self._keys, isolation="committed").items():
                self._check(key, view)
        else:
            for key in self._keys:
                seen = self._epochs.get(key)
                self._check(key, client.get(self._job, "totalAmount", key, isolation="committed", min_epoch=seen))

    def _read_cached(self, client: QueryableStateClient) -> None:
        """Again and again, through losses of owners. Raises when no proxy of the client is left."""
        failures = 0
        while not self._ending.wait(PAUSE_S / 10):
            try:
                self._read(client, scans=False)
                failures = 0
            except NoCommittedEpoch:
                raise
            except QStateError:
                failures += 1
                if failures == MOST_FAILURES:
                    raise
            finally:
                found = client.cache_statistics().hits
                self.hits, self._of_client = self.hits + found - self._of_client, found

    def _check_nothing_was_committed(self) -> None:
        self.answers += len(self._keys)
        if self._epochs:
            self.violations.append(f"nothing was said to be committed after {sorted(self._epochs.items())} were shown")

    def _check_scan(self, entries: list[ScannedEntry]) -> None:
        """A scan has every key that was there before it began, once, as of an epoch of its owner."""
        before, found = set(self._epochs), [entry.key for entry in entries]
        self.scans += 1
        if len(found) != len(set(found)):
            self.violations.append(f"a scan gave a key twice: {sorted(map(str, found))}")
        if missing := before.difference(found):
            self.violations.append(f"a scan left out {sorted(missing)}")
        for entry in entries:
            self._check(str(entry.key), entry.view)

    def _check(self, key: str, view: Any) -> None:
        self.answers += 1
        last = self._epochs.get(key, -1)
        if view is None:
            if last >= 0:
                self.violations.append(f"{key} was there as of epoch {last}, and is gone")
            return
        epoch = view.epoch
        self._epochs[key] = max(last, epoch)
        self.seen.add(epoch)
        if epoch < last:
            self.violations.append(f"{key} went back from epoch {last} to {epoch}")
        if not (self._commits / str(epoch)).exists():
            self.violations.append(f"{key} was shown as of epoch {epoch}, which Spark has not committed")
        expected = self._expected[epoch].get(key) if 0 <= epoch < len(self._expected) else None
        if view.get() != expected:
            self.violations.append(f"{key} was {view.get()!r} as of epoch {epoch}, which left {expected!r}")
