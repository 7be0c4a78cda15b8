"""What a server or proxy counts: connections, requests, successes with their duration, failures by code.

Rules of this module: it counts and renders. It must not know what a request is for. Counting happens on the
threads that serve, once per request, so it is a lock, a few additions and a bisection, and nothing is formatted
before someone asks.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qstate.errors import FailureCode

__all__ = ["DURATION_BUCKETS_S", "DisabledStatistics", "InMemoryStatistics", "RequestStatistics", "StatisticsSnapshot"]

#: Upper bounds of the duration histogram, in seconds.
DURATION_BUCKETS_S = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)


class RequestStatistics(Protocol):
    """Told of everything that a server or proxy serves, from its threads; must not block or raise."""

    def report_active_connection(self) -> None:
        """A connection was accepted."""

    def report_inactive_connection(self) -> None:
        """An accepted connection is gone."""

    def report_request(self, keys: int) -> None:
        """A request came in; `keys` is 0 for one that names none."""

    def report_successful_request(self, duration_s: float) -> None:
        """A request was answered with a result, so long after it came in."""

    def report_failed_request(self, code: int) -> None:
        """A request, or a connection, was answered with a failure."""


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


@dataclass(frozen=True, slots=True)
class StatisticsSnapshot:
    """The counts of one moment. `durations` has a count per bucket, the last one for what is longer than all."""

    connections: int
    connections_accepted: int
    requests: int
    keys: int
    successes: int
    duration_s: float
    durations: tuple[int, ...]
    failures: Mapping[int, int]

    def rows(self, name: str) -> Sequence[tuple[str, str, str, Sequence[tuple[str, float]]]]:
        """(metric, type, help, samples) for Prometheus; a sample is (name with labels, value)."""
        return (
            (f"{name}_connections", "gauge", "open connections", [("", self.connections)]),
            (f"{name}_connections_total", "counter", "connections accepted", [("", self.connections_accepted)]),
            (f"{name}_requests_total", "counter", "requests received", [("", self.requests)]),
            (f"{name}_keys_total", "counter", "keys asked for", [("", self.keys)]),
            (
                f"{name}_failures_total",
                "counter",
                "requests and connections refused, by failure code",
                [(f'{{code="{_code_name(code)}"}}', count) for code, count in sorted(self.failures.items())],
            ),
            (f"{name}_request_seconds", "histogram", "from receipt to answer", self._duration_samples()),
        )

    def _duration_samples(self) -> list[tuple[str, float]]:
        samples: list[tuple[str, float]] = []
        total = 0
        for bound, count in zip((*DURATION_BUCKETS_S, "+Inf"), self.durations, strict=True):
            total += count
            samples.append((f'_bucket{{le="{bound}"}}', total))
        return [*samples, ("_sum", self.duration_s), ("_count", total)]


class InMemoryStatistics:
    """Counts in memory. Any thread may report and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections = 0
        self._connections_accepted = 0
        self._requests = 0
        self._keys = 0
        self._duration_s = 0.0
        self._durations = [0] * (len(DURATION_BUCKETS_S) + 1)
        self._failures: dict[int, int] = {}

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
            )

    def prometheus(self, name: str = "qstate") -> str:
        """The counts in Prometheus' text format, every metric's name starting with `name`."""
        lines: list[str] = []
        for metric, kind, meaning, samples in self.snapshot().rows(name):
            lines += [f"# HELP {metric} {meaning}", f"# TYPE {metric} {kind}"]
            lines += [f"{metric}{label} {value}" for label, value in samples]
        return "\n".join(lines) + "\n"


def _code_name(code: int) -> str:
    try:
        return FailureCode(code).name.lower()
    except ValueError:
        return str(code)
