"""Failover: an operation for which the job is asked first, and its fallbacks when the job does not answer.

Rules of this module: it carries out what `failover_plan` decides. Each attempt of a plan is an ordinary operation, for
the keys that are still open. An attempt uses the state cache of its own endpoint, so a value is always decoded by the
description that the same endpoint sent. This module knows no sockets and no threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from qstate.errors import Detail, FailureCode, Overloaded, QStateError, QueryError, Retry
from qstate.keys import Key
from qstate.protocol import Describe, Ping
from qstate.runtime.client.failover_plan import Attempt, CircuitBreaker, FailoverPlan
from qstate.runtime.client.operations import CallOperation, GetOperation, Links, Operation, RetryLimits, RoutedOperation
from qstate.runtime.client.query import COMMITTED, Query
from qstate.runtime.client.state_cache import CachedState, StateCache
from qstate.runtime.routing.routed_get import Ask, LookUp

__all__ = ["Endpoints", "Failover", "call_operation", "get_operation"]

#: An attempt is short: a third of it is left for the endpoint's answer to arrive.
ATTEMPT_MARGIN = 1 / 3
_MOVED = frozenset(code for code in FailureCode if code.retry is Retry.LOOK_UP_AGAIN) | {FailureCode.UNAVAILABLE}


class Endpoints:
    """The endpoints of one client: the job's own proxy, then its fallbacks.

    Each has a state cache; the job has a circuit breaker.
    """

    __slots__ = ("breaker", "caches")

    def __init__(self, caches: Sequence[StateCache]) -> None:
        self.caches = caches
        self.breaker = CircuitBreaker()

    def find(self, job: str, state: str) -> CachedState | None:
        """The first cache's entry for a state, or None when no cache has one."""
        return next((known for cache in self.caches if (known := cache.find(job, state)) is not None), None)

    def may_answer(self, query: Query) -> bool:
        """Whether fallbacks may answer the query instead of the job."""
        return len(self.caches) > 1 and query.isolation == COMMITTED


class _AttemptLinks:
    """The client's links for the operation of one attempt: look-ups go to the attempt's endpoint."""

    __slots__ = ("_failover", "_links", "random", "states")

    def __init__(self, failover: Failover, links: Links, states: StateCache) -> None:
        self._failover = failover
        self._links = links
        self.random = links.random
        self.states = states

    def send(
        self, operation: RoutedOperation, command: Ask | LookUp, now: float, proxy: tuple[str, int] | None = None
    ) -> None:
        self._links.send(operation, command, now, self.states.proxy)

    def finished(self, operation: Operation) -> None:
        now = time.monotonic()
        if now >= operation.deadline:
            self.gave_up(operation, now)
        self._failover.attempt_ended(now)

    def stalls(self, operation: Operation) -> Mapping[str, Detail]:
        return self._links.stalls(operation)

    def gave_up(self, operation: Operation, now: float) -> None:
        self._links.gave_up(operation, now)

    def progressed(self, operation: Operation) -> None:
        self._links.progressed(self._failover)


class Failover(Operation):
    """An operation that runs a failover plan: one operation for each attempt, one at a time.

    `operation_of` makes the operation of an attempt.
    """

    __slots__ = ("_attempt", "_endpoints", "_operation_of", "_operations", "_plan", "_running")

    def __init__(
        self,
        links: Links,
        endpoints: Endpoints,
        keys: int,
        deadline: float,
        operation_of: Callable[[Links, Attempt], RoutedOperation],
    ) -> None:
        super().__init__(links, deadline)
        self._endpoints = endpoints
        self._operation_of = operation_of
        self._plan = FailoverPlan(
            keys, len(endpoints.caches), deadline=deadline, breaker=endpoints.breaker, random=links.random
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

    def attempt_ended(self, now: float) -> None:
        """The running attempt has finished: begin the next attempt, or finish."""
        operation = self._operations[-1]
        if self.finished or self._attempt is None:
            return
        if operation.error is not None and not isinstance(operation.error, QueryError):
            self.fail(operation.error)
            return
        unresponsive = _is_unresponsive(operation, self._endpoints.caches[self._attempt.endpoint], now)
        self._running = None
        self._attempt = self._plan.ended(
            operation.codes,
            now,
            unresponsive=unresponsive,
            unreached=operation.unreached,
            hopeless=operation.hopeless,
            wait_s=_retry_after_s(operation.error),
        )
        if self._attempt is None:
            self._finish()
        elif self._attempt.start <= now:
            self._begin(self._attempt)
        else:
            self._links.progressed(self)

    def fail(self, error: QStateError) -> None:
        if self._running is not None:
            # A finished operation ignores the answers that still arrive.
            self._running.finished = True
        super().fail(error)

    def results(self) -> list[Any]:
        if self.error is not None:
            raise self.error
        verdicts = self._plan.verdicts
        found = {number: self._found(number) for number in set(verdicts)}
        return [found[number][position] for position, number in enumerate(verdicts)]

    def _begin(self, attempt: Attempt) -> None:
        self._attempt = attempt
        states = self._endpoints.caches[attempt.endpoint]
        operation = self._operation_of(_AttemptLinks(self, self._links, states), attempt)
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
        return (error.details.get("host"), error.details.get("port")) == states.proxy
    # A proxy answers before its deadline. When a client asks the owners itself, an owner may be the silent one.
    asked_owners = states.direct and operation.knows_owners
    silent = error.code is FailureCode.DEADLINE_EXCEEDED and now >= operation.deadline and not asked_owners
    return silent or error.code is FailureCode.SHUTTING_DOWN


def _retry_after_s(error: QStateError | None) -> float:
    """The pause that an overloaded endpoint asks for. The peer may leave the detail out, or send any type."""
    wait_ms = error.details.get("retry_after_ms") if isinstance(error, Overloaded) else None
    return wait_ms / 1000 if isinstance(wait_ms, int | float) and not isinstance(wait_ms, bool) and wait_ms > 0 else 0.0


class _AttemptGet(GetOperation):
    __slots__ = ()

    def _finish(self) -> None:
        states = self._links.states
        if states.direct and not _MOVED.isdisjoint(self.codes):
            # The attempt may have ended before a new look-up; the next query must not go to the same owners.
            states.drop(self._query.job, self._query.state)
        super()._finish()


def get_operation(
    links: Links, endpoints: Endpoints, query: Query, keys: tuple[Key, ...], deadline: float
) -> GetOperation | Failover:
    """A get, with failover when fallbacks may answer it."""
    if not endpoints.may_answer(query):
        return GetOperation(links, query, keys, deadline)

    def attempt_of(attempt_links: Links, attempt: Attempt) -> GetOperation:
        asked = tuple(keys[position] for position in attempt.positions)
        return _AttemptGet(attempt_links, query, asked, attempt.until, RetryLimits(attempt.tries, ATTEMPT_MARGIN))

    return Failover(links, endpoints, len(keys), deadline, attempt_of)


def call_operation(
    links: Links, endpoints: Endpoints, request: type[Ping] | Describe, deadline: float
) -> CallOperation | Failover:
    """A call of the job's proxy, with failover when there are fallbacks."""
    if len(endpoints.caches) == 1:
        return CallOperation(links, request, deadline)

    def attempt_of(attempt_links: Links, attempt: Attempt) -> CallOperation:
        return CallOperation(attempt_links, request, attempt.until, RetryLimits(attempt.tries, ATTEMPT_MARGIN))

    return Failover(links, endpoints, 1, deadline, attempt_of)
