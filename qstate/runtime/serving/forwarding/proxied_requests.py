"""The requests that a client proxy forwards: each carries out what its `RoutedGet` decides.

Rules of this module: as in `client_proxy`, whose router makes these requests. Everything runs on the reactor's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from time import thread_time
from typing import Any

from qstate.backends.contract import Isolation
from qstate.errors import Detail, FailureCode, MalformedRequest, QueryError, WrongKeyType
from qstate.keys import Key
from qstate.protocol.connection import ON_BEHALF_OF, Answer
from qstate.protocol.messages import Failure, Get, GetPart, Locate, Poll, Scan, Values
from qstate.runtime.net.reactor import Reactor, Timer
from qstate.runtime.net.worker_pool import WorkerPool
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.routing.pipelined_connection import ConnectionSettings, Peers, Requester
from qstate.runtime.routing.routed_get import LOOK_UP, Ask, LookUp, Refuse, RoutedGet
from qstate.runtime.routing.routed_get import Answer as Routed
from qstate.runtime.serving.client_connection import Call
from qstate.runtime.serving.endpoint_options import EndpointOptions
from qstate.runtime.serving.forwarding.owner_connections import OwnerConnections
from qstate.runtime.serving.location_cache import LocationCache
from qstate.runtime.serving.owner_connection import OwnerConnection
from qstate.runtime.serving.waiting_call import WaitingCall

__all__ = ["Router", "asked_table"]

#: A state server reads no more requests of a connection than its `max_requests_per_connection`, by default more.
POLLS_OF_A_CONNECTION = 500


def asked_table(table: LocationTable, request: Get | GetPart | Scan | Poll) -> LocationTable:
    """Whom to ask. Standbys know what is committed only."""
    committed = isinstance(request, Poll) or request.options.get("isolation") == Isolation.COMMITTED.value
    return table.committed if committed else table


def _misfit_of(table: LocationTable, keys: Sequence[Key]) -> WrongKeyType | None:
    """The error of keys whose types differ from the state's, None if there is none.

    A sole owner checks all the keys itself. Each of several owners sees only some of them, but the get must fail as a
    whole.
    """
    if table.sole_owner is None:
        try:
            table.check_keys(keys)
        except WrongKeyType as error:
            return error
    return None


class Proxied(Requester):
    """One request: passes the events to its `RoutedGet` and carries out the commands."""

    __slots__ = ("_asked", "_call", "_names", "_request", "_routed", "_router", "_timer", "_wake_at", "finished")

    def __init__(
        self,
        router: Router,
        call: Call,
        request: Get | GetPart | Scan | Poll,
        names: tuple[str, str],
        routed: RoutedGet,
    ) -> None:
        self._router = router
        self._call = call
        self._request = request
        self._names = names
        self._routed = routed
        self._timer: Timer | None = None
        self._wake_at = 0.0
        #: By part: the connection over which it was asked.
        self._asked: dict[int, OwnerConnection] = {}
        self.finished = False

    def start(self) -> None:
        began = thread_time()
        self._start()
        self._call.connection.charge(thread_time() - began)

    def _start(self) -> None:
        self._call.on_cancel = partial(self._router.run, self._on_cancel)
        if self._call.cancelled:
            self._on_cancel()
            return
        now = self._now()
        self._run(self._routed.start(now), now)

    def on_answer(self, part: int, message: Answer, now: float) -> None:
        began = thread_time()
        super().on_answer(part, message, now)
        self._call.connection.charge(thread_time() - began)

    def on_unsent(
        self, part: int, code: int, details: Mapping[str, Detail], now: float, *, hopeless: bool = False
    ) -> None:
        # Where the oracle says that the owner is, something else may listen until the oracle knows better.
        # It may also be an earlier or later life of the job, which has another secret.
        foreign = details.get("greeted") is False or code in (FailureCode.TLS_FAILED, FailureCode.UNAUTHENTICATED)
        unreached = FailureCode.UNAVAILABLE if foreign else code
        super().on_unsent(part, unreached, details, now, hopeless=hopeless)

    def on_unsendable(self, part: int, code: int, details: Mapping[str, Detail], now: float) -> None:
        self.on_lost(part, code, details, now)

    def _now(self) -> float:
        return self._router.reactor.clock()

    def _left_ms(self, now: float) -> int:
        return max(0, int((self._call.deadline - now) * 1000))

    def _on_cancel(self) -> None:
        if not self.finished:
            self._finish(Failure(self._call.request.id, FailureCode.CANCELLED, {}))

    def _on_time(self) -> None:
        self._timer = None
        if self._call.connection.over:
            # The client has gone, so a retry is useless.
            self._finish(Failure(self._call.request.id, FailureCode.DEADLINE_EXCEEDED, {}))
            return
        now = self._now()
        self._run(self._routed.on_time(now), now)

    def _found(self, found: LocationTable | QueryError) -> None:
        self._router.reactor.call_soon(self._located, found)

    def _located(self, found: LocationTable | QueryError) -> None:
        if self.finished:
            return
        if isinstance(found, QueryError):
            self.on_lost(LOOK_UP, found.code, found.details, self._now())
            return
        error = self._misfit(found)
        if error is not None:
            self._finish(Failure(self._call.request.id, error.code, error.details))
        else:
            now = self._now()
            self._run(self._routed.on_located(self._routed_by(found), now), now)

    def _misfit(self, table: LocationTable) -> QueryError | None:
        """The error of a request that does not suit the state, None if there is none."""
        return None

    def _routed_by(self, table: LocationTable) -> LocationTable:
        """The table that routes the request."""
        return table

    def _connection(self, owner: Owner) -> OwnerConnection:
        return self._router.owners.find(owner.host, owner.port, self._call.connection.host)

    def _ask(self, command: Ask, now: float) -> None:
        connection = self._connection(command.owner)
        self._asked[command.part] = connection
        connection.send(self, command, now)

    def _look_up(self, command: LookUp, now: float) -> None:
        self._router.locations.look_up(*self._names, command.stale, self._found)

    def _on_other_answer(self, part: int, message: Answer, now: float) -> None:
        self._finish(message._replace(id=self._call.request.id))

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Get | GetPart | Scan | Poll:
        """The request for an owner: its answer has to fit the client's frames, too."""
        request = self._request
        assert isinstance(command, Ask) and isinstance(request, GetPart | Scan)  # the others have a class of their own
        most_bytes = min(request.max_bytes, self._call.most_bytes)
        return request._replace(
            id=request_id,
            deadline_ms=self._left_ms(now),
            target=command.owner.state_id,
            options={**request.options, "max_bytes": most_bytes},
        )

    def _conclude(self, end: Routed | Refuse) -> None:
        if isinstance(end, Routed):
            self._finish(Values(self._call.request.id, end.epochs, end.results, end.fingerprint))
        else:
            self._finish(Failure(self._call.request.id, end.code, end.details))

    def _on_progress(self) -> None:
        wake_at = self._routed.wake_at
        if self._timer is not None:
            if wake_at == self._wake_at:
                return
            self._timer.cancel()
        self._wake_at = wake_at
        self._timer = self._router.reactor.call_later(max(0.0, wake_at - self._now()), self._on_time)

    def _finish(self, answer: Answer) -> None:
        """Send the answer. Answers of owners that come later are ignored."""
        self.finished = self._routed.finished = True
        if self._timer is not None:
            self._timer.cancel()
        self._call.answer(answer)
        self._call.on_cancel = None  # a cycle would keep the values until the next garbage collection
        for connection in {self._asked[part] for part in self._routed.open_parts if part in self._asked}:
            connection.cancel(self)
            connection.gave_up(self, self._now())


class ProxiedKeys(Proxied):
    """A request about keys: a part of one value, or a get."""

    __slots__ = ("_outdated",)

    _request: Get | GetPart

    def __init__(
        self, router: Router, call: Call, request: Get | GetPart, names: tuple[str, str], table: LocationTable | None
    ) -> None:
        #: The job may have restarted with other key types than the cached table has, so its oracle is asked again.
        self._outdated = table is not None and _misfit_of(table, request.keys) is not None
        wait_ms: Any = request.options.get("wait_ms")
        routed = RoutedGet(
            request.keys,
            deadline=call.deadline,
            random=router.random,
            table=None if table is None or self._outdated else asked_table(table, request),
            retry_until=None if wait_ms is None else call.received_at + wait_ms / 1000,
            most_bytes=call.most_bytes,
        )
        super().__init__(router, call, request, names, routed)

    def _look_up(self, command: LookUp, now: float) -> None:
        if self._outdated:
            self._outdated = False
            self._router.locations.refresh(*self._names, self._found)
        else:
            super()._look_up(command, now)

    def _misfit(self, table: LocationTable) -> WrongKeyType | None:
        return _misfit_of(table, self._request.keys)

    def _routed_by(self, table: LocationTable) -> LocationTable:
        return asked_table(table, self._request)


class ProxiedGet(ProxiedKeys):
    """One get, which may be answered by several owners."""

    __slots__ = ()

    _request: Get

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Get:
        assert isinstance(command, Ask)
        request, left_ms = self._request, self._left_ms(now)
        state_id, attributes = command.owner.state_id, request.attributes
        return Get(request_id, left_ms, state_id, request.namespace, request.options, command.keys, attributes)


class ProxiedRange(Proxied):
    """A page of a scan, or a poll: the owner of the first key group answers it, for all that it has of those asked for.

    For the routing it is a get of one key, which is that key group.
    """

    __slots__ = ("_table",)

    _request: Scan | Poll

    def __init__(
        self, router: Router, call: Call, request: Scan | Poll, names: tuple[str, str], table: LocationTable | None
    ) -> None:
        #: The cached table that the routing has a version of.
        self._table = table
        routed = RoutedGet(
            (request.start_group,),
            deadline=call.deadline,
            random=router.random,
            table=None if table is None else asked_table(table, request).of_groups(),
        )
        super().__init__(router, call, request, names, routed)

    def _routed_by(self, table: LocationTable) -> LocationTable:
        self._table = table
        return asked_table(table, self._request).of_groups()

    def _look_up(self, command: LookUp, now: float) -> None:
        super()._look_up(LookUp(None if command.stale is None else self._table), now)


class ProxiedPoll(ProxiedRange):
    """One poll."""

    __slots__ = ()

    _request: Poll

    def request(self, request_id: int, command: Ask | LookUp, now: float) -> Poll:
        assert isinstance(command, Ask)
        waited_ms = max(0, int((now - self._call.received_at) * 1000))
        return self._request._replace(
            id=request_id,
            deadline_ms=self._left_ms(now),
            target=command.owner.state_id,
            wait_ms=max(0, self._request.wait_ms - waited_ms),
            max_bytes=min(self._request.max_bytes, self._call.most_bytes),
        )

    def _misfit(self, table: LocationTable) -> QueryError | None:
        if self._request.stop_group <= table.max_parallelism:
            return None
        return MalformedRequest(field="stop_group", expected=f"at most {table.max_parallelism} key groups")

    def _connection(self, owner: Owner) -> OwnerConnection:
        return self._router.owners_of_polls.find(owner.host, owner.port, self._call.connection.host)


_KIND_OF = {Get: ProxiedGet, GetPart: ProxiedKeys, Scan: ProxiedRange, Poll: ProxiedPoll}


class Router:
    """Routes a proxy's requests, and keeps what they share. Only the reactor's thread may use it; others call `run`."""

    def __init__(self, reactor: Reactor, pool: WorkerPool, locations: LocationCache, options: EndpointOptions) -> None:
        self.reactor = reactor
        self.locations = locations
        self.random = Random()
        self._pool = pool
        self._settings = ConnectionSettings(
            options.peer_token or options.token,
            "qstate proxy",
            options.max_frame,
            tls=options.owner_tls,
            allow_token_without_tls=options.allow_token_without_tls,
        )
        #: A server knows a proxy by the job's secret. Without one it would not believe for whom a proxy asks.
        apart = options.peer_token is not None
        self.owners = OwnerConnections(reactor, self._connection, apart=apart)
        #: Of polls, which may be in flight for long.
        self.owners_of_polls = OwnerConnections(
            reactor, self._connection, apart=apart, most_in_flight=POLLS_OF_A_CONNECTION
        )

    def run(self, action: Callable[..., None], *args: Any) -> None:
        """Run a method of this router on the reactor's thread. Any thread."""
        if self.reactor.in_driver():
            action(*args)
        else:
            self.reactor.call_soon(action, *args)

    def forward(self, call: Call, request: Get | GetPart | Scan | Poll, names: tuple[str, str]) -> None:
        kind: type[Any] = _KIND_OF[type(request)]
        kind(self, call, request, names, self.locations.known(*names)).start()

    def locate(self, call: Call, request: Locate) -> None:
        self.locations.refresh(request.job, request.state, WaitingCall(self.reactor, call).found)

    def describe(self, call: Call, job: str) -> None:
        self.locations.describe(job, WaitingCall(self.reactor, call).found)

    def _connection(self, host: str, port: int, origin: str, peers: Peers) -> OwnerConnection:
        settings = replace(self._settings, features=(ON_BEHALF_OF + origin,) if origin else ())
        return OwnerConnection(self.reactor, self._pool, (host, port), settings=settings, peers=peers)
