"""Which metrics there are: their names, types, labels and meanings, and where their values come from.

Rules of this module: statistics in, metric families of the optional package `prometheus_client` out, at each scrape.
It counts nothing itself. Names follow Prometheus' conventions: base units in the name, `_total` at the end of a
counter (the package adds it), and times as seconds since 1970-01-01 UTC, not as ages.

docs/reference/metrics.md has the same table for users; a test compares both with what a real job serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from operator import attrgetter
from typing import Any

from qstate.errors import FailureCode
from qstate.runtime.control.job_statistics import ProcessStatistics
from qstate.runtime.control.statistics import DURATION_BUCKETS_S, StatisticsSnapshot

__all__ = ["MetricCollector"]

_PROCESS = ("job", "process")
_ENDPOINT = (*_PROCESS, "endpoint")
_SUBTASK = (*_PROCESS, "operator", "subtask")
#: The values of the labels.
_Labels = tuple[str, ...]
_Value = float | int | None


@dataclass(frozen=True, slots=True)
class _Metric:
    """A metric of a process, an endpoint or a subtask. `value` gives its value, None for no sample."""

    family: str
    name: str
    meaning: str
    value: Callable[[Any], _Value]


_GAUGE, _COUNTER = "GaugeMetricFamily", "CounterMetricFamily"

_OF_PROCESSES = (
    _Metric(_GAUGE, "qstate_up", "1 when the process answered, else 0", lambda process: int(process.reachable)),
    _Metric(
        _COUNTER,
        "qstate_restarts",
        "how often another process took the place of the first",
        lambda process: process.restarts if process.reachable else None,
    ),
    _Metric(
        _COUNTER,
        "qstate_standby_looks",
        "looks of a standby at the checkpoint directory",
        lambda process: process.standby and process.standby.looks,
    ),
    _Metric(
        _COUNTER,
        "qstate_standby_failed_looks",
        "looks of a standby that failed",
        lambda process: process.standby and process.standby.failed_looks,
    ),
)
_OF_ENDPOINTS = (
    _Metric(_GAUGE, "qstate_connections", "open connections", attrgetter("connections")),
    _Metric(_COUNTER, "qstate_accepted_connections", "connections accepted", attrgetter("connections_accepted")),
    _Metric(_COUNTER, "qstate_requests", "requests received", attrgetter("requests")),
    _Metric(_COUNTER, "qstate_keys", "keys asked for", attrgetter("keys")),
    _Metric(
        _COUNTER,
        "qstate_throttled_seconds",
        "seconds for which connections were not read because of query_quota, added up",
        attrgetter("throttled_s"),
    ),
)
_OF_SUBTASKS = (
    _Metric(_GAUGE, "qstate_epoch", "the epoch sealed last, -1 for none", attrgetter("epoch")),
    _Metric(_COUNTER, "qstate_epochs", "epochs processed and sealed", attrgetter("epochs")),
    _Metric(_COUNTER, "qstate_replayed_epochs", "epochs whose stored results were sent again", attrgetter("replayed")),
    _Metric(
        _COUNTER, "qstate_abandoned_epochs", "attempts of epochs that failed or were cut off", attrgetter("abandoned")
    ),
    _Metric(_COUNTER, "qstate_rows_in", "rows of sealed epochs", attrgetter("rows_in")),
    _Metric(_COUNTER, "qstate_rows_out", "rows that sealed epochs emitted", attrgetter("rows_out")),
    _Metric(
        _COUNTER,
        "qstate_epoch_seconds",
        "seconds from the beginning of epochs to their seals, with the wait for rows",
        attrgetter("epoch_s"),
    ),
    _Metric(_COUNTER, "qstate_commit_seconds", "seconds of epochs after their last row", attrgetter("commit_s")),
    _Metric(
        _COUNTER,
        "qstate_checkpoint_bytes",
        "bytes that were written for epochs, without snapshots",
        attrgetter("checkpoint_bytes"),
    ),
    _Metric(
        _GAUGE,
        "qstate_watermark_timestamp_seconds",
        "the watermark of the epoch sealed last",
        lambda subtask: None if subtask.watermark_ms is None else subtask.watermark_ms / 1000,
    ),
    _Metric(_GAUGE, "qstate_snapshot_epoch", "the epoch of the newest snapshot", attrgetter("snapshot_epoch")),
    _Metric(
        _GAUGE, "qstate_snapshot_timestamp_seconds", "when the newest snapshot was ready", attrgetter("snapshot_at")
    ),
    _Metric(_GAUGE, "qstate_timers", "timers, where the backend counts them", attrgetter("state.timers")),
    _Metric(
        _GAUGE,
        "qstate_state_entries",
        "entries of all states and timers, where the backend estimates them",
        attrgetter("state.entries"),
    ),
    _Metric(
        _GAUGE,
        "qstate_state_bytes",
        "bytes of memory and disk of all states, where the backend estimates them",
        attrgetter("state.bytes"),
    ),
)
_STATE_KEYS = _Metric(_GAUGE, "qstate_state_keys", "keys with a value, where the backend counts them", int)
_STANDBY_EPOCHS = _Metric(_GAUGE, "qstate_standby_epoch", "the epoch that a standby serves, -1 for none", int)


class MetricCollector:
    """`prometheus_client` calls its `collect` once for each scrape.

    `job` returns the name that labels every metric, and `read` the statistics of the processes.
    """

    def __init__(self, job: Callable[[], str], read: Callable[[], Iterable[ProcessStatistics]]) -> None:
        self._job = job
        self._read = read

    def collect(self) -> Iterator[Any]:
        """The metrics with their values."""
        return _families(self._job(), list(self._read()))

    def describe(self) -> Iterator[Any]:
        """The metrics without values. `prometheus_client` takes their names from it, for scrapes that name metrics."""
        return _families("", [])


def _families(job: str, processes: list[ProcessStatistics]) -> Iterator[Any]:
    kinds = import_module("prometheus_client.metrics_core")
    endpoints = list(_endpoints(job, processes))
    subtasks = [
        ((job, process.name, one.operator, str(one.subtask)), one) for process in processes for one in process.subtasks
    ]
    yield from _filled(kinds, _OF_PROCESSES, _PROCESS, [((job, process.name), process) for process in processes])
    yield from _filled(kinds, _OF_ENDPOINTS, _ENDPOINT, endpoints)
    yield from _of_requests(kinds, endpoints)
    yield from _filled(kinds, _OF_SUBTASKS, _SUBTASK, subtasks)
    keys = [
        ((*labels, state), keys) for labels, subtask in subtasks for state, keys in sorted(subtask.state.keys.items())
    ]
    yield from _filled(kinds, [_STATE_KEYS], (*_SUBTASK, "state"), keys)
    epochs = [
        ((job, process.name, operator), epoch)
        for process in processes
        for operator, epoch in (() if process.standby is None else process.standby.epochs)
    ]
    yield from _filled(kinds, [_STANDBY_EPOCHS], (*_PROCESS, "operator"), epochs)


def _endpoints(job: str, processes: Iterable[ProcessStatistics]) -> Iterator[tuple[_Labels, StatisticsSnapshot]]:
    for process in processes:
        for endpoint, counts in (("server", process.server), ("proxy", process.proxy)):
            if counts is not None:
                yield (job, process.name, endpoint), counts


def _filled(
    kinds: Any, metrics: Iterable[_Metric], labels: _Labels, subjects: Sequence[tuple[_Labels, Any]]
) -> Iterator[Any]:
    for metric in metrics:
        family = getattr(kinds, metric.family)(metric.name, metric.meaning, labels=labels)
        for values, subject in subjects:
            found = metric.value(subject)
            if found is not None:
                family.add_metric(values, found)
        yield family


def _of_requests(kinds: Any, endpoints: Sequence[tuple[_Labels, StatisticsSnapshot]]) -> Iterator[Any]:
    failures = kinds.CounterMetricFamily(
        "qstate_failures", "requests and connections refused, by failure code", labels=(*_ENDPOINT, "code")
    )
    durations = kinds.HistogramMetricFamily(
        "qstate_request_seconds", "seconds from the receipt of a request to its answer", labels=_ENDPOINT
    )
    for labels, counts in endpoints:
        for code, count in sorted(counts.failures.items()):
            failures.add_metric((*labels, _code_name(code)), count)
        durations.add_metric(labels, buckets=_buckets(counts), sum_value=counts.duration_s)
    yield from (failures, durations)


def _buckets(counts: StatisticsSnapshot) -> list[tuple[str, int]]:
    """Cumulative counts by upper bound, as Prometheus has them."""
    bounds = (*map(str, DURATION_BUCKETS_S), "+Inf")
    return list(zip(bounds, accumulate(counts.durations), strict=True))


def _code_name(code: int) -> str:
    try:
        return FailureCode(code).name.lower()
    except ValueError:
        return str(code)
