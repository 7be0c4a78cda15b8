"""The batching of the asyncio client: the single gets of one turn of the loop share requests.

Rules of this module: it collects gets and gives each its own result, error and cancellation. `failover` and
`operations` send the batches.

Gets of one turn of the event loop with the same state, namespace, isolation, timeout and demands are a batch. A batch
is one request to each owner, or two, so each get costs a fraction of a message and a system call.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any

from qstate.errors import ClosedError, QStateError, QueryCancelled, WrongKeyType
from qstate.keys import Key, Namespace, check_key, key_identity
from qstate.runtime.client.arguments import check_names, check_timeout, query_of
from qstate.runtime.client.async_transport import AsyncLinks
from qstate.runtime.client.failover import failover_get
from qstate.runtime.client.operations import GetOperation, Operation
from qstate.runtime.client.query import Query
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.routing.location import UNSOUND_KEY

__all__ = ["Batching", "GetArguments"]

#: The first batch of a turn is sent with this many keys, so that the server works while the client collects more: a
#: third more gets a second with 64 in flight. The rest of the turn is one batch: with 256 in flight, batches of 32
#: each gave a sixth to a quarter fewer gets a second. When several servers share the keys the whole turn is one batch,
#: because twice as many requests cost more than that gains: a third of the gets with four servers, a quarter of the
#: processors of two.
FIRST_BATCH_KEYS = 32
#: What the gets of a batch have in common, as the caller passed it: job, state, namespace, isolation, timeout, least
#: epoch, staleness and waiting time. It is made and hashed for each get, so it is a tuple; a batch has one `Query`,
#: made of it.
GetArguments = tuple[str, str, Namespace, str, float | None, int | None, float | None, float | None]
#: The keys of one owner, and a future for each key.
_Share = tuple[Sequence[Key], Sequence[asyncio.Future[Any]]]


class _Batch:
    """Gets of one query, to be sent together."""

    __slots__ = ("deadline", "futures", "keys", "query", "timeout_s")

    def __init__(self, query: Query, timeout_s: float) -> None:
        self.query = query
        self.timeout_s = timeout_s
        #: Of the gets that have waited for a look-up; the time of the others begins when the request is sent.
        self.deadline = math.inf
        self.keys: list[Key] = []
        self.futures: list[asyncio.Future[Any]] = []

    def add(self, key: Key, future: asyncio.Future[Any], deadline: float) -> None:
        self.keys.append(key)
        self.futures.append(future)
        if deadline < self.deadline:
            self.deadline = deadline


class Batching:
    """The batches of one client. Use it in the loop's thread."""

    def __init__(self, links: AsyncLinks, timeout_s: float) -> None:
        self._links = links
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._batches: dict[Any, _Batch] = {}
        #: Whether this turn's first batch has been sent.
        self._sent_early = False

    def query_of(self, arguments: GetArguments) -> Query:
        """The query of a get whose state is not known. Raises `ClosedError`, `ConfigError`."""
        query = self._new_batch(arguments).query
        check_names(query.job, query.state)
        return query

    def add(
        self, known: CachedState, arguments: GetArguments, key: Key, deadline: float = math.inf
    ) -> asyncio.Future[Any]:
        """Add a get of a known state to its batch of this turn. Raises `ClosedError`, `ConfigError`."""
        future = self._loop.create_future()
        if type(key) is not known.key_class or arguments[2] is not None:
            try:
                check_key(key)
                check_key("" if arguments[2] is None else arguments[2])
            except WrongKeyType as exc:
                future.set_exception(exc)
                return future
            if not known.suits(key):
                # Unless the state has changed meanwhile, the server refuses this key's whole request: send it alone.
                alone = self._new_batch(arguments)
                alone.add(key, future, deadline)
                self._send(alone)
                return future
        # In a dict, the namespace True equals 1.
        place = arguments if arguments[2] is None else (arguments, key_identity(arguments[2]))
        try:
            batch = self._batches.get(place)
        except TypeError:
            self._new_batch(arguments)  # its error names the argument that is not hashable
            raise
        if batch is None:
            batch = self._batches[place] = self._new_batch(arguments)
            if len(self._batches) == 1:
                self._loop.call_soon(self.send_all)
        batch.add(key, future, deadline)
        if len(batch.keys) == FIRST_BATCH_KEYS and not self._sent_early and known.table.sole_owner is not None:
            self._sent_early = True
            del self._batches[place]
            self._send(batch)
        return future

    def send_all(self) -> None:
        """Send the batches of this turn."""
        batches, self._batches = self._batches, {}
        self._sent_early = False
        for batch in batches.values():
            self._send(batch)

    def cancel_unwanted(self) -> None:
        """Cancel the requests of whose gets none is waited for any more."""
        for operation in self._links.live():
            for notify in operation.waiters:
                if isinstance(notify, partial) and notify.func is _deliver and all(it.done() for it in notify.args[1]):
                    operation.fail(QueryCancelled())
                    break

    def _new_batch(self, arguments: GetArguments) -> _Batch:
        if self._links.closed:
            raise ClosedError("the client is closed")
        job, state, namespace, isolation, timeout_s, min_epoch, max_staleness_s, wait_s = arguments
        query = query_of(
            job, state, namespace, isolation, min_epoch=min_epoch, max_staleness_s=max_staleness_s, wait_s=wait_s
        )
        return _Batch(query, self._timeout_s if timeout_s is None else check_timeout(timeout_s))

    def _send(self, batch: _Batch) -> None:
        deadline = min(batch.deadline, time.monotonic() + batch.timeout_s)
        get = failover_get if self._links.endpoints.may_answer(batch.query) else GetOperation
        for keys, futures in self._shares(batch):
            operation = get(self._links, batch.query, tuple(keys), deadline)
            operation.waiters.append(partial(_deliver, operation, futures))
            self._links.start(operation)

    def _shares(self, batch: _Batch) -> Iterable[_Share]:
        """The gets by owner, so that no get waits for the owner of another key, nor for its restart."""
        keys, futures = batch.keys, batch.futures
        known = self._links.states.find(batch.query.job, batch.query.state)
        if known is None or known.table.sole_owner is not None or self._links.endpoints.may_answer(batch.query):
            return [(keys, futures)]
        try:
            shares = known.table.split(keys)
        except UNSOUND_KEY:
            # `RoutedGet` fails the unsound key and sends the others.
            return [(keys, futures)]
        return [([keys[at] for at in found], [futures[at] for at in found]) for _, found in shares]


def _deliver(operation: Operation, futures: Sequence[asyncio.Future[Any]]) -> None:
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
