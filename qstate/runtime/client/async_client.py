"""The asyncio client: read the state of running jobs by key, with single gets batched into requests.

Rules of this module: the public surface and the batching of gets. `async_transport` sends requests, `operations` and
`failover` retry them, and `qstate.views` are their results.

The client batches the single gets of one turn of the event loop that have the same state, namespace, isolation and
demands. A batch is one request, or two, so each get costs a fraction of a message and a system call. Each get still
has its own result, error and cancellation.
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
    check_direct,
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
from qstate.runtime.routing.location import UNSOUND_KEY, LocationTable
from qstate.serializers import Serializer
from qstate.views import serializers_by_name

__all__ = ["AsyncQueryableStateClient"]

#: The first batch of a turn is sent with this many keys, so that the server works while the client collects more: a
#: third more gets a second with 64 in flight. The rest of the turn is one batch: with 256 in flight, batches of 32
#: each gave a sixth to a quarter fewer gets a second. When several servers share the keys the whole turn is one batch,
#: because twice as many requests cost more than that gains: a third of the gets with four servers, a quarter of the
#: processors of two.
FIRST_BATCH_KEYS = 32
#: What the gets of a batch have in common: job, state, namespace, isolation, timeout and demands.
_Target = tuple[str, str, Namespace, str, float | None, int | None, float | None]
#: The keys of one owner, and a future for each key.
_Share = tuple[tuple[Key, ...], Sequence[asyncio.Future[Any]]]


class _Batch:
    """Single gets of one turn of the loop, to be sent as one request to each owner of some of the keys."""

    __slots__ = ("deadline", "futures", "keys")

    def __init__(self) -> None:
        #: Of the gets that have waited for a look-up; the time of the others begins when the request is sent.
        self.deadline = math.inf
        self.keys: list[Key] = []
        self.futures: list[asyncio.Future[Any]] = []

    def shares(self, table: LocationTable | None) -> Iterable[_Share]:
        """The gets by owner, so that no get waits for the owner of another key, nor for its restart."""
        keys, futures = self.keys, self.futures
        if table is None or table.sole_owner is not None:
            return [(tuple(keys), futures)]
        try:
            shares = table.split(keys)
        except UNSOUND_KEY:
            # `RoutedGet` fails the unsound key and sends the others.
            return [(tuple(keys), futures)]
        return [(tuple([keys[at] for at in found]), [futures[at] for at in found]) for _, found in shares]


class _BatchedGet(GetOperation):
    """A get with a future for each key, resolved as soon as the answer arrives."""

    __slots__ = ("futures",)
    futures: Sequence[asyncio.Future[Any]]

    def deliver(self) -> None:
        """Give each future its view or error."""
        _deliver(self, self.futures)


def _deliver(operation: GetOperation | GetFailover, futures: Sequence[asyncio.Future[Any]]) -> None:
    """Give each future the view or error of its key, unless the future was cancelled."""
    try:
        found = operation.results()
    except QStateError as exc:
        # A copy for each future: raising an exception adds to its traceback.
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

    Make it with `connect`, inside a running event loop, and use it in that loop only, from any number of tasks. The
    client makes a lost connection again, and looks a state that moved up again, within the deadline (`timeout_s`) of
    each request. A request that was sent when its connection broke fails with `Unavailable`, with all gets in its
    batch: the client does not send it again. Cancelling a waiting task does not affect the others.

        async with await AsyncQueryableStateClient.connect("127.0.0.1", 9069) as client:
            view = await client.get("job", "lastTemperature", "JFK")
    """

    def __init__(self, *arguments: object, **options: object) -> None:
        """Raises `ConfigError`: use `connect`."""
        raise ConfigError(
            "make an AsyncQueryableStateClient with `await AsyncQueryableStateClient.connect(host, port)`, in a "
            "running event loop; without asyncio, use QueryableStateClient(host, port)"
        )

    def _open(self, links: AsyncLinks, timeout_s: float, endpoints: Endpoints | None) -> None:
        self._links = links
        self._endpoints = endpoints
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._batches: dict[_Target, _Batch] = {}
        #: Whether this turn's first batch has been sent.
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
        """Connect to the proxy at `host` and `port`, or to a fallback when the proxy does not answer.

        The parameters are those of `QueryableStateClient`. Raises `ConfigError`, or the `QueryError` of the failure
        (`Unavailable`, `Unauthenticated`, `VersionMismatch`); no connection is left open then.
        """
        check_timeout(timeout_s)
        serializers_known = serializers_by_name(serializers)
        states = StateCache(check_address(host, port), direct=check_direct(direct), serializers=serializers_known)
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
        """The view of the key's value, or None when the state has no value for the key.

        `isolation` is `live` (sees the running epoch) or `committed` (only what Spark has committed). The answer is
        of `min_epoch` or later, and contains everything that was committed more than `max_staleness_s` seconds ago. The
        client asks again until the server can give such an answer, and at the deadline raises `EpochNotReached` or
        `TooStale`.

        Raises the `QueryError` of the failure, `SerializationError`, `ClosedError`, `ConfigError`.
        """
        target = (job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s)
        known = self._find(job, state)
        if known is None:
            self._check(target)
            return await self._first_get(target, key)
        return await self._add_to_batch(known, target, key)

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
        """`get` without waiting and without a task: returns a future of the view. Call it in the client's loop.

        Many gets at once cost half of what the same number of tasks costs. Cancelling the future cancels only this get.

        Raises `ClosedError` and `ConfigError`; the future raises every other error of `get`.
        """
        target = (job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s)
        known = self._find(job, state)
        if known is None:
            self._check(target)
            return self._loop.create_task(self._first_get(target, key))
        return self._add_to_batch(known, target, key)

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
        """The view, or None, of each key. The client splits any number of keys into requests as needed.

        The values of one call may be of different moments: each has its own epoch. If any key failed, raises the error
        of the first that did, and returns no values.
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

        Asks the fallbacks when the job does not answer.
        """
        check_name("job", job)
        return list(await self._call_somewhere(Describe(0, 0, job), timeout_s))

    async def ping(self, *, timeout_s: float | None = None) -> float:
        """The round trip to the proxy in seconds. Raises `Unavailable` or `DeadlineExceeded` without an answer."""
        operation = await self._call(Ping, timeout_s)
        operation.result()
        return operation.took_s

    async def close(self) -> None:
        """Close every connection. Unfinished requests and every later use raise `ClosedError`. Idempotent."""
        self._send_batches()
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
        """The cache's entry of a state, or None; None for names that are not text."""
        return self._links.states.find(job, state) if type(job) is str and type(state) is str else None

    def _check(self, target: _Target) -> None:
        """Check everything but the key. Raises `ClosedError`, `ConfigError`."""
        if self._links.closed:
            raise ClosedError("the client is closed")
        job, state, _, isolation, timeout_s, min_epoch, max_staleness_s = target
        check_query(job, state, (), None)
        check_isolation(isolation)
        if timeout_s is not None:
            check_timeout(timeout_s)
        demands(min_epoch, max_staleness_s)

    async def _first_get(self, target: _Target, key: Key) -> Any:
        """Get a value of a state that is not in the job's cache yet."""
        job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s = target
        check_query(job, state, (key,), namespace)
        deadline = self._deadline(timeout_s)
        if self._endpoints is None or isolation != COMMITTED:
            known = await self._learn(job, state, deadline)
            return await self._add_to_batch(known, target, key, deadline)
        elsewhere = self._endpoints.find(job, state)
        if elsewhere is not None:
            return await self._add_to_batch(elsewhere, target, key, deadline)
        # The first endpoint to answer describes the state, so this get cannot join a batch.
        wanted = demands(min_epoch, max_staleness_s)
        failover = GetFailover(
            self._links, self._endpoints, (job, state), (key,), deadline=deadline, namespace=namespace, demands=wanted
        )
        await self._finish(failover)
        return failover.result()[0]

    def _add_to_batch(
        self, known: CachedState, target: _Target, key: Key, deadline: float = math.inf
    ) -> asyncio.Future[Any]:
        """Add a get to its batch of this turn of the loop. Raises `ClosedError`, `ConfigError`."""
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
                # Unless the state has changed meanwhile, the server refuses this key's whole request: send it alone.
                self._check(target)
                alone = _Batch()
                alone.keys, alone.futures, alone.deadline = [key], [future], deadline
                self._send(target, alone)
                return future
        try:
            batch = self._batches.get(target)
        except TypeError:
            self._check(target)  # its error names the argument that is not hashable
            raise
        if batch is None:
            self._check(target)
            batch = self._batches[target] = _Batch()
            if len(self._batches) == 1:
                self._loop.call_soon(self._send_batches)
        batch.keys.append(key)
        batch.futures.append(future)
        if deadline < batch.deadline:
            batch.deadline = deadline
        if len(batch.keys) == FIRST_BATCH_KEYS and not self._sent_early and known.table.sole_owner is not None:
            self._sent_early = True
            del self._batches[target]
            self._send(target, batch)
        return future

    def _send_batches(self) -> None:
        batches, self._batches = self._batches, {}
        self._sent_early = False
        for target, batch in batches.items():
            self._send(target, batch)

    def _send(self, target: _Target, batch: _Batch) -> None:
        job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s = target
        wanted = NO_DEMANDS if min_epoch is None and max_staleness_s is None else demands(min_epoch, max_staleness_s)
        deadline = min(batch.deadline, self._deadline(timeout_s))
        if self._endpoints is not None and isolation == COMMITTED:
            keys = tuple(batch.keys)
            failover = GetFailover(
                self._links, self._endpoints, (job, state), keys, deadline=deadline, namespace=namespace, demands=wanted
            )
            failover.waiters.append(partial(_deliver, failover, batch.futures))
            self._links.start(failover)
            return
        known = self._links.states.find(job, state)
        for keys, futures in batch.shares(None if known is None else known.table):
            operation = _BatchedGet(
                self._links,
                (job, state),
                keys,
                deadline=deadline,
                namespace=namespace,
                isolation=isolation,
                demands=wanted,
            )
            operation.futures = futures
            operation.waiters.append(operation.deliver)
            self._links.start(operation)

    async def _finish(self, operation: Operation) -> None:
        """Start the operation and wait for its end."""
        future = self._wait_for(operation)
        self._links.start(operation)
        await future

    async def _learn(self, job: str, state: str, deadline: float) -> CachedState:
        """Look up a state. Tasks that ask at the same time share one look-up, each with its own deadline."""
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
