"""The asyncio client: read the state of running jobs by key, with single gets batched into requests.

Rules of this module: the public surface and look-ups that gets share. `batching` collects single gets,
`async_transport` sends requests, `operations` and `failover` retry them, and `qstate.views` are their results.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from types import EllipsisType
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from qstate.errors import ClosedError, ConfigError, DeadlineExceeded, QueryCancelled, QueryError
from qstate.keys import Column, Key, Namespace, key_group
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.protocol.messages import GetPart, Locate, Page, Part, Ping, Scan
from qstate.runtime.client.arguments import (
    DEFAULT_TIMEOUT_S,
    ConnectionArguments,
    addresses_text,
    check_name,
    check_names,
    check_timeout,
    keys_of,
    query_of,
)
from qstate.runtime.client.async_transport import AsyncLinks
from qstate.runtime.client.batching import Batching, GetArguments
from qstate.runtime.client.caching.committed_cache import MISS, CommittedCache, check_cache, with_misses
from qstate.runtime.client.caching.kept_values import CacheStatistics, ClientCache
from qstate.runtime.client.failover import call_operation, failover_get, one_operation
from qstate.runtime.client.operations import CallOperation, GetOperation, LearnOperation, Operation
from qstate.runtime.client.query import COMMITTED, LIVE, Query
from qstate.runtime.client.results.async_parts import AsyncParts
from qstate.runtime.client.results.async_results import AsyncScanResults, AsyncSubscription, settle
from qstate.runtime.client.results.async_state_handle import AsyncStateHandle
from qstate.runtime.client.results.descriptions import Listing
from qstate.runtime.client.results.value_parts import AskedPart
from qstate.runtime.client.scanning import EVERY_NAMESPACE, Scanner, Selected, key_only
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.client.subscribing import Subscribing
from qstate.runtime.client.subscriptions import DEFAULT_PATIENCE_S, DEFAULT_PROGRESS_S, wanted_of
from qstate.runtime.control.tracing import Tracing
from qstate.runtime.routing.location import LocationTable
from qstate.serializers import Serializer
from qstate.tls import ClientTls
from qstate.values.html_tables import html_table
from qstate.views import ReadOnlyState

__all__ = ["AsyncQueryableStateClient", "AsyncScanResults", "AsyncSubscription"]

View = TypeVar("View", bound=ReadOnlyState)
#: After so many answers of the cache in a row, a get lets the loop do other work, such as receive changes.
HITS_WITHOUT_A_TURN = 256


class AsyncQueryableStateClient(AsyncParts):
    """Reads the state of running jobs from the state servers that own it, and through a client proxy.

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

    #: What the links of subscriptions need, which the first one makes.
    _connections: ConnectionArguments
    _long_links: AsyncLinks | None = None
    _cache: CommittedCache | None = None
    #: The answers of the cache since the loop had a turn.
    _hits = 0

    def _open(self, links: AsyncLinks, timeout_s: float) -> None:
        self._links = links
        self._tracing = links.tracing
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._batching = Batching(links, timeout_s)
        self._learning: dict[tuple[str, str], LearnOperation] = {}

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        proxies: Iterable[tuple[str, int]] = (),
        direct: bool | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        token: str | bytes | None = None,
        serializers: Iterable[Serializer] = (),
        max_frame: int = DEFAULT_MAX_FRAME,
        fallback: Iterable[tuple[str, int]] = (),
        tls: ClientTls | None = None,
        allow_token_without_tls: bool = False,
        tracing: bool = False,
        cache: ClientCache | None = None,
        random: Random | None = None,
    ) -> AsyncQueryableStateClient:
        """Connect to the proxy at `host` and `port`, to one of `proxies`, or to a fallback when no proxy answers.

        The parameters are those of `QueryableStateClient`. Raises `ConfigError`, or the `QueryError` of the failure
        (`Unavailable`, `Unauthenticated`, `VersionMismatch`); no connection is left open then.
        """
        check_timeout(timeout_s)
        settings = check_cache(cache)
        connections = ConnectionArguments(
            (host, port),
            random=random or Random(),
            proxies=proxies,
            direct=direct,
            serializers=serializers,
            fallback=fallback,
            token=token,
            max_frame=max_frame,
            tls=tls,
            allow_token_without_tls=allow_token_without_tls,
            tracing=Tracing() if tracing else None,
        )
        links = AsyncLinks(*connections.links())
        client = cls.__new__(cls)
        client._connections = connections
        client._open(links, timeout_s)
        if settings is not None:
            found = CommittedCache(settings, client._links_of_subscriptions(), contextlib.nullcontext)
            links.keeper = client._cache = found
        try:
            await client._finish(call_operation(links, Ping, client._deadline(None)))
        except BaseException:
            await client.close()
            raise
        return client

    @overload
    def state(self, job: str, name: str, *, isolation: str = LIVE) -> AsyncStateHandle[Any]: ...

    @overload
    def state(self, job: str, name: str, view: type[View], *, isolation: str = LIVE) -> AsyncStateHandle[View]: ...

    def state(
        self, job: str, name: str, view: type[Any] = ReadOnlyState, *, isolation: str = LIVE
    ) -> AsyncStateHandle[Any]:
        """The handle of one state: `get`, `get_many`, `scan`, `count` and `subscribe` without the names.

        See `QueryableStateClient.state`.
        """
        return AsyncStateHandle(self, (job, name), view, isolation)

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
        wait_s: float | None = None,
    ) -> Any:
        """The view of the key's value, or None when the state has no value for the key.

        `isolation` is `live` (sees the running epoch) or `committed` (only what Spark has committed). The answer is
        of `min_epoch` or later, and contains everything that was committed more than `max_staleness_s` seconds ago. The
        client asks again until the server can give such an answer, and at the deadline raises `EpochNotReached` or
        `TooStale`.

        A failure that may pass, such as that of a key whose owner restarts, is tried again for `wait_s` seconds; None:
        until the deadline.

        Raises the `QueryError` of the failure, `SerializationError`, `ClosedError`, `ConfigError`.
        """
        arguments = (job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s, wait_s)
        if self._cache is not None:
            found = self._cached(self._cache, arguments, key)
            if found is not MISS:
                self._hits = (self._hits + 1) % HITS_WITHOUT_A_TURN
                if not self._hits:
                    await asyncio.sleep(0)
                return found
        try:
            return await self._submit(arguments, key)
        except asyncio.CancelledError:
            self._batching.cancel_unwanted()
            raise

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
        wait_s: float | None = None,
    ) -> asyncio.Future[Any]:
        """`get` without waiting and without a task: returns a future of the view. Call it in the client's loop.

        Many gets at once cost half of what the same number of tasks costs. Cancelling the future cancels only this get.

        Raises `ClosedError` and `ConfigError`; the future raises every other error of `get`.
        """
        arguments = (job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s, wait_s)
        if self._cache is not None:
            found = self._cached(self._cache, arguments, key)
            if found is not MISS:
                future = self._loop.create_future()
                future.set_result(found)
                return future
        return self._submit(arguments, key)

    def _submit(self, arguments: GetArguments, key: Key) -> asyncio.Future[Any]:
        if self._tracing is not None:
            sampled = self._submit_sampled(self._tracing, arguments, key)
            if sampled is not None:
                return sampled
        known = self._links.states.find(arguments[0], arguments[1])
        if known is not None:
            return self._batching.add(known, arguments, key)
        query = self._batching.query_of(arguments)
        return self._loop.create_task(self._first_get(query, arguments, key))

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
        wait_s: float | None = None,
        return_errors: bool = False,
    ) -> dict[Key, Any]:
        """The view, or None, of each key. The client splits any number of keys into requests as needed.

        The values of one call may be of different moments: each has its own epoch. If any key failed, raises the error
        of the first that did, and returns no values: with `wait_s`, as soon as it is known which keys fail. With
        `return_errors`, a key that failed has its `QueryError` in the place of a view.
        """
        asked = keys_of(keys)
        query = query_of(
            job, state, namespace, isolation, min_epoch=min_epoch, max_staleness_s=max_staleness_s, wait_s=wait_s
        )
        found = [MISS] * len(asked) if self._cache is None else self._cache.find(query, asked)
        missing = tuple(key for key, view in zip(asked, found, strict=True) if view is MISS)
        if missing or not asked:
            rest = await self._asked(query, missing, self._deadline(timeout_s), return_errors=return_errors)
            found = with_misses(found, rest)
        return dict(zip(asked, found, strict=True))

    def scan(
        self,
        job: str,
        state: str,
        prefix: str | bytes | tuple[Column, ...] | None = None,
        isolation: str = LIVE,
        *,
        namespace: Namespace | EllipsisType = EVERY_NAMESPACE,
        key_groups: tuple[int, int] | range | None = None,
        limit: int | None = None,
        cursor: bytes | None = None,
        values: bool = True,
        timeout_s: float | None = None,
        min_epoch: int | None = None,
        max_staleness_s: float | None = None,
    ) -> AsyncScanResults[Any]:
        """Iterate, with `async for`, over the keys of a state that have a value.

        See `QueryableStateClient.scan`.
        """
        selected = Selected(prefix, namespace, key_groups, limit, cursor)
        demands = {"min_epoch": min_epoch, "max_staleness_s": max_staleness_s}
        scanner = Scanner((job, state), selected, isolation, "values" if values else "keys", demands)
        return AsyncScanResults(scanner, partial(self._page, timeout_s=timeout_s))

    async def count(
        self,
        job: str,
        state: str,
        prefix: str | bytes | tuple[Column, ...] | None = None,
        isolation: str = LIVE,
        *,
        namespace: Namespace | EllipsisType = EVERY_NAMESPACE,
        key_groups: tuple[int, int] | range | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """How many keys `scan` would visit. A key counts once in each namespace."""
        scanner = Scanner((job, state), Selected(prefix, namespace, key_groups), isolation, "count", {})
        async for _ in AsyncScanResults(scanner, partial(self._page, timeout_s=timeout_s)):
            pass
        return scanner.count

    async def namespaces(
        self, job: str, state: str, key: Key, isolation: str = LIVE, *, timeout_s: float | None = None
    ) -> list[Namespace]:
        """The namespaces in which the key has a value, such as its windows; None is the void namespace."""
        query = query_of(job, state, None, LIVE)
        check_names(job, state)
        query.check_keys((key,))
        known = self._links.states.find(job, state) or await self._learn(query, self._deadline(timeout_s))
        group = key_group(key, known.max_parallelism)
        groups = (group, group + 1)
        found = self.scan(job, state, key_only(key), isolation, key_groups=groups, values=False, timeout_s=timeout_s)
        return [entry.namespace async for entry in found]

    def subscribe(
        self,
        job: str,
        state: str,
        key: Key | None = None,
        *,
        keys: Iterable[Key] | None = None,
        prefix: str | bytes | tuple[Column, ...] | None = None,
        namespace: Namespace | EllipsisType = EVERY_NAMESPACE,
        from_epoch: int | None = None,
        token: str | None = None,
        progress_s: float = DEFAULT_PROGRESS_S,
        patience_s: float = DEFAULT_PATIENCE_S,
    ) -> AsyncSubscription:
        """Every committed change of one key, some keys or all keys of a state: see `QueryableStateClient.subscribe`."""
        wanted = wanted_of(
            (job, state),
            key,
            keys,
            namespace,
            prefix=prefix,
            from_epoch=from_epoch,
            token=token,
            progress_s=progress_s,
            patience_s=patience_s,
            timeout_s=self._timeout_s,
        )
        if self._links.closed:
            raise ClosedError("the client is closed")
        links = self._links_of_subscriptions()
        return AsyncSubscription(links, Subscribing(links, wanted))

    def cache_statistics(self) -> CacheStatistics:
        """How many keys the cache has answered, and what it holds. Raises `ConfigError` for a client without one."""
        if self._cache is None:
            raise ConfigError("this client has no cache: make it with cache=ClientCache(...)")
        return self._cache.statistics()

    def _links_of_subscriptions(self) -> AsyncLinks:
        if self._long_links is None:
            self._long_links = AsyncLinks(*self._connections.links())
        return self._long_links

    async def jobs(self, *, timeout_s: float | None = None) -> list[str]:
        """The names of the jobs that the proxy serves. `timeout_s` is the time limit of each page of them."""
        return [entry["job"] for entry in await self._listed(Listing(None), CallOperation, timeout_s)]

    async def states(self, job: str, *, timeout_s: float | None = None) -> list[Mapping[str, Any]]:
        """The queryable states of a job: `name`, `kind`, `serializer`, `key_types`, `value_type`, `capabilities`.

        Asks the fallbacks when the job does not answer. `timeout_s` is the time limit of each page of descriptions.
        """
        check_name("job", job)
        return await self._listed(Listing(job), call_operation, timeout_s)

    async def locate(self, job: str, state: str, *, timeout_s: float | None = None) -> LocationTable:
        """The description of a state, the number of its key groups and their owners, looked up again.

        See `QueryableStateClient.locate`.
        """
        check_names(job, state)
        call = call_operation(self._links, Locate(0, 0, job, state), self._deadline(timeout_s))
        (location,) = await self._finish(call)
        return LocationTable.from_message(job, location)

    async def ping(self, *, timeout_s: float | None = None) -> float:
        """The round trip to the proxy in seconds. Raises `Unavailable` or `DeadlineExceeded` without an answer."""
        (took_s,) = await self._finish(CallOperation(self._links, Ping, self._deadline(timeout_s)))
        return float(took_s)

    async def close(self) -> None:
        """Close every connection. Unfinished requests and every later use raise `ClosedError`. Idempotent."""
        self._batching.send_all()
        await self._links.close()
        if self._long_links is not None:
            await self._long_links.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {addresses_text(self._links.endpoints)}{', closed' * self._links.closed}>"

    def _repr_html_(self) -> str:
        """The client as a table, for notebooks. It asks the servers nothing."""
        state = "closed" if self._links.closed else "open"
        return html_table(type(self).__name__, ["proxies", "state"], [[addresses_text(self._links.endpoints), state]])

    async def __aenter__(self) -> AsyncQueryableStateClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else check_timeout(timeout_s))

    def _cached(self, cache: CommittedCache, arguments: GetArguments, key: Key) -> Any:
        """The view that the cache has for a get, None for no value, or `MISS`. Raises `ConfigError`."""
        job, state, namespace, isolation, _, min_epoch, max_staleness_s, _ = arguments
        if isolation != COMMITTED:
            return MISS
        query = query_of(job, state, namespace, isolation, min_epoch=min_epoch, max_staleness_s=max_staleness_s)
        return cache.find(query, (key,))[0]

    async def _asked(self, query: Query, keys: tuple[Key, ...], deadline: float, *, return_errors: bool) -> list[Any]:
        """What the servers answer to a get, within a span if there is tracing."""
        if self._links.states.find(query.job, query.state) is None:
            # For a known state, encoding the request checks its keys.
            check_names(query.job, query.state)
            query.check_keys(keys)
        if self._tracing is None:
            return await self._read(query, keys, deadline, return_errors=return_errors)
        span = self._tracing.of_client(query.job, query.state, len(keys))
        with self._tracing.ended(span):
            query = replace(query, attributes=self._tracing.carried(span))
            return await self._read(query, keys, deadline, return_errors=return_errors)

    async def _read(
        self, query: Query, keys: tuple[Key, ...], deadline: float, *, return_errors: bool = False
    ) -> list[Any]:
        get = failover_get if self._links.endpoints.may_answer(query) else GetOperation
        return await self._finish(get(self._links, query, keys, deadline), len(keys) if return_errors else 0)

    def _submit_sampled(self, tracing: Tracing, arguments: GetArguments, key: Key) -> asyncio.Future[Any] | None:
        """`submit` for a sampled trace: a request of its own carries the span. None when the trace is not sampled."""
        span = tracing.of_client(arguments[0], arguments[1], 1)
        carried = tracing.carried(span)
        if not carried:
            span.end()
            return None
        query = replace(self._batching.query_of(arguments), attributes=carried)
        return self._loop.create_task(self._sampled_get(tracing, span, query, arguments, key))

    async def _sampled_get(self, tracing: Tracing, span: Any, query: Query, arguments: GetArguments, key: Key) -> Any:
        with tracing.ended(span):
            query.check_keys((key,))
            return (await self._read(query, (key,), self._deadline(arguments[4])))[0]

    async def _first_get(self, query: Query, arguments: GetArguments, key: Key) -> Any:
        """Get a value of a state that is not in the job's cache yet."""
        query.check_keys((key,))
        deadline = self._deadline(arguments[4])
        endpoints = self._links.endpoints
        has_fallbacks = endpoints.may_answer(query)
        known = endpoints.find(query.job, query.state) if has_fallbacks else await self._learn(query, deadline)
        if known is not None:
            return await self._batching.add(known, arguments, key, deadline)
        # The first endpoint to answer describes the state, so this get cannot join a batch.
        found = await self._finish(failover_get(self._links, query, (key,), deadline))
        return found[0]

    async def _listed(
        self, listing: Listing, call: Callable[..., Operation], timeout_s: float | None
    ) -> list[Mapping[str, Any]]:
        """All entries: `call` makes the operation that asks for a page of them."""
        while not listing.take(*await self._finish(call(self._links, listing.request, self._deadline(timeout_s)))):
            pass
        return listing.entries

    async def _page(self, scanner: Scanner, request: Scan, timeout_s: float | None) -> tuple[Page, CachedState]:
        """Ask for a page, again if its connection breaks."""
        while True:
            try:
                return await self._one(scanner.query, request, timeout_s)
            except QueryError as error:
                await asyncio.sleep(scanner.failed(error))

    async def _part(self, asked: AskedPart) -> tuple[Part, CachedState]:
        with asked.traced(self._tracing) as (query, request, timeout_s):
            return await self._one(query, request, timeout_s)

    async def _one(self, query: Query, request: Scan | GetPart, timeout_s: float | None) -> tuple[Any, CachedState]:
        """The answer to a request that one owner answers, and what is known of the state."""
        operation = one_operation(self._links, query, request, self._deadline(timeout_s))
        (answer,) = await self._finish(operation)
        return answer, operation.known

    async def _finish(self, operation: Operation, errors_of: int = 0) -> list[Any]:
        """Start the operation and wait for its end. Returns its result; with `errors_of` so many keys, their errors."""
        future = self._wait_for(operation)
        self._links.start(operation)
        try:
            await future
        except asyncio.CancelledError:
            operation.fail(QueryCancelled())
            raise
        return operation.result_of_each(errors_of) if errors_of else operation.result()

    async def _learn(self, query: Query, deadline: float) -> CachedState:
        """Look up a state. Tasks that ask at the same time share one look-up, each with its own deadline."""
        target = query.job, query.state
        while True:
            operation = self._learning.get(target)
            if operation is None or operation.finished:
                until = max(deadline, self._deadline(None))
                operation = self._learning[target] = LearnOperation(self._links, query, until)
                future = self._wait_for(operation)
                self._links.start(operation)
            else:
                future = self._wait_for(operation)
            await asyncio.wait([future], timeout=deadline - time.monotonic())
            if not operation.finished:
                raise DeadlineExceeded()
            self._learning.pop(target, None)
            if not isinstance(operation.error, DeadlineExceeded) or time.monotonic() >= deadline:
                return operation.results()[0]

    def _wait_for(self, operation: Operation) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        operation.waiters.append(partial(settle, future))
        return future
