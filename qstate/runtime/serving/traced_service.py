"""The spans of a server: one for each request that carries the context of a span, from its turn to its answer.

Rules of this module: it stands between an endpoint and its service, and only when tracing is on. The request that the
service sees carries the new span, so what it asks others for is a child of it. It knows neither states nor keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from qstate.errors import QueryError
from qstate.protocol.connection import Answer
from qstate.runtime.control.tracing import EndedOnce, Tracing
from qstate.runtime.serving.client_connection import Call, Steps
from qstate.runtime.serving.endpoint import Service

__all__ = ["TracedService"]


class TracedService:
    """A `Service` that makes a span for each request of `service` that is of one of some types.

    `facts` gives the attributes of the span of a request.
    """

    def __init__(
        self,
        service: Service,
        tracing: Tracing,
        name: str,
        types: tuple[type, ...],
        facts: Callable[[Any], Mapping[str, Any]],
    ) -> None:
        self._service = service
        self._tracing = tracing
        self._name = name
        self._types = types
        self._facts = facts

    def handle(self, call: Call) -> Answer | Steps | None:
        """See `Service`."""
        request: Any = call.request
        if type(request) not in self._types:
            return self._service.handle(call)
        span = self._tracing.of_server(self._name, request.attributes, **self._facts(request))
        if span is None:
            return self._service.handle(call)
        once = EndedOnce(span)
        call.request = request._replace(attributes=self._tracing.carried(span))
        call.on_answered = lambda answered: self._end(once, answered.failure)  # another thread may answer at once
        try:
            found = self._service.handle(call)
        except BaseException as exc:
            self._end(once, exc.code if isinstance(exc, QueryError) else None)
            raise
        if isinstance(found, tuple):  # an answer, of whose end no call is told
            self._end(once, None)
        return found

    def _end(self, once: EndedOnce, failure: int | None) -> None:
        span = once.take()
        if span is not None:
            if failure is not None:
                self._tracing.fail_with(span, failure)
            span.end()
