"""One connection to a proxy or a state server that carries many requests at a time, without its socket.

Rules of this module: a connection knows which requester waits for which answer on it, and notifies the requesters when
the connection breaks. It reads no clock and moves no bytes: the synchronous client, the asyncio client and the proxy
each give it a transport. It decides nothing about failures: `routed_get` does.

    NEW         the first request connects
    CONNECTING  requests are queued       -> opened(), then the peer's Welcome
    READY       requests are sent at once
    SILENT      takes no more requests; sent requests may still be answered, until no requester waits for one
    LOST        closed; every waiting requester has been notified: make another connection

A sent request without an answer when the connection breaks may be what broke it. It fails with UNAVAILABLE and is not
sent again. A queued request may be sent over another connection.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from qstate.errors import ConfigError, Detail, FailureCode, LocalProtocolError, QueryError, TlsFailed
from qstate.protocol.connection import Answer, BrokenConnection, ClientConnection, ConnectionState, Request
from qstate.protocol.limits import DEFAULT_MAX_FRAME
from qstate.protocol.messages import Failure, Ping, Values, Welcome
from qstate.runtime.routing.routed_get import Answer as Routed
from qstate.runtime.routing.routed_get import Ask, Command, LookUp, Refuse, RoutedGet
from qstate.tls import ClientTls, TlsStream, is_loopback

__all__ = ["PROBE_S", "ConnectionSettings", "Peers", "Phase", "PipelinedConnection", "Requester"]


#: `probe` asks a peer for a sign of life that has been silent for so long while a request waits for it.
PROBE_S = 0.25
#: How long such a peer may take to answer: a busy one answers a ping, because that touches no state.
PROBE_ANSWER_S = 0.5


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The settings of every connection of a client or a proxy. Proxies and state servers get the same token.

    Without `tls`, the token goes to loopback only, unless `allow_token_without_tls`: a listener elsewhere could
    read it.

    A peer counts as dead when a request is unanswered at its deadline and the peer has sent nothing for `silence_s`.
    """

    token: bytes | None = field(default=None, repr=False)
    client: str = ""
    max_frame: int = DEFAULT_MAX_FRAME
    silence_s: float = 1.0
    tls: ClientTls | None = None
    allow_token_without_tls: bool = False
    features: tuple[str, ...] = ()

    def exposes_token(self, host: str) -> bool:
        """Whether a connection to the host would show the token to others."""
        return not (self.token is None or self.tls or self.allow_token_without_tls or is_loopback(host))


class Requester(ABC):
    """Carries out the commands of one `RoutedGet`, and reports to it what becomes of its requests.

    A connection calls at most one `on_` method for each request.
    """

    __slots__ = ()

    _routed: RoutedGet
    #: Whether it needs no answer any more.
    finished: bool

    @abstractmethod
    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        """The message for a command."""

    def on_answer(self, part: int, message: Answer, now: float) -> None:
        """The peer answered the request of a part."""
        if self.finished:
            return
        if type(message) is Values:
            self._run(self._routed.on_values(part, message.epochs, message.results, message.fingerprint, now), now)
        elif type(message) is Failure:
            self._run(self._routed.on_failure(part, message.code, message.details, now), now)
        else:
            self._on_other_answer(part, message, now)

    def on_lost(self, part: int, code: int, details: Mapping[str, Detail], now: float) -> None:
        """The connection was lost after the part had been sent over it; the code says why."""
        if not self.finished:
            self._run(self._routed.on_failure(part, code, details, now), now)

    def on_silent(self, part: int, details: Mapping[str, Detail], now: float) -> None:
        """The connection that the part was sent over was given up, because its peer is silent."""
        if not self.finished:
            self._run(self._routed.on_silent(part, details, now), now)

    def on_unsent(
        self, part: int, code: int, details: Mapping[str, Detail], now: float, *, hopeless: bool = False
    ) -> None:
        """The part could not be sent; the code says why. `hopeless`: its peer refused and never was reached."""
        if code != FailureCode.UNAVAILABLE:
            self.on_lost(part, code, details, now)
        elif not self.finished:
            self._run(self._routed.on_unreached(part, details, now, hopeless=hopeless), now)

    def on_unsendable(self, part: int, code: int, details: Mapping[str, Detail], now: float) -> None:
        """The protocol cannot encode the request of the part."""
        self._run(self._routed.on_unsendable(part, code, details, now), now)

    def _run(self, commands: Sequence[Command], now: float) -> None:
        for command in commands:
            if self.finished:  # a send may have failed at once
                return
            if type(command) is Ask:
                self._ask(command, now)
            elif type(command) is LookUp:
                self._look_up(command, now)
            else:
                self._conclude(command)  # type: ignore[arg-type]
        if not self.finished:
            self._on_progress()

    def _on_other_answer(self, part: int, message: Answer, now: float) -> None:
        """The peer answered with a message that is neither Values nor Failure."""
        raise AssertionError(f"{type(message).__name__} for a get")

    @abstractmethod
    def _ask(self, command: Ask, now: float) -> None:
        """Send the request to the owner."""

    @abstractmethod
    def _look_up(self, command: LookUp, now: float) -> None:
        """Find the location; `RoutedGet.on_located` or a failure follows."""

    @abstractmethod
    def _conclude(self, end: Routed | Refuse) -> None:
        """Finish with the last command."""

    @abstractmethod
    def _on_progress(self) -> None:
        """The commands were carried out, and it is not finished. `RoutedGet.wake_at` may have changed."""


class Peers(Protocol):
    """What is known of the peers at addresses, beyond one connection."""

    def is_new(self, host: str, port: int) -> bool:
        """Whether this is the address of a proxy that was never reached."""

    def reached(self, host: str, port: int) -> None:
        """The peer at the address has sent a Welcome."""

    def ended(self, host: str, port: int, now: float) -> None:
        """The connection to the address has ended or could not be made, or gets no more requests."""

    def declined(self, host: str, port: int, now: float) -> None:
        """The peer at the address has answered a request with SHUTTING_DOWN or OVERLOADED."""


class Phase(Enum):
    """The phases of a connection, in order; it never returns to an earlier one."""

    NEW = "new"
    CONNECTING = "connecting"
    READY = "ready"
    SILENT = "silent"
    LOST = "lost"


_READY = Phase.READY
_CLOSED = ConnectionState.CLOSED
#: With these codes a peer says that it takes no requests for a while.
_DECLINES = frozenset({FailureCode.SHUTTING_DOWN, FailureCode.OVERLOADED})


class _Probe(Requester):
    """Sends the ping of a probe, and needs no answer: whatever comes shows that the peer lives."""

    finished = True

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Request:
        return Ping(request_id)

    def _ask(self, command: Ask, now: float) -> None:
        """Nothing to do."""

    def _look_up(self, command: LookUp, now: float) -> None:
        """Nothing to do."""

    def _conclude(self, end: Routed | Refuse) -> None:
        """Nothing to do."""

    def _on_progress(self) -> None:
        """Nothing to do."""


_PROBE = _Probe()
_SIGN_OF_LIFE = LookUp(None)


class PipelinedConnection(ABC):
    """A connection and the requesters that wait for an answer on it. Not thread-safe."""

    def __init__(self, host: str, port: int, settings: ConnectionSettings, peers: Peers, now: float) -> None:
        self.host = host
        self.port = port
        #: The details that every failure of this connection has.
        self._place: dict[str, Detail] = {"host": host, "port": port}
        self.phase = Phase.NEW
        #: Whether the connection takes requests, to send them now or once it is ready.
        self.takes_requests = True
        self._peers = peers
        self._silence_s = settings.silence_s
        self._exposes_token = settings.exposes_token(host)
        self._is_open = False
        self._client_tls = settings.tls
        self._tls: TlsStream | None = None
        self._wire = ClientConnection(
            token=settings.token,
            client=settings.client,
            features=settings.features,
            max_frame=settings.max_frame,
        )
        #: By request id: the requester, its part, and when the request was sent.
        self._pending: dict[int, tuple[Requester, int, float]] = {}
        self._queued: list[tuple[Requester, Ask | LookUp]] = []
        self._heard_at = now
        #: When a probe was sent that nothing has followed; None without one.
        self._probed_at: float | None = None

    @abstractmethod
    def _connect(self) -> None:
        """Start to connect; `opened` or `refused` follows, perhaps later."""

    @abstractmethod
    def notice_end(self) -> None:
        """When it is idle but something has arrived, lose it: that can only be the connection's end."""

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Send bytes as they are, now or as soon as the socket takes them. Must not block."""

    @abstractmethod
    def _abort(self) -> None:
        """Close the transport without waiting. May be called more than once."""

    @property
    def idle(self) -> bool:
        """Whether a request may be sent now and no answer is pending."""
        return self.phase is _READY and not self._pending

    @property
    def in_flight(self) -> int:
        """How many requests have no answer yet."""
        return len(self._pending) + len(self._queued)

    def send(self, requester: Requester, command: Ask | LookUp, now: float) -> None:
        """Send the requester's request, now or once the connection is ready. The first request connects."""
        wire = self._wire
        if self.phase is not _READY or wire.state is _CLOSED:
            # Closed: the bytes that are being parsed end the connection; `lost` follows at once.
            self._queued.append((requester, command))
            self.connect()
            return
        request_id = wire.next_id()
        try:
            data = wire.send(requester.request(request_id, command, now))
        except LocalProtocolError as exc:
            cause = exc.__cause__
            details = cause.details if isinstance(cause, QueryError) else {"reason": str(exc)}
            requester.on_unsendable(command.part, exc.code, details, now)
            return
        self._pending[request_id] = (requester, command.part, now)
        self._transmit(data)

    def connect(self) -> None:
        """Begin to connect, unless that has begun."""
        if self.phase is Phase.NEW:
            self.phase = Phase.CONNECTING
            try:
                self._tls = self._end_of_tls()
            except ConfigError as exc:
                self.lost(FailureCode.TLS_FAILED, {**self._place, "reason": str(exc)}, self._heard_at)
            else:
                self._connect()

    def _end_of_tls(self) -> TlsStream | None:
        """This end of TLS, if the connection has TLS. Raises `ConfigError` if it must not, or cannot, be made."""
        if self._exposes_token:
            raise ConfigError("the token would be sent without TLS; set tls, or allow_token_without_tls")
        return None if self._client_tls is None else self._client_tls.stream(self.host)

    def opened(self) -> None:
        """The transport is connected: begin the handshake."""
        self._is_open = True
        self._write(self._wire.start() if self._tls is None else self._tls.start())

    def received(self, data: bytes, now: float) -> None:
        """Take bytes from the peer."""
        self._heard_at = now
        self._probed_at = None
        if self._tls is not None:
            data = self._decrypted(self._tls, data, now)
            if not data:
                return
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
                if type(message) is Failure and message.code in _DECLINES:
                    self._peers.declined(self.host, self.port, now)
                entry[0].on_answer(entry[1], message, now)  # type: ignore[arg-type]
            elif type(message) is Failure:
                self._dismissed(message, now)
        if broken is not None:
            self._broken(broken, now)
        elif self.phase is Phase.SILENT:
            self._close_unless_awaited(now)

    def _transmit(self, data: bytes) -> None:
        """Send bytes of the protocol, inside TLS where the connection has it."""
        self._write(data if self._tls is None else self._tls.send(data))

    def _decrypted(self, tls: TlsStream, data: bytes, now: float) -> bytes:
        """The plain bytes that the peer's bytes complete. The Hello follows the handshake of TLS."""
        was_open = tls.is_open
        try:
            data = tls.receive(data)
        except TlsFailed as failed:
            self._write(tls.outgoing())
            if self.phase is Phase.CONNECTING:
                self.lost(failed.code, {**self._place, **failed.details}, now)
            else:
                self.unreachable(str(failed), now)
            return b""
        answer = tls.outgoing() if was_open else tls.outgoing() + tls.send(self._wire.start())
        if answer:
            self._write(answer)
        return data

    def probe(self, now: float) -> None:
        """Give the connection up if its peer is silent. For callers that know another peer to ask.

        Who waits for an answer asks again elsewhere: a slow peer answers the ping, and one that a request has stopped
        would answer no other request either. Call it every `PROBE_S` seconds while a request waits.
        """
        if self.phase is Phase.CONNECTING:
            if now - self._heard_at >= PROBE_ANSWER_S:
                self._fall_silent(now)
        elif self.phase is Phase.READY and any(not waiting.finished for waiting, _, _ in self._pending.values()):
            if self._probed_at is not None:
                if now - self._probed_at >= PROBE_ANSWER_S:
                    self._fall_silent(now)
            elif now - self._heard_at >= PROBE_S:
                self._probed_at = now
                self.send(_PROBE, _SIGN_OF_LIFE, now)

    def _fall_silent(self, now: float) -> None:
        reason = f"no sign of life for {now - self._heard_at:.2f} s"
        self.lost(FailureCode.UNAVAILABLE, {**self._place, "reason": reason}, now, silent=True)

    def lost(self, code: int, details: Mapping[str, Detail], now: float, *, silent: bool = False) -> None:
        """The connection has ended: close it and fail the requesters that wait. Only the first call counts.

        `silent`: it is closed here, because the peer is silent. Requests that were sent may be sent to another peer.
        """
        if self.phase is Phase.LOST:
            return
        if self.takes_requests:
            self._peers.ended(self.host, self.port, now)
        hopeless = not self._is_open and self._peers.is_new(self.host, self.port)
        self.phase, self.takes_requests = Phase.LOST, False
        self._wire.close()
        self._abort()
        sent, queued = list(self._pending.values()), list(self._queued)
        self._pending.clear()
        self._queued.clear()
        for requester, part, _ in sent:
            if silent:
                requester.on_silent(part, details, now)
            else:
                requester.on_lost(part, code, details, now)
        for requester, command in queued:
            requester.on_unsent(command.part, code, details, now, hopeless=hopeless)

    def unreachable(self, reason: str, now: float) -> None:
        """`lost`, because the transport failed or the peer closed the connection."""
        self.lost(FailureCode.UNAVAILABLE, {**self._place, "reason": reason}, now)

    def refused(self, error: OSError, now: float) -> None:
        """`lost`, because the connection could not be made."""
        # The name service's errors have a text of their own. For a socket's errors `strerror` gives the same text
        # whether the socket module or asyncio raised them.
        number = error.errno or 0
        reason = os.strerror(number) if number > 0 else error.strerror or str(error)
        self.lost(FailureCode.UNAVAILABLE, {**self._place, "reason": reason, "connected": False}, now)

    def stalls(self, requester: object) -> Mapping[str, Detail]:
        """The reason why the requester's request is still queued here, as details; empty when it is not."""
        if not any(other is requester for other, _ in self._queued):
            return {}
        reason = "connected, and no Welcome has come: is it a client proxy?" if self._is_open else "not connected yet"
        return {**self._place, "reason": reason}

    def cancel(self, requester: object) -> None:
        """The requester needs none of its answers any more: tell the peer, if the peer can use that."""
        for number, (other, _, _) in self._pending.items():
            data = self._wire.cancel(number) if other is requester else b""
            if data:
                self._transmit(data)

    def gave_up(self, requester: object, now: float) -> None:
        """The requester's deadline has passed. A peer that has been silent for `silence_s` gets no more requests.

        Silence counts from this request, or from an earlier one that was given up: otherwise a client with short
        deadlines would never find a dead peer. Other sent requests wait until their own deadlines: the peer may only be
        slow.
        """
        waiting = [(other, max(self._heard_at, sent)) for other, _, sent in self._pending.values()]
        waiting += [(other, self._heard_at) for other, _ in self._queued]
        if any(other is requester for other, _ in waiting):
            silent_since = min(since for other, since in waiting if other is requester or other.finished)
            if now - silent_since >= self._silence_s:
                self._give_up(now)
            elif self.phase is Phase.SILENT:
                self._close_unless_awaited(now)

    def _give_up(self, now: float) -> None:
        if self.phase is Phase.READY:
            self.phase, self.takes_requests = Phase.SILENT, False
            self._peers.ended(self.host, self.port, now)
        if self.phase is Phase.SILENT:
            self._close_unless_awaited(now)
        else:
            self.unreachable("no answer", now)

    def _close_unless_awaited(self, now: float) -> None:
        if all(requester.finished for requester, _, _ in self._pending.values()):
            self.unreachable("no answer", now)

    def _ready(self, now: float) -> None:
        self.phase = Phase.READY
        self._peers.reached(self.host, self.port)
        queued, self._queued = self._queued, []
        for requester, command in queued:
            if not requester.finished:
                self.send(requester, command, now)

    def _dismissed(self, failure: Failure, now: float) -> None:
        """The peer ends the connection. Once it is ready, its code says nothing about the requests in flight."""
        if self.phase is Phase.CONNECTING or failure.code in _DECLINES:
            self.lost(failure.code, failure.details, now)
        else:
            self.unreachable(f"the peer ended the connection with failure code {int(failure.code)}", now)

    def _broken(self, broken: BrokenConnection, now: float) -> None:
        if self.phase is Phase.CONNECTING:
            # The peer does not speak the protocol: trying again would not help.
            details: dict[str, Detail] = {**self._place, "reason": str(broken)}
            foreign = broken.code is not FailureCode.VERSION_MISMATCH
            self.lost(FailureCode.VERSION_MISMATCH, {**details, "greeted": False} if foreign else details, now)
        else:
            self.unreachable(str(broken), now)
