"""Messages as MessagePack: `encode` and `decode`.

Rules of this module: it turns a message into a payload and back, and checks its rules (messages.py) in both
directions. A payload is one MessagePack array: `[type, id, field, ...]`.

Decoding any bytes gives a message, `BadContent` (the payload has a valid id but bad content: that request fails) or
another `RemoteProtocolError` (it has no valid id: the connection must close), and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from qstate.errors import Detail, FailureCode, LocalProtocolError, QueryError, RemoteProtocolError, UnsupportedQuery
from qstate.protocol import fields as field_rules
from qstate.protocol.limits import DEFAULT_LIMITS, MAX_ID, MAX_VERSIONS, Limits
from qstate.protocol.messages import FORM_OF_CLASS, FORM_OF_NUMBER, Failure, Form, Get, Message
from qstate.protocol.unpacking import FieldReader, OutOfShape, unpack_small

__all__ = ["BadContent", "decode", "decode_opening", "encode"]


class BadContent(RemoteProtocolError):
    """A request or answer with a valid id whose content breaks a rule. The connection stays open."""

    def __init__(self, request_id: int, code: FailureCode, details: Mapping[str, Detail]) -> None:
        super().__init__(f"message {request_id}: {code.name.lower()} {dict(details)}", code)
        self.request_id = request_id
        self.details = details


_GET = FORM_OF_CLASS[Get]
_NAMESPACE_INDEX, _KEYS_INDEX = _GET.size - 3, _GET.size - 1
_NO_START = f"a message starts with its type and its id, integers 0..{MAX_ID}"
_A_KEY = "a key of the state's columns"
#: The limits of an opening message: its longest array is its versions.
_OPENING = Limits(max_array=MAX_VERSIONS)


def encode(message: Message, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The payload of a message.

    Raises `LocalProtocolError` when a field breaks a rule or the payload is larger than `limits.max_frame`, with the
    failure code that the peer would answer.
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
        # Text with lone surrogates, or integers beyond 64 bits in a map.
        raise LocalProtocolError(f"{type(message).__name__}: MessagePack cannot carry it: {exc}") from exc
    if len(payload) > limits.max_frame:
        raise LocalProtocolError(
            f"{type(message).__name__} of {len(payload)} bytes is over the limit of {limits.max_frame}",
            FailureCode.TOO_LARGE,
        )
    return payload


def _check_odd_id(value: Any, form: Form) -> None:
    """Check an id that is not a request's: only a Failure may have id 0, which means the connection."""
    if form.message is not Failure or type(value) is not int or value != 0:
        field_rules.check_request_id(value)


def decode(payload: bytes, limits: Limits = DEFAULT_LIMITS, takes: tuple[type, ...] | None = None) -> Message:
    """The message of a payload. Raises `BadContent` or another `RemoteProtocolError`, and nothing else.

    With `takes`, a message with an id of any other type is UNSUPPORTED, whatever its fields are.
    """
    fields = unpack_small(payload, limits.max_array)
    if fields is None:
        fields = _read_fields(payload, limits, takes)
    return _message_of(fields, limits, takes)


def decode_opening(payload: bytes, takes: tuple[type, ...]) -> Message:
    """`decode` for the first message of an unauthenticated peer: it builds nothing but the message's fields."""
    return _message_of(_read_fields(payload, _OPENING, takes), _OPENING, takes)


def _message_of(fields: Any, limits: Limits, takes: tuple[type, ...] | None) -> Message:
    if type(fields) is not tuple or len(fields) < 2:
        raise RemoteProtocolError("a payload is an array of at least a type and an id")
    number, request_id = fields[0], fields[1]
    if not (_is_unsigned(number) and _is_unsigned(request_id)):
        raise RemoteProtocolError(_NO_START)
    form = FORM_OF_NUMBER.get(number)
    try:
        return _checked(fields, form, limits, takes)
    except QueryError as exc:
        raise _refused(request_id, exc.code, exc.details) from None


def _read_fields(payload: bytes, limits: Limits, takes: tuple[type, ...] | None) -> tuple[Any, ...]:
    """The fields of a large or malformed payload, read from the front up to the first fault.

    A fault in a payload with an id fails only that request.
    """
    try:
        reader = FieldReader(payload, limits.max_array)
        number, request_id = reader.unsigned(), reader.unsigned()
    except (ValueError, msgpack.UnpackException) as exc:
        raise _broken(exc) from exc
    if number is None or request_id is None:
        raise RemoteProtocolError(_NO_START)
    form = FORM_OF_NUMBER.get(number)
    if form is None or (request_id and not _is_taken(form, takes)):
        raise _refused(request_id, FailureCode.UNSUPPORTED, {"type": number})
    if form.has_id and reader.size != form.size:
        raise _refused(request_id, FailureCode.MALFORMED, {"field": "message", "expected": f"array of {form.size}"})
    try:
        fields = [reader.field(index, form.depth) for index in range(2, min(reader.size, form.size))]
        if form.has_id:
            reader.end()
    except OutOfShape as exc:
        raise _refused(request_id, *_fault_of(exc, form, limits)) from exc
    except UnicodeDecodeError as exc:
        raise _refused(request_id, FailureCode.MALFORMED, {"field": "message", "expected": "text in UTF-8"}) from exc
    except (ValueError, msgpack.UnpackException) as exc:
        raise _broken(exc) from exc
    return (number, request_id, *fields)


def _broken(cause: Exception) -> RemoteProtocolError:
    return RemoteProtocolError(f"the payload is not a message: {cause or type(cause).__name__}")


def _fault_of(found: OutOfShape, form: Form, limits: Limits) -> tuple[FailureCode, dict[str, Detail]]:
    """The failure code and details for a field that is too long or nested too deep."""
    index, *places = found.path
    if form is _GET and index == _KEYS_INDEX and places:
        return FailureCode.WRONG_KEY_TYPE, {"field": "keys", "index": places[0], "expected": _A_KEY}
    if form is _GET and index == _KEYS_INDEX and found.length > limits.max_keys:
        return FailureCode.TOO_LARGE, {"field": "keys", "limit": limits.max_keys}
    if form is _GET and index == _NAMESPACE_INDEX:
        return FailureCode.WRONG_KEY_TYPE, {"field": "namespace", "expected": _A_KEY}
    return FailureCode.MALFORMED, {"field": "message", "expected": "fields within their limits"}


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
        # The handshake precedes the agreement on a version: ignore fields that a newer peer appends.
        if len(fields) < form.size or fields[1] != 0:
            raise field_rules.malformed("message", f"array of at least {form.size} with id 0")
        message = tuple.__new__(form.message, fields[2 : form.size])
    form.check(message, limits)
    return message  # type: ignore[no-any-return]


def _refused(request_id: int, code: FailureCode, details: Mapping[str, Detail]) -> RemoteProtocolError:
    if request_id == 0:
        return RemoteProtocolError(f"message about the connection: {code.name.lower()} {dict(details)}")
    return BadContent(request_id, code, details)


def _is_taken(form: Form, takes: tuple[type, ...] | None) -> bool:
    return takes is None or form.message in takes


def _is_unsigned(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_ID
