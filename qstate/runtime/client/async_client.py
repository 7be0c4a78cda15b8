"""The asyncio client: read the state of running jobs by key, with single gets that travel together.

Rules of this module: the public surface and the collecting of gets. How requests travel is `async_links`, how they
are retried is `routing`, what comes back is `qstate.views`.

Single gets of one state, namespace and isolation, with the same demands, that are made in one turn of the event loop
become one request, or two: each pays a share of a system call and a message instead of a whole one. Each still has
a result, an error and a cancellation of its own.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import Any

from qstate.errors import ClosedError, ConfigError, DeadlineExceeded, QStateError, WrongKeyType
from qstate.keys import Key, Namespace, check_key
from qstate.protocol import Describe, Ping
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.runtime.client.arguments import (
    check_address,
    check_isolation,
    check_name,
    check_query,
    check_timeout,
    demands,
    keys_of,
    link_settings,
)
from qstate.runtime.client.async_transport import AsyncLinks
from qstate.runtime.client.failover import COMMITTED, CallFailover, Endpoints, GetFailover, get_operation
from qstate.runtime.client.operations import LIVE, NO_DEMANDS, CallOperation, GetOperation, LearnOperation, Operation
from qstate.runtime.client.state_cache import CachedState, StateCache
from qstate.runtime.client.sync_client import DEFAULT_TIMEOUT_S, endpoints_of
from qstate.runtime.routing.location import UNSOUND_KEY, LocationTable, Owner
from qstate.serializers import Serializer
from qstate.views import serializers_by_name

__all__ = ["AsyncQueryableStateClient"]

#: The first request of a turn leaves with so many keys, so that the server works while more are asked for: with 64 gets
#: in flight that is worth a third. The others leave together: with 256 in flight, requests of 32 each gave a sixth to a
#: quarter fewer gets a second. Where several servers share the keys all leave together, for twice as many requests cost
#: more than that gains: a third of the gets with four servers, a quarter of the processors of two.
GATHERED_KEYS = 32
#: Job, state, namespace, isolation, timeout and demands: what gets have in common that travel together.
_Target = tuple[str, str, Namespace, str, float | None, int | None, float | None]
#: An owner, if there is one, the keys that it has, and a future for each.
_Share = tuple[Owner | None, tuple[Key, ...], Sequence[asyncio.Future[Any]]]


class _Gathering:
    """The single gets of one turn of the loop that will become one request to each server that has some of the keys."""

    __slots__ = ("deadline", "futures", "keys")

    def __init__(self) -> None:
        #: Of those that have waited for a look-up before; the others' begins when the request leaves.
        self.deadline = math.inf
        self.keys: list[Key] = []
        self.futures: list[asyncio.Future[Any]] = []

    def shares(self, table: LocationTable | None) -> Iterable[_Share]:
        """The gets by who has their keys: none waits for the server of another's key, nor for its restart."""
        keys, futures = self.keys, self.futures
        if table is None or table.sole_owner is not None:
            return [(None if table is None else table.sole_owner, tuple(keys), futures)]
        try:
            shares = table.split(keys)
        except UNSOUND_KEY:
            # An unsound key is refused by name where gets are routed.
            return [(None, tuple(keys), futures)]
        return [(owner, tuple([keys[at] for at in found]), [futures[at] for at in found]) for owner, found in shares]


class _GatheredGet(GetOperation):
    """A get whose keys each have a future of their own, told as soon as the answer is there.

    `owner` is who has all of them, if somebody has.
    """

    __slots__ = ("futures", "owner")
    futures: Sequence[asyncio.Future[Any]]
    owner: Owner | None

    def deliver(self) -> None:
        """Give each future its view or error."""
        _deliver(self, self.futures)

    def _only_owner(self) -> Owner | None:
        return self.owner


def _deliver(operation: GetOperation | GetFailover, futures: Sequence[asyncio.Future[Any]]) -> None:
    """Give each future the view or error of its key; one that was cancelled is left alone."""
    try:
        found = operation.results()
    except QStateError as exc:
        # One each: an exception collects the traceback of whoever raises it.
        found = [copy(exc) for _ in futures]
    for future, entry in zip(futures, found, strict=True):
        if future.done():
            continue
        if isinstance(entry, QStateError):
            future.set_exception(entry)
        else:
            future.set_result(entry)


class AsyncQueryableStateClient:
    """Reads the state of running jobs through a client proxy, or with `direct=True` from the state servers.

    Made by `connect`, inside a running event loop, and used in that loop only, by any number of tasks. A
    lost connection is made again and a state that moved is looked up again, within the deadline of `timeout_s`
    that every request has. A request that was sent when its connection broke is `Unavailable`, with all the gets that
    travelled in it: it is not sent again. Cancelling a task that waits takes nothing from the others.

        async with await AsyncQueryableStateClient.connect("127.0.0.1", 9069) as client:
            view = await client.get("job", "lastTemperature", "JFK")
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        """Use `connect`: this raises `ConfigError`."""
        raise ConfigError(
            "an AsyncQueryableStateClient is made by `await AsyncQueryableStateClient.connect(host, port)`, in a "
            "running event loop; without asyncio, use QueryableStateClient(host, port)"
        )

    def _open(self, links: AsyncLinks, timeout_s: float, endpoints: Endpoints | None) -> None:
        self._links = links
        self._endpoints = endpoints
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._gatherings: dict[_Target, _Gathering] = {}
        #: Whether this turn's first request has left.
        self._sent_early = False
        self._learning: dict[tuple[str, str], LearnOperation] = {}

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        direct: bool = False,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        token: str | bytes | None = None,
        serializers: Iterable[Serializer] = (),
        max_frame: int = DEFAULT_MAX_FRAME,
        fallback: Iterable[tuple[str, int]] = (),
        random: Random | None = None,
    ) -> AsyncQueryableStateClient:
        """A client that is connected to the proxy at `host` and `port`, or to a fallback when there is nobody.

        The parameters are those of `QueryableStateClient`. Raises `ConfigError`, or the `QueryError` that says why
        there is no connection (`Unavailable`, `Unauthenticated`, `VersionMismatch`); nothing is left open then.
        """
        check_timeout(timeout_s)
        serializers_known = serializers_by_name(serializers)
        states = StateCache(check_address(host, port), direct=direct, serializers=serializers_known)
        endpoints = endpoints_of(states, fallback, serializers_known)
        known = (states,) if endpoints is None else endpoints.caches
        links = AsyncLinks(known, link_settings(token, max_frame), random or Random())
        client = cls.__new__(cls)
        client._open(links, timeout_s, endpoints)
        try:
            await client._call_somewhere(Ping, None)
        except BaseException:
            await client.close()
            raise
        return client

    async def get(
        self,
        job: str,
        state: str,
        key: Key,
        namespace: Namespace = None,
        isolation: str = LIVE,
        *,
        timeout_s: float | None = None,
        min_epoch: int | None = None,
        max_staleness_s: float | None = None,
    ) -> Any:
        """The view of the key's value, or None when the state holds nothing for the key.

        `isolation` is `live` (sees the running epoch) or `committed` (only what Spark has committed). The answer is
        of `min_epoch` or later; what was committed longer ago than `max_staleness_s` is in it. Until the server can
        answer so it is asked again; at the deadline that is `EpochNotReached` or `TooStale`.

        Raises the `QueryError` that stands for the failure, `SerializationError`, `ClosedError`, `ConfigError`.
        """
        target = (job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s)
        known = self._find(job, state)
        if known is None:
            self._check(target)
            return await self._first_get(target, key)
        return await self._gather(known, target, key)

    def submit(
        self,
        job: str,
        state: str,
        key: Key,
        namespace: Namespace = None,
        isolation: str = LIVE,
        *,
        timeout_s: float | None = None,
        min_epoch: int | None = None,
        max_staleness_s: float | None = None,
    ) -> asyncio.Future[Any]:
        """`get` without waiting, and without a task: the future has the view. To be called in the client's loop.

        Many gets at once cost half of what as many tasks do. Cancelling the future gives up this get alone.

        Raises `ClosedError` and `ConfigError`; every other error of `get` is the future's.
        """
        target = (job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s)
        known = self._find(job, state)
        if known is None:
            self._check(target)
            return self._loop.create_task(self._first_get(target, key))
        return self._gather(known, target, key)

    async def get_many(
        self,
        job: str,
        state: str,
        keys: Iterable[Key],
        namespace: Namespace = None,
        isolation: str = LIVE,
        *,
        timeout_s: float | None = None,
        min_epoch: int | None = None,
        max_staleness_s: float | None = None,
    ) -> dict[Key, Any]:
        """The view, or None, of each key. Any number of keys; they are split into requests as needed.

        The values of one call are not of one moment: each has its own epoch. Raises the error of the first key
        that failed, whatever the others hold.
        """
        asked = keys_of(keys)
        check_isolation(isolation)
        if self._find(job, state) is None:
            check_query(job, state, asked, namespace)
        operation = get_operation(
            self._links,
            self._endpoints,
            (job, state),
            asked,
            deadline=self._deadline(timeout_s),
            namespace=namespace,
            isolation=isolation,
            demands=demands(min_epoch, max_staleness_s),
        )
        await self._finish(operation)
        return operation.by_key()

    async def jobs(self, *, timeout_s: float | None = None) -> list[str]:
        """The names of the jobs that the proxy serves."""
        entries = (await self._call(Describe(0, 0, None), timeout_s)).result()
        return [entry["job"] for entry in entries]

    async def states(self, job: str, *, timeout_s: float | None = None) -> list[Mapping[str, Any]]:
        """The queryable states of a job: `name`, `kind`, `serializer`, `key_types`, `value_type`, `capabilities`.

        A fallback is asked, too, when the job does not answer.
        """
        check_name("job", job)
        return list(await self._call_somewhere(Describe(0, 0, job), timeout_s))

    async def ping(self, *, timeout_s: float | None = None) -> float:
        """Seconds to the proxy and back. Raises `Unavailable` or `DeadlineExceeded` when it does not answer."""
        operation = await self._call(Ping, timeout_s)
        operation.result()
        return operation.took_s

    async def close(self) -> None:
        """Close every connection. Who still waits gets `ClosedError`, and so does every later use. Idempotent."""
        self._send_gathered()
        await self._links.close()

    async def __aenter__(self) -> AsyncQueryableStateClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else check_timeout(timeout_s))

    async def _call(self, request: type[Ping] | Describe, timeout_s: float | None) -> CallOperation:
        operation = CallOperation(self._links, request, self._deadline(timeout_s))
        await self._finish(operation)
        return operation

    async def _call_somewhere(
        self, request: type[Ping] | Describe, timeout_s: float | None
    ) -> tuple[Mapping[str, Any], ...]:
        if self._endpoints is None:
            return (await self._call(request, timeout_s)).result()
        failover = CallFailover(self._links, self._endpoints, request, self._deadline(timeout_s))
        await self._finish(failover)
        return failover.result()

    def _find(self, job: str, state: str) -> CachedState | None:
        """What is known about a state; nothing about names that are none."""
        return self._links.states.find(job, state) if type(job) is str and type(state) is str else None

    def _check(self, target: _Target) -> None:
        """Refuse what no request could be sent with. Raises `ClosedError`, `ConfigError`."""
        if self._links.closed:
            raise ClosedError("the client is closed")
        job, state, _, isolation, timeout_s, min_epoch, max_staleness_s = target
        check_query(job, state, (), None)
        check_isolation(isolation)
        if timeout_s is not None:
            check_timeout(timeout_s)
        demands(min_epoch, max_staleness_s)

    async def _first_get(self, target: _Target, key: Key) -> Any:
        """Get a value of a state of which the job has told nothing yet."""
        job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s = target
        check_query(job, state, (key,), namespace)
        deadline = self._deadline(timeout_s)
        if self._endpoints is None or isolation != COMMITTED:
            known = await self._learn(job, state, deadline)
            return await self._gather(known, target, key, deadline)
        elsewhere = self._endpoints.find(job, state)
        if elsewhere is not None:
            return await self._gather(elsewhere, target, key, deadline)
        # Whoever answers says what the state is: this get travels alone.
        wanted = demands(min_epoch, max_staleness_s)
        failover = GetFailover(
            self._links, self._endpoints, (job, state), (key,), deadline=deadline, namespace=namespace, demands=wanted
        )
        await self._finish(failover)
        return failover.result()[0]

    def _gather(self, known: CachedState, target: _Target, key: Key, deadline: float = math.inf) -> asyncio.Future[Any]:
        """Put a get to those of this turn of the loop. Raises `ClosedError`, `ConfigError`."""
        future = self._loop.create_future()
        namespace = target[2]
        if type(key) is not known.key_class or namespace is not None:
            try:
                check_key(key)
                check_key("" if namespace is None else namespace)
            except WrongKeyType as exc:
                future.set_exception(exc)
                return future
            if not known.suits(key):
                # It would spoil the request for the gets that it travels with, unless the state has changed meanwhile.
                self._check(target)
                alone = _Gathering()
                alone.keys, alone.futures, alone.deadline = [key], [future], deadline
                self._send(target, alone)
                return future
        try:
            gathering = self._gatherings.get(target)
        except TypeError:
            self._check(target)  # which names what cannot be an argument, let alone a part of a key
            raise
        if gathering is None:
            self._check(target)
            gathering = self._gatherings[target] = _Gathering()
            if len(self._gatherings) == 1:
                self._loop.call_soon(self._send_gathered)
        gathering.keys.append(key)
        gathering.futures.append(future)
        if deadline < gathering.deadline:
            gathering.deadline = deadline
        if len(gathering.keys) == GATHERED_KEYS and not self._sent_early and known.table.sole_owner is not None:
            self._sent_early = True
            del self._gatherings[target]
            self._send(target, gathering)
        return future

    def _send_gathered(self) -> None:
        gatherings, self._gatherings = self._gatherings, {}
        self._sent_early = False
        for target, gathering in gatherings.items():
            self._send(target, gathering)

    def _send(self, target: _Target, gathering: _Gathering) -> None:
        job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s = target
        wanted = NO_DEMANDS if min_epoch is None and max_staleness_s is None else demands(min_epoch, max_staleness_s)
        deadline = min(gathering.deadline, self._deadline(timeout_s))
        if self._endpoints is not None and isolation == COMMITTED:
            keys = tuple(gathering.keys)
            failover = GetFailover(
                self._links, self._endpoints, (job, state), keys, deadline=deadline, namespace=namespace, demands=wanted
            )
            failover.waiters.append(partial(_deliver, failover, gathering.futures))
            self._links.start(failover)
            return
        known = self._links.states.find(job, state)
        for owner, keys, futures in gathering.shares(None if known is None else known.table):
            operation = _GatheredGet(
                self._links,
                (job, state),
                keys,
                deadline=deadline,
                namespace=namespace,
                isolation=isolation,
                demands=wanted,
            )
            operation.owner, operation.futures = owner, futures
            operation.waiters.append(operation.deliver)
            self._links.get(operation)

    async def _finish(self, operation: Operation) -> None:
        """Send the operation off and wait for its end."""
        future = self._wait_for(operation)
        self._links.start(operation)
        await future

    async def _learn(self, job: str, state: str, deadline: float) -> CachedState:
        """What the state is; tasks that ask at the same time share one look-up, and each waits for its own time."""
        while True:
            operation = self._learning.get((job, state))
            if operation is None or operation.finished:
                until = max(deadline, self._deadline(None))
                operation = self._learning[job, state] = LearnOperation(self._links, job, state, until)
                future = self._wait_for(operation)
                self._links.start(operation)
            else:
                future = self._wait_for(operation)
            await asyncio.wait([future], timeout=deadline - time.monotonic())
            if not operation.finished:
                raise DeadlineExceeded()
            self._learning.pop((job, state), None)
            if not isinstance(operation.error, DeadlineExceeded) or time.monotonic() >= deadline:
                return operation.result()

    def _wait_for(self, operation: Operation) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        operation.waiters.append(partial(_settle, future))
        return future


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
