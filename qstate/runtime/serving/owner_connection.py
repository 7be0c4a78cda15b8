"""A proxy's connection to one state server, which all gets share and pipeline. A broken connection is replaced.

Rules of this module: everything runs on the driving thread of one reactor, so nothing is locked. It sends gets and
reports their outcomes; `routing` decides about failures.

When the connection breaks, a get without an answer may be the cause, so it fails with UNAVAILABLE. A get that was not
sent is lost and may go to another server. A server that is silent for long gets no more gets; those that it already has
wait until their deadlines.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from qstate.errors import Detail, FailureCode, LocalProtocolError
from qstate.keys import Key, Namespace
from qstate.line_limit import limited
from qstate.protocol import BrokenConnection, ClientConnection, Failure, Get, Values, Welcome
from qstate.runtime.net.channel import Channel
from qstate.runtime.net.reactor import Reactor, Timer
from qstate.runtime.net.worker_pool import WorkerPool

__all__ = ["Forward", "Outcome", "OwnerConnection"]

log = limited(logging.getLogger(__name__))

#: How long a connect and its handshake may take. After that the waiting gets are lost.
CONNECT_TIMEOUT_S = 2.0
#: A connection is given up if a deadline passed on it and the server has been silent for so long.
SILENCE_S = 3.0
#: Failures of the connection that are also failures of each get on it.
_OF_EACH_GET = {
    FailureCode.UNAUTHENTICATED,
    FailureCode.VERSION_MISMATCH,
    FailureCode.OVERLOADED,
    FailureCode.SHUTTING_DOWN,
}


class Outcome(Protocol):
    """Receives the outcome of a forwarded get: exactly one call, or at most one after `give_up`."""

    def on_values(self, part: int, values: Values) -> None:
        """The owner answered each key."""

    def on_failure(self, part: int, code: int, details: Mapping[str, Detail]) -> None:
        """The owner refused the get."""

    def on_lost(self, part: int) -> None:
        """The owner could not be reached: the get was not sent."""


class Forward:
    """A get that is forwarded to an owner. `deadline` and `sent_at` are by the reactor's clock."""

    __slots__ = ("deadline", "keys", "namespace", "options", "outcome", "part", "sent_at", "state_id", "wanted")

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
        self.sent_at = 0.0
        #: Whether the answer is still needed.
        self.wanted = True


class OwnerConnection:
    """The connection to one host and port, which it opens at once. An unusable connection stays so: make another.

    When it becomes unusable it calls `on_unusable(connection)`, before the gets on it fail. Only the driving thread may
    use it.
    """

    def __init__(
        self,
        reactor: Reactor,
        pool: WorkerPool,
        address: tuple[str, int],
        *,
        token: bytes | None,
        max_frame: int,
        on_unusable: Callable[[OwnerConnection], None],
    ) -> None:
        self.address = address
        self.lost = False
        self._silent = False
        self._reactor = reactor
        self._max_frame = max_frame
        self._on_unusable = on_unusable
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
            # A name: the look-up may take long.
            pool.submit(self._resolve_name)

    def forward(self, get: Forward) -> None:
        """Send a get, now or as soon as the connection is open."""
        if self.lost:
            get.outcome.on_lost(get.part)
        elif self._open:
            self._send(get)
        else:
            self._queued.append(get)

    def notice_end(self) -> None:
        """Close a connection that has input although no answer is due: this input can only be its end.

        The reactor also sees the end, but perhaps only after the next get was sent.
        """
        if self._open and not self._forwards and self._channel is not None and self._channel.has_input():
            self.close(ConnectionError("the server ended the connection"))

    def give_up(self, get: Forward) -> None:
        """The get's answer is no longer needed. If the server has been silent for long, send it no more gets."""
        get.wanted = False
        if not self._open or not self._forwards:
            return
        oldest = next(iter(self._forwards.values()))
        now = self._reactor.clock()
        if not self._silent and now - max(self._heard_at, oldest.sent_at) > SILENCE_S:
            log.info("the state server at %s:%s does not answer any more", *self.address)
            self._silent = True
            self._on_unusable(self)
        if self._silent:
            self._close_unless_awaited()

    def close(self, reason: BaseException | None = None) -> None:
        """Close the connection. Gets that were sent fail with UNAVAILABLE, the others are lost. Idempotent."""
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
        self._on_unusable(self)
        queued, self._queued = self._queued, []
        sent, self._forwards = self._forwards, {}
        for get in queued:
            get.outcome.on_lost(get.part)
        host, port = self.address
        for get in sent.values():
            if get.wanted:
                get.outcome.on_failure(get.part, FailureCode.UNAVAILABLE, {"host": host, "port": port})

    def _close_unless_awaited(self) -> None:
        if not any(get.wanted for get in self._forwards.values()):
            self.close(ConnectionError(f"{self.address[0]}:{self.address[1]} does not answer any more"))

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
            # The server may not listen on every address of its name, such as the IPv6 one.
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
        get.sent_at = self._reactor.clock()
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
        if self._silent:
            self._close_unless_awaited()

    def _failed(self, event: Failure) -> None:
        if event.id:
            get = self._forwards.pop(event.id, None)
            if get is not None:
                get.outcome.on_failure(get.part, event.code, event.details)
            return
        code = event.code
        if code in _OF_EACH_GET:
            left, self._queued, self._forwards = [*self._queued, *self._forwards.values()], [], {}
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
