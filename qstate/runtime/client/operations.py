"""The connections and the operations of a client: an operation is one call, from its first request to its result.

Rules of this module: no sockets, no threads, no asyncio. A `RoutedOperation` carries out the commands of its
`RoutedGet` over `Links`, to which the synchronous and the asyncio client each add sockets, and turns the last command
into a result or an error. There is one class for each thing that a client asks; those that one owner answers are in
`owner_operations`, and `failover` runs several of them for one call. Operations are not thread-safe: the links let one
thread at a time in.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from qstate.errors import Detail, FailureCode, QStateError, QueryError, SerializationError, WrongKeyType, query_error
from qstate.keys import Key
from qstate.protocol.connection import Answer as WireAnswer
from qstate.protocol.connection import Request
from qstate.protocol.limits import MAX_DEADLINE_MS
from qstate.protocol.messages import Describe, Description, Get, Locate, Location, Ping
from qstate.runtime.client.proxies import Proxies
from qstate.runtime.client.query import COMMITTED, LIVE, NO_OPTIONS, Query
from qstate.runtime.client.state_cache import CachedState, Endpoints, StateCache
from qstate.runtime.control.tracing import Tracing
from qstate.runtime.routing.location import LocationTable
from qstate.runtime.routing.pipelined_connection import PROBE_S, ConnectionSettings, PipelinedConnection, Requester
from qstate.runtime.routing.routed_get import ANY_NUMBER, LOOK_UP, Answer, Ask, LookUp, Refuse, RoutedGet

__all__ = [
    "CallOperation",
    "GetOperation",
    "LearnOperation",
    "Links",
    "Observer",
    "Operation",
    "RoutedOperation",
    "Terms",
]

#: The share of the time left that a peer does not get, so that its own "deadline exceeded", which has more details,
#: arrives before the client's.
DEADLINE_MARGIN = 0.05
#: The most that a peer does not get of the time left: see `DEADLINE_MARGIN`.
LONGEST_MARGIN_S = 0.050
#: The query of calls: they are about no state.
_NO_STATE = Query("", "", None, LIVE, NO_OPTIONS)

SomeLink = TypeVar("SomeLink", bound=PipelinedConnection)


class Observer(Protocol):
    """Is notified of an operation: the client's links, or the failover that the operation is an attempt of."""

    def on_finished(self, operation: Operation) -> None:
        """The operation has finished. Called once."""

    def on_progress(self, operation: Operation) -> None:
        """The operation's `wake_at` has changed since it was started."""


class Keeper(Protocol):
    """Keeps answers of servers for later gets."""

    def keep(self, query: Query, keys: Sequence[Key], answer: Answer, known: CachedState) -> None:
        """A get for committed values has this answer."""


class Terms(NamedTuple):
    """What an operation works with: its observer, its endpoint's state cache, and how long it tries.

    `tries` has, by failure code, the number of tries after which the code is final. `margin`: see `DEADLINE_MARGIN`.
    """

    observer: Observer
    states: StateCache
    tries: Mapping[int, int] = ANY_NUMBER
    margin: float = DEADLINE_MARGIN


class Links(ABC, Generic[SomeLink]):
    """The connections of one client. A link is a `PipelinedConnection`; each client adds its own kind of socket."""

    def __init__(
        self, endpoints: Endpoints, settings: ConnectionSettings, random: Random, tracing: Tracing | None = None
    ) -> None:
        self.endpoints = endpoints
        self.states = endpoints.caches[0]
        #: The terms of operations that are no attempts of a failover.
        self.terms = Terms(self, self.states)
        self.random = random
        self._settings = settings
        #: By address: the link that new requests are sent over.
        self._links: dict[tuple[str, int], SomeLink] = {}
        #: Makes the spans of pages and polls; None: there are none.
        self.tracing = tracing
        #: Gets the answers to gets for committed values, if any object does.
        self.keeper: Keeper | None = None
        #: Every link whose transport may still be open, including silent and lost ones.
        self.open: set[SomeLink] = set()
        #: The operations that have not finished.
        self._live: set[Operation] = set()

    @abstractmethod
    def _new_link(self, host: str, port: int) -> SomeLink:
        """A link that does not connect yet."""

    @abstractmethod
    def on_finished(self, operation: Operation) -> None:
        """See `Observer`."""

    @abstractmethod
    def on_progress(self, operation: Operation) -> None:
        """See `Observer`."""

    @abstractmethod
    def start(self, operation: Operation) -> None:
        """Start the operation. Raises `ClosedError`."""

    def link_to(self, address: tuple[str, int]) -> SomeLink:
        """The link to a peer, made if necessary. An idle link whose connection has ended is replaced."""
        link = self._links.get(address)
        if link is not None:
            link.notice_end()
        if link is None or not link.takes_requests:
            link = self._links[address] = self._new_link(*address)
            self.open.add(link)
        return link

    def connect(self, states: StateCache, known: CachedState, now: float) -> None:
        """Begin to connect to the owners of a state that are to be asked once they are reached."""
        for address in states.unreached(known, now):
            self.link_to(address).connect()

    def probe(self, proxies: Proxies, now: float) -> None:
        """Ask silent proxies for a sign of life, if the client may leave them for others."""
        for address in proxies:
            link = self._links.get(address)
            if link is not None and self.endpoints.has_others(*address):
                link.probe(now)

    def stalls(self, operation: Operation) -> Mapping[str, Detail]:
        """The reason why the operation's request has not been sent yet, as details; empty when it was sent."""
        return next((found for link in self.open if (found := link.stalls(operation))), {})

    def live(self) -> list[Operation]:
        """The operations that have not finished."""
        return list(self._live)

    def cancel(self, operation: Operation) -> None:
        """The operation has finished: cancel its requests that have no answer."""
        for link in list(self.open):
            link.cancel(operation)

    def gave_up(self, operation: Operation, now: float) -> None:
        """The operation's deadline has passed without an answer: stop using the peers that count as dead."""
        for link in list(self.open):
            link.gave_up(operation, now)


class Operation(ABC):
    """A call of the client that finishes by its deadline, whatever its peers do.

    `deadline` and every `now` are seconds of `time.monotonic`. `waiters` belongs to the links.
    """

    __slots__ = ("_links", "_observer", "deadline", "error", "finished", "waiters")

    def __init__(self, links: Links[Any], observer: Observer, deadline: float) -> None:
        self._links = links
        self._observer = observer
        self.deadline = deadline
        self.error: QStateError | None = None
        self.finished: bool = False
        self.waiters: list[Any] = []

    @property
    @abstractmethod
    def wake_at(self) -> float:
        """When `on_time` is due; each event may change it."""

    @abstractmethod
    def start(self) -> None:
        """Send the first requests."""

    @abstractmethod
    def on_time(self, now: float) -> None:
        """`wake_at` has been reached."""

    @abstractmethod
    def results(self) -> list[Any]:
        """The result or the `QueryError` of each key of the finished operation. Raises the error of the whole."""

    def result(self) -> list[Any]:
        """The result of each key, in their order. Raises the error of the first key that has one."""
        found = self.results()
        for kind in set(map(type, found)):  # a step of the interpreter for each type instead of each key
            if issubclass(kind, QStateError):
                raise next(entry for entry in found if isinstance(entry, QStateError))
        return found

    def result_of_each(self, keys: int) -> list[Any]:
        """The result or the `QueryError` of each key. Raises an error that is no `QueryError`."""
        try:
            return self.results()
        except QueryError as exc:
            return [copy(exc) for _ in range(keys)]

    def fail(self, error: QStateError) -> None:
        """Finish with an error, now. Has no effect on a finished operation."""
        if not self.finished:
            self.error = error
            self._finish()

    def _finish(self) -> None:
        self.finished = True
        self._observer.on_finished(self)


class RoutedOperation(Operation, Requester):
    """An operation that sends requests about a state, routed by a `RoutedGet`."""

    __slots__ = ("_answer", "_keys", "_known", "_margin", "_probe_at", "_query", "_routed", "_states", "wake_at")

    wake_at: float

    def __init__(
        self, links: Links[Any], query: Query, keys: tuple[Any, ...], deadline: float, terms: Terms | None = None
    ) -> None:
        terms = terms or links.terms
        super().__init__(links, terms.observer, deadline)
        self._query = query
        self._keys = keys
        self._states = terms.states
        self._margin = terms.margin
        self._known: CachedState | None = terms.states.find(query.job, query.state)
        wait_ms: Any = query.options.get("wait_ms")
        self._routed = RoutedGet(
            keys,
            deadline=deadline,
            random=links.random,
            table=None if self._known is None else self._table_of(self._known),
            tries=terms.tries,
            retry_until=None if wait_ms is None else time.monotonic() + wait_ms / 1000,
        )
        self._answer: Answer | None = None
        #: When to see whether its proxy is silent.
        self._probe_at = math.inf
        self.wake_at = self._routed.wake_at

    @property
    def codes(self) -> Sequence[int]:
        """The failure code of each key of the finished operation, 0 for none."""
        if self._answer is None:
            return [self.error.code if isinstance(self.error, QueryError) else 0] * len(self._keys)
        return [result if isinstance(result, int) else 0 for result in self._answer.results]

    @property
    def asks_owners(self) -> bool:
        """Whether its requests go to owners of keys. The proxy is no owner."""
        return self._known is not None and any(owner.state_id for owner in self._known.table.owners)

    @property
    def unreached(self) -> Collection[int]:
        """The positions of keys that are UNAVAILABLE because no proxy was reached: no request was sent for them."""
        return self._routed.unreached

    @property
    def hopeless(self) -> bool:
        """Whether its proxy refused the connection and never was reached: waiting does not help."""
        return self._routed.hopeless

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

    def withdraw(self) -> None:
        """Take no more answers, and cancel the requests that have none. Its observer is not notified."""
        self.finished = True
        if self._routed.open_parts:
            self._links.cancel(self)

    def _finish(self) -> None:
        self.withdraw()
        now = time.monotonic()
        if now >= self.deadline:
            self._links.gave_up(self, now)
        self._observer.on_finished(self)

    def _ask(self, command: Ask, now: float) -> None:
        if command.owner.state_id:
            self._links.link_to(command.owner.address).send(self, command, now)
        else:
            self._ask_proxy(command, now)
        if self._known is not None and now >= self._known.expires_at:
            self._states.drop(self._query.job, self._query.state)

    def _look_up(self, command: LookUp, now: float) -> None:
        known = self._states.find(self._query.job, self._query.state)
        if known is not None and command.stale is not None and self._is_stale(known, command.stale):
            self._states.drop(self._query.job, self._query.state)
            known = None
        if known is None:
            self._ask_proxy(command, now)
        else:
            # Another operation has looked it up in the meantime.
            self._found(known, now)

    def _ask_proxy(self, command: Ask | LookUp, now: float) -> None:
        """Send the request to the proxy that is current now, which may be another one than at an earlier try."""
        proxies = self._states.proxies
        address = proxies.choose(now)
        if address is not None:
            self._links.link_to(address).send(self, command, now)
            return
        self.on_unsent(command.part, FailureCode.UNAVAILABLE, proxies.pausing(), now, hopeless=proxies.hopeless)

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
        if refusal.code in (FailureCode.UNKNOWN_JOB, FailureCode.UNKNOWN_STATE):
            self._states.drop(self._query.job, self._query.state)

    def _on_progress(self) -> None:
        wake_at = min(self._routed.wake_at, self._probe_at)
        if wake_at != self.wake_at:
            self.wake_at = wake_at
            self._observer.on_progress(self)

    def _ms_left(self, now: float) -> int:
        left = self.deadline - now
        left -= LONGEST_MARGIN_S if left > 1.0 else left * self._margin
        return min(MAX_DEADLINE_MS, int(left * 1000)) if left > 0.001 else 1

    def _table_of(self, known: CachedState) -> LocationTable:
        """Whom to ask for the keys of this operation."""
        return known.table

    def _is_stale(self, known: CachedState, stale: LocationTable) -> bool:
        """Whether the cached entry is the one that the stale table is of."""
        return known.table is stale

    def _locate(self, request_id: int, now: float) -> Locate:
        return Locate(request_id, self._ms_left(now), self._query.job, self._query.state)

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


class LearnOperation(RoutedOperation):
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


class GetOperation(RoutedOperation):
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
        epochs, results = self._answer.epochs, self._answer.results
        if not results:
            return []
        assert self._known is not None
        maker, isolation = self._known.maker, self._query.isolation
        if self._answer.plain:
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


class CallOperation(RoutedOperation):
    """Send the proxy a request that is not about keys: its jobs, the states of a job, where a state is, or a ping.

    For the routing it is a get of one key, of no state, that the proxy owns, with the same retries and deadline. Its
    one result is the description or the location, or the seconds that the ping took.
    """

    __slots__ = ("_request", "_result", "_sent_at")

    def __init__(
        self, links: Links[Any], request: type[Ping] | Describe | Locate, deadline: float, terms: Terms | None = None
    ) -> None:
        super().__init__(links, _NO_STATE, (None,), deadline, terms)
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
