"""The state server: answers gets and scans by state id from the registry's readers, polls from its feeds of changes.

Rules of this module: it knows requests and the backend contract. It must not know sockets or threads (`endpoint` does),
nor any particular backend.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from qstate.backends.answers import bounded
from qstate.backends.contract import Isolation, ReadResult, StateReader
from qstate.errors import (
    EpochNotReached,
    FailureCode,
    NoCommittedEpoch,
    QueryError,
    TooStale,
    UnknownStateId,
    UnsupportedOperation,
    UnsupportedQuery,
)
from qstate.keys import Key, all_of_class, check_key
from qstate.protocol.connection import Answer
from qstate.protocol.messages import NO_EPOCH, Get, GetPart, Poll, Scan, Values
from qstate.runtime.control.statistics import RequestStatistics, contained
from qstate.runtime.control.tracing import Tracing, keys_named
from qstate.runtime.serving.client_connection import Call, Steps
from qstate.runtime.serving.demands import check_committed, check_epoch, check_staleness
from qstate.runtime.serving.endpoint import Endpoint, EndpointOptions, EndpointOwner, Service
from qstate.runtime.serving.range_requests.polls import Polls
from qstate.runtime.serving.range_requests.scans import page_of
from qstate.runtime.serving.range_requests.value_parts import part_of
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.sharing.request_quota import RequestQuota
from qstate.runtime.serving.sharing.slices import MOST_AT_ONCE, ValueSteps, in_slices, marks_of
from qstate.runtime.serving.traced_service import TracedService

__all__ = ["StateServer"]

# An enum computes its attributes in Python.
_LIVE, _COMMITTED = Isolation.LIVE.value, Isolation.COMMITTED.value
_SERVED = (Get, GetPart, Scan, Poll)
_ONCE = (None,)
#: How often it looks for scans that no client uses any more.
EXPIRE_SCANS_S = 5.0


class StateServer(EndpointOwner):
    """Serves the states of a registry by state id. Any thread may call any method.

    A registry may have several servers, and change while they serve. As a context manager it starts and shuts down;
    else shut it down, also when it was never started. `start` works once. A shutdown does not change the registry:
    close the backends afterwards. A reader that is still reading then ends by itself, and its answer is dropped.

    The failure of a whole get:

    - UNKNOWN_STATE_ID: the id is not registered;
    - WRONG_KEY_TYPE: a key has other types than the state's;
    - UNSUPPORTED: the backend does not declare the isolation;
    - TOO_STALE: the view may lack commits that are older than `max_staleness_ms`;
    - NO_COMMITTED_EPOCH: there was no commit yet;
    - EPOCH_NOT_REACHED: the view is of an epoch before `min_epoch`;
    - TOO_LARGE: the values exceed one frame. The server stops reading then.

    The failure of one key: KEY_GROUP_NOT_OWNED, or the reader's failure. If only some keys of a get are owned,
    TOO_STALE, NO_COMMITTED_EPOCH and EPOCH_NOT_REACHED are failures of these keys.
    """

    def __init__(
        self,
        registry: StateRegistry,
        options: EndpointOptions | None = None,
        statistics: RequestStatistics | None = None,
    ) -> None:
        """Make a server, without listening yet.

        Without `options` it listens on any free port of loopback. `statistics` gets the events of what it serves.
        """
        options = options or EndpointOptions()
        self._registry = registry
        self._statistics = contained(statistics)
        self._values: Callable[[StateInstance, Get, int], Values] = _values
        self._part: Callable[[StateInstance, GetPart, int], Answer | Steps] = part_of
        service: Service = self
        if options.tracing:
            tracing = Tracing()
            self._values, self._part = tracing.reading(_values), tracing.reading(part_of)
            service = TracedService(self, tracing, "qstate read", (Scan, Poll), self._facts)
        self._endpoint = Endpoint("Queryable State Server", options, service, statistics=self._statistics)
        self._polls = Polls(registry)

    @property
    def quota(self) -> RequestQuota:
        """What its requests may use, and those of a proxy in the same process."""
        return self._endpoint.quota

    def _facts(self, request: Scan | Poll) -> Mapping[str, Any]:
        """What the span of a request says."""
        instance = self._registry.lookup(request.target) if type(request.target) is bytes else None
        state = {} if instance is None else {"qstate.state": instance.name}
        return {**state, **keys_named(request)}

    def start(self) -> None:
        super().start()
        self._polls.start()
        self._endpoint.reactor.call_soon(self._expire_scans)

    def _expire_scans(self) -> None:
        self._registry.expire_scans()
        self._endpoint.reactor.call_later(EXPIRE_SCANS_S, self._expire_scans)

    def shutdown(self, timeout_s: float = 5.0) -> None:
        self._polls.stop()
        super().shutdown(timeout_s)

    def handle(self, call: Call) -> Answer | Steps | None:
        request = call.request
        if not isinstance(request, _SERVED):
            raise UnsupportedQuery(request=type(request).__name__.lower(), reason="ask a proxy")
        target = request.target
        if type(target) is not bytes:
            raise UnsupportedQuery(target="job and state", reason="ask a proxy")
        instance = self._registry.lookup(target)
        if instance is None:
            raise UnknownStateId(state_id=target.hex())
        keys = 0 if isinstance(request, Scan) else len(request.keys)
        call.check_right(instance.job, instance.name, keys)
        if isinstance(request, Poll):
            self._polls.take(call, target)
            return None
        if isinstance(request, Scan):
            views = self._registry.scan_views(target)
            if views is None:  # it was unregistered just now
                raise UnknownStateId(state_id=target.hex())
            steps = page_of(request, instance, views, min(call.most_bytes, request.max_bytes))
            return next(steps) or steps  # most pages take one step
        if isinstance(request, GetPart):
            return self._part(instance, request, min(call.most_bytes, request.max_bytes))
        if keys > MOST_AT_ONCE:
            return in_slices(request, partial(self._values, instance), call.most_bytes)
        return self._values(instance, request, call.most_bytes)

    def answer_in_process(self, request: Get, state_id: bytes, most_bytes: int) -> Values | ValueSteps | None:
        """The answer to a get of this state id without a socket, for the proxy in the same process. Of many keys it is
        made in steps, as `Service` has them.

        None when this server does not serve the id. It runs on the calling thread, which must be allowed to wait for
        state access. Raises the `QueryError` that the get fails with.
        """
        instance = self._registry.lookup(state_id)
        if instance is None or not self._endpoint.serving:
            return None
        read = partial(self._values, instance)
        if len(request.keys) > MOST_AT_ONCE:
            return self._counted(request, in_slices(request, read, most_bytes))
        return next(self._counted(request, (read(request, most_bytes) for _ in _ONCE)))

    def _counted(self, request: Get, steps: ValueSteps) -> ValueSteps:
        started_at = time.monotonic()
        self._statistics.report_request(len(request.keys))
        try:
            for values in steps:
                if values is not None:
                    self._statistics.report_successful_request(time.monotonic() - started_at)
                yield values
        except QueryError as error:
            self._statistics.report_failed_request(error.code)
            raise
        except Exception:
            self._statistics.report_failed_request(FailureCode.INTERNAL)
            raise


def _values(instance: StateInstance, request: Get, most_bytes: int) -> Values:
    # Check all keys at C speed. Only if that fails check key by key, for the details of the error.
    if instance.key_class is None or not all_of_class(request.keys, instance.key_class):
        for key in request.keys:
            check_key(key, instance.key_types)
    if request.namespace is not None:
        check_key(request.namespace, instance.namespace_types)
    isolation = request.options.get("isolation", _LIVE)
    reader = instance.readers_by_name.get(isolation)  # type: ignore[arg-type]
    if reader is None:
        raise UnsupportedQuery(isolation=isolation, reason="the state's backend does not declare it")
    start, stop, group_of = instance.key_groups.start, instance.key_groups.stop, instance.group_of
    owned: Sequence[bool] = () if instance.owns_all else [start <= group_of(key) < stop for key in request.keys]
    results: Sequence[bytes | int | None]
    if all(owned):
        epoch, results = _read(reader, instance, request, request.keys, most_bytes)
    else:
        epoch, results = _read_owned(reader, instance, request, owned, most_bytes)
    # `Call.encode` corrects the epochs of failures.
    return Values(request.id, (epoch,) * len(results), tuple(results), instance.fingerprint)


def _read(
    reader: StateReader, instance: StateInstance, request: Get, keys: Sequence[Key], most_bytes: int
) -> ReadResult:
    """The reader's answer. Raises `TooLarge` before more than `most_bytes` and one value are in memory.

    Of equal keys only one is read, and its value is used for each of them.
    """
    options = request.options
    committed = bool(options) and options.get("isolation") == _COMMITTED
    if committed and "max_staleness_ms" in options:
        check_staleness(instance, options)
    try:
        if len(keys) == 1 or len(set(marks := marks_of(keys))) == len(marks):
            found = reader.get(instance.descriptor, request.namespace, keys, most_bytes)
        else:
            once = dict(zip(marks, keys, strict=True))
            epoch, values = reader.get(instance.descriptor, request.namespace, list(once.values()), most_bytes)
            by_mark = dict(zip(once, values, strict=True))
            found = ReadResult(epoch, bounded(map(by_mark.__getitem__, marks), most_bytes))
    except UnsupportedOperation as exc:
        raise UnsupportedQuery(reason="the state's backend does not declare it") from exc
    if committed:
        check_committed(found.epoch, instance)
    if "min_epoch" in options:
        check_epoch(found[0], options)
    return found


def _read_owned(
    reader: StateReader, instance: StateInstance, request: Get, owned: Sequence[bool], most_bytes: int
) -> tuple[int, Sequence[bytes | int | None]]:
    """The reader's answer about the keys that are owned, and a failure for each of the others."""
    mine = [key for key, own in zip(request.keys, owned, strict=True) if own]
    found: Sequence[bytes | int | None] = ()
    epoch = NO_EPOCH
    if mine:
        try:
            epoch, found = _read(reader, instance, request, mine, most_bytes)
        except (EpochNotReached, NoCommittedEpoch, TooStale) as exc:
            found = [exc.code] * len(mine)  # only these keys fail
    results = iter(found)
    return epoch, [next(results) if own else FailureCode.KEY_GROUP_NOT_OWNED for own in owned]
