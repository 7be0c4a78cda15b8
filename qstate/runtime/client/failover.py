"""Failover: an operation for which the job is asked first, and its fallbacks when the job does not answer.

Rules of this module: it carries out what `failover_plan` decides. Each attempt of a plan is an ordinary operation, for
the keys that are still open. An attempt uses the state cache of its own endpoint, so a value is always decoded by the
description that the same endpoint sent. This module knows no sockets and no threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import Any

from qstate.errors import FailureCode, Overloaded, QStateError, QueryError, Retry
from qstate.keys import Key
from qstate.protocol.messages import Describe, GetPart, Locate, Ping, Scan
from qstate.runtime.client.failover_plan import Attempt, FailoverPlan
from qstate.runtime.client.operations import CallOperation, GetOperation, Links, Operation, RoutedOperation, Terms
from qstate.runtime.client.owner_operations import PartOperation, ScanOperation
from qstate.runtime.client.query import Query
from qstate.runtime.client.state_cache import CachedState, StateCache, Way
from qstate.runtime.routing.routed_get import retry_after_s

__all__ = ["Failover", "FailoverOne", "call_operation", "failover_get", "one_operation"]

#: An attempt is short: a third of it is left for the endpoint's answer to arrive.
ATTEMPT_MARGIN = 1 / 3
_KIND_OF: dict[type, type[ScanOperation | PartOperation]] = {Scan: ScanOperation, GetPart: PartOperation}
_MOVED = frozenset(code for code in FailureCode if code.retry is Retry.LOOK_UP_AGAIN) | {FailureCode.UNAVAILABLE}


class Failover(Operation):
    """An operation that runs a failover plan: one operation for each attempt, one at a time.

    `operation_of` makes the operation of an attempt. The failover is the observer of its attempts.
    """

    __slots__ = ("_attempt", "_operation_of", "_operations", "_plan", "_running")

    def __init__(
        self,
        links: Links[Any],
        keys: int,
        deadline: float,
        operation_of: Callable[[Attempt, Terms], RoutedOperation],
    ) -> None:
        super().__init__(links, links.terms.observer, deadline)
        self._operation_of = operation_of
        endpoints = links.endpoints
        self._plan = FailoverPlan(
            keys,
            len(endpoints.caches),
            deadline=deadline,
            breaker=endpoints.breaker,
            random=links.random,
            proxies=len(endpoints.caches[0].proxies),
        )
        #: One for each attempt so far.
        self._operations: list[RoutedOperation] = []
        #: None between two attempts.
        self._running: RoutedOperation | None = None
        self._attempt: Attempt | None = None

    @property
    def wake_at(self) -> float:
        if self._running is not None:
            return self._running.wake_at
        return self.deadline if self._attempt is None else self._attempt.start

    def start(self) -> None:
        self._begin(self._plan.start(time.monotonic()))

    def on_time(self, now: float) -> None:
        if self.finished:
            return
        if self._running is not None:
            self._running.on_time(now)
        elif self._attempt is not None and now >= self._attempt.start:
            self._begin(self._attempt)

    def on_finished(self, operation: Operation) -> None:
        self._attempt_ended(time.monotonic())

    def on_progress(self, operation: Operation) -> None:
        self._observer.on_progress(self)

    def _attempt_ended(self, now: float) -> None:
        """The running attempt has finished: begin the next attempt, or finish."""
        operation = self._operations[-1]
        if self.finished or self._attempt is None:
            return
        if operation.error is not None and not isinstance(operation.error, QueryError):
            self.fail(operation.error)
            return
        unresponsive = _is_unresponsive(operation, self._links.endpoints.caches[self._attempt.endpoint], now)
        self._running = None
        self._attempt = self._plan.ended(
            operation.codes,
            now,
            unresponsive=unresponsive,
            unreached=operation.unreached,
            hopeless=operation.hopeless,
            wait_s=retry_after_s(operation.error.details) if isinstance(operation.error, Overloaded) else 0.0,
        )
        if self._attempt is None:
            self._finish()
            return
        if self._attempt.start <= now:
            self._begin(self._attempt)
        if not self.finished:
            self._observer.on_progress(self)

    def fail(self, error: QStateError) -> None:
        if self._running is not None:
            self._running.withdraw()
        super().fail(error)

    def results(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        verdicts = self._plan.verdicts
        found = {number: self._found(number) for number in set(verdicts)}
        return [found[number][position] for position, number in enumerate(verdicts)]

    def _begin(self, attempt: Attempt) -> None:
        self._attempt = attempt
        states = self._links.endpoints.caches[attempt.endpoint]
        operation = self._operation_of(attempt, Terms(self, states, attempt.tries, ATTEMPT_MARGIN))
        self._operations.append(operation)
        self._running = operation
        operation.start()

    def _found(self, number: int) -> dict[int, Any]:
        """The results of an attempt, by position."""
        positions, operation = self._plan.attempts[number].positions, self._operations[number]
        try:
            return dict(zip(positions, operation.results(), strict=True))
        except QueryError as exc:
            # A copy for each key: raising an exception adds to its traceback.
            return {position: copy(exc) for position in positions}


def _is_unresponsive(operation: RoutedOperation, states: StateCache, now: float) -> bool:
    """Whether the endpoint itself was not reached, or sent no answer. A failure that it reports is an answer."""
    error = operation.error
    if not isinstance(error, QueryError):
        return False
    if error.code is FailureCode.UNAVAILABLE:
        return (error.details.get("host"), error.details.get("port")) in states.proxies
    # A proxy answers before its deadline. When a client asks the owners itself, an owner may be the silent one.
    silent = error.code is FailureCode.DEADLINE_EXCEEDED and now >= operation.deadline and not operation.asks_owners
    return silent or error.code is FailureCode.SHUTTING_DOWN


class _AttemptGet(GetOperation):
    __slots__ = ()

    def _finish(self) -> None:
        states = self._states
        if states.way is not Way.PROXY and not _MOVED.isdisjoint(self.codes):
            # The attempt may have ended before a new look-up; the next query must not go to the same owners.
            states.drop(self._query.job, self._query.state)
        super()._finish()


def failover_get(links: Links[Any], query: Query, keys: tuple[Key, ...], deadline: float) -> Failover:
    """A get that fallbacks may answer instead of the job."""

    def attempt_of(attempt: Attempt, terms: Terms) -> GetOperation:
        asked = tuple(keys[position] for position in attempt.positions)
        return _AttemptGet(links, query, asked, attempt.until, terms)

    return Failover(links, len(keys), deadline, attempt_of)


class FailoverOne(Failover):
    """A page of a scan or a part of a value that fallbacks may answer instead of the job."""

    __slots__ = ()

    def __init__(self, links: Links[Any], query: Query, request: Scan | GetPart, deadline: float) -> None:
        def attempt_of(attempt: Attempt, terms: Terms) -> ScanOperation | PartOperation:
            return _KIND_OF[type(request)](links, query, request, attempt.until, terms)

        super().__init__(links, 1, deadline, attempt_of)

    @property
    def known(self) -> CachedState:
        """See `ScanOperation`: of the attempt that has the answer."""
        operation = self._operations[self._plan.verdicts[0]]
        assert isinstance(operation, ScanOperation | PartOperation)
        return operation.known


def one_operation(
    links: Links[Any], query: Query, request: Scan | GetPart, deadline: float
) -> ScanOperation | PartOperation | FailoverOne:
    """A page of a scan or a part of a value, with failover when fallbacks may answer it."""
    if links.endpoints.may_answer(query):
        return FailoverOne(links, query, request, deadline)
    return _KIND_OF[type(request)](links, query, request, deadline)


def call_operation(
    links: Links[Any], request: type[Ping] | Describe | Locate, deadline: float
) -> CallOperation | Failover:
    """A call of the job's proxy, with failover when there are fallbacks."""
    if len(links.endpoints.caches) == 1:
        return CallOperation(links, request, deadline)

    def attempt_of(attempt: Attempt, terms: Terms) -> CallOperation:
        return CallOperation(links, request, attempt.until, terms)

    return Failover(links, 1, deadline, attempt_of)
