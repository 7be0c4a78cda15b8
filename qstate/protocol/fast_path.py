"""The fast path for plain gets and plain answers: a third of the time that `codec` takes.

Rules of this module: a function either accepts what `codec` would accept and returns the same result, or returns None;
then the caller uses `codec`. A plain Get has no namespace and no options; plain Values have no failure.

One step of C checks many values where possible. Joining texts refuses other types, in a third of the time that checking
each type takes. Nearly all answers have one epoch: its bytes are repeated, or compared with a repetition, instead of
packed and unpacked for each key.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import countOf
from struct import Struct
from struct import error as StructError
from typing import Any

import msgpack

from qstate.errors import Detail, QueryError
from qstate.keys import Key
from qstate.protocol import fields as field_rules
from qstate.protocol.framing import HEADER_BYTES
from qstate.protocol.limits import MAX_DEADLINE_MS, MAX_ID, STATE_ID_BYTES, Limits
from qstate.protocol.messages import FORM_OF_CLASS, Get, Target, Values
from qstate.protocol.unpacking import is_small

__all__ = ["pack_get", "pack_values", "unpack_get", "unpack_values"]

_GET = FORM_OF_CLASS[Get]
_VALUES = FORM_OF_CLASS[Values]
_GET_NUMBER, _VALUES_NUMBER = _GET.prefix[0], _VALUES.prefix[0]
#: The first bytes of their payloads: the array's header and the type.
_GET_START = bytes((0x90 | _GET.size, _GET_NUMBER))
_VALUES_START = bytes((0x90 | _VALUES.size, _VALUES_NUMBER))
_NO_OPTIONS: Mapping[str, Detail] = {}
_MAX_INT64 = (1 << 63) - 1
#: The packer's buffer for a small message: the default of 256 KiB is mapped and unmapped each time.
_SMALL_BUFFER = 1024
#: Joining copies the bytes. Above this size checking each type costs less.
_JOINED_BYTES = 64 * 1024
#: Values up to this size are unpacked at once: a server's answer costs only its own client.
_SMALL_VALUES_BYTES = 64 * 1024
#: The types of results without a failure.
_PLAIN = frozenset({bytes, type(None)})
_INTEGERS = frozenset({int})
#: The bytes of an unsigned MessagePack integer, by its first byte.
_UNSIGNED_BYTES = {**dict.fromkeys(range(0x80), 1), 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}
#: The header of a MessagePack array of 16 to 65,535 elements. Shorter and longer arrays have other headers.
_ARRAY16 = Struct(">BH")
_ARRAY16_TAG, _LEAST_ARRAY16, _MOST_ARRAY16 = 0xDC, 16, 0xFFFF


def pack_get(request_id: int, deadline_ms: int, target: Target, keys: tuple[Key, ...]) -> bytes | None:
    """The payload of a plain Get whose fields the caller has checked; None if MessagePack cannot carry them."""
    try:
        payload: bytes = msgpack.packb(
            (_GET_NUMBER, request_id, deadline_ms, target, None, _NO_OPTIONS, keys), buf_size=_SMALL_BUFFER
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return payload


def pack_values(values: Values, limits: Limits) -> bytes | None:
    """The payload of plain Values with a valid id; None for other Values."""
    request_id, epochs, results = values
    count = len(results)
    if not (type(epochs) is type(results) is tuple and 0 < count <= limits.max_keys and count == len(epochs)):
        return None
    epoch = epochs[0]
    if not _are_plain(results):
        return None
    payload: bytes
    if _LEAST_ARRAY16 <= count <= _MOST_ARRAY16 and _is_epoch(epoch) and epochs.count(epoch) == count:
        packed = (
            _VALUES_START,
            msgpack.packb(request_id),
            _ARRAY16.pack(_ARRAY16_TAG, count),
            msgpack.packb(epoch) * count,
            msgpack.packb(results, buf_size=_SMALL_BUFFER),
        )
        payload = b"".join(packed)
    elif _are_epochs(epochs):
        payload = msgpack.packb((_VALUES_NUMBER, *values), buf_size=_SMALL_BUFFER)
    else:
        return None
    return payload if len(payload) <= limits.max_frame else None


def unpack_get(data: bytes, limits: Limits) -> Get | None:
    """The plain Get whose whole frame the bytes are; None for other bytes."""
    if not (_is_frame(data, _GET_START, limits) and is_small(data, limits.max_array)):
        return None
    try:
        _, request_id, deadline_ms, target, namespace, options, keys = fields = msgpack.unpackb(
            data[HEADER_BYTES:], use_list=False, max_array_len=limits.max_array
        )
        if namespace is not None or options != _NO_OPTIONS or not _is_id(request_id):
            return None
        if type(deadline_ms) is not int or not 0 <= deadline_ms <= MAX_DEADLINE_MS:
            return None
        if type(target) is not bytes or len(target) != STATE_ID_BYTES:
            field_rules.check_target(target)
        if not (type(keys) is tuple and 0 < len(keys) <= limits.max_keys and _joins("", keys, len(data))):
            field_rules.check_keys(keys, limits.max_keys)
    except (ValueError, TypeError, msgpack.UnpackException, QueryError):
        return None
    return tuple.__new__(Get, fields[1:])


def unpack_values(data: bytes, limits: Limits) -> Values | None:
    """The plain Values whose whole frame the bytes are; None for other bytes."""
    if not (_is_frame(data, _VALUES_START, limits) and is_small(data, limits.max_array, _SMALL_VALUES_BYTES)):
        return None
    try:
        one_epoch = _of_one_epoch(data)
        request_id, epochs, results = fields = one_epoch or msgpack.unpackb(data[HEADER_BYTES:], use_list=False)[1:]
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    if not (_is_id(request_id) and type(epochs) is type(results) is tuple):
        return None
    if not (0 < len(results) <= limits.max_keys and len(epochs) == len(results)):
        return None
    if not (_is_epoch(epochs[0]) if one_epoch else _are_epochs(epochs)):
        return None
    plain = _joins(b"", results, len(data)) or _are_plain(results)
    return tuple.__new__(Values, fields) if plain else None


def _of_one_epoch(data: bytes) -> tuple[int, tuple[int, ...], Any] | None:
    """The fields of a frame of at least 16 Values that all have one epoch; None for other frames."""
    try:
        request_id, at = _unsigned(data, HEADER_BYTES + len(_VALUES_START))
        if data[at] != _ARRAY16_TAG:
            return None
        _, count = _ARRAY16.unpack_from(data, at)
        start = at + _ARRAY16.size
        epoch, end = _unsigned(data, start)
    except (KeyError, IndexError, StructError):
        return None
    stop = start + (end - start) * count
    if data[start:stop] != data[start:end] * count:
        return None
    return request_id, (epoch,) * count, msgpack.unpackb(data[stop:], use_list=False)


def _unsigned(data: bytes, start: int) -> tuple[int, int]:
    """The unsigned integer at `start`, and its end. Raises `KeyError` for any other value."""
    width = _UNSIGNED_BYTES[data[start]]
    end = start + width
    return data[start] if width == 1 else int.from_bytes(data[start + 1 : end], "big"), end


def _is_frame(data: bytes, start: bytes, limits: Limits) -> bool:
    """Whether the bytes are exactly one frame whose payload begins with `start`."""
    if data[HEADER_BYTES : HEADER_BYTES + len(start)] != start:
        return False
    length = len(data) - HEADER_BYTES
    return length <= limits.max_frame and int.from_bytes(data[:HEADER_BYTES], "big") == length


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_ID


def _is_epoch(value: Any) -> bool:
    return type(value) is int and -1 <= value <= _MAX_INT64


def _are_epochs(epochs: tuple[Any, ...]) -> bool:
    if len(epochs) == 1:
        return _is_epoch(epochs[0])
    return _INTEGERS.issuperset(map(type, epochs)) and min(epochs) >= -1 and max(epochs) <= _MAX_INT64


def _are_plain(results: tuple[Any, ...]) -> bool:
    """Whether each result is a value or nil."""
    if len(results) == 1:
        return type(results[0]) in _PLAIN
    return countOf(map(type, results), bytes) == len(results) or _PLAIN.issuperset(map(type, results))


def _joins(empty: str | bytes, parts: tuple[Any, ...], size: int) -> bool:
    """Whether each part, unpacked from `size` bytes, has the type of `empty`. False also where joining costs more."""
    if type(parts[0]) is not type(empty) or size > _JOINED_BYTES:
        return False
    if len(parts) > 1:
        try:
            empty.join(parts)
        except TypeError:
            return False
    return True
