"""What a gateway counts, for Prometheus.

Rules of this module: it wraps the optional package `prometheus_client`. Labels are routes and statuses: what a caller
chooses, such as names of jobs, is no label, so the number of series is bounded and no name goes to who may only scrape.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["GatewayMetrics"]

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class GatewayMetrics:
    """The counts of one gateway."""

    def __init__(self, streams: Callable[[], int], subscriptions: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        kept = self._registry
        self._requests = Counter(
            "qstate_gateway_requests", "requests answered, by route and HTTP status", ("route", "status"), registry=kept
        )
        self._seconds = Histogram(
            "qstate_gateway_request_seconds",
            "seconds to answer a request",
            ("route",),
            buckets=BUCKETS_S,
            registry=kept,
        )
        self._events = Counter("qstate_gateway_events", "events that were sent to streams", registry=kept)
        streaming = Gauge("qstate_gateway_streams", "streams that are open", registry=kept)
        streaming.set_function(lambda: float(streams()))
        subscribed = Gauge("qstate_gateway_subscriptions", "subscriptions to the query port", registry=kept)
        subscribed.set_function(lambda: float(subscriptions()))

    def answered(self, route: str, status: int, took_s: float) -> None:
        """A request was answered."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(took_s)

    def event_sent(self) -> None:
        """A stream was sent an event."""
        self._events.inc()

    def text(self) -> bytes:
        """All counts, in Prometheus' text form."""
        return generate_latest(self._registry)
