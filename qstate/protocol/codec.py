"""Messages as MessagePack: `encode` and `decode`.

Rules of this module: it turns a message into a payload and back, and holds it to its rules (messages.py) in both
directions. A payload is one MessagePack array: `[type, id, field, ...]`.

Decoding arbitrary bytes gives a message, `BadContent` (the frame is sound and has an id, the rest is wrong: that
request fails) or another `RemoteProtocolError` (not even that: the connection must close), and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgpack

from qstate.errors import Detail, FailureCode, LocalProtocolError, QueryError, RemoteProtocolError, UnsupportedQuery
from qstate.protocol import fields as field_rules
from qstate.protocol.limits import DEFAULT_LIMITS, MAX_ID, MAX_MAP_ENTRIES, Limits
from qstate.protocol.messages import FORM_OF_CLASS, FORM_OF_NUMBER, Failure, Form, Get, Message

__all__ = ["BadContent", "decode", "encode"]


class BadContent(RemoteProtocolError):
    """A sound frame of a request or answer whose content breaks a rule. The connection can go on."""

    def __init__(self, request_id: int, code: FailureCode, details: Mapping[str, Detail]) -> None:
        super().__init__(f"message {request_id}: {code.name.lower()} {dict(details)}", code)
        self.request_id = request_id
        self.details = details


_GET = FORM_OF_CLASS[Get]
_KEYS_INDEX = _GET.size - 1


def encode(message: Message, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The payload of a message.

    Raises `LocalProtocolError`, with the failure code that the peer would have answered, when a field breaks
    a rule or the payload is larger than `limits.max_frame`.
    """
    form = FORM_OF_CLASS.get(type(message))
    if form is None:
        raise LocalProtocolError(f"{type(message).__name__} is not a message of the protocol")
    try:
        if form.has_id and not (type(message[0]) is int and 0 < message[0] <= MAX_ID):
            _check_odd_id(message[0], form)
        form.check(message, limits)
        payload: bytes = msgpack.packb(form.prefix + message)
    except QueryError as exc:
        raise LocalProtocolError(f"{type(message).__name__}: {exc}", exc.code) from exc
    except (ValueError, TypeError, OverflowError) as exc:
        # Text with lone surrogates, and integers beyond 64 bits in a map.
        raise LocalProtocolError(f"{type(message).__name__}: MessagePack cannot carry it: {exc}") from exc
    if len(payload) > limits.max_frame:
        raise LocalProtocolError(
            f"{type(message).__name__} of {len(payload)} bytes is over the limit of {limits.max_frame}",
            FailureCode.TOO_LARGE,
        )
    return payload


def _check_odd_id(value: Any, form: Form) -> None:
    """An id other than those of requests: a Failure alone can be about the connection, whose id is 0."""
    if form.message is not Failure or type(value) is not int or value != 0:
        field_rules.check_request_id(value)


def decode(payload: bytes, limits: Limits = DEFAULT_LIMITS, takes: tuple[type, ...] | None = None) -> Message:
    """The message of a payload. Raises `BadContent` or another `RemoteProtocolError`, and nothing else.

    With `takes`, any other type that has an id is UNSUPPORTED, whatever its fields are.
    """
    try:
        fields = msgpack.unpackb(
            payload,
            use_list=False,
            object_pairs_hook=_map_of,
            ext_hook=_refuse_extension,
            max_array_len=limits.max_array,
            max_map_len=MAX_MAP_ENTRIES,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as exc:
        opening = _without_later_elements(payload)
        if opening is not None:
            return decode(opening, limits, takes)
        raise _salvaged(payload, limits, exc, takes) from exc
    if type(fields) is not tuple or len(fields) < 2:
        raise RemoteProtocolError("a payload is an array of at least a type and an id")
    number, request_id = fields[0], fields[1]
    if not (_is_unsigned(number) and _is_unsigned(request_id)):
        raise RemoteProtocolError(f"a message starts with its type and its id, integers 0..{MAX_ID}")
    form = FORM_OF_NUMBER.get(number)
    try:
        return _checked(fields, form, limits, takes)
    except QueryError as exc:
        raise _refused(request_id, exc.code, exc.details) from None


def _checked(fields: tuple[Any, ...], form: Form | None, limits: Limits, takes: tuple[type, ...] | None) -> Message:
    if form is None or (fields[1] and not _is_taken(form, takes)):
        raise UnsupportedQuery(type=fields[0])
    if form.has_id:
        if len(fields) != form.size:
            raise field_rules.malformed("message", f"array of {form.size}")
        if not fields[1]:
            _check_odd_id(0, form)
        message = tuple.__new__(form.message, fields[1:])
    else:
        # The handshake is read before a version is agreed on: what a newer peer appends is ignored.
        if len(fields) < form.size or fields[1] != 0:
            raise field_rules.malformed("message", f"array of at least {form.size} with id 0")
        message = tuple.__new__(form.message, fields[2 : form.size])
    form.check(message, limits)
    return message  # type: ignore[no-any-return]


def _refused(request_id: int, code: FailureCode, details: Mapping[str, Detail]) -> RemoteProtocolError:
    if request_id == 0:
        return RemoteProtocolError(f"message about the connection: {code.name.lower()} {dict(details)}")
    return BadContent(request_id, code, details)


class _Refused:
    """Stands for a MessagePack value that no field takes, so that the field's own check refuses it."""


_REFUSED = _Refused()


def _map_of(pairs: Iterable[tuple[Any, Any]]) -> Any:
    # A list in msgpack's C extension, a generator in its Python form.
    items = list(pairs)
    found = dict(items)
    return found if len(found) == len(items) else _REFUSED


def _refuse_extension(code: int, data: bytes) -> Any:
    return _REFUSED


def _is_taken(form: Form, takes: tuple[type, ...] | None) -> bool:
    return takes is None or form.message in takes


def _without_later_elements(payload: bytes) -> bytes | None:
    """A Hello or Welcome cut after the elements that this version knows; None for anything else.

    What a newer peer appends is ignored unread: no limit of this version applies to it.
    """
    reader = msgpack.Unpacker(raw=True, max_buffer_size=max(1, len(payload)))
    try:
        reader.feed(payload)
        size, start = reader.read_array_header(), reader.tell()
        number = _read_integer(reader, payload)
        form = None if number is None else FORM_OF_NUMBER.get(number)
        if form is None or form.has_id or size <= form.size:
            return None
        for _ in range(1, form.size):
            reader.skip()
        end = reader.tell()
        for _ in range(form.size, size):
            reader.skip()
    except (ValueError, msgpack.UnpackException):
        return None
    return bytes((0x90 | form.size,)) + payload[start:end] if reader.tell() == len(payload) else None


def _salvaged(payload: bytes, limits: Limits, cause: Exception, takes: tuple[type, ...] | None) -> RemoteProtocolError:
    """The error for a payload that could not be unpacked: with an id, when it is whole and has one.

    An array over the limit, text that is not UTF-8 and a map with odd keys stop the unpacker, but the frame is
    sound, so only that request fails. Skipping builds no objects, so a hostile payload costs little here.
    """
    broken = RemoteProtocolError(f"the payload is not a message: {cause or type(cause).__name__}")
    reader = msgpack.Unpacker(raw=True, max_buffer_size=max(1, len(payload)))
    try:
        reader.feed(payload)
        size = reader.read_array_header()
        number, request_id = _read_integer(reader, payload), _read_integer(reader, payload)
        if number is None or request_id is None:
            return broken
        form = FORM_OF_NUMBER.get(number)
        keys, wide = 0, None
        for index in range(2, size):
            if index == _KEYS_INDEX and form is _GET and size == form.size:
                keys = _array_length(payload, reader.tell())
            if keys:
                reader.read_array_header()
                for position in range(keys):
                    if wide is None and _array_length(payload, reader.tell()) > limits.max_array:
                        wide = position
                    reader.skip()
                continue
            reader.skip()
        if reader.tell() != len(payload):
            return broken
    except (ValueError, msgpack.UnpackException):
        return broken
    if form is None or (request_id and not _is_taken(form, takes)):
        return _refused(request_id, FailureCode.UNSUPPORTED, {"type": number})
    if keys > limits.max_keys:
        return _refused(request_id, FailureCode.TOO_LARGE, {"field": "keys", "limit": limits.max_keys})
    if wide is not None:
        details: dict[str, Detail] = {"field": "keys", "index": wide, "expected": "a key of the state's columns"}
        return _refused(request_id, FailureCode.WRONG_KEY_TYPE, details)
    return _refused(request_id, FailureCode.MALFORMED, {"field": "message", "expected": "fields within their limits"})


def _is_unsigned(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ID


def _read_integer(reader: Any, payload: bytes) -> int | None:
    """The type or id that comes next, or None: nothing else is built, for it has no bounds here."""
    start = reader.tell()
    if start < len(payload) and (payload[start] < 0x80 or 0xCC <= payload[start] <= 0xCF):
        number: int = reader.unpack()
        return number if _is_unsigned(number) else None
    return None


def _array_length(payload: bytes, start: int) -> int:
    """The length in the array header at `start`, or 0 when something else, or nothing, stands there."""
    first = payload[start] if start < len(payload) else 0
    if first == 0xDC:
        return int.from_bytes(payload[start + 1 : start + 3], "big")
    if first == 0xDD:
        return int.from_bytes(payload[start + 1 : start + 5], "big")
    return first & 0x0F if first & 0xF0 == 0x90 else 0
