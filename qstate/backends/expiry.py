"""States with a time-to-live: the form in which a backend holds them, and the reader that shows only what is current.

Rules of this module: backends know nothing of a time-to-live. A backend holds the values of such a state with their
times, by a descriptor whose serializer writes both (`stored_form`); it is a state like any other with a serializer of
its own. What a backend's reader answers for it is turned into what clients get in one place (`current_reader`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import time_ns
from typing import Any

import msgpack

from qstate.backends.answers import Answer, bounded, list_answer, map_answer, too_large, unpack_elements
from qstate.backends.contract import UNBOUNDED, ReadResult, Scanned, Selection, StateReader, StateScan, ValueParts
from qstate.descriptors import AggregateFunction, AggregatingStateDescriptor, StateDescriptor, StateKind
from qstate.errors import ConcurrentModification, FailureCode, TooLarge
from qstate.keys import Key, Namespace
from qstate.serializers import MessagePackSerializer
from qstate.values.ttl import TIME_BYTES, StateTtl, TimedSerializer, is_expired, time_of, timed, untimed

__all__ = ["change_converter", "current_elements", "current_reader", "current_value", "stored_form", "wall_clock_ms"]

Clock = Callable[[], int]

#: How many bytes an answer with times may have for one without: a value of one byte, its time, and the two bytes
#: before them in an array. So a state without expired values is too large exactly when it would be without a
#: time-to-live. Values that have expired and are not removed yet count, too.
_LARGER = 1 + TIME_BYTES + 2
#: The bytes before the time in the MessagePack array of a time and a result.
_BEFORE_TIME = 3


def wall_clock_ms() -> int:
    """This machine's time in milliseconds since 1970-01-01 UTC."""
    return time_ns() // 1_000_000


def stored_form(descriptor: StateDescriptor, clock: Clock = wall_clock_ms) -> StateDescriptor:
    """The descriptor that a backend gets for a state: with a time-to-live, its values are pairs (time, value)."""
    ttl = descriptor.ttl
    if ttl is None:
        return descriptor
    changed: dict[str, Any] = {"ttl": None, "serializer": TimedSerializer(descriptor.serializer)}
    if isinstance(descriptor, AggregatingStateDescriptor):
        changed["aggregate_function"] = _TimedResult(descriptor.aggregate_function, ttl, clock)
    return replace(descriptor, **changed)


class _TimedResult(AggregateFunction[Any, Any, Any]):
    """Gives results with the accumulator's time. It makes no result of an expired accumulator."""

    def __init__(self, inner: AggregateFunction[Any, Any, Any], ttl: StateTtl, clock: Clock) -> None:
        self._inner = inner
        self._duration_ms = ttl.duration_ms
        self._clock = clock

    def create_accumulator(self) -> Any:
        raise AssertionError("an operator adds to accumulators without their times")

    def add(self, value: Any, accumulator: Any) -> Any:
        raise AssertionError("an operator adds to accumulators without their times")

    def merge(self, one: Any, other: Any) -> Any:
        raise AssertionError("an operator merges accumulators without their times")

    def get_result(self, accumulator: Any) -> Any:
        time_ms, inner = accumulator
        if is_expired(time_ms, self._duration_ms, self._clock()):
            return [timed(0, b""), None]  # a time so old that every reader sees the value as expired, too
        return [timed(time_ms, b""), self._inner.get_result(inner)]


def current_value(data: bytes, duration_ms: int, now_ms: int) -> bytes | None:
    """The serializer's bytes of a stored value, None if it has expired."""
    return None if is_expired(time_of(data), duration_ms, now_ms) else untimed(data)


def current_elements(elements: Iterable[bytes], duration_ms: int, now_ms: int) -> list[bytes]:
    """The serializer's bytes of the stored elements of a list that have not expired."""
    return [untimed(data) for data in elements if not is_expired(time_of(data), duration_ms, now_ms)]


def change_converter(descriptor: StateDescriptor) -> Callable[[bytes], bytes] | None:
    """What makes of the data of a stored change what a client gets; None: they are the same.

    A change stays in the history when its value has expired: only times are removed.
    """
    without_time = untimed if descriptor.ttl is not None else None
    if descriptor.kind is StateKind.LIST:
        return lambda data: list_answer(
            descriptor, [*map(without_time, unpack_elements(data))] if without_time else unpack_elements(data)
        )
    if descriptor.kind is StateKind.AGGREGATING:
        dump, loads = descriptor.result_dumper(), descriptor.serializer.loads
        return lambda data: dump(loads(without_time(data) if without_time else data))
    return without_time


def current_reader(
    descriptor: StateDescriptor, reader: StateReader, *, may_tear: bool = False, clock: Clock = wall_clock_ms
) -> StateReader:
    """The reader that answers queries of a state, from a backend's reader; for a state without a time-to-live itself.

    Its answers are those of a state without a time-to-live that has only the values, elements and entries that have not
    expired by `clock`. `may_tear`: the backend's reader may answer with a torn value.
    """
    if descriptor.ttl is None:
        return reader
    return _CurrentReader(descriptor, descriptor.ttl, reader, may_tear=may_tear, clock=clock)


class _CurrentReader(StateReader):
    """Answers for one state, whose descriptor it has: `get` needs no other."""

    def __init__(
        self, descriptor: StateDescriptor, ttl: StateTtl, reader: StateReader, *, may_tear: bool, clock: Clock
    ) -> None:
        self._descriptor = descriptor
        self._stored = stored_form(descriptor, clock)
        self._duration_ms = ttl.duration_ms
        self._reader = reader
        self._clock = clock
        self._check = _is_whole if may_tear and descriptor.query_serializer_name == MessagePackSerializer.name else None
        of_kind = {StateKind.AGGREGATING: self._result, StateKind.LIST: self._list, StateKind.MAP: self._map}
        self._current: Callable[[bytes, int], bytes | None] = of_kind.get(descriptor.kind, self._value)

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        try:
            epoch, found = self._reader.get(self._stored, namespace, keys, most_bytes * _LARGER)
        except TooLarge:
            raise too_large(most_bytes) from None
        now_ms = self._clock()  # one moment for all keys
        return ReadResult(epoch, bounded((self._answer(one, now_ms) for one in found), most_bytes))

    def scan(self, descriptor: StateDescriptor) -> StateScan:
        return _CurrentScan(self._reader.scan(self._stored), self._of_scan)

    def parts(self, descriptor: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts:
        parts = self._reader.parts(self._stored, namespace, key)
        return _CurrentParts(parts, self._answer, self._duration_ms, self._clock())

    def _of_scan(self, found: Answer, most_bytes: int) -> Answer:
        answer = self._answer(found, self._clock())
        return FailureCode.TOO_LARGE if isinstance(answer, bytes) and len(answer) > most_bytes else answer

    def _answer(self, found: Answer, now_ms: int) -> Answer:
        if not isinstance(found, bytes):
            return found
        answer = self._current(found, now_ms)
        if answer is not None and self._check is not None and not self._check(answer):
            return FailureCode.CONCURRENT_MODIFICATION
        return answer

    def _value(self, found: bytes, now_ms: int) -> bytes | None:
        return current_value(found, self._duration_ms, now_ms)

    def _result(self, found: bytes, now_ms: int) -> bytes | None:
        return current_value(found[_BEFORE_TIME:], self._duration_ms, now_ms)

    def _list(self, found: bytes, now_ms: int) -> bytes | None:
        elements = current_elements(msgpack.unpackb(found), self._duration_ms, now_ms)
        return list_answer(self._descriptor, elements) if elements else None

    def _map(self, found: bytes, now_ms: int) -> bytes | None:
        unpacker = msgpack.Unpacker(max_buffer_size=len(found))
        unpacker.feed(found)
        entries: dict[bytes, bytes] = {}
        for _ in range(unpacker.read_map_header()):
            start = unpacker.tell()
            unpacker.skip()
            map_key = found[start : unpacker.tell()]
            data = current_value(unpacker.unpack(), self._duration_ms, now_ms)
            if data is not None:
                entries[map_key] = data
        return map_answer(self._descriptor, entries) if entries else None


class _CurrentScan(StateScan):
    """Leaves out keys whose value has expired. It reads the values in any case, to know that."""

    def __init__(self, scan: StateScan, current: Callable[[Answer, int], Answer]) -> None:
        self.epoch = scan.epoch
        self._scan = scan
        self._current = current

    def prepare(self) -> Iterator[None]:
        return self._scan.prepare()

    def entries(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Scanned]:
        most_bytes = selection.most_bytes
        stored = replace(selection, values=True, most_bytes=min(UNBOUNDED, most_bytes * _LARGER))
        for namespace, key, found in self._scan.entries(group, after, stored):
            answer = self._current(found, most_bytes)
            if answer is not None:
                yield Scanned(namespace, key, answer if selection.values else None)

    def close(self) -> None:
        self._scan.close()


class _CurrentParts(ValueParts):
    """The parts of a value that had not expired at one moment, without their times."""

    def __init__(
        self, parts: ValueParts, current: Callable[[Answer, int], Answer], duration_ms: int, now_ms: int
    ) -> None:
        self.epoch = parts.epoch
        self._parts = parts
        self._current = current
        self._duration_ms = duration_ms
        self._now_ms = now_ms

    def value(self) -> bytes | None:
        answer = self._current(self._parts.value(), self._now_ms)
        if isinstance(answer, FailureCode):  # a torn one
            raise ConcurrentModification()
        return answer

    def elements(self) -> Iterator[bytes]:
        for data in self._parts.elements():
            yield from current_elements((data,), self._duration_ms, self._now_ms)

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        for map_key, stored in self._parts.entries(after):
            data = current_value(stored, self._duration_ms, self._now_ms)
            if data is not None:
                yield map_key, data

    def entry(self, map_key: bytes) -> bytes | None:
        stored = self._parts.entry(map_key)
        return None if stored is None else current_value(stored, self._duration_ms, self._now_ms)

    def close(self) -> None:
        self._parts.close()


def _is_whole(answer: bytes) -> bool:
    """Whether an answer is one MessagePack object. Those of a value that changed meanwhile may not be."""
    try:
        msgpack.unpackb(answer, raw=True, strict_map_key=False, use_list=False)
    except (ValueError, TypeError, msgpack.UnpackException):
        return False
    return True
