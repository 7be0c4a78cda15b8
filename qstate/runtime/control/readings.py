"""What the metrics of a job or standby say: two scrapes in, rates and newest figures out.

Rules of this module: it wraps the parser of the optional package `prometheus_client`, and reads one address over HTTP.
It prints nothing. What it reads may be anything: it is bounded, and its text is made printable.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, build_opener

from qstate.errors import ConfigError
from qstate.installation import optional_module
from qstate.setting_values import without_password

__all__ = ["Figures", "Reading", "ServingFigures", "StandbyFigures", "SubtaskFigures", "compare", "read", "url_of"]

TIMEOUT_S = 5.0
#: A job with a thousand subtasks has about 3 MiB.
MOST_BYTES = 64 << 20
PERCENTILE = 0.99
#: Of the number of a subtask.
MOST_DIGITS = 9

_Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape: the samples by name and labels, and when they were read, by `time.time`."""

    at: float
    samples: Mapping[str, Mapping[_Labels, float]]


@dataclass(frozen=True, slots=True)
class SubtaskFigures:
    """A subtask between two scrapes. None: unknown, or nothing happened that has a mean."""

    operator: str
    subtask: int
    process: str
    epoch: int
    rows_in_per_s: float | None
    rows_out_per_s: float | None
    epoch_s: float | None
    commit_s: float | None
    state_keys: int | None
    state_entries: int | None
    state_bytes: int | None
    timers: int | None
    watermark: float | None
    snapshot_at: float | None
    abandoned: int


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """A state server or client proxy between two scrapes. `p99_s` is None without an answer."""

    process: str
    endpoint: str
    connections: int
    requests_per_s: float | None
    keys_per_s: float | None
    failures_per_s: float | None
    p99_s: float | None


@dataclass(frozen=True, slots=True)
class StandbyFigures:
    """The epoch that a standby serves of an operator."""

    operator: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Figures:
    """A job or standby between two scrapes. `silent` are processes that did not answer; `restarts` of all processes."""

    job: str
    at: float
    interval_s: float
    restarts: int
    silent: tuple[str, ...] = ()
    subtasks: tuple[SubtaskFigures, ...] = ()
    serving: tuple[ServingFigures, ...] = ()
    standby: tuple[StandbyFigures, ...] = ()


def url_of(address: str) -> str:
    """The URL of an address that a user wrote: HOST:PORT, or a URL. Raises `ConfigError`."""
    url = address if "://" in address else f"http://{address}"
    try:
        parts = urlsplit(url)
        # Metrics need no password; one that is there would be in the messages of failures.
        reachable = parts.hostname and "@" not in parts.netloc and (parts.port or "://" in address)
        good = parts.scheme in ("http", "https") and reachable
    except ValueError:
        good = False
    if not good:
        shown = without_password(address)
        raise ConfigError(f"an address of metrics is HOST:PORT or http://HOST:PORT/metrics, got {shown!r}")
    return url if parts.path not in ("", "/") else f"{url.rstrip('/')}/metrics"


def read(url: str) -> Reading:
    """Scrape once. Raises `ConfigError` when no metrics can be read there, `InstallationError` without the package."""
    parser = optional_module("prometheus_client.parser", "reading metrics needs", "prometheus-client", "metrics")
    try:
        # No proxy of the environment: metrics are inside a network.
        with build_opener(ProxyHandler({})).open(url, timeout=TIMEOUT_S) as answer:
            text = answer.read(MOST_BYTES + 1)
        at = time.time()
        if len(text) > MOST_BYTES:
            raise ValueError(f"the answer has more than {MOST_BYTES} bytes")
        samples = _samples(parser, text.decode())
    except (OSError, ValueError, KeyError, HTTPException) as exc:
        reason = exc.reason if isinstance(exc, URLError) and not isinstance(exc, HTTPError) else exc
        if isinstance(exc, HTTPError):
            exc.close()
        raise ConfigError(
            f"no metrics at {url} ({reason}): give the job metrics_ports, or the standby --metrics-port, and name that "
            "address; job.metrics_address is the one in use"
        ) from exc
    if "qstate_up" not in samples:
        raise ConfigError(f"the metrics at {url} are not of a qstate job or standby")
    return Reading(at, samples)


def _samples(parser: Any, text: str) -> dict[str, dict[_Labels, float]]:
    """The samples of qstate's metrics. Raises `ValueError`, `KeyError` for what no process of qstate serves."""
    found: dict[str, dict[_Labels, float]] = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("qstate_"):
                labels = frozenset((name, _printable(value)) for name, value in sample.labels.items())
                found.setdefault(sample.name, {})[labels] = _checked(sample)
    return found


def _checked(sample: Any) -> float:
    """The value of a sample whose value and labels `compare` can compute with."""
    value = float(sample.value)
    subtask = sample.labels.get("subtask", "0")
    if not math.isfinite(value) or not (subtask.isdecimal() and len(subtask) <= MOST_DIGITS):
        raise ValueError(f"the metric {sample.name} has the value {value} for the subtask {_printable(subtask)!r:.80}")
    if sample.name.endswith("_bucket"):
        float(sample.labels["le"])
    return value


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in text)


def compare(before: Reading, now: Reading) -> Figures:
    """The figures between two scrapes of one address."""
    both = _Both(before, now)
    up = now.samples["qstate_up"]
    return Figures(
        job=next((dict(labels).get("job", "") for labels in up), ""),
        at=now.at,
        interval_s=both.seconds,
        restarts=int(sum(now.samples.get("qstate_restarts_total", {}).values())),
        silent=tuple(sorted(dict(labels).get("process", "") for labels, value in up.items() if not value)),
        subtasks=tuple(_subtasks(both)),
        serving=tuple(_serving(both)),
        standby=tuple(_standby(both)),
    )


class _Both:
    """Two scrapes. A counter that went back began at zero in between."""

    def __init__(self, before: Reading, now: Reading) -> None:
        self._before, self._now = before.samples, now.samples
        self.seconds = max(now.at - before.at, 1e-9)

    def of(self, name: str) -> Iterator[tuple[_Labels, dict[str, str]]]:
        for labels in sorted(self._now.get(name, {}), key=sorted):
            yield labels, dict(labels)

    def value(self, name: str, labels: _Labels) -> float | None:
        return self._now.get(name, {}).get(labels)

    def count(self, name: str, labels: _Labels) -> int | None:
        found = self.value(name, labels)
        return None if found is None else int(found)

    def increase(self, name: str, labels: _Labels) -> float | None:
        now, before = self.value(name, labels), self._before.get(name, {}).get(labels, 0.0)
        return None if now is None else now - before if now >= before else now

    def rate(self, name: str, labels: _Labels) -> float | None:
        found = self.increase(name, labels)
        return None if found is None else found / self.seconds

    def mean(self, total: str, times: str, labels: _Labels) -> float | None:
        """The mean between the scrapes; when nothing happened in between, that since the beginning."""
        for of in (self.increase, self.value):
            count, found = of(times, labels), of(total, labels)
            if count and found is not None:
                return found / count
        return None

    def total(self, name: str, labels: _Labels, of: str = "value") -> float | None:
        """The sum over the samples that have these labels, and others."""
        found = [getattr(self, of)(name, one) for one in self._now.get(name, {}) if labels <= one]
        return sum(found) if found else None


def _subtasks(both: _Both) -> Iterator[SubtaskFigures]:
    for labels, named in both.of("qstate_epoch"):
        keys = both.total("qstate_state_keys", labels)
        yield SubtaskFigures(
            operator=named.get("operator", ""),
            subtask=int(named.get("subtask", "0")),
            process=named.get("process", ""),
            epoch=both.count("qstate_epoch", labels) or 0,
            rows_in_per_s=both.rate("qstate_rows_in_total", labels),
            rows_out_per_s=both.rate("qstate_rows_out_total", labels),
            epoch_s=both.mean("qstate_epoch_seconds_total", "qstate_epochs_total", labels),
            commit_s=both.mean("qstate_commit_seconds_total", "qstate_epochs_total", labels),
            state_keys=None if keys is None else int(keys),
            state_entries=both.count("qstate_state_entries", labels),
            state_bytes=both.count("qstate_state_bytes", labels),
            timers=both.count("qstate_timers", labels),
            watermark=both.value("qstate_watermark_timestamp_seconds", labels),
            snapshot_at=both.value("qstate_snapshot_timestamp_seconds", labels),
            abandoned=both.count("qstate_abandoned_epochs_total", labels) or 0,
        )


def _serving(both: _Both) -> Iterator[ServingFigures]:
    for labels, named in both.of("qstate_connections"):
        yield ServingFigures(
            process=named.get("process", ""),
            endpoint=named.get("endpoint", ""),
            connections=both.count("qstate_connections", labels) or 0,
            requests_per_s=both.rate("qstate_requests_total", labels),
            keys_per_s=both.rate("qstate_keys_total", labels),
            failures_per_s=(both.total("qstate_failures_total", labels, "increase") or 0.0) / both.seconds,
            p99_s=_percentile(both, labels),
        )


def _standby(both: _Both) -> Iterator[StandbyFigures]:
    for labels, named in both.of("qstate_standby_epoch"):
        yield StandbyFigures(named.get("operator", ""), both.count("qstate_standby_epoch", labels) or 0)


def _percentile(both: _Both, labels: _Labels) -> float | None:
    """The percentile of the durations between the scrapes: linear within a bucket, as Prometheus computes it."""
    name = "qstate_request_seconds_bucket"
    found = [(float(dict(one)["le"]), both.increase(name, one) or 0.0) for one, _ in both.of(name) if labels <= one]
    buckets = sorted(found)
    if not buckets or not buckets[-1][1]:
        return None
    wanted = PERCENTILE * buckets[-1][1]
    lower, below = 0.0, 0.0
    for bound, count in buckets:
        if count >= wanted:
            inside = (wanted - below) / (count - below)
            return lower if bound == float("inf") else lower + (bound - lower) * inside
        lower, below = bound, count
    return None
