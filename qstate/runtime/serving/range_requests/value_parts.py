"""Parts of one value: what a state server answers to a GetPart.

Rules of this module: it knows the messages GetPart and Part, state instances and the backend contract. It must not know
sockets or threads. It holds no more than an answer's bytes and one element, entry or single value at a time.

A part that takes a walk over the value is read in steps, between which other requests have their turns.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice

from msgspec import Raw
from xxhash import xxh3_128

from qstate.backends.answers import container_header, framed, list_answer, map_answer, too_large
from qstate.backends.contract import StateReader, ValueParts
from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import ClosedError, KeyGroupNotOwned, UnknownStateId, UnsupportedOperation, UnsupportedQuery
from qstate.keys import check_key, encode_key
from qstate.protocol.messages import GetPart, Part
from qstate.protocol.part_messages import BYTES, ENTRIES, PAGE, SIZE, SLICE
from qstate.runtime.serving.demands import check_committed, check_epoch, reader_of
from qstate.runtime.serving.registry import StateInstance

__all__ = ["part_of"]

#: What a part has beside its bytes and map keys: numbers, a fingerprint, a version.
_FRAME_BYTES = 512
#: The most bytes of the MessagePack header of a value, an array or a map.
_HEADER_BYTES = 5
#: A page ends so long after its first entry. To find that one may take longer: a dict has no order.
PAGE_S = 0.05
#: How many elements or entries, and how many bytes, a walk visits in a step.
_MANY, _MANY_BYTES = 1000, 1 << 20
_KINDS = {ENTRIES: (StateKind.MAP,), PAGE: (StateKind.MAP,), SLICE: (StateKind.LIST,)}
_CONTAINERS = (StateKind.LIST, StateKind.MAP)

#: What it comes to after each step: None, and the part after the last one.
PartSteps = Iterator[Part | None]


def part_of(instance: StateInstance, request: GetPart, most_bytes: int) -> Part | PartSteps:
    """The answer to a GetPart of this instance, or its steps. It has at most `most_bytes` bytes.

    It or its steps raise the `QueryError` that the request fails with: `KeyGroupNotOwned`, `WrongKeyType`,
    `UnsupportedQuery`, `TooLarge`, and what a get fails with.
    """
    reader = _reader_of(instance, request)
    read = {ENTRIES: _entries, PAGE: _page}.get(request.part)
    room = most_bytes - _FRAME_BYTES
    if read is None:
        return _in_steps(instance, reader, request, room)
    with _opened(instance, reader, request) as value:
        return read(instance, value, request, room)


def _reader_of(instance: StateInstance, request: GetPart) -> StateReader:
    """The reader of the request's isolation, when the request can be answered here."""
    check_key(request.key, instance.key_types)
    if request.namespace is not None:
        check_key(request.namespace, instance.namespace_types)
    kind = instance.descriptor.kind
    if kind not in _KINDS.get(request.part, _CONTAINERS if request.part == SIZE else (kind,)):
        raise UnsupportedQuery(option="part", reason=f"a {kind.value} state has no {request.part}")
    if not instance.owns_all and instance.group_of(request.key) not in instance.key_groups:
        raise KeyGroupNotOwned()
    return reader_of(instance, request.options)


@contextmanager
def _opened(instance: StateInstance, reader: StateReader, request: GetPart) -> Iterator[ValueParts]:
    """The value, as the request demands it."""
    try:
        with closing(reader.parts(instance.descriptor, request.namespace, request.key)) as value:
            if request.options.get("isolation") == "committed":
                check_committed(value.epoch, instance)
            check_epoch(value.epoch, request.options)
            yield value
    except ClosedError as exc:  # the backend is closed as soon as its state is not served any more
        raise UnknownStateId(state=instance.name) from exc
    except UnsupportedOperation as exc:
        raise UnsupportedQuery(reason="the state's backend does not declare it") from exc


def _part(
    instance: StateInstance, value: ValueParts, request: GetPart, result: bytes | None, after: bytes | None = None
) -> Part:
    place = None if after is None else Raw(after)
    return Part(request.id, value.epoch, instance.fingerprint, result, place, 0, b"")


def _entries(instance: StateInstance, value: ValueParts, request: GetPart, room: int) -> Part:
    found: dict[bytes, bytes] = {}
    left = room
    for map_key in dict.fromkeys(map(encode_key, request.map_keys)):
        data = value.entry(map_key)
        if data is not None:
            found[map_key] = data
            left -= _size(map_key, data)
            if left < 0:
                raise too_large(room)
    return _part(instance, value, request, map_answer(instance.descriptor, found) if found else None)


def _page(instance: StateInstance, value: ValueParts, request: GetPart, room: int) -> Part:
    found: dict[bytes, bytes] = {}
    last: bytes | None = None
    left, until = room, 0.0
    for map_key, data in value.entries(None if request.after is None else encode_key(request.after)):
        left -= _size(map_key, data)
        full = left < len(map_key) or len(found) == request.length
        now = time.monotonic()
        until = until or now + PAGE_S
        if found and (full or now >= until):
            return _part(instance, value, request, map_answer(instance.descriptor, found), last)
        if full:
            raise too_large(room)
        found[map_key], last = data, map_key
    return _part(instance, value, request, map_answer(instance.descriptor, found) if found else None)


def _size(*parts: bytes) -> int:
    return sum(map(len, parts)) + _HEADER_BYTES


def _in_steps(instance: StateInstance, reader: StateReader, request: GetPart, room: int) -> PartSteps:
    read = {SLICE: _slice, SIZE: _number, BYTES: _piece}[request.part]
    with _opened(instance, reader, request) as value:
        yield from read(instance, value, request, room)


def _slice(instance: StateInstance, value: ValueParts, request: GetPart, room: int) -> PartSteps:
    found: list[bytes] = []
    left, stop = room, min(request.start + request.length, 1 << 62)
    for index, data in enumerate(islice(value.elements(), stop)):
        if index >= request.start:
            found.append(data)
            left -= _size(data)
            if left < 0:
                raise too_large(room)
        if index % _MANY == _MANY - 1:
            yield None
    yield _part(instance, value, request, list_answer(instance.descriptor, found) if found else None)


def _number(instance: StateInstance, value: ValueParts, request: GetPart, room: int) -> PartSteps:
    number = 0
    for _ in value.elements() if instance.descriptor.kind is StateKind.LIST else value.entries():
        number += 1
        if number % _MANY == 0:
            yield None
    yield _part(instance, value, request, None)._replace(total=number)


def _piece(instance: StateInstance, value: ValueParts, request: GetPart, room: int) -> PartSteps:
    window = _Window(request.start, min(request.length, room))
    visited = 0
    for data in _body(instance.descriptor, value):
        window.add(data)
        visited += len(data) + _HEADER_BYTES
        if visited >= _MANY_BYTES:
            visited = 0
            yield None
    kind = instance.descriptor.kind
    if not window.items:
        yield _part(instance, value, request, None)
        return
    header = container_header(kind, window.items) if kind in _CONTAINERS else b""
    part = _part(instance, value, request, window.piece(header))
    yield part._replace(total=len(header) + window.size, version=window.version(header))


def _body(descriptor: StateDescriptor, value: ValueParts) -> Iterator[bytes]:
    """The bytes of the whole answer after its header, an element, entry or single value at a time."""
    if descriptor.kind is StateKind.LIST:
        for data in value.elements():
            yield framed(descriptor, data)
    elif descriptor.kind is StateKind.MAP:
        for map_key, data in value.entries():
            yield map_key + framed(descriptor, data)
    else:
        answer = value.value()
        if answer is not None:
            yield answer


class _Window:
    """Keeps the bytes of a piece of an answer, and counts the others.

    The header is known at the end, so it also keeps the few bytes that a longer header would push into the piece.
    """

    def __init__(self, start: int, length: int) -> None:
        self.items = self.size = 0
        self._start, self._length = start, length
        self._from, self._to = max(0, start - _HEADER_BYTES), start + length
        self._kept = bytearray()
        self._digest = xxh3_128()

    def add(self, data: bytes) -> None:
        self._digest.update(data)
        if self.size < self._to and self.size + len(data) > self._from:
            self._kept += data[max(0, self._from - self.size) : self._to - self.size]
        self.items += 1
        self.size += len(data)

    def version(self, header: bytes) -> bytes:
        """What stands for the answer with this header: equal answers have equal ones."""
        self._digest.update(header)
        return self._digest.digest()

    def piece(self, header: bytes) -> bytes:
        """The bytes of the answer with this header from `start` on."""
        if self._from == 0:
            return bytes((header + self._kept)[self._start : self._start + self._length])
        skipped = self._start - self._from - len(header)
        return bytes(self._kept[skipped : skipped + self._length])
