"""A call of a proxy that waits for a location oracle.

Rules of this module: it waits, at most until the call's deadline. It must not know how an oracle is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from qstate.errors import FailureCode, QueryError
from qstate.protocol.connection import Answer
from qstate.protocol.messages import Describe, Description, Failure
from qstate.runtime.net.reactor import Reactor
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.serving.client_connection import Call
from qstate.runtime.serving.range_requests.descriptions import description_of

__all__ = ["WaitingCall"]


class WaitingCall:
    """A locate or describe that waits for its oracle until its deadline."""

    __slots__ = ("_call", "_done", "_reactor", "_timer")

    def __init__(self, reactor: Reactor, call: Call) -> None:
        self._reactor = reactor
        self._call = call
        self._done = False
        self._timer = reactor.call_later(
            call.deadline - reactor.clock(), partial(self._fail, FailureCode.DEADLINE_EXCEEDED)
        )
        call.on_cancel = partial(reactor.call_soon, self._fail, FailureCode.CANCELLED)
        if call.cancelled:  # before there was something to call
            call.on_cancel()

    def found(self, found: LocationTable | Sequence[Mapping[str, Any]] | QueryError) -> None:
        """The oracle's answer. Any thread."""
        number, finish_soon = self._call.request.id, partial(self._reactor.call_soon, self._finish)
        if isinstance(found, QueryError):
            finish_soon(Failure(number, found.code, found.details))
        elif isinstance(found, LocationTable):
            finish_soon(found.message(number))
        else:
            finish_soon(self._description(found))

    def _description(self, found: Sequence[Mapping[str, Any]]) -> Description | Failure:
        request = self._call.request
        assert isinstance(request, Describe)
        try:
            return description_of(request, filter(self._may_see, found), self._call.most_bytes)
        except QueryError as error:
            return Failure(request.id, error.code, error.details)

    def _may_see(self, state: Mapping[str, Any]) -> bool:
        call, request = self._call, self._call.request
        assert isinstance(request, Describe) and request.job is not None
        return call.connection.visitor.principal.permits(Describe, request.job, state["name"])

    def _fail(self, code: FailureCode) -> None:
        self._finish(Failure(self._call.request.id, code, {}))

    def _finish(self, answer: Answer) -> None:
        if not self._done:
            self._done = True
            self._timer.cancel()
            self._call.answer(answer)
            self._call.on_cancel = None
