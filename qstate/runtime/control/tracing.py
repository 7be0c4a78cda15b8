"""OpenTelemetry spans of requests: one in the client, one in the proxy, one for each read of a state server.

Rules of this module: it wraps the optional package `opentelemetry-api`. It makes spans and puts their context into the
attributes of requests; it knows no sockets, no keys and no values. Without tracing there is no `Tracing`.

A trace begins at a client. A proxy or server makes a span only for a request that carries a context of a sampled trace,
so requests of clients without tracing cost it nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

from qstate import __version__
from qstate.errors import Detail, QueryError
from qstate.installation import optional_module
from qstate.protocol.messages import NO_ATTRIBUTES, TRACEPARENT

__all__ = ["EndedOnce", "Tracing", "check_tracing", "configure_tracing", "keys_named"]

#: The group of entry points by which `opentelemetry-instrument` configures a program, and the variable that names one.
CONFIGURATORS, CHOSEN = "opentelemetry_configurator", "OTEL_PYTHON_CONFIGURATOR"
_FIELD = "traceparent"


class Tracing:
    """Makes the spans of one client, proxy or server. Any thread. Raises `InstallationError` without the package."""

    def __init__(self) -> None:
        self._api = _imported("opentelemetry.trace")
        self._propagator = _imported("opentelemetry.trace.propagation.tracecontext").TraceContextTextMapPropagator()
        self._tracer = self._api.get_tracer("qstate", __version__)

    def of_client(self, job: str, state: str, keys: int | None, name: str = "qstate get") -> Any:
        """A new span for a request of a client, a child of the caller's current span. `keys`: how many it names."""
        names = {"qstate.job": str(job), "qstate.state": str(state), **({} if keys is None else {"qstate.keys": keys})}
        return self._tracer.start_span(name, kind=self._api.SpanKind.CLIENT, attributes=names)

    def of_server(self, name: str, attributes: Mapping[str, Detail], **values: Any) -> Any | None:
        """A new span for a request with these attributes, a child of the span that sent it; None without one."""
        parent = attributes.get(TRACEPARENT)
        if parent is None:
            return None
        context = self._propagator.extract({_FIELD: parent})
        if not self._api.get_current_span(context).get_span_context().trace_flags.sampled:
            return None
        return self._tracer.start_span(name, context=context, kind=self._api.SpanKind.SERVER, attributes=values)

    def carried(self, span: Any) -> Mapping[str, Detail]:
        """The attributes of requests that are sent for a span; none when its trace is not sampled."""
        if not span.get_span_context().trace_flags.sampled:
            return NO_ATTRIBUTES
        found: dict[str, str] = {}
        self._propagator.inject(found, self._api.set_span_in_context(span))
        return {TRACEPARENT: found[_FIELD]} if _FIELD in found else NO_ATTRIBUTES

    def fail(self, span: Any, error: BaseException) -> None:
        """Note why what the span stands for has failed."""
        if isinstance(error, QueryError):
            span.set_attribute("qstate.failure", error.code.name.lower())
        span.set_status(self._api.StatusCode.ERROR, type(error).__name__)

    def fail_with(self, span: Any, code: int) -> None:
        """Note the failure code of the answer."""
        span.set_attribute("qstate.failure", int(code))
        span.set_status(self._api.StatusCode.ERROR)

    @contextmanager
    def ended(self, span: Any) -> Iterator[None]:
        """End the span with the block, with the block's error. An error of the exporter cannot reach the get."""
        try:
            yield
        except BaseException as exc:
            self.fail(span, exc)
            raise
        finally:
            span.end()

    def reading(self, read: Callable[..., Any]) -> Callable[..., Any]:
        """`read(instance, request, most_bytes)` of a state server, with a span for requests that carry a context."""

        def traced(instance: Any, request: Any, most_bytes: int) -> Any:
            names = {"qstate.state": instance.name, **keys_named(request)}
            span = self.of_server("qstate read", request.attributes, **names)
            if span is None:
                return read(instance, request, most_bytes)
            with self.ended(span):
                return read(instance, request, most_bytes)

        return traced


class EndedOnce:
    """A span of a request that one of several threads ends."""

    def __init__(self, span: Any) -> None:
        self._spans = [span]

    def take(self) -> Any | None:
        """The span for the first caller, which ends it; None for the others."""
        try:
            return self._spans.pop()
        except IndexError:
            return None


def keys_named(request: Any) -> Mapping[str, int]:
    """What a span says of the keys of a request: how many it names, nothing if it is about keys that it cannot name."""
    keys = getattr(request, "keys", ())
    return {"qstate.keys": len(keys)} if keys else {}


def check_tracing() -> None:
    """Raise `InstallationError` when this installation cannot trace."""
    _imported("opentelemetry.trace")


def configure_tracing() -> None:
    """Configure OpenTelemetry in a process of qstate's own, as `opentelemetry-instrument` does in a program.

    It calls the configurator that the environment names, or the first one that is installed; without one, spans are
    dropped. Raises `InstallationError` without the package.
    """
    check_tracing()
    chosen = os.environ.get(CHOSEN)
    found = [entry for entry in entry_points(group=CONFIGURATORS) if chosen in (None, entry.name)]
    if found:
        found[0].load()().configure()


def _imported(module: str) -> ModuleType:
    return optional_module(module, "tracing needs", "opentelemetry-api", "tracing")
