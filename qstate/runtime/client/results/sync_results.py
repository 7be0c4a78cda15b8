"""What the synchronous client gives: the future of a request, the entries of a scan, the changes of a subscription.

Rules of this module: it waits in the client's links; it knows neither the client nor what a request is about.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from qstate.errors import ClosedError, QueryCancelled, QueryError
from qstate.protocol.messages import Page
from qstate.runtime.client.operations import Operation
from qstate.runtime.client.scanning import RELEASE_TIMEOUT_S, ScannedEntry, Scanner, ScanPosition
from qstate.runtime.client.state_cache import CachedState
from qstate.runtime.client.subscribing import Subscribing
from qstate.runtime.client.subscriptions import ChangeBatch
from qstate.runtime.client.sync_transport import SyncLinks
from qstate.runtime.control.tracing import EndedOnce, Tracing

__all__ = ["QueryFuture", "ScanResults", "Subscription"]

Value = TypeVar("Value")
View = TypeVar("View")


class QueryFuture(Generic[Value]):
    """The result of a request that is in progress. Any number of threads may use it.

    The client starts no thread: requests make progress while some thread waits in the client for any result, or calls
    `done()`.
    """

    __slots__ = ("_links", "_operation", "_span", "_tracing")

    def __init__(
        self, links: SyncLinks, operation: Operation, tracing: Tracing | None = None, span: Any = None
    ) -> None:
        self._links = links
        self._operation = operation
        self._tracing = tracing
        #: It ends when the result is asked for first.
        self._span = None if span is None else EndedOnce(span)

    def done(self) -> bool:
        """Whether there is a result or an error. Never waits."""
        with self._links.lock:
            return self._links.look(self._operation)

    def result(self, timeout_s: float | None = None) -> Value:
        """Wait for the result, at most until the request's deadline.

        Raises the request's `QueryError`, `ClosedError` when the client was closed meanwhile, and the built-in
        `TimeoutError` when `timeout_s` seconds passed first: the request then continues, and `result` may be called
        again.
        """
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._links.lock:
            finished = self._links.wait(self._operation, until)
        if not finished:
            raise TimeoutError(f"no answer within {timeout_s} s; the request continues until its deadline")
        return self._value()

    def cancel(self) -> bool:
        """End the request: `result` raises `QueryCancelled`, and the server is told. False: it has a result already."""
        with self._links.lock:
            if self._links.look(self._operation):
                return False
            self._operation.fail(QueryCancelled())
            return True

    def _value(self) -> Value:
        tracing, span = self._tracing, None if self._span is None else self._span.take()
        with contextlib.nullcontext() if tracing is None or span is None else tracing.ended(span):
            (value,) = self._operation.result()
        return value  # type: ignore[no-any-return]


class ScanResults(ScanPosition[View]):
    """The entries of a scan, an iterator that asks for page after page. One thread at a time may use it.

    `close` frees what the server keeps for the scan; so does its last page, and the server does a minute later.
    """

    def __init__(self, scanner: Scanner, page_of: Callable[..., tuple[Page, CachedState]]) -> None:
        """`page_of(scanner, request, timeout_s=...)` asks for a page; the time limit need not be given."""
        super().__init__(scanner)
        self._page_of = page_of

    def __iter__(self) -> ScanResults[View]:
        return self

    def __next__(self) -> ScannedEntry[View]:
        while True:
            found = self._next()
            if found is not None:
                return found
            if self._scanner.over:
                raise StopIteration
            self._entries = self._scanner.take(*self._page_of(self._scanner, self._scanner.request))

    def close(self) -> None:
        """End the scan. Idempotent; raises nothing when the server cannot be reached."""
        release = self._scanner.end()
        self._entries = iter(())
        if release is not None:
            with contextlib.suppress(QueryError):
                self._page_of(self._scanner, release, timeout_s=RELEASE_TIMEOUT_S)

    def __enter__(self) -> ScanResults[View]:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Subscription:
    """The changes of a state, batch by batch: an iterator. One thread at a time may use it.

    Close it, or use it as a context manager; closing the client ends it, too. Between two batches it takes no changes
    from the server. It may be left alone for as long as the changes are stored. One that is dropped without `close`
    leaves its last poll at the server, for at most `progress_s`: the garbage collector may run while any thread is in
    the client, so it cannot send a cancellation.
    """

    def __init__(self, links: SyncLinks, subscribing: Subscribing) -> None:
        self._links = links
        self._subscribing = subscribing
        self._closed = False
        #: What each batch goes through: that of a typed handle gives its values the declared type.
        self.typed: Callable[[ChangeBatch], ChangeBatch] | None = None

    def next_batch(self, timeout_s: float | None = None) -> ChangeBatch | None:
        """Wait for the next batch, None after `timeout_s` seconds without one. Raises as `subscribe` says."""
        if self._closed:
            raise ClosedError("the subscription is closed")
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        waiting = self._subscribing.next_batch()
        with self._links.lock:
            self._links.start(waiting)
            try:
                if not self._links.wait(waiting, until):
                    return None
            finally:
                waiting.abandon()
        batch = waiting.results()[0]
        return batch if self.typed is None else self.typed(batch)

    @property
    def failure(self) -> QueryError | None:
        """Why some keys have no answer since their last one: the subscription asks again. None while all have."""
        return self._subscribing.failure

    def close(self) -> None:
        """Ask for nothing more. Idempotent."""
        if not self._closed:
            self._closed = True
            with self._links.lock:
                self._subscribing.close()

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> ChangeBatch:
        if self._closed:
            raise StopIteration
        batch = self.next_batch()
        assert batch is not None
        return batch

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()
