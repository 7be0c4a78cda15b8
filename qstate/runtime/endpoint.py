"""The listening side that the state server and the client proxy share.

Rules of this module: it accepts connections, admits requests and gets their answers out, whatever they are. It
must not know what a request reads; its `Service` does.

Connections are read by a crew, whose threads then execute what they read if they may (`qstate.runtime.crew`). One
reactor accepts, keeps time and sends the rest of an answer to a client that reads slowly.

What is bounded: connections, requests in flight (OVERLOADED), the time until the handshake, unread answers
(back-pressure, then the connection closes), the time a request may wait in the queue (its deadline), shutdown.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from qstate.errors import ClosedError, ConfigError, FailureCode, QueryError
from qstate.protocol import (
    DEFAULT_MAX_FRAME,
    DEFAULT_MAX_KEYS,
    Answer,
    ConnectionState,
    Describe,
    Failure,
    Get,
    Limits,
    Locate,
    ServerConnection,
    encode,
    frame,
)
from qstate.runtime.channel import Channel
from qstate.runtime.crew import Crew
from qstate.runtime.line_limit import limited
from qstate.runtime.listener import Listener, host_and_port, listen
from qstate.runtime.reactor import Reactor
from qstate.runtime.session import Call, Session
from qstate.runtime.statistics import DisabledStatistics, RequestStatistics

__all__ = ["Call", "Endpoint", "EndpointOptions", "Service"]

log = limited(logging.getLogger(__name__))

#: Answers to pipelined requests of one connection are written together, up to this size and this delay.
GATHER_BYTES = 64 * 1024
GATHER_S = 0.001
#: Connections over the limit that are being told so at the same time; more are just closed.
MAX_REFUSALS = 64
#: When a client that was turned away, with nothing known about how long the queue is, should come back.
RETRY_AFTER_MS = 50
LONGEST_RETRY_AFTER_MS = 1000
#: How long connections may take to read the last bytes at shutdown, beyond the requests in flight.
FAREWELL_S = 0.2


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """How a server or proxy listens and what it bounds. Raises `ConfigError` for a value that cannot work.

    `ports` is a list of ports and ranges, tried in order ("9069,9100-9200"; "0": any free one). `token` is what
    clients must present; a proxy presents it to the state servers, too.
    """

    bind: str = "127.0.0.1"
    ports: str = "0"
    network_threads: int = 1
    query_threads: int = 1
    max_connections: int = 1024
    max_frame: int = DEFAULT_MAX_FRAME
    max_keys: int = DEFAULT_MAX_KEYS
    max_queued: int = 10_000
    token: bytes | None = None
    handshake_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        for name in ("network_threads", "query_threads", "max_connections", "max_queued", "handshake_timeout_s"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be above zero, got {getattr(self, name)}")
        Limits(self.max_frame, self.max_keys)


class Service(Protocol):
    """Answers the requests of an endpoint."""

    def handle(self, call: Call) -> Answer | None:
        """The answer, or None when `call.answer` will be called later, from any thread.

        A `QueryError` becomes the failure of that request; any other exception is logged and becomes INTERNAL.
        """


class Endpoint:
    """A port, its threads and its connections. `name` stands in log lines and thread names.

    Its `network_threads` and `query_threads` are one crew; the service is called by at most `query_threads` at a time.
    """

    def __init__(
        self,
        name: str,
        options: EndpointOptions,
        service: Service,
        *,
        statistics: RequestStatistics | None = None,
    ) -> None:
        self.name = name
        self.options = options
        thread_name = f"qstate-{name.lower().replace(' ', '-')}"
        self.reactor = Reactor(f"{thread_name}-reactor")
        self._service = service
        self._statistics = statistics or DisabledStatistics()
        self._clock: Callable[[], float] = time.monotonic
        self._ready: deque[Call] = deque()
        self._crew = Crew(
            options.network_threads,
            options.query_threads,
            thread_name,
            pending=self._ready.__len__,
            execute=self._execute,
        )
        self._listener: Listener | None = None
        self._address: tuple[str, int] | None = None
        # Guards what follows. The condition on it is signalled when a call or a session ends while the endpoint
        # drains; each request takes the bare lock, which costs a fraction of what the condition's methods do.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._sessions: set[Session] = set()
        self._refusals = 0
        self._in_flight = 0
        self._started = False
        self._draining = False
        self._shut_down = False

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on. Raises `ClosedError` before `start`."""
        if self._address is None:
            raise ClosedError(f"the {self.name} has not been started")
        return self._address

    @property
    def serving(self) -> bool:
        """Whether it was started and has not begun to shut down. Any thread."""
        return self._started and not self._draining

    @property
    def in_flight(self) -> int:
        """How many requests were admitted and not answered yet."""
        return self._in_flight

    def start(self) -> None:
        """Listen and serve. Raises `ConfigError` when no port is free; `ClosedError` the second time."""
        with self._changed:
            if self._draining or self._started:
                raise ClosedError(f"the {self.name} can be started once")
            self._started = True
        try:
            sock = listen(self.options.bind, self.options.ports, self.name)
        except ConfigError:
            self.shutdown(0.0)
            raise
        self._address = host_and_port(sock.getsockname())
        self._listener = Listener(self.reactor, sock, self._accept)
        self._listener.open()
        self.reactor.start()
        self._crew.start()
        log.info("Started the %s @ %s:%s", self.name, *self._address)

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, let the requests in flight finish for `timeout_s`, close everything. Idempotent.

        New requests meanwhile are answered SHUTTING_DOWN. It returns soon after the timeout whatever a request
        does: one that still executes then keeps its (daemon) thread, and its answer reaches nobody.
        """
        with self._changed:
            if self._draining:
                self._changed.wait_for(lambda: self._shut_down, timeout_s)
                return
            self._draining = True
        until = time.monotonic() + timeout_s
        if self._listener is not None:
            self._listener.close()
            self._drain(until)
        if not self._stop_threads(until):
            log.warning("the %s shut down while a request was still executing", self.name)
        with self._changed:
            self._shut_down = True
            self._changed.notify_all()

    def _drain(self, until: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, until - time.monotonic())
            sessions = list(self._sessions)
        for session in sessions:
            self.reactor.call_soon(session.end, FailureCode.SHUTTING_DOWN, FAREWELL_S)
        # Long answers may still be on their way to slow readers: they get the rest of the time.
        with self._changed:
            self._changed.wait_for(lambda: not self._sessions, max(2 * FAREWELL_S, until - time.monotonic()))

    def _stop_threads(self, until: float) -> bool:
        # The reactor first: its last turn closes what is open, and the crew reads only open connections.
        self.reactor.stop()
        if self._listener is None:
            self.reactor.turn(0.0)
        done = self.reactor.join(max(1.0, until - time.monotonic()))
        return self._crew.stop(max(1.0, until - time.monotonic())) and done

    # What the sessions report.

    def received(self, session: Session, request: Get | Locate | Describe) -> None:
        self._statistics.report_request(len(request.keys) if type(request) is Get else 0)
        call = Call(self, session, request, self._clock())
        if self._admit(call):
            self._ready.append(call)

    def received_alone(self, session: Session, get: Get) -> Callable[[], None] | None:
        if self._ready or not self._crew.take_permit():
            self.received(session, get)  # requests that wait already go first
            return None
        return partial(self._execute_at_once, session, get)

    def _execute_at_once(self, session: Session, get: Get) -> None:
        """Answer a get on the thread that read it, which has a permit for that. Counting comes after answering."""
        try:
            call = Call(self, session, get, self._clock())
            if not self._admit(call):
                self._statistics.report_request(len(get.keys))
                return
            answer = self._handle(call) if get.deadline_ms else self._answer_to(call, call.received_at)
            if answer is not None:
                data = call.encode(answer)
                if data:
                    session.channel.send(data)
            self._statistics.report_request(len(get.keys))
            if answer is not None:
                self.answered(call)
        finally:
            self._crew.give_permit()

    def _admit(self, call: Call) -> bool:
        """Count the call in. False: it has been refused."""
        with self._lock:
            draining, overloaded = self._draining, self._in_flight >= self.options.max_queued
            self._in_flight += 1
            call.session.in_flight += 1
        if draining:
            call.fail(FailureCode.SHUTTING_DOWN)
        elif overloaded:
            call.fail(FailureCode.OVERLOADED, retry_after_ms=self._retry_after_ms())
        else:
            return True
        return False

    def answered(self, call: Call) -> None:
        if call.failure is None:
            self._statistics.report_successful_request(self._clock() - call.received_at)
        else:
            self._statistics.report_failed_request(call.failure)
        with self._lock:
            self._in_flight -= 1
            call.session.in_flight -= 1
            if self._draining and not self._in_flight:
                self._changed.notify_all()
        call.session.answered()

    def refused(self, code: int) -> None:
        self._statistics.report_failed_request(code)

    def closed(self, session: Session) -> None:
        self._statistics.report_inactive_connection()
        with self._lock:
            self._sessions.discard(session)
            if self._draining and not self._sessions:
                self._changed.notify_all()

    # Accepting.

    def _accept(self, sock: socket.socket, peer: object) -> None:
        with self._changed:
            full = len(self._sessions) >= self.options.max_connections
        if full or self._draining:
            self._refuse(sock, FailureCode.SHUTTING_DOWN if self._draining else FailureCode.OVERLOADED)
            return
        options = self.options
        connection = ServerConnection(
            server=f"qstate {self.name}", token=options.token, max_frame=options.max_frame, max_keys=options.max_keys
        )
        # Room for one answer of the largest size while another one is being read.
        most = 2 * options.max_frame + GATHER_BYTES
        session = Session(self, self.reactor, sock, connection, crew=self._crew, max_unsent_bytes=most)
        with self._changed:
            self._sessions.add(session)
        self._statistics.report_active_connection()
        self.reactor.call_soon(session.open, options.handshake_timeout_s)

    def _refuse(self, sock: socket.socket, code: FailureCode) -> None:
        self._statistics.report_failed_request(code)
        if self._refusals >= MAX_REFUSALS:
            sock.close()
            return
        self._refusals += 1
        channel = Channel(
            self.reactor, sock, on_data=_discard, on_close=self._refusal_over, max_unsent_bytes=GATHER_BYTES
        )
        channel.open()
        details = {"retry_after_ms": LONGEST_RETRY_AFTER_MS} if code is FailureCode.OVERLOADED else {}
        channel.send(frame(encode(Failure(0, code, details))))
        channel.finish()

    def _refusal_over(self, reason: BaseException | None) -> None:
        self._refusals -= 1

    # Executing.

    def _execute(self) -> None:
        """Answer queued calls until there are none, on a query thread."""
        ready = self._ready
        while True:
            try:
                call = ready.popleft()
            except IndexError:
                return
            if ready:
                self._execute_together(call)
                continue
            answer = self._answer_to(call, self._clock())
            if answer is not None:
                data = call.encode(answer)
                if data:
                    call.session.channel.send(data)
                self.answered(call)

    def _execute_together(self, first: Call) -> None:
        """Answer a call and those behind it; successive answers to one connection leave in one write."""
        gathered = _Gathered()
        call = first
        try:
            while True:
                now = self._clock()
                gathered.make_way(call.session, now)
                answer = self._answer_to(call, now)
                if answer is not None:
                    gathered.add(call, call.encode(answer))
                call = self._ready.popleft()
        except IndexError:
            return
        finally:
            gathered.send()

    def _answer_to(self, call: Call, now: float) -> Answer | None:
        if now >= call.deadline or call.session.connection.state is ConnectionState.CLOSED:
            return Failure(call.request.id, FailureCode.DEADLINE_EXCEEDED, {})
        return self._handle(call)

    def _handle(self, call: Call) -> Answer | None:
        try:
            return self._service.handle(call)
        except QueryError as error:
            return Failure(call.request.id, error.code, error.details)
        except Exception:
            log.exception("a %s failed; only its client is told", type(call.request).__name__)
            return Failure(call.request.id, FailureCode.INTERNAL, {})

    def _retry_after_ms(self) -> int:
        """About as long as the oldest request has been waiting: then the queue will have moved on."""
        try:
            waited_ms = int((self._clock() - self._ready[0].received_at) * 1000)
        except IndexError:
            return RETRY_AFTER_MS
        return max(RETRY_AFTER_MS, min(waited_ms, LONGEST_RETRY_AFTER_MS))


class _Gathered:
    """Answers of one session that leave in one write."""

    __slots__ = ("_calls", "_parts", "_session", "_since", "_size")

    def __init__(self) -> None:
        self._session: Session | None = None
        self._parts: list[bytes] = []
        self._calls: list[Call] = []
        self._size = 0
        self._since = 0.0

    def make_way(self, session: Session, now: float) -> None:
        """Send what must not wait for an answer of `session` that is about to be made."""
        if self._session is None:
            self._session, self._since = session, now
        elif session is not self._session or self._size > GATHER_BYTES or now - self._since > GATHER_S:
            self.send()
            self._session, self._since = session, now

    def add(self, call: Call, data: bytes) -> None:
        self._calls.append(call)
        self._parts.append(data)
        self._size += len(data)

    def send(self) -> None:
        if self._session is None:
            return
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        if data:
            self._session.channel.send(data)
        for call in self._calls:
            call.sent()
        self._session, self._parts, self._calls, self._size = None, [], [], 0


def _discard(data: bytes) -> None:
    return
