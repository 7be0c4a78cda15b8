"""The statistics of a server or proxy: connections, requests, successes with their duration, failures by code.

Rules of this module: it counts and adds up. It must not know what a request is for, nor how counts are shown.
The serving threads count, once per request, so counting is a lock, a few additions and a bisection.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Protocol

from qstate.host.line_limit import limited

__all__ = [
    "DURATION_BUCKETS_S",
    "DisabledStatistics",
    "InMemoryStatistics",
    "RequestStatistics",
    "StatisticsSnapshot",
    "contained",
    "counts_of",
    "request_statistics",
]

log = limited(logging.getLogger(__name__))

#: Upper bounds of the duration histogram, in seconds.
DURATION_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class RequestStatistics(Protocol):
    """Gets the events of a server or proxy. Any class with these methods is a collector; `InMemoryStatistics` is one.

    The threads that serve call it, several at the same time, and each request pays for two calls: a collector must be
    thread-safe and must not block or wait. If a report raises, the error is logged, that event is lost, and the request
    and its connection are not affected. One collector may be shared by several servers and proxies.

    A request is reported once, and its outcome, success or failure, once. The two reports may come in either order, and
    after the client has its answer. A proxy that reads a state of its own process reports the request, and so does the
    state server, which has no connection then.
    """

    def report_active_connection(self) -> None:
        """A connection was accepted. One that is refused at once, as one too many, is a failure only."""

    def report_inactive_connection(self) -> None:
        """An accepted connection has ended, for any reason. Shutdown ends all of them."""

    def report_request(self, keys: int) -> None:
        """A request was received; `keys` is its number of keys, 0 for a request without keys."""

    def report_successful_request(self, duration_s: float) -> None:
        """A request was answered with a result, `duration_s` seconds after it was received.

        A result may contain failures of single keys.
        """

    def report_failed_request(self, code: int) -> None:
        """A request was answered with a failure, or a connection was refused or ended with one.

        `code` is a number of `qstate.errors.FailureCode`. A failed connection has no `report_request`.
        """

    def report_throttled(self, seconds: float) -> None:
        """A connection was not read for so long, because its peer is over the quota of requests."""


class DisabledStatistics:
    """Counts nothing."""

    def report_active_connection(self) -> None:
        return

    def report_inactive_connection(self) -> None:
        return

    def report_request(self, keys: int) -> None:
        return

    def report_successful_request(self, duration_s: float) -> None:
        return

    def report_failed_request(self, code: int) -> None:
        return

    def report_throttled(self, seconds: float) -> None:
        return


class _Contained:
    """A collector whose exceptions are logged, because they would end the thread that serves."""

    def __init__(self, collector: RequestStatistics) -> None:
        self._collector = collector

    def report_active_connection(self) -> None:
        self._report(self._collector.report_active_connection)

    def report_inactive_connection(self) -> None:
        self._report(self._collector.report_inactive_connection)

    def report_request(self, keys: int) -> None:
        self._report(self._collector.report_request, keys)

    def report_successful_request(self, duration_s: float) -> None:
        self._report(self._collector.report_successful_request, duration_s)

    def report_failed_request(self, code: int) -> None:
        self._report(self._collector.report_failed_request, code)

    def report_throttled(self, seconds: float) -> None:
        self._report(self._collector.report_throttled, seconds)

    def _report(self, report: Callable[..., None], *event: float) -> None:
        try:
            report(*event)
        except Exception:
            log.exception("the statistics collector raised an error, and an event is not counted")


@dataclass(frozen=True, slots=True)
class StatisticsSnapshot:
    """The counts at one moment, since the endpoint started.

    `connections` is the number of open connections, `connections_accepted` of all that were accepted. `successes` is
    the number of requests answered with a result, `duration_s` the sum of the seconds from their receipt to their
    answer. `durations` has a count for each bucket of `DURATION_BUCKETS_S`, and a last one for longer durations.
    `failures` has the number of failures by code. `throttled_s` is the sum of the seconds for which connections were
    not read, because their peers were over the quota of requests.
    """

    connections: int
    connections_accepted: int
    requests: int
    keys: int
    successes: int
    duration_s: float
    durations: tuple[int, ...] = field(repr=False)
    failures: Mapping[int, int]
    throttled_s: float = 0.0

    def __add__(self, other: StatisticsSnapshot) -> StatisticsSnapshot:
        """The sums of both counts, as if of one endpoint."""
        return StatisticsSnapshot(
            connections=self.connections + other.connections,
            connections_accepted=self.connections_accepted + other.connections_accepted,
            requests=self.requests + other.requests,
            keys=self.keys + other.keys,
            successes=self.successes + other.successes,
            duration_s=self.duration_s + other.duration_s,
            durations=tuple(map(add, self.durations, other.durations)),
            failures=dict(Counter(self.failures) + Counter(other.failures)),
            throttled_s=self.throttled_s + other.throttled_s,
        )


class InMemoryStatistics:
    """A collector that adds up in memory. Any thread may call it. A report takes a lock and a few additions."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = 0
        self._connections_accepted = 0
        self._requests = 0
        self._keys = 0
        self._duration_s = 0.0
        self._durations = [0] * (len(DURATION_BUCKETS_S) + 1)
        self._failures: dict[int, int] = {}
        self._throttled_s = 0.0

    def report_active_connection(self) -> None:
        with self._lock:
            self._connections += 1
            self._connections_accepted += 1

    def report_inactive_connection(self) -> None:
        with self._lock:
            self._connections -= 1

    def report_request(self, keys: int) -> None:
        with self._lock:
            self._requests += 1
            self._keys += keys

    def report_successful_request(self, duration_s: float) -> None:
        bucket = bisect_left(DURATION_BUCKETS_S, duration_s)
        with self._lock:
            self._duration_s += duration_s
            self._durations[bucket] += 1

    def report_failed_request(self, code: int) -> None:
        with self._lock:
            self._failures[code] = self._failures.get(code, 0) + 1

    def report_throttled(self, seconds: float) -> None:
        with self._lock:
            self._throttled_s += seconds

    def snapshot(self) -> StatisticsSnapshot:
        """All counts, from one moment."""
        with self._lock:
            return StatisticsSnapshot(
                connections=self._connections,
                connections_accepted=self._connections_accepted,
                requests=self._requests,
                keys=self._keys,
                successes=sum(self._durations),
                duration_s=self._duration_s,
                durations=tuple(self._durations),
                failures=dict(self._failures),
                throttled_s=self._throttled_s,
            )


_DO_NOT_RAISE = (DisabledStatistics, InMemoryStatistics, _Contained)


def contained(statistics: RequestStatistics | None) -> RequestStatistics:
    """The collector as an endpoint calls it: it does not raise. None counts nothing."""
    if statistics is None:
        return DisabledStatistics()
    return statistics if type(statistics) in _DO_NOT_RAISE else _Contained(statistics)


def request_statistics(enabled: bool) -> RequestStatistics:
    """Statistics for one endpoint, which count only when `enabled`."""
    return InMemoryStatistics() if enabled else DisabledStatistics()


def counts_of(statistics: RequestStatistics | None) -> StatisticsSnapshot | None:
    """The counts of an endpoint; None when it does not exist, or its collector counts nothing that can be read."""
    return statistics.snapshot() if isinstance(statistics, InMemoryStatistics) else None
