"""The operations of a client: each is one call, from its first request to its result or error.

Rules of this module: no sockets, no threads, no asyncio. A `RoutedOperation` carries out the commands of its
`RoutedGet` over `Links`, to which the synchronous and the asyncio client each add sockets, and turns the last command
into a result or an error. There is one class for each thing that a client asks; `failover` runs several of them for one
call. Operations are not thread-safe: the links let one thread at a time in.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from qstate.errors import Detail, FailureCode, QueryError, SerializationError, WrongKeyType, query_error
from qstate.protocol import Answer as WireAnswer
from qstate.protocol import (
    Changes,
    Describe,
    Description,
    Get,
    GetPart,
    Locate,
    Location,
    Page,
    Part,
    Ping,
    Poll,
    Request,
    Scan,
)
from qstate.protocol.limits import MAX_DEADLINE_MS
from qstate.protocol.messages import PLAIN
from qstate.runtime.client.links import Links, Operation, Terms
from qstate.runtime.client.query import COMMITTED, Query
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.control.tracing import keys_named
from qstate.runtime.routing.location import GroupTable, LocationTable
from qstate.runtime.routing.pipelined_connection import (
    PROBE_S,
    Requester,
)
from qstate.runtime.routing.routed_get import (
    LOOK_UP,
    Answer,
    Ask,
    LookUp,
    Refuse,
    RoutedGet,
)

__all__ = [
    "CallOperation",
    "GetOperation",
    "LearnOperation",
    "PartOperation",
    "PollOperation",
    "RoutedOperation",
    "ScanOperation",
]

#: The most that a peer does not get of the time left: see `DEADLINE_MARGIN`.
LONGEST_MARGIN_S = 0.050

SomeAnswer = TypeVar("SomeAnswer", Page, Changes, Part)


class RoutedOperation(Operation, Requester):
    """An operation that sends requests, routed by a `RoutedGet`."""

    __slots__ = ("_answer", "_keys", "_margin", "_probe_at", "_routed", "_states")

    def __init__(
        self,
        links: Links[Any],
        terms: Terms,
        keys: tuple[Any, ...],
        deadline: float,
        table: LocationTable | None,
        *,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(links, terms.observer, deadline)
        retry_until = None if wait_s is None else time.monotonic() + wait_s
        self._states = terms.states
        self._margin = terms.margin
        self._keys = keys
        self._routed = RoutedGet(
            keys, deadline=deadline, random=links.random, table=table, tries=terms.tries, retry_until=retry_until
        )
        self._answer: Answer | None = None
        #: When to see whether its proxy is silent.
        self._probe_at = math.inf

    @property
    def codes(self) -> Sequence[int]:
        """The failure code of each key of the finished operation, 0 for none."""
        if self._answer is None:
            return [self.error.code if isinstance(self.error, QueryError) else 0] * len(self._keys)
        return [result if isinstance(result, int) else 0 for result in self._answer.results]

    @property
    def is_awaited(self) -> bool:
        return bool(self._routed.open_parts)

    @property
    def asks_owners(self) -> bool:
        """Whether its requests go to owners of keys. The proxy is no owner."""
        return False

    @property
    def unreached(self) -> Collection[int]:
        """The positions of keys that are UNAVAILABLE because no proxy was reached: no request was sent for them."""
        return self._routed.unreached

    @property
    def hopeless(self) -> bool:
        """Whether its proxy refused the connection and never was reached: waiting does not help."""
        return self._routed.hopeless

    @property
    def wake_at(self) -> float:
        return min(self._routed.wake_at, self._probe_at)

    def start(self) -> None:
        now = time.monotonic()
        if self._states.proxies.may_be_several:
            self._probe_at = now + PROBE_S
        self._run(self._routed.start(now), now)

    def on_time(self, now: float) -> None:
        if now >= self._probe_at:
            self._probe_at = now + PROBE_S
            self._links.probe(self._states.proxies, now)
        self._run(self._routed.on_time(now), now)

    def _ask(self, command: Ask, now: float) -> None:
        if command.owner.state_id:
            self._links.link_to(command.owner.address).send(self, command, now)
        else:
            self._ask_proxy(command, now)

    def _look_up(self, command: LookUp, now: float) -> None:
        self._ask_proxy(command, now)

    def _ask_proxy(self, command: Ask | LookUp, now: float) -> None:
        """Send the request to the proxy that is current now, which may be another one than at an earlier try."""
        proxies = self._states.proxies
        address = proxies.choose(now)
        if address is not None:
            self._links.link_to(address).send(self, command, now)
            return
        part = command.part if type(command) is Ask else LOOK_UP
        self.on_unsent(part, FailureCode.UNAVAILABLE, proxies.pausing(), now, hopeless=proxies.hopeless)

    def _conclude(self, end: Answer | Refuse) -> None:
        if isinstance(end, Refuse):
            self._refused(end)
        else:
            self._answer = end
        self._finish()

    def _refused(self, refusal: Refuse) -> None:
        details = refusal.details
        if refusal.code == FailureCode.DEADLINE_EXCEEDED and not details:
            details = self._links.stalls(self)
        self.error = query_error(refusal.code, details)

    def _on_progress(self) -> None:
        self._observer.on_progress(self)

    def _ms_left(self, now: float) -> int:
        left = self.deadline - now
        left -= LONGEST_MARGIN_S if left > 1.0 else left * self._margin
        return min(MAX_DEADLINE_MS, int(left * 1000)) if left > 0.001 else 1


class _StateOperation(RoutedOperation):
    """An operation that needs the location or the description of a state."""

    __slots__ = ("_known", "_query")

    def __init__(
        self, links: Links[Any], query: Query, keys: tuple[Any, ...], deadline: float, terms: Terms | None = None
    ) -> None:
        terms = terms or links.terms
        self._query = query
        self._known: CachedState | None = terms.states.find(query.job, query.state)
        table = None if self._known is None else self._table_of(self._known)
        super().__init__(links, terms, keys, deadline, table, wait_s=query.wait_s)

    def _table_of(self, known: CachedState) -> LocationTable:
        """Whom to ask for the keys of this operation."""
        return known.table

    def _is_stale(self, known: CachedState, stale: LocationTable) -> bool:
        """Whether the cached entry is the one that the stale table is of."""
        return known.table is stale

    @property
    def asks_owners(self) -> bool:
        return self._known is not None and any(owner.state_id for owner in self._known.table.owners)

    def _ask(self, command: Ask, now: float) -> None:
        super()._ask(command, now)
        if self._known is not None and now >= self._known.expires_at:
            self._states.drop(self._query.job, self._query.state)

    def _locate(self, request_id: int, now: float) -> Locate:
        return Locate(request_id, self._ms_left(now), self._query.job, self._query.state)

    def _look_up(self, command: LookUp, now: float) -> None:
        states = self._states
        known = states.find(self._query.job, self._query.state)
        if known is not None and command.stale is not None and self._is_stale(known, command.stale):
            states.drop(self._query.job, self._query.state)
            known = None
        if known is None:
            super()._look_up(command, now)
        else:
            # Another operation has looked it up in the meantime.
            self._found(known, now)

    def _on_other_answer(self, part: int, message: WireAnswer, now: float) -> None:
        assert type(message) is Location
        try:
            known = self._states.learn(self._query.job, self._query.state, message, now)
        except SerializationError as exc:
            self.fail(exc)
        else:
            self._links.connect(self._states, known, now)
            self._found(known, now)

    def _found(self, known: CachedState, now: float) -> None:
        """The state is known now."""
        self._known = known
        self._run(self._routed.on_located(self._table_of(known), now), now)

    def _refused(self, refusal: Refuse) -> None:
        super()._refused(refusal)
        if refusal.code in (FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE):
            self._states.drop(self._query.job, self._query.state)


class LearnOperation(_StateOperation):
    """Find the location and the description of a query's state. Its one result is the `CachedState`."""

    __slots__ = ()

    def __init__(self, links: Links[Any], query: Query, deadline: float, terms: Terms | None = None) -> None:
        super().__init__(links, query, (None,), deadline, terms)

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        return self._locate(request_id, now)

    def results(self) -> list[CachedState]:
        if self.error is not None:
            raise self.error
        assert self._known is not None
        return [self._known]

    def _found(self, known: CachedState, now: float) -> None:
        # The location is the result: the owners are not asked for anything.
        self._known = known
        self._finish()


class GetOperation(_StateOperation):
    """Get the values of keys. Its results are a view or None for each key."""

    __slots__ = ()

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        if type(command) is not Ask:
            return self._locate(request_id, now)
        query = self._query
        # The pseudo-owner that stands for the proxy has no state id.
        target = command.owner.state_id or (query.job, query.state)
        ms_left = self._ms_left(now)
        return Get(request_id, ms_left, target, query.namespace, query.options, command.keys, query.attributes)

    def results(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        assert self._answer is not None
        epochs, results, _ = self._answer
        if not results:
            return []
        assert self._known is not None
        maker, isolation = self._known.maker, self._query.isolation
        if PLAIN.issuperset(map(type, results)):
            return maker.views(results, epochs, isolation)  # type: ignore[arg-type]
        found: list[Any] = []
        for key, epoch, result in zip(self._keys, epochs, results, strict=True):
            if isinstance(result, bytes):
                found.append(maker.view(result, epoch, isolation))
            else:
                found.append(None if result is None else query_error(result, {"key": repr(key)}))
        return found

    def _conclude(self, end: Answer | Refuse) -> None:
        keeper = self._links.keeper
        if keeper is not None and self._query.isolation == COMMITTED and isinstance(end, Answer) and end.results:
            assert self._known is not None
            keeper.keep(self._query, self._keys, end, self._known)
        super()._conclude(end)

    def on_unsendable(self, part: int, code: int, details: Mapping[str, Detail], now: float) -> None:
        if code == FailureCode.MALFORMED and part != LOOK_UP:
            # The protocol's quick check of keys accepts text that UTF-8 cannot encode; the packer does not.
            try:
                self._query.check_keys(self._keys)
            except WrongKeyType as exc:
                code, details = exc.code, exc.details
        super().on_unsendable(part, code, details, now)


class _OneOperation(_StateOperation, Generic[SomeAnswer]):
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
        return GroupTable.of(known.table)

    def _is_stale(self, known: CachedState, stale: LocationTable) -> bool:
        return known is self._known


class ScanOperation(_RangeOperation[Page]):
    """Read one page of a state's keys."""

    __slots__ = ()


class PollOperation(_RangeOperation[Changes]):
    """Poll for the changes of a range of key groups."""

    __slots__ = ()


class CallOperation(RoutedOperation):
    """Send the proxy a request that is not about keys: its jobs, the states of a job, where a state is, or a ping.

    For the routing it is a get of one key that the proxy owns, with the same retries and deadline. Its one result is
    the description or the location, or the seconds that the ping took.
    """

    __slots__ = ("_request", "_result", "_sent_at")

    def __init__(
        self, links: Links[Any], request: type[Ping] | Describe | Locate, deadline: float, terms: Terms | None = None
    ) -> None:
        terms = terms or links.terms
        super().__init__(links, terms, (None,), deadline, terms.states.at_proxy("", {}))
        self._request = request
        self._result: Any = None
        self._sent_at = 0.0

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        self._sent_at = time.monotonic()
        if isinstance(self._request, Describe | Locate):
            return self._request._replace(id=request_id, deadline_ms=self._ms_left(now))
        return Ping(request_id)

    def results(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        return [self._result]

    def _look_up(self, command: LookUp, now: float) -> None:
        self._run(self._routed.on_located(self._states.at_proxy("", {}), now), now)

    def _on_other_answer(self, part: int, message: WireAnswer, now: float) -> None:
        self._result = message if isinstance(message, Description | Location) else now - self._sent_at
        self._run(self._routed.on_values(part, (0,), (b"",), "", now), now)
