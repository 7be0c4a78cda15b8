"""One client's connection to a server or proxy, and the calls that its requests become.

Rules of this module: it joins a channel (bytes) to the protocol's connection (messages). It neither counts requests nor
decides about them: its endpoint does (`ConnectionHandler`). A broken frame ends its own connection and nothing else.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from qstate.errors import Detail, FailureCode, Forbidden, LocalProtocolError, TlsFailed
from qstate.host.line_limit import limited
from qstate.protocol.connection import (
    ON_BEHALF_OF,
    Answer,
    BadRequest,
    BrokenConnection,
    ConnectionState,
    Opened,
    Served,
    ServerConnection,
    ServerEvent,
)
from qstate.protocol.messages import (
    Cancel,
    Changes,
    Describe,
    Failure,
    Get,
    GetPart,
    Locate,
    Page,
    Part,
    Ping,
    Poll,
    Pong,
    Scan,
    Values,
)
from qstate.runtime.net.channel import LINGER_S, ChannelState, SlowReader
from qstate.runtime.net.pooled_channel import PooledChannel
from qstate.runtime.net.reactor import Reactor, Timer
from qstate.runtime.net.reading_pool import ReadingPool
from qstate.runtime.serving.access.gate import Visitor
from qstate.runtime.serving.sharing.forwarded import Forwarded
from qstate.runtime.serving.sharing.memory_budget import FREE_BYTES, MemoryBudget
from qstate.runtime.serving.sharing.throttle import Throttle
from qstate.tls import TlsStream

__all__ = ["AcceptedConnection", "Call", "ConnectionHandler", "Steps", "newcomers_of"]

log = limited(logging.getLogger(__name__))

#: Work in steps: each gives the answer, or None when there is more to do. Without an answer, one follows later.
Steps = Iterator[Answer | None]

_SERVED = frozenset((Get, GetPart, Scan, Poll, Locate, Describe))
#: So many messages of one connection are taken in before other connections are read.
MOST_AT_ONCE = 64
#: So many of one that had to wait for its peer's quota, and only when the ones before are answered: what they cost is
#: known only afterwards.
FEW_AT_ONCE = 4
#: What it costs an operator that a thread wakes beside it, apart from the thread's own time: it gives the interpreter's
#: lock away, and wakes again itself. Up to 0.5 ms were measured (docs/explanation/limits.md). It is charged for reads
#: that bring no message: clients that mean no harm need few of these.
WAKE_S = 0.0005
#: What a key takes in memory beside its characters.
KEY_BYTES = 64
#: When a client should ask again whose answer found no room.
RETRY_AFTER_MS = 50


def newcomers_of(host: str) -> str:
    """The peer of all connections from an address whose clients have not presented themselves.

    A proxy has the address of other clients of its host. So it must not wait for them before it can say what it is.
    """
    return f"new connections of {host}"


class ConnectionHandler(Protocol):
    """What a connection needs of its endpoint. The thread that reads calls `received` and `received_alone`."""

    def presented(self, connection: AcceptedConnection) -> bool:
        """The client has presented itself. False: it has no place, and the connection ends."""

    def received(self, connection: AcceptedConnection, request: Served) -> None:
        """A valid request came in. The endpoint answers it through a `Call`."""

    def received_alone(self, connection: AcceptedConnection, get: Get) -> Callable[[], None] | None:
        """A valid get came in, with no other message.

        May return work that answers it. The caller runs this work once other threads may read the connection.
        """

    def has_room(self, connection: AcceptedConnection) -> None:
        """The client of a connection with waiting calls has read enough of its answers: send more."""

    def answered(self, call: Call) -> None:
        """A call's answer was sent. Any thread."""

    def refused(self, code: int) -> None:
        """A request or the connection was refused before it became a call. Any thread."""

    def closed(self, connection: AcceptedConnection) -> None:
        """The connection is closed."""


class AcceptedConnection:
    """A connection from accept to close, which the threads of a pool read. Call `open` on the reactor's thread.

    With `max_requests` in flight it stops reading until half of them are answered, so one connection takes no more than
    its share. Answers that come late may fill `room_bytes`; more than `max_unsent_bytes` end the connection. What it
    holds in memory counts in `memory`.
    """

    def __init__(
        self,
        handler: ConnectionHandler,
        reactor: Reactor,
        sock: socket.socket,
        protocol: ServerConnection,
        *,
        visitor: Visitor,
        host: str,
        memory: MemoryBudget,
        throttle: Throttle,
        pool: ReadingPool,
        room_bytes: int,
        max_unsent_bytes: int,
        max_requests: int,
        patience_s: float,
        tls: TlsStream | None = None,
    ) -> None:
        self.reactor, self.protocol = reactor, protocol
        #: Who the client is.
        self.visitor = visitor
        self.channel = PooledChannel(
            reactor,
            sock,
            pool=pool,
            meter=self,
            on_data=self._on_data,
            on_room=self._on_room,
            on_end=self._on_end,
            on_close=self._on_close,
            max_unsent_bytes=max_unsent_bytes,
            patience_s=patience_s,
            tls=tls,
        )
        #: The calls that wait for a thread. `queued`: it waits for its turn; `slow`: its last turn took long, or it had
        #: none yet, so that a hundred new connections with a large request each do not come first.
        self.calls: deque[Call] = deque()
        self.queued, self.slow = False, True
        #: The same for the calls that take several turns, until they begin. Only `LargeCalls` changes them.
        self.large_calls: deque[Call] = deque()
        self.large_queued = False
        #: The requests that were admitted and not answered, and what they cost (`Call.cost`). The endpoint counts them.
        self.in_flight = self.in_flight_bytes = 0
        #: By the id of the request.
        self.calls_in_flight: dict[int, Call] = {}
        #: The calls whose values other servers send.
        self.forwarded = Forwarded(room_bytes)
        #: When it was accepted or last answered, by the reactor's clock.
        self.active_at = reactor.clock()
        #: When the frame began of which only a part has arrived; 0 without one.
        self.frame_begun_at = 0.0
        self.host, self.is_proxy = host, False
        #: Whose quota it uses, and whose it will use when what it has used is charged.
        self.peer = self._next_peer = newcomers_of(host)
        self._memory, self._throttle = memory, throttle
        self._room_bytes, self._max_requests = room_bytes, max_requests
        self._counted = self._held = self._ended = self._waits = self._waited = False
        self._handler, self._patience_s = handler, patience_s
        #: First the timeout of the handshake; after the end of the input, the timeout of the answers.
        self._late: Timer | None = None

    @property
    def over(self) -> bool:
        """Whether the connection is closed or about to be, so that answers cannot be sent. Any thread."""
        return self.protocol.closed or self.channel.state is not ChannelState.OPEN

    def open(self, handshake_timeout_s: float) -> None:
        """Start to read. Without a handshake within the timeout the connection is closed."""
        self._late = self.reactor.call_later(handshake_timeout_s, self._handshake_late)
        self.channel.open()

    def end(self, code: FailureCode, linger_s: float) -> None:
        """Send what is queued and a close notice with the code, then close. Only the driving thread."""
        close_notice = b"" if self.protocol.closed else self.protocol.send(Failure(0, code, {}))
        self.channel.finish(linger_s, close_notice)

    def send(self, data: bytes) -> None:
        """Send now, or on the driving thread at the end of its turn. Any thread."""
        if self.reactor.in_driver():
            self.channel.send_soon(data)
            self._count()
        else:
            self.send_now(data)

    def send_now(self, data: bytes) -> None:
        """Send from this thread, which must not be the driving one."""
        self.channel.send(data)
        if len(data) > FREE_BYTES or self._counted:
            self._count()

    # `Meter` and `Throttled`. `_waits`: it is not read because its peer is over the quota. `_waited`: that was
    # so before, and not all that had come meanwhile was read.

    def may_read(self) -> bool:
        if not self._throttle.quota.wait_s(self.peer):
            return True
        self._waits = True
        self._throttle.wait(self)
        return False

    def charge(self, seconds: float) -> None:
        self._throttle.quota.charge(self.peer, seconds)
        self.peer = self._next_peer

    def woken_for_a_part(self) -> None:
        self._throttle.quota.charge(self.peer, WAKE_S)

    def read_on(self, waited_s: float) -> None:
        self._waits, self._waited = False, True
        if self.frame_begun_at:
            self.frame_begun_at += waited_s
        self.channel.read_later()

    # `Holder`.

    def held_bytes(self) -> int:
        return self.protocol.buffered + self.channel.waiting_bytes()

    def give_up_memory(self) -> None:
        self._handler.refused(FailureCode.OVERLOADED)
        waiting = self.channel.waiting_bytes()
        if waiting > FREE_BYTES:
            self.channel.close(SlowReader(f"the peer left {waiting} bytes unread, and the memory is needed"))
        else:
            self.channel.if_unread(self._drop_input)
            self.reactor.call_soon(self._end_frame, FailureCode.OVERLOADED)

    def _drop_input(self) -> None:
        """Free the part of a frame at once: the driving thread may take a while to end the connection."""
        self.channel.hold()
        self.protocol.drop_input()

    def _end_frame(self, code: FailureCode) -> None:
        if not self.over:
            self.end(code, LINGER_S)
            self.channel.while_unread(self.protocol.close)

    def _count(self) -> None:
        held = self.held_bytes()
        if held > FREE_BYTES:
            self._counted = True
            self._memory.hold(self, held)
        elif self._counted:
            self._counted = False
            self._memory.drop(self)

    def has_room(self, size: int) -> bool:
        """Whether so many bytes may wait for the client beside those that wait already. Any thread.

        A client that has read everything has room for any one answer.
        """
        waiting = self.channel.waiting_bytes()
        return not waiting or waiting + size <= self._room_bytes

    def may_answer(self) -> bool:
        """Whether to answer further calls now. Any thread.

        Else `ConnectionHandler.has_room` follows: when the client has read more of what waits for it, or, when it has
        read all, with the next answer of an owner.
        """
        waiting = self.channel.waiting_bytes()
        if waiting and self.channel.is_congested():
            return False
        if self.forwarded.allows_another(waiting) or self.over:
            return True
        if waiting and self.channel.pause():
            return False
        return self.forwarded.allows_another(0)

    def arrived(self, call: Call, size: int) -> None:
        """An answer of so many bytes, which came later, was sent. Any thread."""
        if self.forwarded.arrived(call, size) and (self.calls or self.large_calls):
            self._handler.has_room(self)
            self.channel.read_later()

    def answered(self, now: float) -> None:
        """The endpoint counted one request less in flight. Any thread."""
        self.active_at = now
        few = not self._is_busy() if self._waited else self.in_flight <= self._max_requests // 2
        if self._held and few and self.in_flight_bytes <= self._room_bytes // 2:
            self._held = False
            self.channel.release()
        if self._ended and not self.in_flight:
            self.channel.close_when_sent()

    def _room(self) -> int:
        """How many further requests may be in flight."""
        room = max(0, self._max_requests - self.in_flight) if self.in_flight_bytes <= self._room_bytes else 0
        return min(room, 0 if self._is_busy() else FEW_AT_ONCE) if self._waited else room

    def _is_busy(self) -> bool:
        """Whether requests wait that cost something. Polls that wait cost nothing."""
        return bool(self.calls or self.large_calls or self.forwarded)

    def _on_end(self) -> None:
        # Set `_ended` first: a request that another thread answers now either finds it set or is not in flight below.
        self._ended = True
        self.answered(self.active_at)
        self.reactor.call_soon(self._wait_for_answers)

    def _wait_for_answers(self) -> None:
        # The client may be gone. It has chosen the deadlines of its requests, so they do not bound the wait.
        if self.in_flight and not self.over:
            self._cancel_late()
            self._late = self.reactor.call_later(self._patience_s, self._answers_late)

    def _answers_late(self) -> None:
        if self.in_flight:
            self.channel.close()

    def _on_data(self, data: bytes) -> Callable[[], None] | None:
        room = self._room()
        most = min(room, MOST_AT_ONCE)
        try:
            events = self.protocol.receive(data, most)
        except BrokenConnection as broken:
            self.woken_for_a_part()
            self._broken(broken)
            return None
        if data and most and not events:
            self.woken_for_a_part()
        if self.protocol.buffered or self._counted or self.frame_begun_at:
            self._kept_input(len(events), most)
        if most > 1 and len(events) == 1 and type(events[0]) is Get:
            return self._handler.received_alone(self, events[0])
        self._take(events)
        if not room:
            self._hold()
        elif len(events) == most:  # more may be buffered
            self.channel.yield_turn()
        elif events:
            self._waited = False
        return None

    def _kept_input(self, taken: int, most: int) -> None:
        """Some input is no message yet: it is a part of a frame, or waits until there is room for it."""
        self._count()
        self.channel.bulky = taken < most and self.protocol.buffered > FREE_BYTES
        if not self.protocol.buffered or taken == most:
            self.frame_begun_at = 0.0
        elif taken or not self.frame_begun_at:
            self.frame_begun_at = self.reactor.clock()

    def frame_is_late(self, began_by: float) -> bool:
        """Whether a frame that began by then has not arrived whole, although the connection is read."""
        return 0 < self.frame_begun_at <= began_by and not self._waits and not self.channel.is_congested()

    def end_late_frame(self) -> None:
        """End the connection, because the frame takes too long. Only the driving thread."""
        self._handler.refused(FailureCode.DEADLINE_EXCEEDED)
        self._end_frame(FailureCode.DEADLINE_EXCEEDED)

    def _take(self, events: list[ServerEvent]) -> None:
        for event in events:
            kind = type(event)
            if kind in _SERVED:
                self._handler.received(self, event)  # type: ignore[arg-type]
            elif kind is Cancel:
                call = self.calls_in_flight.get(event.id)  # type: ignore[union-attr]
                if call is not None:
                    call.cancel()
            elif kind is Ping:
                self.send(self.protocol.send(Pong(event.id)))  # type: ignore[union-attr]
            elif isinstance(event, BadRequest):
                self._handler.refused(event.code)
                self.send(self.protocol.send(Failure(event.id, event.code, event.details)))
            elif isinstance(event, Opened):
                self.is_proxy = self.visitor.is_proxy
                self._next_peer = self._peer(event.features)
                if self._handler.presented(self):
                    self.channel.send(event.reply)

    def _peer(self, features: tuple[str, ...]) -> str:
        """The quota of a client that has presented itself. A proxy may say for which address it asks."""
        if not self.is_proxy:
            return self.host
        origins = (name.removeprefix(ON_BEHALF_OF) for name in features if name.startswith(ON_BEHALF_OF))
        return next(origins, f"proxies of {self.host}")

    def _hold(self) -> None:
        # Hold first: a request that another thread answers now either finds the channel held or is not counted below.
        self.channel.hold()
        self._held = True
        self.answered(self.active_at)

    def _on_room(self) -> None:
        if self.frame_begun_at:  # nothing was read meanwhile
            self.frame_begun_at = self.reactor.clock()
        if self.calls or self.large_calls:
            self._handler.has_room(self)

    def _broken(self, broken: BrokenConnection) -> None:
        log.info("closed a connection whose peer broke the protocol: %s", broken)
        self._handler.refused(broken.code)
        if broken.code == FailureCode.UNAUTHENTICATED:
            self.visitor.refused(broken.code)
        self.channel.finish(LINGER_S, broken.close_notice)

    def _handshake_late(self) -> None:
        # Only the reactor's thread may cancel timers, so this one also fires after a handshake in time.
        if self.protocol.state is not ConnectionState.HANDSHAKE:
            return
        self._handler.refused(FailureCode.DEADLINE_EXCEEDED)
        self.end(FailureCode.DEADLINE_EXCEEDED, LINGER_S)

    def _on_close(self, reason: BaseException | None) -> None:
        self._cancel_late()
        self._throttle.forget(self)
        if isinstance(reason, TlsFailed):
            log.info("closed a connection without TLS: %s", reason)
            self._handler.refused(reason.code)
            self.visitor.refused(reason.code)
        self.protocol.close()
        self._memory.drop(self)
        for call in list(self.calls_in_flight.values()):  # of one copy: other threads remove those that they answer
            call.cancel()
        self._handler.closed(self)

    def _cancel_late(self) -> None:
        if self._late is not None:
            self._late.cancel()


class Call:
    """A request that needs exactly one answer. Times are by the reactor's clock.

    `failure` is the failure code of the answer, or of its only key; None before the answer and without a failure.
    `steps` is the rest of the work on a request that takes turns (see `Service`). An answer has at most `most_bytes`.
    `cost` is about how many bytes of memory the request takes. `on_cancel` is called, on any thread, when the client
    cancels a call that waits for something else than its turn. `on_answered` is called, on any thread, when an answer
    that comes later was sent. It is set before the request is executed.
    """

    __slots__ = (
        "_about",
        "_handler",
        "cancelled",
        "connection",
        "cost",
        "deadline",
        "failure",
        "most_bytes",
        "on_answered",
        "on_cancel",
        "received_at",
        "request",
        "steps",
    )

    def __init__(
        self,
        handler: ConnectionHandler,
        connection: AcceptedConnection,
        request: Served,
        received_at: float,
    ) -> None:
        self._handler = handler
        self.connection = connection
        self.request = request
        self.received_at = received_at
        self.deadline = received_at + request.deadline_ms / 1000
        self.failure: int | None = None
        self._about: tuple[str, str] | None = None
        self.steps: Steps | None = None
        self.cancelled = False
        self.on_cancel: Callable[[], None] | None = None
        self.on_answered: Callable[[Call], None] | None = None
        protocol = connection.protocol
        self.most_bytes = protocol.answer_limits.max_frame
        self.cost = protocol.size_of(request.id)
        if type(request) is Get or isinstance(request, Poll):
            self.cost += KEY_BYTES * len(request.keys)
        elif isinstance(request, GetPart):
            self.cost += KEY_BYTES * len(request.map_keys)

    def check_right(self, job: str, state: str, keys: int = 0) -> None:
        """Raise `Forbidden` unless the client may send this request, for so many keys of the state.

        An answer that comes later needs the right then, too: the client has chosen how long it waits.
        """
        self.connection.visitor.check(type(self.request), job, state, keys)
        self._about = job, state

    def answer(self, answer: Answer) -> None:
        """Send the answer. Any thread.

        Values, parts and changes for which the client has left no room are replaced by OVERLOADED: the client asks
        again when it has read the answers before.
        """
        if self._about is not None and not isinstance(answer, Failure):
            try:
                self.connection.visitor.check_again(type(self.request), *self._about)
            except Forbidden as error:
                answer = Failure(self.request.id, error.code, error.details)
        size = _size_of(answer)
        if not self.connection.has_room(size) and isinstance(answer, Values | Part | Page | Changes):
            answer = Failure(self.request.id, FailureCode.OVERLOADED, {"retry_after_ms": RETRY_AFTER_MS})
        data = self.encode(answer)
        if data:
            self.connection.send(data)
        self.connection.arrived(self, size)
        self.sent()

    def cancel(self) -> None:
        """The client waits for the answer no longer: answer CANCELLED unless the request is being executed."""
        self.cancelled = True
        on_cancel = self.on_cancel
        if on_cancel is not None:
            on_cancel()

    def fail(self, code: int, **details: Detail) -> None:
        """Send a failure. Any thread."""
        self.answer(Failure(self.request.id, code, details))

    def encode(self, answer: Answer) -> bytes:
        """The bytes of the answer; no bytes when the connection is closed. The caller sends them and then calls `sent`.

        An answer that cannot be sent is replaced by a failure that says why.
        """
        protocol = self.connection.protocol
        if type(answer) is Values:
            answer = answer.with_failures_marked()
        try:
            data = protocol.send(answer)
        except LocalProtocolError as exc:
            # Another thread may close the connection at any moment, so any send may fail with that.
            if protocol.closed or type(answer) is Failure:
                return b""
            return self.encode(self._unsendable(exc))
        if type(answer) is Failure:
            self.failure = answer.code
        elif type(answer) is Values and len(answer.results) == 1 and isinstance(answer.results[0], int):
            self.failure = answer.results[0]
        return data

    def sent(self) -> None:
        """The answer was sent, or the connection is closed: the call is over."""
        self._handler.answered(self)
        if self.on_answered is not None:
            self.on_answered(self)

    def _unsendable(self, error: LocalProtocolError) -> Failure:
        if error.code is FailureCode.TOO_LARGE:
            return Failure(self.request.id, FailureCode.TOO_LARGE, {"field": "answer"})
        log.error("an answer to %s breaks the protocol: %s", type(self.request).__name__, error)
        return Failure(self.request.id, FailureCode.INTERNAL, {})


def _size_of(answer: Answer) -> int:
    """About how many bytes it has: those of its values."""
    if isinstance(answer, Part):
        return len(answer.result or b"")
    if isinstance(answer, Changes):
        return sum(sum(map(len, run.values or ())) for run in answer.runs)
    if isinstance(answer, Values | Page):
        return sum(len(result) for result in answer.results if isinstance(result, bytes))
    return 0
