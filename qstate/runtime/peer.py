"""A proxy's connection to one state server: pipelined, shared, made again when it breaks.

Rules of this module: everything here happens on the driving thread of one reactor, so nothing is locked. It
sends gets and reports what comes of them; what to do about a failure is `routing`'s business.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from qstate.errors import Detail, FailureCode, LocalProtocolError
from qstate.keys import Key, Namespace
from qstate.protocol import BrokenConnection, ClientConnection, Failure, Get, Values, Welcome
from qstate.runtime.channel import Channel
from qstate.runtime.line_limit import limited
from qstate.runtime.reactor import Reactor, Timer
from qstate.runtime.worker_pool import WorkerPool

__all__ = ["Forward", "Outcome", "Peer"]

log = limited(logging.getLogger(__name__))

#: How long a connect and handshake may take; the requests that wait for it are lost then.
CONNECT_TIMEOUT_S = 2.0
#: A connection that has answered nothing for so long, although a deadline passed on it, is given up.
SILENCE_S = 3.0


class Outcome(Protocol):
    """Whoever waits for a forwarded get. Exactly one of the three is called, unless it was forgotten."""

    def on_values(self, part: int, values: Values) -> None:
        """The owner answered each key."""

    def on_failure(self, part: int, code: int, details: Mapping[str, Detail]) -> None:
        """The owner refused the get."""

    def on_lost(self, part: int) -> None:
        """The owner could not be reached, or broke off before it answered."""


class Forward:
    """A get on its way to an owner. `deadline` is of the reactor's clock."""

    __slots__ = ("deadline", "keys", "namespace", "options", "outcome", "part", "state_id")

    def __init__(
        self,
        outcome: Outcome,
        part: int,
        *,
        state_id: bytes,
        namespace: Namespace,
        options: Mapping[str, Detail],
        keys: tuple[Key, ...],
        deadline: float,
    ) -> None:
        self.outcome = outcome
        self.part = part
        self.state_id = state_id
        self.namespace = namespace
        self.options = options
        self.keys = keys
        self.deadline = deadline


class Peer:
    """The connection to one host and port, from the first get on. Once it is lost it stays so: make another.

    `on_lost(peer)` is called then, before the waiting gets are told. Only the driving thread may use it.
    """

    def __init__(
        self,
        reactor: Reactor,
        pool: WorkerPool,
        address: tuple[str, int],
        *,
        token: bytes | None,
        max_frame: int,
        on_lost: Callable[[Peer], None],
    ) -> None:
        self.address = address
        self.lost = False
        self._reactor = reactor
        self._max_frame = max_frame
        self._on_lost = on_lost
        self._connection = ClientConnection(token=token, client="qstate proxy", max_frame=max_frame)
        self._channel: Channel | None = None
        self._open = False
        self._queued: list[Forward] = []
        self._forwards: dict[int, Forward] = {}
        self._heard = False
        self._heard_at = reactor.clock()
        self._timeout: Timer | None = reactor.call_later(CONNECT_TIMEOUT_S, self._connect_late)
        self._untried: list[Any] = []
        try:
            self._resolve(socket.AI_NUMERICHOST)
        except OSError:
            # A name: the name service may take its time.
            pool.submit(self._resolve_name)

    def forward(self, get: Forward) -> None:
        """Send a get, now or as soon as the connection is there."""
        if self.lost:
            get.outcome.on_lost(get.part)
        elif self._open:
            self._send(get)
        else:
            self._queued.append(get)

    def give_up(self, sent_at: float) -> None:
        """A get sent at that time has passed its deadline. A connection that is silent since long is broken."""
        now = self._reactor.clock()
        if self._open and now - sent_at > SILENCE_S and now - self._heard_at > SILENCE_S:
            self.close(ConnectionError(f"{self.address[0]}:{self.address[1]} does not answer any more"))

    def close(self, reason: BaseException | None = None) -> None:
        """Drop the connection; the gets without an answer are lost."""
        if self.lost:
            return
        self.lost = True
        self._open = False
        if reason is not None:
            log.info("lost the state server at %s:%s: %s", *self.address, reason)
        if self._timeout is not None:
            self._timeout.cancel()
        self._connection.close()
        if self._channel is not None:
            self._channel.close(reason)
        self._on_lost(self)
        left, self._queued, self._forwards = [*self._queued, *self._forwards.values()], [], {}
        for get in left:
            get.outcome.on_lost(get.part)

    def _resolve(self, flags: int = 0) -> None:
        host, port = self.address
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        self._reactor.call_soon(self._resolved, found)

    def _resolve_name(self) -> None:
        try:
            self._resolve()
        except OSError as exc:
            self._reactor.call_soon(self.close, exc)

    def _resolved(self, addresses: list[Any]) -> None:
        self._untried = addresses
        self._connect_next()

    def _connect_next(self) -> None:
        if self.lost:
            return
        family, kind, protocol, _, address = self._untried.pop(0)
        self._channel = Channel(
            self._reactor,
            socket.socket(family, kind, protocol),
            on_data=self._on_data,
            on_close=self._on_close,
            max_unsent_bytes=2 * self._max_frame,
        )
        self._channel.connect(address)
        self._channel.send(self._connection.start())

    def _connect_late(self) -> None:
        self.close(TimeoutError("no connection in time"))

    def _on_close(self, reason: BaseException | None) -> None:
        if self._untried and not self._heard:
            # A name may stand for an address that the server does not listen on, such as the IPv6 one.
            self._connect_next()
            return
        self.close(reason or ConnectionError("the server closed the connection"))

    def _send(self, get: Forward) -> None:
        left_ms = int((get.deadline - self._reactor.clock()) * 1000)
        number = self._connection.next_id()
        try:
            data = self._connection.send(
                Get(number, max(0, left_ms), get.state_id, get.namespace, get.options, get.keys)
            )
        except LocalProtocolError as exc:
            get.outcome.on_failure(get.part, exc.code, {})
            return
        self._forwards[number] = get
        assert self._channel is not None
        self._channel.send_soon(data)

    def _on_data(self, data: bytes) -> None:
        self._heard = True
        self._heard_at = self._reactor.clock()
        try:
            events = self._connection.receive(data)
        except BrokenConnection as broken:
            self.close(broken)
            return
        for event in events:
            if type(event) is Values:
                get = self._forwards.pop(event.id, None)
                if get is not None:
                    get.outcome.on_values(get.part, event)
            elif type(event) is Failure:
                self._failed(event)
            elif type(event) is Welcome:
                self._welcomed()

    def _failed(self, event: Failure) -> None:
        if event.id:
            get = self._forwards.pop(event.id, None)
            if get is not None:
                get.outcome.on_failure(get.part, event.code, event.details)
            return
        code = event.code
        if code in (FailureCode.UNAUTHENTICATED, FailureCode.VERSION_MISMATCH, FailureCode.OVERLOADED):
            # What the server says of the connection holds for each get on it; asking again right away would not help.
            left, self._queued = self._queued, []
            for get in left:
                get.outcome.on_failure(get.part, code, event.details)
        self.close(ConnectionError(f"the server ended the connection with code {code}"))

    def _welcomed(self) -> None:
        self._open = True
        if self._timeout is not None:
            self._timeout.cancel()
        queued, self._queued = self._queued, []
        for get in queued:
            self._send(get)
