"""What the asyncio client gives: the entries of a scan, the changes of a subscription.

Rules of this module: it waits in the client's links; it knows neither the client nor what a request is about.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from qstate.errors import ClosedError, QueryError
from qstate.protocol.messages import Page
from qstate.runtime.client.async_transport import AsyncLinks
from qstate.runtime.client.scanning import RELEASE_TIMEOUT_S, ScannedEntry, Scanner, ScanPosition
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.client.subscribing import Subscribing
from qstate.runtime.client.subscriptions import ChangeBatch

__all__ = ["AsyncScanResults", "AsyncSubscription", "settle"]

View = TypeVar("View")


class AsyncScanResults(ScanPosition[View]):
    """The entries of a scan, an asynchronous iterator that asks for page after page. One task at a time may use it.

    `aclose` frees what the server keeps for the scan; so does its last page, and the server does a minute later.
    """

    def __init__(self, scanner: Scanner, page_of: Callable[..., Awaitable[tuple[Page, CachedState]]]) -> None:
        """`page_of(scanner, request, timeout_s=...)` asks for a page; the time limit need not be given."""
        super().__init__(scanner)
        self._page_of = page_of

    def __aiter__(self) -> AsyncScanResults[View]:
        return self

    async def __anext__(self) -> ScannedEntry[View]:
        while True:
            found = self._next()
            if found is not None:
                return found
            if self._scanner.over:
                raise StopAsyncIteration
            self._entries = self._scanner.take(*await self._page_of(self._scanner, self._scanner.request))

    async def aclose(self) -> None:
        """End the scan. Idempotent; raises nothing when the server cannot be reached."""
        release = self._scanner.end()
        self._entries = iter(())
        if release is not None:
            with contextlib.suppress(QueryError):
                await self._page_of(self._scanner, release, timeout_s=RELEASE_TIMEOUT_S)

    async def __aenter__(self) -> AsyncScanResults[View]:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


class AsyncSubscription:
    """The changes of a state, batch by batch: an asynchronous iterator. One task at a time may use it.

    See `Subscription`. A task that is cancelled while it waits loses no batch. A subscription that is dropped is
    closed.
    """

    def __init__(self, links: AsyncLinks, subscribing: Subscribing) -> None:
        self._loop = asyncio.get_running_loop()
        self._links = links
        self._subscribing = subscribing
        self._closed = False
        #: What each batch goes through: that of a typed handle gives its values the declared type.
        self.typed: Callable[[ChangeBatch], ChangeBatch] | None = None

    async def next_batch(self, timeout_s: float | None = None) -> ChangeBatch | None:
        """Wait for the next batch, None after `timeout_s` seconds without one. Raises as `subscribe` says."""
        if self._closed:
            raise ClosedError("the subscription is closed")
        waiting = self._subscribing.next_batch()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.waiters.append(partial(settle, future))
        self._links.start(waiting)
        try:
            await asyncio.wait([future], timeout=timeout_s)
        finally:
            ended = waiting.finished
            waiting.abandon()
        if not ended:
            return None
        batch = waiting.results()[0]
        return batch if self.typed is None else self.typed(batch)

    @property
    def failure(self) -> QueryError | None:
        """Why some keys have no answer since their last one: the subscription asks again. None while all have."""
        return self._subscribing.failure

    async def aclose(self) -> None:
        """Ask for nothing more. Idempotent."""
        self._closed = True
        self._subscribing.close()

    def __del__(self) -> None:
        # A cancelled task drops it, as a `break` does. Any thread may collect it.
        if not self._closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._subscribing.close)

    def __aiter__(self) -> AsyncSubscription:
        return self

    async def __anext__(self) -> ChangeBatch:
        if self._closed:
            raise StopAsyncIteration
        batch = await self.next_batch()
        assert batch is not None
        return batch

    async def __aenter__(self) -> AsyncSubscription:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()


def settle(future: asyncio.Future[None]) -> None:
    """End the wait for an operation."""
    if not future.done():
        future.set_result(None)
