"""The listening side that the state server and the client proxy share.

Rules of this module: it accepts connections, admits requests and sends their answers. It must not know what a request
reads; its `Service` does.

The threads of a pool read the connections and, with a permit, execute the requests (`runtime.net.reading_pool`). One
reactor accepts connections, keeps time and sends the rest of an answer to a client that reads slowly.

Bounds:

- connections: a new one replaces an idle one, else it is refused (OVERLOADED); the job's proxies have room beside them;
- requests in flight: at its limit a connection is not read, at the limit of all connections requests are OVERLOADED;
- unread answers: back-pressure, then the connection is closed;
- memory: a budget of all connections (`memory_budget`), and as many large answers in the making (`large_calls`);
- processor time: a quota, which peers share (`request_quota`); who is over it is read more slowly (`throttle`);
- times: the handshake's, a frame's, a request's in the queue (its deadline), and the shutdown's.

Connections take turns: a client that sends a thousand requests at once does not make the others wait for all of them.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from time import thread_time
from typing import Any, Protocol, TypeVar

from qstate.errors import ClosedError, ConfigError, FailureCode, QueryError
from qstate.host.line_limit import limited
from qstate.protocol.codec import encode, frame
from qstate.protocol.connection import CANCEL, PARTS, Answer, Served, ServerConnection
from qstate.protocol.messages import Failure, Get, GetPart
from qstate.runtime.control.statistics import RequestStatistics, contained
from qstate.runtime.net.channel import LINGER_S, Channel
from qstate.runtime.net.listener import Listener, host_and_port, listen
from qstate.runtime.net.reactor import Reactor
from qstate.runtime.net.reading_pool import ReadingPool
from qstate.runtime.serving.access.audit import INTERVAL_S
from qstate.runtime.serving.access.gate import RELOAD_S, Gate, Visitor
from qstate.runtime.serving.client_connection import AcceptedConnection, Call, Steps, newcomers_of
from qstate.runtime.serving.endpoint_options import EndpointOptions
from qstate.runtime.serving.sharing.freed_memory import give_back, give_large_pieces_back
from qstate.runtime.serving.sharing.in_flight import InFlight
from qstate.runtime.serving.sharing.memory_budget import MemoryBudget
from qstate.runtime.serving.sharing.places import Places
from qstate.runtime.serving.sharing.request_quota import RequestQuota
from qstate.runtime.serving.sharing.throttle import Throttle
from qstate.runtime.serving.sharing.turns import TURN_BYTES, Turns

__all__ = ["Call", "Endpoint", "EndpointOptions", "EndpointOwner", "Service"]

log = limited(logging.getLogger(__name__))

#: Refused or replaced connections that get a close notice at the same time. Any more are closed at once.
MAX_REFUSALS = 64
#: The memory of connections has room for at least so many of the largest frames.
LEAST_FRAMES = 4
#: How often to look for frames that take too long.
LOOK_S = 1.0
#: After its connections held more than this, freed memory is given back.
MUCH_BYTES = 16 * 1024 * 1024
#: The shortest time after which a refused client should retry, also used when the queue's length is unknown.
RETRY_AFTER_MS = 50
LONGEST_RETRY_AFTER_MS = 1000
#: How long clients may take to read the last bytes at shutdown, after the requests in flight are answered.
CLOSE_NOTICE_S = 0.2

#: What a client that speaks no TLS gets where it is required.
_TLS_ONLY = frame(encode(Failure(0, FailureCode.TLS_FAILED, {"expected": "TLS"})))
#: What the steps give at their end, when the answer follows later.
_NO_ANSWER: Any = object()


class Service(Protocol):
    """What answers the requests of an endpoint."""

    def handle(self, call: Call) -> Answer | Steps | None:
        """The answer, or None if the service will call `call.answer` later, on any thread.

        Work that would hold other requests up for long is returned as steps. They are taken one in a turn, perhaps on
        different threads, and not taken any more when the deadline has passed.

        A `QueryError` becomes the failure of that request; any other exception is logged and becomes INTERNAL.
        """


class Endpoint:
    """A port, its threads and its connections. `name` appears in log lines and thread names.

    `quota` is that of another port of the same process. By default it has one of its own.

    Its `network_threads` and `query_threads` are one pool. At most `query_threads` of them call the service at a time.
    """

    def __init__(
        self,
        name: str,
        options: EndpointOptions,
        service: Service,
        *,
        statistics: RequestStatistics | None = None,
        quota: RequestQuota | None = None,
    ) -> None:
        # First, because it refuses a file that is wrong: nothing is open yet.
        self._gate = Gate(
            options.access_file,
            token=options.token,
            peer_token=options.peer_token,
            audit=options.audit_log,
            sees_certificates=options.tls is not None and bool(options.tls.client_ca_file),
        )
        self.name = name
        self.options = options
        thread_name = f"qstate-{name.lower().replace(' ', '-')}"
        self.reactor = Reactor(f"{thread_name}-reactor")
        self._service = service
        self._statistics = contained(statistics)
        self._clock: Callable[[], float] = time.monotonic
        self._turns = Turns(self._clock, self._answer_to)
        self._pool = ReadingPool(
            options.network_threads,
            options.query_threads,
            thread_name,
            pending=self._turns.pending,
            execute=self._turns.execute,
        )
        self._listener: Listener | None = None
        self._address: tuple[str, int] | None = None
        # Guards what follows. The condition is notified when a call or a connection ends during a drain. Each request
        # takes the bare lock, which costs a fraction of what the condition's methods do.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._places = Places(
            options.max_connections,
            options.max_connections_per_address,
            for_proxies=options.peer_token is not None,
            clock=self._clock,
        )
        self._leaving: set[AcceptedConnection] = set()
        self._refusals = 0
        buffered_bytes = max(options.max_buffered_bytes, LEAST_FRAMES * options.max_frame)
        self._in_flight = InFlight(options.max_queued, buffered_bytes // 2)
        self._memory = MemoryBudget(buffered_bytes)
        self.quota = RequestQuota(options.query_quota, self._clock) if quota is None else quota
        self._throttle = Throttle(self.quota, self.reactor, self._statistics.report_throttled)
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
        """How many requests were admitted and are not answered yet."""
        return self._in_flight.count

    def start(self) -> None:
        """Listen and serve. Raises `ConfigError` when no port is free, `ClosedError` when it was started before."""
        with self._changed:
            if self._draining or self._started:
                raise ClosedError(f"the {self.name} can be started once")
            self._started = True
        try:
            sock = listen(self.options.bind, self.options.ports, self.name)
        except ConfigError:
            self.shutdown(0.0)
            raise
        give_large_pieces_back()
        self._address = host_and_port(sock.getsockname())
        self._listener = Listener(self.reactor, sock, self._accept)
        self._listener.open()
        self.reactor.call_soon(self._keep_gate)
        self.reactor.call_soon(self._look_round)
        self.reactor.start()
        self._pool.start()
        log.info("Started the %s @ %s:%s", self.name, *self._address)

    def _keep_gate(self) -> None:
        """Have the gate look at its file, look for renewed certificates, and write the audit log, from time to time."""
        gate = self._gate
        if gate.reloads:
            self._repeat(RELOAD_S, gate.reload)
        for tls in (self.options.tls, self.options.owner_tls):
            if tls is not None:
                self._repeat(RELOAD_S, tls.renew)
        if gate.audit is not None:
            self._repeat(INTERVAL_S, gate.audit.write)
            self.reactor.on_stop.add(gate.audit.write)

    def _repeat(self, interval_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            self.reactor.call_later(interval_s, run)
            action()

        self.reactor.call_later(interval_s, run)

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Stop accepting, let the requests in flight finish for `timeout_s`, close everything. Idempotent.

        Until then new requests are answered SHUTTING_DOWN. It returns soon after the timeout, whatever a request
        does: a request that still executes keeps its (daemon) thread, and its answer is dropped.
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
            self._changed.wait_for(lambda: not self._in_flight.count, until - time.monotonic())
            connections = list(self._places.connections)
        for connection in connections:
            self.reactor.call_soon(connection.end, FailureCode.SHUTTING_DOWN, CLOSE_NOTICE_S)
        # Slow clients may not have read long answers yet: they get the rest of the time.
        with self._changed:
            self._changed.wait_for(
                lambda: not self._places.connections, max(2 * CLOSE_NOTICE_S, until - time.monotonic())
            )

    def _stop_threads(self, until: float) -> bool:
        # The reactor first: its last turn closes the connections, and the pool may stop only when it reads none.
        self.reactor.stop()
        if self._listener is None:
            self.reactor.turn(0.0)
        done = self.reactor.join(max(1.0, until - time.monotonic()))
        return self._pool.stop(max(1.0, until - time.monotonic())) and done

    # `ConnectionHandler`.

    def presented(self, connection: AcceptedConnection) -> bool:
        with self._changed:
            stays = self._places.presented(connection)
        if not stays:
            self.reactor.call_soon(self._give_up, connection)
        return stays

    def received(self, connection: AcceptedConnection, request: Served) -> None:
        self._statistics.report_request(len(request.keys) if isinstance(request, Get | GetPart) else 0)
        call = Call(self, connection, request, self._clock())
        if self._admit(call):
            self._turns.add(call)

    def received_alone(self, connection: AcceptedConnection, get: Get) -> Callable[[], None] | None:
        if self._turns.pending() or not connection.may_answer() or not self._pool.take_permit():
            self.received(connection, get)  # requests that already wait go first
            return None
        return partial(self._execute_at_once, connection, get)

    def _execute_at_once(self, connection: AcceptedConnection, get: Get) -> None:
        """Answer a get on the thread that read it, which has a permit. Count the request after answering it.

        It gives the permit back before it sends: the client may ask again before the kernel comes back from that.
        """
        answer, data = None, b""
        try:
            call = Call(self, connection, get, self._clock())
            if self._admit(call):
                answer = self._handle(call) if get.deadline_ms else self._answer_to(call, call.received_at)
                if answer is not None:
                    data = call.encode(answer)
                elif call.steps is not None:
                    self._turns.large.add(call)
        finally:
            self._pool.give_permit()
        if data:
            connection.send_now(data)
        self._statistics.report_request(len(get.keys))
        if answer is not None:
            self.answered(call)

    def _admit(self, call: Call) -> bool:
        """Count the call as in flight. False: it was refused."""
        with self._lock:
            draining, room = self._draining, self._in_flight.add(call)
            call.connection.in_flight += 1
            call.connection.in_flight_bytes += call.cost
            call.connection.calls_in_flight[call.request.id] = call
        if draining:
            call.fail(FailureCode.SHUTTING_DOWN)
        elif not room:
            call.fail(FailureCode.OVERLOADED, retry_after_ms=self._retry_after_ms())
        else:
            return True
        return False

    def answered(self, call: Call) -> None:
        now = self._clock()
        if call.failure is None:
            self._statistics.report_successful_request(now - call.received_at)
        else:
            self._statistics.report_failed_request(call.failure)
        with self._lock:
            self._in_flight.remove(call)
            call.connection.in_flight -= 1
            call.connection.in_flight_bytes -= call.cost
            if call.connection.calls_in_flight.get(call.request.id) is call:  # the client may use the id again
                del call.connection.calls_in_flight[call.request.id]
            if self._draining and not self._in_flight.count:
                self._changed.notify_all()
        call.connection.answered(now)

    def has_room(self, connection: AcceptedConnection) -> None:
        if connection.calls:
            self._turns.queue(connection)
        self._turns.large.has_room(connection)

    def refused(self, code: int) -> None:
        self._statistics.report_failed_request(code)

    def closed(self, connection: AcceptedConnection) -> None:
        self._statistics.report_inactive_connection()
        if connection.calls or connection.large_calls:
            # They waited for the client to read. A turn ends them without sending.
            self.has_room(connection)
            self._pool.recall(connection.channel)
        with self._lock:
            self._places.remove(connection)
            self._leaving.discard(connection)
            if self._draining and not self._places.connections:
                self._changed.notify_all()

    # Accepting.

    def _accept(self, sock: socket.socket, peer: tuple[Any, ...]) -> None:
        began, host = thread_time(), str(peer[0])
        self._admit_connection(sock, host)
        self.quota.charge(newcomers_of(host), thread_time() - began)

    def _admit_connection(self, sock: socket.socket, host: str) -> None:
        if self._draining:
            self._refuse(sock, FailureCode.SHUTTING_DOWN)
            return
        with self._changed:
            place = self._places.find(host)
        if place is None:
            self._refuse(sock, FailureCode.OVERLOADED)
            return
        if place.of is not None:
            self._give_up(place.of)
        self._open(sock, host, place.beside)

    def _look_round(self) -> None:
        """End the connections on which a frame has begun long ago, and give freed memory back."""
        timeout_s = self.options.frame_timeout_s
        began_by = self._clock() - timeout_s
        with self._changed:
            late = [each for each in self._places.connections if each.frame_is_late(began_by)]
        for connection in late:
            connection.end_late_frame()
        if self._memory.has_fallen(MUCH_BYTES):
            give_back()
        self.reactor.call_later(min(LOOK_S, timeout_s / 4), self._look_round)

    def _open(self, sock: socket.socket, host: str, beside: bool) -> None:
        options = self.options
        tls = None if options.tls is None else options.tls.stream(_TLS_ONLY)
        visitor = Visitor(self._gate, host, (lambda: ()) if tls is None else (lambda: tls.names))
        protocol = ServerConnection(
            server=f"qstate {self.name}",
            features=(CANCEL, PARTS),
            accepts=visitor.enters,
            max_frame=options.max_frame,
            max_keys=options.max_keys,
            max_in_flight=options.max_requests_per_connection,
        )
        turn_bytes = TURN_BYTES + options.max_frame  # a turn ends with the answer that exceeds its bound
        connection = AcceptedConnection(
            self,
            self.reactor,
            sock,
            protocol,
            visitor=visitor,
            host=host,
            memory=self._memory,
            throttle=self._throttle,
            pool=self._pool,
            room_bytes=turn_bytes,
            # What may wait before a turn begins, a turn of each thread beside it, and as much for small failures.
            max_unsent_bytes=(2 + options.query_threads) * turn_bytes,
            max_requests=options.max_requests_per_connection,
            patience_s=options.unread_timeout_s,
            tls=tls,
        )
        with self._changed:
            self._places.add(connection, beside=beside)
        self._statistics.report_active_connection()
        self.reactor.call_soon(connection.open, options.handshake_timeout_s)

    def _give_up(self, connection: AcceptedConnection) -> None:
        """Replace a connection by a new one. It stops counting at once, even while its close notice is sent."""
        self._statistics.report_failed_request(FailureCode.OVERLOADED)
        with self._changed:
            self._places.remove(connection)
            self._leaving.add(connection)
            linger_s = LINGER_S if len(self._leaving) <= MAX_REFUSALS else 0.0
        connection.end(FailureCode.OVERLOADED, linger_s)

    def _refuse(self, sock: socket.socket, code: FailureCode) -> None:
        self._statistics.report_failed_request(code)
        # A TLS client would take a plain notice for a server without TLS, and a handshake is not worth a refusal.
        if self._refusals >= MAX_REFUSALS or self.options.tls is not None:
            sock.close()
            return
        self._refusals += 1
        channel = Channel(
            self.reactor, sock, on_data=lambda _: None, on_close=self._refusal_over, max_unsent_bytes=TURN_BYTES
        )
        channel.open()
        details = {"retry_after_ms": LONGEST_RETRY_AFTER_MS} if code is FailureCode.OVERLOADED else {}
        channel.send(frame(encode(Failure(0, code, details))))
        channel.finish()

    def _refusal_over(self, reason: BaseException | None) -> None:
        self._refusals -= 1

    # Executing.

    def _answer_to(self, call: Call, now: float) -> Answer | None:
        if now >= call.deadline or call.connection.over:
            call.steps = None
            return Failure(call.request.id, FailureCode.DEADLINE_EXCEEDED, {})
        if call.cancelled:
            call.steps = None
            return Failure(call.request.id, FailureCode.CANCELLED, {})
        return self._handle(call)

    def _handle(self, call: Call) -> Answer | None:
        """The answer; None if it follows later, or after further steps, which `call.steps` has then."""
        try:
            if call.steps is None:
                found = self._service.handle(call)
                if found is None or isinstance(found, tuple):
                    return found
                call.steps = found
                return None
            answer = next(call.steps, _NO_ANSWER)
            if answer is not None:
                call.steps = None
            return None if answer is _NO_ANSWER else answer
        except QueryError as error:
            call.steps = None
            return Failure(call.request.id, error.code, error.details)
        except Exception:
            call.steps = None
            log.exception("a %s request failed and is answered INTERNAL", type(call.request).__name__)
            return Failure(call.request.id, FailureCode.INTERNAL, {})

    def _retry_after_ms(self) -> int:
        """About as long as the next request has been waiting: by then the queue has advanced."""
        return max(RETRY_AFTER_MS, min(int(self._turns.waited_s() * 1000), LONGEST_RETRY_AFTER_MS))


SomeOwner = TypeVar("SomeOwner", bound="EndpointOwner")


class EndpointOwner:
    """What the state server and the client proxy have in common: each has an endpoint, and starts it."""

    _endpoint: Endpoint

    def start(self) -> None:
        """Listen and serve, on threads of its own.

        Raises `ConfigError` when it cannot listen on the address or no port is free; it is shut down then. Raises
        `ClosedError` when it was started or shut down before.
        """
        self._endpoint.start()

    def __enter__(self: SomeOwner) -> SomeOwner:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port that it listens on. Raises `ClosedError` before `start`."""
        return self._endpoint.address

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Stop serving and free the port, the connections and the threads. Idempotent.

        Requests in flight may finish for `timeout_s` seconds; new ones fail with SHUTTING_DOWN. It returns soon after
        the timeout, whatever a request does.
        """
        self._endpoint.shutdown(timeout_s)
