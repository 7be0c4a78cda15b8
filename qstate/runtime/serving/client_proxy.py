"""The client proxy: finds the owner of each key, forwards, answers. Value bytes pass through undecoded.

Rules of this module: it carries out what `routing` decides. It must not decide on retries, and none of its network
threads may wait for a state server or an oracle.

The endpoint's reading pool reads the requests, as in a state server. The reactor's thread does the rest: the router,
its timers, and the connections to the state servers, which all clients share. So nothing on a get's path takes a lock.
Only a lookup runs on another thread; it returns through `call_soon`.

In a task manager the owner is often the state server of the same process. If that server can answer a get whole, the
thread that read the get calls it directly, without a socket: this saves two wake-ups, two encodings and two decodings.
Everything but a plain answer (another owner, a failure that may be retried) takes the path above, so only `routing`
decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qstate.errors import QueryError, Retry, UnsupportedQuery
from qstate.keys import Key
from qstate.protocol.connection import Answer
from qstate.protocol.messages import PLAIN, Describe, Get, GetPart, Locate, Poll, Scan, Values
from qstate.runtime.control.statistics import RequestStatistics
from qstate.runtime.control.tracing import Tracing, keys_named
from qstate.runtime.net.worker_pool import WorkerPool
from qstate.runtime.routing.location import UNSOUND_KEY, LocationOracle, LocationTable, Owner
from qstate.runtime.serving.client_connection import Call, Steps
from qstate.runtime.serving.endpoint import Endpoint, EndpointOptions, EndpointOwner, Service
from qstate.runtime.serving.forwarding.proxied_requests import Router, asked_table
from qstate.runtime.serving.location_cache import LocationCache
from qstate.runtime.serving.range_requests.descriptions import description_of
from qstate.runtime.serving.state_server import StateServer
from qstate.runtime.serving.traced_service import TracedService

__all__ = ["ClientProxy"]

_FORWARDED = (Get, GetPart, Scan, Poll)


class ClientProxy(EndpointOwner):
    """Answers gets by job and state, locate and describe, for every job that has a location oracle.

    A job without one is UNKNOWN_JOB.

    Any thread may call any method. As a context manager it starts and shuts down; else shut it down, also when it was
    never started. `start` works once. A shutdown does not wait for an oracle that has not answered.
    """

    def __init__(
        self,
        options: EndpointOptions | None = None,
        statistics: RequestStatistics | None = None,
        *,
        local: StateServer | None = None,
    ) -> None:
        """Make a proxy, without listening yet.

        Without `options` it listens on any free port of loopback. `statistics` gets the events of what it serves.
        `local` is a state server of the same process, whose states the proxy reads without a socket. Shut the proxy
        down before that server.
        """
        options = options or EndpointOptions()
        self._local = local
        self._pool = WorkerPool(options.query_threads, "qstate-proxy-lookup")
        self._locations = LocationCache(self._pool)
        service: Service = self
        if options.tracing:
            service = TracedService(self, Tracing(), "qstate proxy", _FORWARDED, keys_named)
        quota = None if local is None else local.quota
        self._endpoint = Endpoint("Queryable State Proxy Server", options, service, statistics=statistics, quota=quota)
        self._router = Router(self._endpoint.reactor, self._pool, self._locations, options)

    def start(self) -> None:
        super().start()
        self._pool.start()

    def set_location_oracle(self, job: str, oracle: LocationOracle | None) -> None:
        """Serve a job through this oracle from now on; with None, stop serving it.

        It may be called before `start`. The locations that an earlier oracle gave are forgotten; a get that already
        waits for one of its answers gets that answer.
        """
        self._locations.set_oracle(job, oracle)

    def expect_jobs(self, expected: bool) -> None:
        """Whether jobs are about to get their oracles: until then, those without one are RESTORING, not UNKNOWN_JOB."""
        self._locations.expects_jobs = expected

    def location_oracle(self, job: str) -> LocationOracle | None:
        """The oracle that a job is served through, None without one."""
        return self._locations.oracle(job)

    def shutdown(self, timeout_s: float = 5.0) -> None:
        super().shutdown(timeout_s)
        self._pool.stop(min(timeout_s, 1.0))

    def handle(self, call: Call) -> Answer | Steps | None:
        request = call.request
        if isinstance(request, _FORWARDED):
            names = self._names_of(call, request)
            if self._local is not None and isinstance(request, Get):
                found = self._answer_in_process(call, request, names)
                if found is not None:
                    return found if isinstance(found, Values) else self._answer_in_steps(call, request, names, found)
            self._forward(call, request, names)
        elif isinstance(request, Locate):
            call.check_right(request.job, request.state)
            self._router.run(self._router.locate, call, request)
        else:
            return self._describe(call, request)
        return None

    def _names_of(self, call: Call, request: Get | GetPart | Scan | Poll) -> tuple[str, str]:
        """The job and the state of a request. Raises the `QueryError` of one that this proxy does not serve."""
        if type(request.target) is bytes:
            raise UnsupportedQuery(target="state id", reason="ask a state server")
        job, state = request.target
        assert isinstance(job, str) and isinstance(state, str)
        keys = 0 if isinstance(request, Scan) else len(request.keys)
        call.check_right(job, state, keys)
        if self._locations.oracle(job) is None:
            raise self._locations.missing(job)
        return job, state

    def _describe(self, call: Call, request: Describe) -> Answer | None:
        visitor = call.connection.visitor
        visitor.check_job(Describe, request.job)
        if request.job is not None:
            self._router.run(self._router.describe, call, request.job)
            return None
        if self._locations.expects_jobs:
            raise self._locations.missing(None)
        seen = filter(visitor.principal.sees, self._locations.jobs)
        return description_of(request, ({"job": job} for job in seen), call.most_bytes)

    def _answer_in_process(
        self, call: Call, request: Get, names: tuple[str, str]
    ) -> Values | Iterator[Values | None] | None:
        """The answer of the local state server, if `routing` would pass it on unchanged; else None. Of many keys, its
        steps.
        """
        table = self._locations.known(*names)
        owner = None if table is None else _owner_of_all(asked_table(table, request), request.keys)
        if owner is None or self._local is None:
            return None
        try:
            values = self._local.answer_in_process(request, owner.state_id, call.most_bytes)
        except QueryError as error:
            if error.retry is Retry.FATAL:
                raise
            return None
        return values if not isinstance(values, Values) or PLAIN.issuperset(map(type, values.results)) else None

    def _answer_in_steps(
        self, call: Call, request: Get, names: tuple[str, str], steps: Iterator[Values | None]
    ) -> Steps:
        """The same in steps; at their end `routing` answers if they gave nothing that can be passed on."""
        try:
            for values in steps:
                if values is None or PLAIN.issuperset(map(type, values.results)):
                    yield values
                if values is not None:
                    break
        except QueryError as error:
            if error.retry is Retry.FATAL:
                raise
        self._forward(call, request, names)

    def _forward(self, call: Call, request: Get | GetPart | Scan | Poll, names: tuple[str, str]) -> None:
        if not isinstance(request, Poll):
            call.connection.forwarded.add(call)
        self._router.run(self._router.forward, call, request, names)


def _owner_of_all(table: LocationTable, keys: Sequence[Key]) -> Owner | None:
    """The owner of all these keys; None if they have several owners or none."""
    if table.sole_owner is not None:
        return table.sole_owner
    try:
        shares = table.split(keys)
    except UNSOUND_KEY:  # `routing` reports which key is invalid
        return None
    return shares[0][0] if len(shares) == 1 else None
