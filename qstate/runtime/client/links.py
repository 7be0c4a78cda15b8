"""The connections of a client and the operations on them: what the synchronous and the asyncio client share.

Rules of this module: no sockets, no threads, no asyncio. It knows what an operation is, not which ones there are.
Operations are not thread-safe: the links let one thread at a time in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from random import Random
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from qstate.errors import Detail, QStateError, QueryError
from qstate.keys import Key
from qstate.runtime.client.proxies import Proxies
from qstate.runtime.client.query import Query
from qstate.runtime.client.state_cache import CachedState, Endpoints, StateCache
from qstate.runtime.control.tracing import Tracing
from qstate.runtime.routing.pipelined_connection import ConnectionSettings, PipelinedConnection
from qstate.runtime.routing.routed_get import ANY_NUMBER, Answer

__all__ = ["Links", "Observer", "Operation", "Terms"]

#: The share of the time left that a peer does not get, so that its own "deadline exceeded", which has more details,
#: arrives before the client's.
DEADLINE_MARGIN = 0.05

SomeLink = TypeVar("SomeLink", bound=PipelinedConnection)


class Observer(Protocol):
    """Is notified of an operation: the client's links, or the failover that the operation is an attempt of."""

    def on_finished(self, operation: Operation) -> None:
        """The operation has finished. Called once."""

    def on_progress(self, operation: Operation) -> None:
        """The operation continues; its `wake_at` may have changed."""


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
        #: Gets the answers to gets for committed values; None: nobody does.
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
        if operation.is_awaited:
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
    def is_awaited(self) -> bool:
        """Whether an answer to one of its requests may still come."""
        return False

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
        for entry in found:
            if isinstance(entry, QStateError):
                raise entry
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
