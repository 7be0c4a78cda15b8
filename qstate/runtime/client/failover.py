"""Operations with failover: they ask the job first, and its fallbacks when the job does not answer.

Rules of this module: it carries out what `failover_plan` decides. Each attempt of a plan is an ordinary operation, for
the keys that are still open. An attempt uses the state cache of its own endpoint, so a value is always decoded by the
description that the same endpoint sent. This module knows no sockets and no threads.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from qstate.errors import Detail, FailureCode, Overloaded, QStateError, QueryError, Retry
from qstate.keys import Key, Namespace
from qstate.protocol import Describe, Ping, Request
from qstate.runtime.client.failover_plan import Attempt, CircuitBreaker, FailoverPlan
from qstate.runtime.client.operations import NO_DEMANDS, CallOperation, GetOperation, Links, Operation
from qstate.runtime.client.state_cache import CachedState, StateCache
from qstate.runtime.routing.routed_get import Ask, LookUp
from qstate.views import ReadOnlyState

__all__ = ["COMMITTED", "CallFailover", "Endpoints", "Failover", "GetFailover", "get_operation"]

#: The isolation that fallbacks can answer.
COMMITTED = "committed"


class Endpoints:
    """The endpoints of one client, the job's own proxy first: a state cache for each, and the job's circuit breaker."""

    __slots__ = ("breaker", "caches")

    def __init__(self, caches: Sequence[StateCache]) -> None:
        self.caches = caches
        self.breaker = CircuitBreaker()

    def find(self, job: str, state: str) -> CachedState | None:
        """The first cache's entry for a state, or None when no cache has one."""
        return next((known for cache in self.caches if (known := cache.find(job, state)) is not None), None)


class _AttemptLinks:
    """The client's links for the operation of one attempt: look-ups go to the attempt's endpoint."""

    __slots__ = ("_failover", "_links", "random", "states")

    def __init__(self, failover: Failover, links: Links, states: StateCache) -> None:
        self._failover = failover
        self._links = links
        self.random = links.random
        self.states = states

    def send(
        self, operation: Operation, command: Ask | LookUp, now: float, proxy: tuple[str, int] | None = None
    ) -> None:
        self._links.send(operation, command, now, self.states.proxy)

    def finished(self, operation: Operation) -> None:
        now = time.monotonic()
        if now >= operation.deadline:
            self.gave_up(operation, now)
        self._failover.attempt_ended(operation, now)

    def stalls(self, operation: Operation) -> Mapping[str, Detail]:
        return self._links.stalls(operation)

    def gave_up(self, operation: Operation, now: float) -> None:
        self._links.gave_up(operation, now)

    def progressed(self, operation: Operation) -> None:
        self._links.progressed(self._failover)


class Failover(Operation):
    """An operation that runs a failover plan: one operation for each attempt, one at a time."""

    __slots__ = ("_attempt", "_endpoints", "_operations", "_plan", "_running")

    def __init__(self, links: Links, endpoints: Endpoints, keys: tuple[Any, ...], deadline: float) -> None:
        super().__init__(links, keys, deadline, None)
        self._endpoints = endpoints
        self._plan = FailoverPlan(
            len(keys), len(endpoints.caches), deadline=deadline, breaker=endpoints.breaker, random=links.random
        )
        #: One for each attempt so far.
        self._operations: list[Operation] = []
        #: None between two attempts.
        self._running: Operation | None = None
        self._attempt: Attempt | None = None

    @abstractmethod
    def operation_of(self, links: Links, attempt: Attempt) -> Operation:
        """A new operation that carries out the attempt."""

    @property
    def wake_at(self) -> float:
        if self._running is not None:
            return self._running.wake_at
        return self.deadline if self._attempt is None else self._attempt.start

    def start(self) -> None:
        now = time.monotonic()
        self._begin(self._plan.start(now))

    def on_time(self, now: float) -> None:
        if self.finished:
            return
        if self._running is not None:
            self._running.on_time(now)
        elif self._attempt is not None and now >= self._attempt.start:
            self._begin(self._attempt)

    def attempt_ended(self, operation: Operation, now: float) -> None:
        """An attempt's operation has finished: begin the next attempt, or finish."""
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
            self.finished = True
            self._links.finished(self)
        elif self._attempt.start <= now:
            self._begin(self._attempt)
        else:
            self._links.progressed(self)

    def fail(self, error: QStateError) -> None:
        if self._running is not None:
            # A finished operation ignores the answers that still arrive.
            self._running.finished = True
        super().fail(error)

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        raise NotImplementedError("only the operations of the attempts send requests")

    def _begin(self, attempt: Attempt) -> None:
        self._attempt = attempt
        states = self._endpoints.caches[attempt.endpoint]
        operation = self.operation_of(_AttemptLinks(self, self._links, states), attempt)
        self._operations.append(operation)
        self._running = operation
        operation.start()


def _is_unresponsive(operation: Operation, states: StateCache, now: float) -> bool:
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


def get_operation(
    links: Links,
    endpoints: Endpoints | None,
    target: tuple[str, str],
    keys: tuple[Key, ...],
    *,
    deadline: float,
    namespace: Namespace,
    isolation: str,
    demands: Mapping[str, Detail],
) -> GetOperation | GetFailover:
    """A get with failover when the client has fallbacks and the isolation is committed; else a get of the job alone."""
    if endpoints is not None and isolation == COMMITTED:
        return GetFailover(links, endpoints, target, keys, deadline=deadline, namespace=namespace, demands=demands)
    return GetOperation(
        links, target, keys, deadline=deadline, namespace=namespace, isolation=isolation, demands=demands
    )


_MOVED = frozenset(code for code in FailureCode if code.retry is Retry.LOOK_UP_AGAIN) | {FailureCode.UNAVAILABLE}
#: An attempt is short: a third of it is left for the endpoint's answer to arrive.
ATTEMPT_MARGIN = 1 / 3


class _AttemptGet(GetOperation):
    __slots__ = ("tries",)
    margin = ATTEMPT_MARGIN

    def __init__(self, tries: Mapping[int, int], *arguments: Any, **options: Any) -> None:
        self.tries = tries
        super().__init__(*arguments, **options)


class _AttemptCall(CallOperation):
    __slots__ = ("tries",)
    margin = ATTEMPT_MARGIN

    def __init__(self, tries: Mapping[int, int], *arguments: Any, **options: Any) -> None:
        self.tries = tries
        super().__init__(*arguments, **options)


class GetFailover(Failover):
    """Get the values of keys. Its result has a view, or None, for each key."""

    __slots__ = ("_demands", "_namespace", "_target")

    def __init__(
        self,
        links: Links,
        endpoints: Endpoints,
        target: tuple[str, str],
        keys: tuple[Key, ...],
        *,
        deadline: float,
        namespace: Namespace = None,
        demands: Mapping[str, Detail] = NO_DEMANDS,
    ) -> None:
        super().__init__(links, endpoints, keys, deadline)
        self._target = target
        self._namespace = namespace
        self._demands = demands

    def operation_of(self, links: Links, attempt: Attempt) -> Operation:
        keys = self._keys
        if len(attempt.positions) != len(keys):
            keys = tuple(keys[position] for position in attempt.positions)
        return _AttemptGet(
            attempt.tries,
            links,
            self._target,
            keys,
            deadline=attempt.until,
            namespace=self._namespace,
            isolation=COMMITTED,
            demands=self._demands,
        )

    def attempt_ended(self, operation: Operation, now: float) -> None:
        states = self._endpoints.caches[self._plan.attempts[-1].endpoint]
        if states.direct and not _MOVED.isdisjoint(operation.codes):
            # The attempt may have ended before a new look-up; the next query must not go to the same owners.
            states.drop(*self._target)
        super().attempt_ended(operation, now)

    def result(self) -> list[ReadOnlyState | None]:
        """A view or None for each key, in their order. Raises the error of the first key that has one."""
        found = self.results()
        for entry in found:
            if isinstance(entry, QStateError):
                raise entry
        return found

    def by_key(self) -> dict[Key, ReadOnlyState | None]:
        """`result` as a dict by key."""
        return dict(zip(self._keys, self.result(), strict=True))

    def results(self) -> list[Any]:
        """A view, None or a `QueryError` for each key. Raises the error of the whole operation."""
        if self.error is not None:
            raise self.error
        found = {number: self._found(number) for number in set(self._plan.verdicts)}
        return [found[number][position] for position, number in enumerate(self._plan.verdicts)]

    def _found(self, number: int) -> dict[int, Any]:
        """The results of an attempt, by position."""
        positions, operation = self._plan.attempts[number].positions, self._operations[number]
        assert isinstance(operation, GetOperation)
        try:
            return dict(zip(positions, operation.results(), strict=True))
        except QueryError as exc:
            # A copy for each key: raising an exception adds to its traceback.
            return {position: copy(exc) for position in positions}


class CallFailover(Failover):
    """Send a proxy a request that is not about keys: the states of a job, or a ping."""

    __slots__ = ("_request",)

    def __init__(self, links: Links, endpoints: Endpoints, request: type[Ping] | Describe, deadline: float) -> None:
        super().__init__(links, endpoints, (None,), deadline)
        self._request = request

    def operation_of(self, links: Links, attempt: Attempt) -> Operation:
        return _AttemptCall(attempt.tries, links, self._request, attempt.until)

    def result(self) -> tuple[Mapping[str, Any], ...]:
        """The entries of the description; nothing for a ping."""
        if self.error is not None:
            raise self.error
        (number,) = self._plan.verdicts
        entries: tuple[Mapping[str, Any], ...] = self._operations[number].result()
        return entries
