"""The synchronous client: read the state of running jobs by key.

Rules of this module: the public surface and nothing else. `sync_transport` sends requests, `operations` and `failover`
retry them, and `qstate.views` are their results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from random import Random
from types import EllipsisType
from typing import Any, TypeVar, overload

from msgspec.structs import replace

from qstate.errors import ConfigError, QueryError
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
from qstate.runtime.client.caching.committed_cache import MISS, CommittedCache, check_cache, with_misses
from qstate.runtime.client.caching.kept_values import CacheStatistics, ClientCache
from qstate.runtime.client.failover import call_operation, failover_get, one_operation
from qstate.runtime.client.operations import CallOperation, GetOperation, LearnOperation, Operation
from qstate.runtime.client.query import COMMITTED, LIVE, Query
from qstate.runtime.client.results.descriptions import Listing
from qstate.runtime.client.results.state_handle import StateHandle
from qstate.runtime.client.results.sync_parts import SyncParts
from qstate.runtime.client.results.sync_results import QueryFuture, ScanResults, Subscription
from qstate.runtime.client.results.value_parts import AskedPart
from qstate.runtime.client.scanning import EVERY_NAMESPACE, Scanner, Selected, key_only
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.client.subscribing import Subscribing
from qstate.runtime.client.subscriptions import DEFAULT_PATIENCE_S, DEFAULT_PROGRESS_S, wanted_of
from qstate.runtime.client.sync_transport import SyncLinks
from qstate.runtime.control.tracing import Tracing
from qstate.runtime.routing.location import LocationTable
from qstate.serializers import Serializer
from qstate.tls import ClientTls
from qstate.values.html_tables import html_table
from qstate.views import ReadOnlyState

__all__ = ["QueryFuture", "QueryableStateClient", "ScanResults", "Subscription"]

Client = TypeVar("Client", bound="QueryableStateClient")
View = TypeVar("View", bound=ReadOnlyState)


class QueryableStateClient(SyncParts):
    """Reads the state of running jobs from the state servers that own it, and through a client proxy.

    Any number of threads may share one client. It has one connection to each peer, which carries many requests at a
    time, and no background thread. The first request connects. The client tries a proxy that it never reached and that
    refuses the connection once more, then fails. Later it makes a lost connection again, and looks a state that moved
    up again, within the deadline (`timeout_s`) of each request. A request that was sent when its connection broke fails
    with `Unavailable`: the client does not send it again, because it may have killed the server.

    The proxy says where a state is. The client then connects to the owners of the state's keys, beside its requests. It
    asks owners that it has reached itself; the proxy asks the others. So the client needs a path to the proxy only.

    The server describes each state: a caller needs only the job, the state's queryable name and the key. `serializers`
    are needed only for states whose descriptor has a serializer of its own.

    `proxies` are the addresses of further proxies of the job. The client stays with the one that answers, and goes on
    to the next one when that is lost, refuses connections, is silent, shuts down or is overloaded. A name with several
    addresses counts as several proxies. Clients begin at random proxies of their list. A request that was not sent, or
    whose proxy is silent, is sent to the next proxy within its deadline.

    `fallback` are addresses of standby servers. The client sends them `committed` queries while the job's own proxy
    does not answer. Such an answer may be of an earlier epoch than one that this client has seen, unless the query sets
    `min_epoch`. `live` queries never go to a standby server.

    A client does not survive `fork`: in the child every use raises `ClosedError`; make a new client there.
    """

    def __init__(
        self,
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
    ) -> None:
        """Make a client of the proxy at `host` and `port`. Connects at the first request.

        `proxies` are (host, port) of the job's other proxies.
        `direct=False` sends all requests to the proxy. `direct=True` sends every get to the owners, and a get waits for
        the connection to its owner. `timeout_s` is the deadline, in seconds, of requests without a `timeout_s` of their
        own. `max_frame` bounds an answer's bytes. `fallback` are (host, port) of proxies; the client sends them the
        same `token`. With `tls` every connection is encrypted, and every server must prove itself. Without it, the
        token goes to loopback only, unless `allow_token_without_tls`. With `tracing`, each get, page and poll makes an
        OpenTelemetry span, whose context its requests carry. `cache` holds committed values that were asked for, and
        answers committed `get` and `get_many` of them. `random` draws the jitter of retries. Raises
        `ConfigError`, and `InstallationError` when `tracing` needs a package.
        """
        self._timeout_s = check_timeout(timeout_s)
        settings = check_cache(cache)
        self._tracing = Tracing() if tracing else None
        self._connections = ConnectionArguments(
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
            tracing=self._tracing,
        )
        self._links = SyncLinks(*self._connections.links())
        #: The connections of subscriptions. Made by the first one.
        self._long_links: SyncLinks | None = None
        self._cache: CommittedCache | None = None
        if settings is not None:
            links = self._links_of_subscriptions()
            self._links.keeper = self._cache = CommittedCache(settings, links, lambda: links.lock, links.look)

    @overload
    def state(self, job: str, name: str, *, isolation: str = LIVE) -> StateHandle[Any]: ...

    @overload
    def state(self, job: str, name: str, view: type[View], *, isolation: str = LIVE) -> StateHandle[View]: ...

    def state(self, job: str, name: str, view: type[Any] = ReadOnlyState, *, isolation: str = LIVE) -> StateHandle[Any]:
        """The handle of one state: `[key]`, `get`, `get_many`, `scan`, `count` and `subscribe` without the names.

        `view` is the type of its views, and of their values: `ReadOnlyValueState[Reading]` gives objects of the
        dataclass `Reading`. A value that does not have the declared type raises `SerializationError` when it is read,
        and so does a state of another kind. `isolation` is that of all its reads.

        Asks nothing yet. Raises `ConfigError`.
        """
        return StateHandle(self, (job, name), view, isolation)

    def get(
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
        query = query_of(
            job, state, namespace, isolation, min_epoch=min_epoch, max_staleness_s=max_staleness_s, wait_s=wait_s
        )
        return self._read(query, (key,), timeout_s)[0]

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
    ) -> QueryFuture[Any]:
        """`get` without waiting: sends the request and returns a future of the view."""
        query = query_of(
            job, state, namespace, isolation, min_epoch=min_epoch, max_staleness_s=max_staleness_s, wait_s=wait_s
        )
        span = None
        if self._tracing is not None:
            span, query = self._traced(self._tracing, query, 1)
        operation = self._get(query, (key,), timeout_s)
        with self._links.lock:
            self._links.start(operation)
        return QueryFuture(self._links, operation, self._tracing, span)

    def get_many(
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
        found = self._read(query, asked, timeout_s, return_errors=return_errors)
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
    ) -> ScanResults[Any]:
        """Iterate over the keys of a state that have a value: `ScannedEntry(key, namespace, view)`.

        `prefix` selects keys by their first column, which begins with this text or these bytes, or, as a tuple, by
        their first columns. `namespace` selects one namespace (None: the void one; by default all), `key_groups` a
        range of key groups. With `values=False` each view is None. `limit` ends the scan after so many entries.

        The entries come by key group, namespace and key, in pages: neither the client nor the server holds more than a
        page. A `committed` scan shows one epoch of each owner of the state from begin to end, of `min_epoch` or later,
        which contains everything that was committed more than `max_staleness_s` seconds before it began to read from
        that owner. A `live` scan sees writes as they happen: each entry is as a live `get` would show it.

        The scan goes on at the next owner when one is lost, without a gap and without a repetition. `timeout_s` is the
        time limit of each page. `cursor` goes on where an earlier scan was.

        Raises, now or from the iterator, what `get` raises; `ScanExpired` when a minute passed between two pages. A
        value that fails, such as one over `max_frame`, raises in its place; the iterator then goes on with the next.
        """
        selected = Selected(prefix, namespace, key_groups, limit, cursor)
        demands = {"min_epoch": min_epoch, "max_staleness_s": max_staleness_s}
        scanner = Scanner((job, state), selected, isolation, "values" if values else "keys", demands)
        return ScanResults(scanner, partial(self._page, timeout_s=timeout_s))

    def count(
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
        for _ in ScanResults(scanner, partial(self._page, timeout_s=timeout_s)):
            pass
        return scanner.count

    def namespaces(
        self, job: str, state: str, key: Key, isolation: str = LIVE, *, timeout_s: float | None = None
    ) -> list[Namespace]:
        """The namespaces in which the key has a value, such as its windows; None is the void namespace."""
        query = query_of(job, state, None, LIVE)
        check_names(job, state)
        query.check_keys((key,))
        known = self._links.states.find(job, state)
        if known is None:
            (known,) = self._finish(LearnOperation(self._links, query, self._deadline(timeout_s)))
        group = key_group(key, known.max_parallelism)
        groups = (group, group + 1)
        found = self.scan(job, state, key_only(key), isolation, key_groups=groups, values=False, timeout_s=timeout_s)
        return [entry.namespace for entry in found]

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
    ) -> Subscription:
        """Every committed change of one key, some keys or all keys of a state, in batches: see `ChangeBatch`.

        `prefix` selects keys as that of `scan`. It begins with a snapshot of the keys; or, without one, with the first
        change of `from_epoch`; or with what comes after the batch that gave the `token`. Then come the changes of each
        epoch, once, in the order of the epochs. A batch has all selected changes of one epoch in a range of key groups.
        Different ranges may be at different epochs for a moment. `namespace` selects one, None being the void
        namespace; without it, a subscription of keys is about the void namespace, any other about all.

        While epochs are committed without such changes, a batch without changes comes about every `progress_s` seconds.
        While none is committed, none comes. The subscription survives restarts of the job, losses of task managers and
        other parallelisms; while the job does not answer, the `fallback` servers are asked.

        Iterating raises `Compacted` when the changes that come next are not stored any more (`retained_snapshots` and
        `snapshot_interval` decide how long they are), the last failure when there was no answer for `patience_s`
        seconds, `SerializationError`, `ClosedError`. This method raises `ConfigError` and `WrongKeyType`.
        """
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
        links = self._links_of_subscriptions()
        return Subscription(links, Subscribing(links, wanted))

    def cache_statistics(self) -> CacheStatistics:
        """How many keys the cache has answered, and what it holds. Raises `ConfigError` for a client without one."""
        if self._cache is None:
            raise ConfigError("this client has no cache: make it with cache=ClientCache(...)")
        return self._cache.statistics()

    def jobs(self, *, timeout_s: float | None = None) -> list[str]:
        """The names of the jobs that the proxy serves. `timeout_s` is the time limit of each page of them."""
        return [entry["job"] for entry in self._listed(Listing(None), CallOperation, timeout_s)]

    def states(self, job: str, *, timeout_s: float | None = None) -> list[Mapping[str, Any]]:
        """The queryable states of a job: `name`, `kind`, `serializer`, `key_types`, `value_type`, `capabilities`.

        Asks the fallbacks when the job does not answer. `timeout_s` is the time limit of each page of descriptions.
        """
        check_name("job", job)
        return self._listed(Listing(job), call_operation, timeout_s)

    def locate(self, job: str, state: str, *, timeout_s: float | None = None) -> LocationTable:
        """The description of a state, the number of its key groups and their owners, looked up again.

        Groups without an owner are of one that restarts. Asks the fallbacks when the job does not answer. Raises the
        `QueryError` of the failure.
        """
        check_names(job, state)
        call = call_operation(self._links, Locate(0, 0, job, state), self._deadline(timeout_s))
        (location,) = self._finish(call)
        return LocationTable.from_message(job, location)

    def ping(self, *, timeout_s: float | None = None) -> float:
        """The round trip to the proxy in seconds. Raises `Unavailable` or `DeadlineExceeded` without an answer."""
        (took_s,) = self._finish(CallOperation(self._links, Ping, self._deadline(timeout_s)))
        return float(took_s)

    def close(self) -> None:
        """Close every connection. Unfinished requests and every later use raise `ClosedError`. Idempotent."""
        with self._links.lock:
            self._links.close()
            links = self._long_links
        if links is not None:
            with links.lock:
                links.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {addresses_text(self._links.endpoints)}{', closed' * self._links.closed}>"

    def _repr_html_(self) -> str:
        """The client as a table, for notebooks. It asks the servers nothing."""
        state = "closed" if self._links.closed else "open"
        return html_table(type(self).__name__, ["proxies", "state"], [[addresses_text(self._links.endpoints), state]])

    def __enter__(self: Client) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _deadline(self, timeout_s: float | None) -> float:
        return time.monotonic() + (self._timeout_s if timeout_s is None else check_timeout(timeout_s))

    def _links_of_subscriptions(self) -> SyncLinks:
        with self._links.lock:
            if self._long_links is None:
                self._long_links = SyncLinks(*self._connections.links())
            return self._long_links

    def _read(
        self, query: Query, keys: tuple[Key, ...], timeout_s: float | None, *, return_errors: bool = False
    ) -> list[Any]:
        """The results of a get: of the cache, and for the other keys of the servers, in a span if there is tracing."""
        cached: list[Any] | None = None
        if self._cache is not None and query.isolation == COMMITTED:
            cached = self._cache.find(query, keys)
            keys = tuple(key for key, view in zip(keys, cached, strict=True) if view is MISS)
            if not keys:
                return cached
        errors_of = len(keys) if return_errors else 0
        if self._tracing is None:
            found = self._finish(self._get(query, keys, timeout_s), errors_of)
        else:
            span, query = self._traced(self._tracing, query, len(keys))
            with self._tracing.ended(span):
                found = self._finish(self._get(query, keys, timeout_s), errors_of)
        return found if cached is None else with_misses(cached, found)

    def _traced(self, tracing: Tracing, query: Query, keys: int) -> tuple[Any, Query]:
        """A new span, and the query whose requests carry it."""
        span = tracing.of_client(query.job, query.state, keys)
        return span, replace(query, attributes=tracing.carried(span))

    def _get(self, query: Query, keys: tuple[Key, ...], timeout_s: float | None) -> Operation:
        deadline = self._deadline(timeout_s)
        if self._links.states.find(query.job, query.state) is None:
            # For a known state, encoding the request checks its keys.
            check_names(query.job, query.state)
            query.check_keys(keys)
        get = failover_get if self._links.endpoints.may_answer(query) else GetOperation
        return get(self._links, query, keys, deadline)

    def _listed(
        self, listing: Listing, call: Callable[..., Operation], timeout_s: float | None
    ) -> list[Mapping[str, Any]]:
        """All entries: `call` makes the operation that asks for a page of them."""
        while not listing.take(*self._finish(call(self._links, listing.request, self._deadline(timeout_s)))):
            pass
        return listing.entries

    def _page(self, scanner: Scanner, request: Scan, timeout_s: float | None) -> tuple[Page, CachedState]:
        """Ask for a page, again if its connection breaks."""
        while True:
            try:
                return self._one(scanner.query, request, timeout_s)
            except QueryError as error:
                time.sleep(scanner.failed(error))

    def _part(self, asked: AskedPart) -> tuple[Part, CachedState]:
        with asked.traced(self._tracing) as (query, request, timeout_s):
            return self._one(query, request, timeout_s)

    def _one(self, query: Query, request: Scan | GetPart, timeout_s: float | None) -> tuple[Any, CachedState]:
        """The answer to a request that one owner answers, and what is known of the state."""
        operation = one_operation(self._links, query, request, self._deadline(timeout_s))
        (answer,) = self._finish(operation)
        return answer, operation.known

    def _finish(self, operation: Operation, errors_of: int = 0) -> list[Any]:
        """Start the operation and wait until it is finished, at its deadline at the latest. Returns its result.

        With `errors_of` so many keys, their errors are results.
        """
        links = self._links
        with links.lock:
            links.start(operation)
            links.wait(operation, operation.deadline)
        return operation.result_of_each(errors_of) if errors_of else operation.result()
