"""The connections of the asyncio client.

Rules of this module: asyncio transports and timers, no messages. Everything runs on the loop's thread, so there are no
locks. One timer serves all operations: it is set for the earliest `wake_at`, and set again when it fires. Nearly all
operations are answered in time, so most need no timer of their own.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from random import Random
from typing import Any, cast

from qstate.errors import ClosedError
from qstate.runtime.client.operations import Links, Operation
from qstate.runtime.client.state_cache import Endpoints
from qstate.runtime.control.tracing import Tracing
from qstate.runtime.routing.pipelined_connection import ConnectionSettings, Phase, PipelinedConnection

__all__ = ["AsyncLinks"]


class AsyncLink(PipelinedConnection, asyncio.Protocol):
    """A link that is an asyncio protocol."""

    def __init__(self, host: str, port: int, settings: ConnectionSettings, endpoints: Endpoints) -> None:
        super().__init__(host, port, settings, endpoints, time.monotonic())
        self._endpoints = endpoints
        #: The address that its socket connects to.
        self._address: Any = None
        self._transport: asyncio.Transport | None = None
        self._arrivals = select.poll()
        self._connecting: asyncio.Task[None] | None = None
        #: Done when the transport is closed, or could not be made.
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _connect(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._make_transport())
        # A callback, because a task that is cancelled before its first step runs no code of its own.
        self._connecting.add_done_callback(self._connect_ended)

    async def _make_transport(self) -> None:
        loop = asyncio.get_running_loop()
        reason: Exception = OSError("no address")
        try:
            found = await self._resolved()
            for family, kind, protocol, _, address in self._endpoints.addresses.ordered(self.host, found):
                self._address = address
                try:
                    sock = await _connected(family, kind, protocol, address)
                except OSError as exc:
                    self._endpoints.addresses.failed(self.host, address, time.monotonic())
                    reason = exc
                    continue
                await loop.create_connection(lambda: self, sock=sock)
                return
        except (OSError, UnicodeError) as exc:
            reason = exc
        self.refused(reason if isinstance(reason, OSError) else OSError(str(reason)), time.monotonic())

    async def _resolved(self) -> list[Any]:
        """The entries of `getaddrinfo` for the host. Only the look-up of a name needs a thread."""
        host, port, kind = self.host, self.port, socket.SOCK_STREAM
        try:
            return list(socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST))
        except OSError:
            return list(await asyncio.get_running_loop().getaddrinfo(host, port, type=kind))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._arrivals.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        if self.phase is Phase.LOST:
            self._transport.abort()
            return
        self.opened()

    def data_received(self, data: bytes) -> None:
        self.received(data, time.monotonic())

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self.unreachable(str(exc) if exc else "the peer closed the connection", time.monotonic())

    def notice_end(self) -> None:
        # The loop would notice it as well, but perhaps only after the client has sent another request.
        if self.idle and self._arrivals.poll(0):
            self.unreachable("the peer ended the connection", time.monotonic())

    def _connect_ended(self, _: asyncio.Task[None]) -> None:
        if self._transport is None:
            self._end()

    def _end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _abort(self) -> None:
        self._endpoints.addresses.failed(self.host, self._address, time.monotonic())
        if self._transport is not None:
            self._transport.abort()
        elif self._connecting is not None:
            self._connecting.cancel()
        else:
            self._end()


async def _connected(family: int, kind: int, protocol: int, address: Any) -> socket.socket:
    """A socket that is connected to the address. Raises `OSError`."""
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


class AsyncLinks(Links[AsyncLink]):
    """All links of one asyncio client."""

    def __init__(
        self, endpoints: Endpoints, settings: ConnectionSettings, random: Random, tracing: Tracing | None = None
    ) -> None:
        super().__init__(endpoints, settings, random, tracing)
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self.closed = False

    def start(self, operation: Operation) -> None:
        """Start the operation; its `waiters` are called when it is finished. Raises `ClosedError`."""
        if self.closed:
            raise ClosedError("the client is closed")
        self._live.add(operation)
        operation.start()
        if not operation.finished:
            self.on_progress(operation)

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
        for link in list(self.open):
            link.unreachable("the client is closed", time.monotonic())
        self._links.clear()
        if self.open:
            await asyncio.wait([link.gone for link in self.open])

    def on_finished(self, operation: Operation) -> None:
        """Call the operation's waiters."""
        self._live.discard(operation)
        for notify in operation.waiters:
            notify()
        operation.waiters.clear()

    def on_progress(self, operation: Operation) -> None:
        """Set the timer to the operation's `wake_at` if that comes first."""
        wake_at = operation.wake_at
        if self._timer is None or wake_at < self._timer_at:
            self._set_timer(wake_at)

    def _new_link(self, host: str, port: int) -> AsyncLink:
        link = AsyncLink(host, port, self._settings, self.endpoints)
        link.gone.add_done_callback(lambda _: self.open.discard(link))
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
