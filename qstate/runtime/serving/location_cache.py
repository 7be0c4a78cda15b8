"""The locations that a proxy knows, the oracles that it asks, and the lookups in flight.

Rules of this module: it knows oracles and tables, and neither sockets nor requests. Oracles are foreign code that may
block, so only the threads of a pool call them, never a network thread.

Lookups are single-flight: however many requests miss the same location, the cache asks its oracle once. It drops a
table that a caller found stale, and the tables of a job whose oracle is replaced or removed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from qstate.errors import InternalFailure, QueryError, Restoring, UnknownJob
from qstate.host.line_limit import limited
from qstate.runtime.net.worker_pool import WorkerPool
from qstate.runtime.routing.location import LocationOracle, LocationTable

__all__ = ["LocationCache", "Reply"]

log = limited(logging.getLogger(__name__))

#: A lookup in flight for so long is not joined any more: the next caller starts another.
PATIENCE_S = 2.0
#: How long a table is kept in which standbys stand in the place of owners, which may be back any moment.
BORROWED_S = 0.5

Found = LocationTable | QueryError
Reply = Callable[[Found], None]


class _Lookup:
    """One question to an oracle, and the replies that wait for its answer."""

    __slots__ = ("started_at", "waiting")

    def __init__(self, started_at: float) -> None:
        self.started_at = started_at
        self.waiting: list[Reply] = []


class LocationCache:
    """Any thread may call any method; `known` takes no lock. Replies run on any thread."""

    def __init__(self, pool: WorkerPool, clock: Callable[[], float] = time.monotonic) -> None:
        self._pool = pool
        self._clock = clock
        self._lock = threading.Lock()
        self._oracles: dict[str, LocationOracle] = {}
        self._tables: dict[tuple[str, str], LocationTable] = {}
        #: When a table ends that lacks owners for whom standbys answer.
        self._ends: dict[tuple[str, str], float] = {}
        self._lookups: dict[tuple[str, str], _Lookup] = {}
        #: Whether further jobs are about to get their oracles, so that none is unknown yet.
        self.expects_jobs = False

    def missing(self, job: str | None) -> QueryError:
        """The failure of a request about a job without an oracle, or about all jobs while not all are known."""
        return Restoring() if self.expects_jobs else UnknownJob(job=job)

    @property
    def jobs(self) -> list[str]:
        """The jobs that have an oracle, sorted."""
        with self._lock:
            return sorted(self._oracles)

    def oracle(self, job: str) -> LocationOracle | None:
        """The oracle of a job, None without one."""
        return self._oracles.get(job)

    def set_oracle(self, job: str, oracle: LocationOracle | None) -> None:
        """Set a job's oracle, or remove it with None. The tables of an earlier oracle are dropped."""
        with self._lock:
            if oracle is None:
                self._oracles.pop(job, None)
            else:
                self._oracles[job] = oracle
            for names in [names for names in self._tables if names[0] == job]:
                del self._tables[names]
            for names in [names for names in self._lookups if names[0] == job]:
                del self._lookups[names]

    def known(self, job: str, state: str) -> LocationTable | None:
        """The cached table of a state, None without one."""
        names = (job, state)
        if self._ends and self._clock() >= self._ends.get(names, math.inf):
            return None
        return self._tables.get(names)

    def look_up(self, job: str, state: str, stale: LocationTable | None, reply: Reply) -> None:
        """Call `reply` with the cached table, or with the oracle's answer if there is none or it is `stale`."""
        names = (job, state)
        with self._lock:
            table = self._tables.get(names)
            is_over = self._clock() >= self._ends.get(names, math.inf)
            if table is not None and (is_over or table is stale or table.committed is stale):
                del self._tables[names]
                table = None
            joined = table is None and self._join(names, reply)
        if not joined:
            reply(self.missing(job) if table is None else table)

    def refresh(self, job: str, state: str, reply: Reply) -> None:
        """Call `reply` with a new answer of the oracle, whatever is cached."""
        with self._lock:
            joined = self._join((job, state), reply)
        if not joined:
            reply(self.missing(job))

    def describe(self, job: str, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        """Call `reply` with the job's states, as its oracle lists them."""
        oracle = self.oracle(job)
        if oracle is None:
            reply(self.missing(job))
        else:
            self._pool.submit(_ask, job, oracle.describe, reply)

    def _join(self, names: tuple[str, str], reply: Reply) -> bool:
        """Join the lookup in flight, or start one; False when the job has no oracle. Call it under the lock."""
        oracle = self._oracles.get(names[0])
        if oracle is None:
            return False
        lookup = self._lookups.get(names)
        if lookup is None or self._clock() - lookup.started_at > PATIENCE_S:
            lookup = self._lookups[names] = _Lookup(self._clock())
            self._pool.submit(_ask, names[0], partial(oracle.locate, names[1]), partial(self._settle, names, lookup))
        lookup.waiting.append(reply)
        return True

    def _settle(self, names: tuple[str, str], lookup: _Lookup, found: Found) -> None:
        with self._lock:
            # A replaced lookup, or one of a replaced oracle, still answers the callers that joined it.
            if self._lookups.get(names) is lookup:
                del self._lookups[names]
                if isinstance(found, LocationTable):
                    self._tables[names] = found
                    self._ends.pop(names, None)
                    if found.committed.borrows:
                        self._ends[names] = self._clock() + BORROWED_S
            waiting, lookup.waiting = lookup.waiting, []
        for reply in waiting:
            reply(found)


def _ask(job: str, ask: Callable[[Callable[[Any], None]], None], reply: Callable[[Any], None]) -> None:
    """Ask an oracle. If it raises, its error is the answer."""
    try:
        ask(reply)
    except Exception as exc:
        reply(_failure_of(exc, job))


def _failure_of(error: Exception, job: str) -> QueryError:
    if isinstance(error, QueryError):
        return error
    log.error("the location oracle of job %r failed", job, exc_info=error)
    return InternalFailure(reason="the location oracle failed")
