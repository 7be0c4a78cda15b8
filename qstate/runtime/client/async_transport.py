"""The connections of the asyncio client.

Rules of this module: asyncio transports and timers, no messages. Everything runs on the loop's thread, so there are no
locks. One timer serves all operations: it is set for the earliest `wake_at`, and set again when it fires. Nearly all
operations are answered in time, so most need no timer of their own.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Mapping, Sequence
from random import Random
from typing import cast

from qstate.errors import ClosedError, Detail
from qstate.runtime.client.link import Link, LinkSettings, LinkState
from qstate.runtime.client.operations import Operation, RoutedOperation
from qstate.runtime.client.state_cache import AddressBook, StateCache
from qstate.runtime.routing.routed_get import Ask, LookUp

__all__ = ["AsyncLinks"]


class AsyncLink(Link, asyncio.Protocol):
    """A link that is an asyncio protocol."""

    def __init__(self, host: str, port: int, settings: LinkSettings, book: AddressBook) -> None:
        super().__init__(host, port, settings, book, time.monotonic())
        self._transport: asyncio.Transport | None = None
        self._arrivals = select.poll()
        self.connecting: asyncio.Task[None] | None = None
        #: Done when the transport is closed, or could not be made.
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self) -> None:
        """Connect; `opened` or `refused` is called with the outcome."""
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, self.host, self.port)
        except (OSError, UnicodeError) as exc:
            self.refused(exc if isinstance(exc, OSError) else OSError(str(exc)), time.monotonic())
        finally:
            if self._transport is None:
                self._end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrivals.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        if self.state is LinkState.LOST:
            self._transport.abort()
            return
        self.opened()

    def data_received(self, data: bytes) -> None:
        self.received(data, time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self.unreachable(str(exc) if exc else "the peer closed the connection", time.monotonic())

    def notice_end(self) -> None:
        """When no answer is pending but something has arrived, lose the link: it can only be the connection's end.

        The loop would notice that as well, but perhaps only after the client has sent another request.
        """
        if self.idle and self._arrivals.poll(0):
            self.unreachable("the peer ended the connection", time.monotonic())

    def _end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        elif self.connecting is not None:
            self.connecting.cancel()


class AsyncLinks:
    """All links of one asyncio client."""

    def __init__(self, caches: Sequence[StateCache], settings: LinkSettings, random: Random) -> None:
        """`caches`: one for each proxy that may be asked, the job's own first."""
        self.states = caches[0]
        self.book = AddressBook(caches)
        self.random = random
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._proxy = self.states.proxy
        self._links: dict[tuple[str, int], AsyncLink] = {}
        #: Every link whose transport may still be open, including lost links.
        self._open: set[AsyncLink] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._live: set[Operation] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.closed = False

    def start(self, operation: Operation) -> None:
        """Start the operation; its `waiters` are called when it is finished. Raises `ClosedError`."""
        if self.closed:
            raise ClosedError("the client is closed")
        self._live.add(operation)
        operation.start()

    async def close(self) -> None:
        """Close every connection and wait for the end of each. Unfinished operations fail with `ClosedError`.

        Idempotent.
        """
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for operation in list(self._live):
            operation.fail(ClosedError("the client is closed"))
        for link in list(self._open):
            link.unreachable("the client is closed", time.monotonic())
        self._links.clear()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        if self._open:
            await asyncio.wait([link.gone for link in self._open])

    def send(
        self, operation: RoutedOperation, command: Ask | LookUp, now: float, proxy: tuple[str, int] | None = None
    ) -> None:
        """Send over the link to the command's peer. Makes the link if necessary."""
        address = (command.owner.host, command.owner.port) if type(command) is Ask else proxy or self._proxy
        link = self._links.get(address)
        if link is not None:
            link.notice_end()
        if type(command) is Ask and not operation.is_current:
            operation.on_outdated(command.part, now)
            return
        if link is None or not link.takes_requests:
            link = self._links[address] = self._connect(address)
        link.send(operation, command, now)

    def finished(self, operation: Operation) -> None:
        """Call the operation's waiters."""
        self._live.discard(operation)
        for notify in operation.waiters:
            notify()
        operation.waiters.clear()
        now = time.monotonic()
        if now >= operation.deadline:
            self.gave_up(operation, now)

    def stalls(self, operation: Operation) -> Mapping[str, Detail]:
        """The reason why the operation's request has not been sent yet, as details; empty when it was sent."""
        return next((found for link in self._open if (found := link.stalls(operation))), {})

    def gave_up(self, operation: Operation, now: float) -> None:
        """The operation's deadline has passed without an answer: stop using the peers that count as dead."""
        for link in list(self._open):
            link.gave_up(operation, now)

    def progressed(self, operation: Operation) -> None:
        """Set the timer to the operation's `wake_at` if that comes first."""
        wake_at = operation.wake_at
        if self._timer is None or wake_at < self._timer_at:
            self._set_timer(wake_at)

    def _connect(self, address: tuple[str, int]) -> AsyncLink:
        link = AsyncLink(*address, self._settings, self.book)
        self._open.add(link)
        link.gone.add_done_callback(lambda _: self._open.discard(link))
        task = link.connecting = self._loop.create_task(link.connect())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return link

    def _set_timer(self, wake_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # A relative time: a loop's own clock need not be time.monotonic (uvloop's is rounded to milliseconds).
        self._timer_at = wake_at
        self._timer = self._loop.call_later(max(0.0, wake_at - time.monotonic()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = time.monotonic()
        for operation in list(self._live):
            if operation.wake_at <= now:
                operation.on_time(now)
        if self._live:
            self._set_timer(min(operation.wake_at for operation in self._live))
