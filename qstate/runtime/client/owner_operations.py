"""The operations of a client that one owner answers: a part of a value, a page of a scan, a poll for changes.

Rules of this module: as in `operations`.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from qstate.protocol.connection import Answer as WireAnswer
from qstate.protocol.connection import Request
from qstate.protocol.messages import Changes, GetPart, Page, Part, Poll, Scan
from qstate.runtime.client.operations import Links, RoutedOperation, Terms
from qstate.runtime.client.query import Query
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.control.tracing import keys_named
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.routing.routed_get import Ask, LookUp

__all__ = ["PartOperation", "PollOperation", "ScanOperation"]

SomeAnswer = TypeVar("SomeAnswer", Page, Changes, Part)


class _OneOperation(RoutedOperation, Generic[SomeAnswer]):
    """Send one request. Its one result is the answer; `known` says how to read its values.

    For the routing it is a get of one key.
    """

    __slots__ = ("_found_answer", "_request")

    def __init__(
        self,
        links: Links[Any],
        query: Query,
        request: Scan | Poll | GetPart,
        deadline: float,
        terms: Terms | None = None,
    ) -> None:
        self._request = request
        self._found_answer: SomeAnswer | None = None
        key = request.key if isinstance(request, GetPart) else request.start_group
        super().__init__(links, query, (key,), deadline, terms)

    @property
    def known(self) -> CachedState:
        """The state's description and location, when the operation has its answer."""
        assert self._known is not None
        return self._known

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        if type(command) is not Ask:
            return self._locate(request_id, now)
        target = command.owner.state_id or (self._query.job, self._query.state)
        return self._request._replace(id=request_id, deadline_ms=self._ms_left(now), target=target)

    def results(self) -> list[SomeAnswer]:
        if self.error is not None:
            raise self.error
        assert self._found_answer is not None
        return [self._found_answer]

    def _on_other_answer(self, part: int, message: WireAnswer, now: float) -> None:
        if isinstance(message, Page | Changes | Part):  # the connection has checked that it answers the request
            self._found_answer = message  # type: ignore[assignment]
            self._run(self._routed.on_values(part, (0,), (b"",), message.fingerprint, now), now)
        else:
            super()._on_other_answer(part, message, now)


class PartOperation(_OneOperation[Part]):
    """Read a part of the value of one key."""

    __slots__ = ()


class _RangeOperation(_OneOperation[SomeAnswer]):
    """A request about key groups, with a span of its own. For the routing, the key is the first key group."""

    __slots__ = ("_span",)

    def __init__(
        self,
        links: Links[Any],
        query: Query,
        request: Scan | Poll | GetPart,
        deadline: float,
        terms: Terms | None = None,
    ) -> None:
        tracing = links.tracing
        self._span: Any = None
        if tracing is not None:
            keys, name = keys_named(request).get("qstate.keys"), f"qstate {type(request).__name__.lower()}"
            self._span = tracing.of_client(query.job, query.state, keys, name)
            request = request._replace(attributes=tracing.carried(self._span))
        super().__init__(links, query, request, deadline, terms)

    def _finish(self) -> None:
        tracing = self._links.tracing
        if tracing is not None and self._span is not None:
            if self.error is not None:
                tracing.fail(self._span, self.error)
            self._span.end()
        super()._finish()

    def _table_of(self, known: CachedState) -> LocationTable:
        return known.table.of_groups()

    def _is_stale(self, known: CachedState, stale: LocationTable) -> bool:
        return known is self._known


class ScanOperation(_RangeOperation[Page]):
    """Read one page of a state's keys."""

    __slots__ = ()


class PollOperation(_RangeOperation[Changes]):
    """Poll for the changes of a range of key groups."""

    __slots__ = ()
