"""The connections of a client to proxies and state servers, without their sockets.

Rules of this module: a link knows which operation waits for which answer on its connection, and fails the operations
when the connection breaks. It reads no clock and moves no bytes: the synchronous and the asyncio client each give it a
transport. A link table knows which link leads to which address.

    CONNECTING  requests are queued       -> opened(), then the peer's Welcome
    READY       requests are sent at once
    SILENT      takes no more requests; sent requests may still be answered, until no operation waits for one
    LOST        closed; every waiting operation has been notified, and the client makes a new link when it needs one

A sent request without an answer when the connection breaks may be what broke it. It fails with UNAVAILABLE and is not
sent again. A queued request is sent over a new connection.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Generic, TypeVar

from qstate.errors import Detail, FailureCode, LocalProtocolError, QueryError
from qstate.protocol import BrokenConnection, ClientConnection, Failure, Location, Welcome
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.runtime.client.operations import LOOK_UP, Operation, RoutedOperation
from qstate.runtime.client.state_cache import AddressBook, StateCache
from qstate.runtime.routing.routed_get import Ask, LookUp

__all__ = ["Link", "LinkSettings", "LinkState", "LinkTable"]

#: A peer counts as dead when a request is unanswered at its deadline and the peer has sent nothing for this long.
SILENCE_S = 1.0


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """The settings of every connection of a client. The token goes to proxies and state servers alike."""

    token: bytes | None = field(default=None, repr=False)
    client: str = ""
    max_frame: int = DEFAULT_MAX_FRAME


class LinkState(Enum):
    """The states of a link, in order; a link never returns to an earlier one."""

    CONNECTING = "connecting"
    READY = "ready"
    SILENT = "silent"
    LOST = "lost"


class Link(ABC):
    """A connection and the operations that wait for an answer on it. Not thread-safe."""

    def __init__(self, host: str, port: int, settings: LinkSettings, book: AddressBook, now: float) -> None:
        self.host = host
        self.port = port
        self.state = LinkState.CONNECTING
        self._book = book
        self._is_open = False
        self._wire = ClientConnection(token=settings.token, client=settings.client, max_frame=settings.max_frame)
        #: By request id: the operation, its part, and when the request was sent.
        self._pending: dict[int, tuple[RoutedOperation, int, float]] = {}
        self._queued: list[tuple[RoutedOperation, Ask | LookUp]] = []
        self._heard_at = now

    @abstractmethod
    def connect(self) -> None:
        """Start to connect; `opened` or `refused` follows, perhaps later."""

    @abstractmethod
    def notice_end(self) -> None:
        """When no answer is pending but something has arrived, lose the link: it can only be the connection's end."""

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Send bytes, now or as soon as the socket takes them. Must not block."""

    @abstractmethod
    def _abort(self) -> None:
        """Close the transport without waiting. May be called more than once."""

    @property
    def idle(self) -> bool:
        """Whether a request may be sent now and no answer is pending."""
        return self.state is LinkState.READY and not self._pending

    @property
    def takes_requests(self) -> bool:
        """Whether the link takes requests, to send them now or once it is ready."""
        return self.state is LinkState.READY or self.state is LinkState.CONNECTING

    def send(self, operation: RoutedOperation, command: Ask | LookUp, now: float) -> None:
        """Send the operation's request, now or once the connection is ready."""
        wire = self._wire
        if self.state is not LinkState.READY or wire.closed:
            # Closed: the bytes that are being parsed end the connection; `lost` follows at once.
            self._queued.append((operation, command))
            return
        request_id = wire.next_id()
        part = command.part if type(command) is Ask else LOOK_UP
        try:
            data = wire.send(operation.request(request_id, command, now))
        except LocalProtocolError as exc:
            cause = exc.__cause__
            details = cause.details if isinstance(cause, QueryError) else {"reason": str(exc)}
            operation.on_unsendable(part, exc.code, details, now)
            return
        self._pending[request_id] = (operation, part, now)
        self._write(data)

    def opened(self) -> None:
        """The transport is connected: begin the handshake."""
        self._is_open = True
        self._write(self._wire.start())

    def received(self, data: bytes, now: float) -> None:
        """Take bytes from the peer."""
        self._heard_at = now
        broken: BrokenConnection | None = None
        try:
            events = self._wire.receive(data)
        except BrokenConnection as exc:
            events, broken = list(exc.events), exc  # type: ignore[arg-type]
        pending = self._pending
        for message in events:
            if type(message) is Welcome:
                self._ready(now)
            elif message.id:  # type: ignore[union-attr]
                entry = pending.pop(message.id, None)  # type: ignore[union-attr]
                if entry is None:
                    continue
                if type(message) is Location and self.state is LinkState.SILENT:
                    entry[0].on_outdated(entry[1], now)
                else:
                    entry[0].on_answer(entry[1], message, now)  # type: ignore[arg-type]
            elif type(message) is Failure:
                self._dismissed(message, now)
        if broken is not None:
            self._broken(broken, now)
        elif self.state is LinkState.SILENT:
            self._close_unless_awaited(now)

    def lost(self, code: int, details: Mapping[str, Detail], now: float) -> None:
        """The connection has ended: close it and fail the operations that wait. Only the first call counts."""
        if self.state is LinkState.LOST:
            return
        hopeless = not self._is_open and self._book.is_new(self.host, self.port)
        if self.takes_requests:
            self._book.ended(self.host, self.port)
        self.state = LinkState.LOST
        self._wire.close()
        self._abort()
        sent, queued = list(self._pending.values()), list(self._queued)
        self._pending.clear()
        self._queued.clear()
        for operation, part, _ in sent:
            operation.on_lost(part, code, details, now)
        for operation, command in queued:
            part = command.part if type(command) is Ask else LOOK_UP
            operation.on_unsent(part, code, details, now, hopeless=hopeless)

    def unreachable(self, reason: str, now: float) -> None:
        """`lost`, because the transport failed or the peer closed the connection."""
        self.lost(FailureCode.UNAVAILABLE, {"host": self.host, "port": self.port, "reason": reason}, now)

    def refused(self, error: OSError, now: float) -> None:
        """`lost`, because the connection could not be made."""
        # The name service's errors have a text of their own. For a socket's errors `strerror` gives the same text
        # whether the socket module or asyncio raised them.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        details: dict[str, Detail] = {"host": self.host, "port": self.port, "reason": reason, "connected": False}
        self.lost(FailureCode.UNAVAILABLE, details, now)

    def stalls(self, operation: Operation) -> Mapping[str, Detail]:
        """The reason why the operation's request is still queued here, as details; empty when it is not."""
        if not any(other is operation for other, _ in self._queued):
            return {}
        reason = "connected, and no Welcome has come: is it a client proxy?" if self._is_open else "not connected yet"
        return {"host": self.host, "port": self.port, "reason": reason}

    def gave_up(self, operation: Operation, now: float) -> None:
        """The operation's deadline has passed. A peer that has been silent for `SILENCE_S` gets no more requests.

        Silence counts from this request, or from an earlier one that was given up: otherwise a client with short
        deadlines would never find a dead peer. Other sent requests wait until their own deadlines: the peer may only be
        slow.
        """
        waiting = [(other, max(self._heard_at, sent)) for other, _, sent in self._pending.values()]
        waiting += [(other, self._heard_at) for other, _ in self._queued]
        if any(other is operation for other, _ in waiting):
            silent_since = min(since for other, since in waiting if other is operation or other.finished)
            if now - silent_since >= SILENCE_S:
                self._give_up(now)
            elif self.state is LinkState.SILENT:
                self._close_unless_awaited(now)

    def _give_up(self, now: float) -> None:
        if self.state is LinkState.READY:
            self.state = LinkState.SILENT
            self._book.ended(self.host, self.port)
        if self.state is LinkState.SILENT:
            self._close_unless_awaited(now)
        else:
            self.unreachable("no answer", now)

    def _close_unless_awaited(self, now: float) -> None:
        if all(operation.finished for operation, _, _ in self._pending.values()):
            self.unreachable("no answer", now)

    def _ready(self, now: float) -> None:
        self.state = LinkState.READY
        self._book.reached(self.host, self.port)
        queued, self._queued = self._queued, []
        for operation, command in queued:
            if not operation.finished:
                self.send(operation, command, now)

    def _dismissed(self, failure: Failure, now: float) -> None:
        """The peer ends the connection. On a link that is ready, its code says nothing about the requests in flight."""
        if self.state is LinkState.CONNECTING or failure.code in (FailureCode.SHUTTING_DOWN, FailureCode.OVERLOADED):
            self.lost(failure.code, failure.details, now)
        else:
            self.unreachable(f"the peer ended the connection with failure code {int(failure.code)}", now)

    def _broken(self, broken: BrokenConnection, now: float) -> None:
        details: dict[str, Detail] = {"host": self.host, "port": self.port, "reason": str(broken)}
        if self.state is LinkState.CONNECTING:
            # The peer does not speak the protocol: trying again would not help.
            foreign = broken.code is not FailureCode.VERSION_MISMATCH
            self.lost(FailureCode.VERSION_MISMATCH, {**details, "greeted": False} if foreign else details, now)
        else:
            self.lost(FailureCode.UNAVAILABLE, details, now)


SomeLink = TypeVar("SomeLink", bound=Link)


class LinkTable(ABC, Generic[SomeLink]):
    """The links of one client. `caches`: one for each proxy that may be asked, the job's own first."""

    def __init__(self, caches: Sequence[StateCache], settings: LinkSettings, random: Random) -> None:
        self.states = caches[0]
        self.book = AddressBook(caches)
        self.random = random
        self._settings = settings
        #: By address: the link that new requests are sent over.
        self._links: dict[tuple[str, int], SomeLink] = {}
        #: Every link whose transport may still be open, including silent and lost ones.
        self.open: set[SomeLink] = set()
        #: The operations that have not finished.
        self._live: set[Operation] = set()

    @abstractmethod
    def _new_link(self, host: str, port: int) -> SomeLink:
        """A link that does not connect yet."""

    def send(
        self, operation: RoutedOperation, command: Ask | LookUp, now: float, proxy: tuple[str, int] | None = None
    ) -> None:
        """Send over the link to the command's peer. Makes the link if necessary."""
        address = command.owner.address if type(command) is Ask else proxy or self.states.proxy
        link = self._links.get(address)
        if link is not None:
            link.notice_end()
        if type(command) is Ask and not operation.is_current:
            operation.on_outdated(command.part, now)
        elif link is None or not link.takes_requests:
            link = self._links[address] = self._new_link(*address)
            self.open.add(link)
            link.send(operation, command, now)
            link.connect()
        else:
            link.send(operation, command, now)

    def stalls(self, operation: Operation) -> Mapping[str, Detail]:
        """The reason why the operation's request has not been sent yet, as details; empty when it was sent."""
        return next((found for link in self.open if (found := link.stalls(operation))), {})

    def gave_up(self, operation: Operation, now: float) -> None:
        """The operation's deadline has passed without an answer: stop using the peers that count as dead."""
        for link in list(self.open):
            link.gave_up(operation, now)
