"""The state server: answers gets by state id from the registry's readers.

Rules of this module: it knows requests and the backend contract. It must not know sockets or how the threads are
shared out (`endpoint` does), nor a backend in particular.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from qstate.backends.answers import bounded
from qstate.backends.contract import Isolation, ReadResult, StateReader
from qstate.errors import (
    Detail,
    EpochNotReached,
    FailureCode,
    NoCommittedEpoch,
    QueryError,
    TooStale,
    UnknownStateId,
    UnsupportedOperation,
    UnsupportedQuery,
)
from qstate.keys import Key, check_key, key_encoder
from qstate.protocol import NO_EPOCH, Answer, Get, Values
from qstate.runtime.control.statistics import DisabledStatistics, RequestStatistics
from qstate.runtime.serving.endpoint import Call, Endpoint, EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateRegistry

__all__ = ["StateServer"]

#: So few keys are told apart by their hashes, whatever those are.
_FEW = 256


class StateServer:
    """Serves the states of a registry. `shutdown` is idempotent, drains, and is bounded.

    A get is refused as a whole for an unknown id (UNKNOWN_STATE_ID), keys of other types (WRONG_KEY_TYPE), an
    isolation that the backend does not declare (UNSUPPORTED), a bound of staleness that is not kept (TOO_STALE), a
    commit that there has not been yet (NO_COMMITTED_EPOCH), an epoch that is not reached (EPOCH_NOT_REACHED) or values
    that no frame holds together (TOO_LARGE, before they are all read); a key, for a key group that is elsewhere
    (KEY_GROUP_NOT_OWNED) or what the reader says of it.
    """

    def __init__(
        self, registry: StateRegistry, options: EndpointOptions, statistics: RequestStatistics | None = None
    ) -> None:
        self._registry = registry
        self._most_bytes = options.max_frame
        self._statistics = statistics or DisabledStatistics()
        self._endpoint = Endpoint("Queryable State Server", options, self, statistics=self._statistics)

    def start(self) -> None:
        """Listen and serve. Raises `ConfigError` when no port is free."""
        self._endpoint.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on."""
        return self._endpoint.address

    def shutdown(self, timeout_s: float = 5.0) -> None:
        """Stop; requests in flight may finish for `timeout_s`."""
        self._endpoint.shutdown(timeout_s)

    def handle(self, call: Call) -> Answer | None:
        request = call.request
        if type(request) is not Get:
            raise UnsupportedQuery(request=type(request).__name__.lower(), reason="ask a proxy")
        target = request.target
        if type(target) is not bytes:
            raise UnsupportedQuery(target="job and state", reason="ask a proxy")
        return self._values(request, target)

    def answer_in_process(self, request: Get, state_id: bytes) -> Values | None:
        """What a get of this state id would be answered over a socket, for the proxy in the same process.

        None when the id is not served here, or not any more. Runs on the calling thread, which must be one that
        may wait for state access. Raises the `QueryError` that the get is refused with.
        """
        if not self._endpoint.serving or self._registry.lookup(state_id) is None:
            return None
        started_at = time.monotonic()
        self._statistics.report_request(len(request.keys))
        try:
            values = self._values(request, state_id)
        except QueryError as error:
            self._statistics.report_failed_request(error.code)
            raise
        except Exception:
            self._statistics.report_failed_request(FailureCode.INTERNAL)
            raise
        self._statistics.report_successful_request(time.monotonic() - started_at)
        return values

    def _values(self, request: Get, state_id: bytes) -> Values:
        instance = self._registry.lookup(state_id)
        if instance is None:
            raise UnknownStateId(state_id=state_id.hex())
        instance.check_keys(request.keys)
        if request.namespace is not None:
            check_key(request.namespace)
        reader = _reader_of(instance, request)
        if instance.owns_all:
            return _values_of(request, *_read(reader, instance, request, request.keys, self._most_bytes))
        return _owned_values(request, instance, reader, self._most_bytes)


def _reader_of(instance: StateInstance, request: Get) -> StateReader:
    wanted = str(request.options.get("isolation", "live")) if request.options else "live"
    reader = instance.readers_by_name.get(wanted)
    if reader is None:
        raise UnsupportedQuery(isolation=wanted, reason="the state's backend does not declare it")
    return reader


def _read(
    reader: StateReader, instance: StateInstance, request: Get, keys: Sequence[Key], most_bytes: int
) -> ReadResult:
    """What the reader says of each key. Raises `TooLarge` before more than `most_bytes` and a value are in memory."""
    options = request.options
    committed = bool(options) and options.get("isolation") == Isolation.COMMITTED.value
    if committed and "max_staleness_ms" in options:
        _check_staleness(instance, options)
    try:
        found = _read_each_once(reader, instance, request, keys, most_bytes)
    except UnsupportedOperation as exc:
        raise UnsupportedQuery(reason="the state's backend does not declare it") from exc
    if committed:
        _check_committed(found.epoch, instance)
    if "min_epoch" in options:
        _check_epoch(found[0], options)
    return found


def _read_each_once(
    reader: StateReader, instance: StateInstance, request: Get, keys: Sequence[Key], most_bytes: int
) -> ReadResult:
    """The reader's answer; of equal keys one is read, and its value counts for each of them."""
    marks = _marks(keys)
    if len(marks) == 1 or len(set(marks)) == len(marks):
        return reader.get(instance.descriptor, request.namespace, keys, most_bytes)
    once = dict(zip(marks, keys, strict=True))
    epoch, values = reader.get(instance.descriptor, request.namespace, list(once.values()), most_bytes)
    by_mark = dict(zip(once, values, strict=True))
    return ReadResult(epoch, bounded(map(by_mark.__getitem__, marks), most_bytes))


def _marks(keys: Sequence[Key]) -> Sequence[Key]:
    """For each key something that is equal for equal keys, by which many of them can be told apart.

    Whoever knows how Python hashes tuples of integers can make them all alike; then a set of many takes seconds.
    """
    return list(map(key_encoder(), keys)) if len(keys) > _FEW and type(keys[0]) is tuple else keys


def _read_own(
    reader: StateReader, instance: StateInstance, request: Get, keys: Sequence[Key], most_bytes: int
) -> ReadResult:
    """`_read` for some of a get's keys: what the view lacks is their failure, the others' may be another."""
    try:
        return _read(reader, instance, request, keys, most_bytes)
    except (EpochNotReached, NoCommittedEpoch, TooStale) as exc:
        return ReadResult(NO_EPOCH, [exc.code] * len(keys))


def _check_committed(epoch: int, instance: StateInstance) -> None:
    """Raise `NoCommittedEpoch` when a committed view of that epoch shows nothing because there was no commit yet."""
    if epoch == NO_EPOCH and not instance.restored:
        raise NoCommittedEpoch()


def _check_staleness(instance: StateInstance, options: Mapping[str, Detail]) -> None:
    """Raise `TooStale` unless what is read from now on lacks nothing that was committed before the time allowed.

    Before the read: a view that is current now can only be read as it is now, or newer.
    """
    most_ms = options["max_staleness_ms"]
    assert isinstance(most_ms, int)  # the protocol has checked it
    since = instance.behind_since()
    if since is None:
        return
    if math.isinf(since):
        raise TooStale(max_staleness_ms=most_ms)
    staleness_ms = math.ceil(max(0.0, time.monotonic() - since) * 1000)
    if staleness_ms > most_ms:
        raise TooStale(staleness_ms=staleness_ms, max_staleness_ms=most_ms)


def _check_epoch(epoch: int, options: Mapping[str, Detail]) -> None:
    """Raise `EpochNotReached` when the answer is of an earlier epoch than demanded.

    After the read, by the epoch that came with it: what the view's epoch is at any other time proves nothing.
    """
    least = options["min_epoch"]
    assert isinstance(least, int)  # the protocol has checked it
    if epoch < least:
        raise EpochNotReached(epoch=epoch, min_epoch=least)


def _values_of(request: Get, epoch: int, values: Sequence[bytes | int | None]) -> Values:
    """The answer as far as it is usual; whoever sends it sees to the epochs of failures."""
    return Values(request.id, (epoch,) * len(values), tuple(values))


def _owned_values(request: Get, instance: StateInstance, reader: StateReader, most_bytes: int) -> Values:
    start, stop, group_of = instance.key_groups.start, instance.key_groups.stop, instance.group_of
    keys = request.keys
    owned = [start <= group_of(key) < stop for key in keys]
    if all(owned):
        return _values_of(request, *_read(reader, instance, request, keys, most_bytes))
    mine = [key for key, own in zip(keys, owned, strict=True) if own]
    found: Sequence[bytes | int | None] = ()
    epoch = NO_EPOCH
    if mine:
        epoch, found = _read_own(reader, instance, request, mine, most_bytes)
    results = iter(found)
    return _values_of(request, epoch, [next(results) if own else FailureCode.KEY_GROUP_NOT_OWNED for own in owned])
