"""The spans of a client proxy: one for each get, also of a part, that carries the context of a span.

Rules of this module: it stands between the endpoint and the proxy, and only when tracing is on. The request that the
proxy sees carries the proxy's own span, so reads of this process and requests to owners are children of it.
"""

from __future__ import annotations

from qstate.errors import QueryError
from qstate.protocol import Answer, Get, GetPart
from qstate.runtime.control.tracing import EndedOnce, Tracing
from qstate.runtime.serving.client_connection import Call, Steps
from qstate.runtime.serving.endpoint import Service

__all__ = ["TracedProxy"]


class TracedProxy:
    """A `Service` that makes a span for each request of `proxy`, from its turn to its answer."""

    def __init__(self, proxy: Service, tracing: Tracing) -> None:
        self._proxy = proxy
        self._tracing = tracing

    def handle(self, call: Call) -> Answer | Steps | None:
        """See `Service`."""
        request = call.request
        if not isinstance(request, Get | GetPart):
            return self._proxy.handle(call)
        span = self._tracing.of_server("qstate proxy", request.attributes, **{"qstate.keys": len(request.keys)})
        if span is None:
            return self._proxy.handle(call)
        once = EndedOnce(span)
        call.request = request._replace(attributes=self._tracing.carried(span))
        call.on_answered(lambda answered: self._end(once, answered.failure))  # another thread may answer at once
        try:
            found = self._proxy.handle(call)
        except QueryError as exc:
            self._end(once, exc.code)
            raise
        except BaseException:
            self._end(once, None)
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
