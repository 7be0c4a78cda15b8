"""Query answers: the serialized value of a key, as a client receives it.

Rules of this module: it makes answers from live objects and from stored bytes, and knows no threads, tables or
sockets. Both sources give the same bytes for the same state:

    value, reducing   the serializer's bytes
    aggregating       MessagePack of the function's result
    list              MessagePack array of the elements
    map               MessagePack map; the map keys as MessagePack keys, tuples as arrays

The array or map contains the serializer's bytes of an element or value directly if the serializer is `msgpack`,
otherwise as a MessagePack bin. A map's value None is written by the serializer like any other: nil with `msgpack`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from struct import Struct
from typing import Any

import msgpack

from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import FailureCode, TooLarge
from qstate.keys import encode_key
from qstate.serializers import MessagePackSerializer
from qstate.values.extension_types import PACKER_BYTES

__all__ = [
    "IMMUTABLE",
    "Answer",
    "accumulator_answer",
    "bounded",
    "container_header",
    "framed",
    "is_immutable",
    "is_spliced",
    "list_answer",
    "live_answer",
    "map_answer",
    "pack_elements",
    "too_large",
    "unpack_elements",
]

#: The answer for a key: its bytes, the failure in their place, or None without a value.
Answer = bytes | FailureCode | None

#: Values of exactly these types cannot change in place: any thread may read them, and a reference is as good as a copy.
IMMUTABLE = frozenset((type(None), bool, int, float, complex, str, bytes, Decimal, date, datetime, timedelta))

_U16 = Struct(">BH")
_U32 = Struct(">BI")


def is_immutable(value: Any) -> bool:
    """Whether a value is of one of these types, or a tuple of such values, as one with its time is."""
    return type(value) in IMMUTABLE or (type(value) is tuple and IMMUTABLE.issuperset(map(type, value)))


def too_large(most_bytes: int) -> TooLarge:
    """The error for a read whose values are together larger than its limit (rule R8 of the contract)."""
    return TooLarge(field="answer", limit=most_bytes)


def bounded(answers: Iterable[Answer], most_bytes: int) -> list[Answer]:
    """The answers as a list. Raises `TooLarge`, and makes no further one, once they are larger than `most_bytes`."""
    found: list[Answer] = []
    left = most_bytes
    for answer in answers:
        if type(answer) is bytes:
            left -= len(answer)
            if left < 0:
                raise too_large(most_bytes)
        found.append(answer)
    return found


def live_answer(descriptor: StateDescriptor, dump: Callable[[Any], bytes], value: Any) -> bytes:
    """The answer for a live value; `dump` is the descriptor's `dump_result` or `result_dumper()`.

    It first copies a list or map, in one step of the interpreter: the answer has the entries of one moment, even if the
    operator adds some meanwhile.
    """
    if descriptor.kind is StateKind.LIST:
        return list_answer(descriptor, [dump(element) for element in list(value)])
    if descriptor.kind is StateKind.MAP:
        return map_answer(descriptor, {encode_key(key): dump(entry) for key, entry in list(value.items())})
    return dump(value)


def list_answer(descriptor: StateDescriptor, elements: Sequence[bytes]) -> bytes:
    """The answer of a list state from its elements' bytes."""
    header = container_header(StateKind.LIST, len(elements))
    return header + b"".join(elements if is_spliced(descriptor) else map(_bin, elements))


def map_answer(descriptor: StateDescriptor, entries: Mapping[bytes, bytes]) -> bytes:
    """The answer of a map state from its encoded map keys and their values' bytes."""
    header = container_header(StateKind.MAP, len(entries))
    if is_spliced(descriptor):
        return header + b"".join(chain.from_iterable(entries.items()))
    return header + b"".join(part for key, data in entries.items() for part in (key, _bin(data)))


def container_header(kind: StateKind, count: int) -> bytes:
    """How the answer of a list or a map of so many elements or entries begins."""
    return _header(0x90, 0xDC, count) if kind is StateKind.LIST else _header(0x80, 0xDE, count)


def framed(descriptor: StateDescriptor, data: bytes) -> bytes:
    """How the serializer's bytes of an element or a map's value stand in an answer."""
    return data if is_spliced(descriptor) else _bin(data)


def accumulator_answer(descriptor: StateDescriptor, dump: Callable[[Any], bytes], data: bytes) -> bytes:
    """The answer of a value, reducing or aggregating state from its stored bytes."""
    return dump(descriptor.serializer.loads(data)) if descriptor.kind is StateKind.AGGREGATING else data


def pack_elements(elements: Iterable[bytes]) -> bytes:
    """The data of a `LIST_ADD` or a list's `PUT`: a MessagePack array of bins."""
    packed: bytes = msgpack.packb(list(elements), buf_size=PACKER_BYTES)
    return packed


def unpack_elements(data: bytes) -> list[bytes]:
    """The inverse of `pack_elements`."""
    elements: list[bytes] = msgpack.unpackb(data)
    return elements


def is_spliced(descriptor: StateDescriptor) -> bool:
    """Whether an answer's array or map has the serializer's bytes themselves."""
    return descriptor.serializer.name == MessagePackSerializer.name


def _bin(data: bytes) -> bytes:
    packed: bytes = msgpack.packb(data, buf_size=PACKER_BYTES)
    return packed


def _header(small: int, medium: int, count: int) -> bytes:
    if count < 16:
        return bytes((small | count,))
    return _U16.pack(medium, count) if count < 1 << 16 else _U32.pack(medium + 1, count)
