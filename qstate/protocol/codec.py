"""Messages as bytes: `encode` and `decode` for one payload of MessagePack, `frame` and `FrameReader` for a stream.

Rules of this module: it turns a message into a payload and back by the annotations of its fields (messages.py). A
payload is one MessagePack array: `[type, id, field, ...]`. msgspec decodes it and checks types and bounds on the way,
so it builds nothing beyond them. `encode` reads back what it wrote: no message is sent that the peer would refuse.

Decoding any bytes gives a message, `BadContent` (the payload has a valid id but bad content: that request fails) or
another `RemoteProtocolError` (it has no valid id: the connection must close), and nothing else.

A frame says where a payload ends. A length over the limit is refused as soon as its four bytes have arrived, before
any of the body is kept.

    0        4                    4 + length
    +--------+--------------------+
    | length | payload            |     length: unsigned, 32 bits, big-endian, of the payload alone
    +--------+--------------------+
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import astuple

from qstate.errors import (
    Detail,
    FailureCode,
    LocalProtocolError,
    QueryError,
    RemoteProtocolError,
    WrongKeyType,
    query_error,
)
from qstate.protocol.fields import FAULTS, Reader, check_attributes
from qstate.protocol.limits import DEFAULT_LIMITS, DEFAULT_MAX_FRAME, MAX_FRAME_LIMIT, MAX_ID, Limits
from qstate.protocol.messages import (
    FORMS,
    NO_ATTRIBUTES,
    Changes,
    Form,
    Hello,
    Message,
    Page,
    Part,
    Values,
)

__all__ = ["PLANS", "BadContent", "FrameReader", "Plan", "decode", "decoder_of", "encode", "frame", "plan_of"]

_LENGTH = struct.Struct(">I")
HEADER_BYTES = _LENGTH.size


class BadContent(RemoteProtocolError):
    """A request or answer with a valid id whose content breaks a rule. The connection stays open."""

    def __init__(self, request_id: int, code: FailureCode, details: Mapping[str, Detail]) -> None:
        super().__init__(f"message {request_id}: {code.name.lower()} {dict(details)}", code)
        self.request_id = request_id
        self.details = details


class _Start(Struct, array_like=True):
    """How every payload begins. The decoder skips what follows, of whatever type."""

    number: Annotated[int, Meta(ge=0, le=MAX_ID)]
    id: Annotated[int, Meta(ge=0, le=MAX_ID)]


class Plan(NamedTuple):
    """How the payloads of one form are written and read.

    `has_id`: the message has the payload's id, and may have attributes; those of the handshake have neither.
    `read_attributes`: gives those that are known, if the message has a field for them. `prefix`
    precedes the message's fields. `wire` is the type that the library decodes, `readers` are the functions for fields
    of this type, `writers` those for fields of the message, `expected` what an error says about them.
    """

    form: Form
    has_id: bool
    read_attributes: Callable[[Any, Limits], Any] | None
    prefix: tuple[int, ...]
    wire: type[Struct]
    readers: tuple[tuple[int, Callable[[Any, Limits], Any]], ...]
    writers: tuple[tuple[int, Callable[[Any], Any]], ...]
    expected: Mapping[str, str]


def plan_of(form: Form) -> Plan:
    """The plan of a form, made of the annotations of the message's fields."""
    hints = get_type_hints(form.message, include_extras=True)
    readers = {name: mark for name, hint in hints.items() for mark in get_args(hint) if isinstance(mark, Reader)}
    types = {name: readers[name].kind if name in readers else hint for name, hint in hints.items()}
    has_id = "id" in types
    if not has_id:
        # The handshake: it has no request. It precedes the agreement on a version, so fields that follow are ignored.
        types = {"id": Literal[0], **types}
    types.pop("attributes", None)
    attributes = readers.pop("attributes", None)
    defaults: Mapping[str, Any] = form.message._field_defaults
    fields: list[Any] = [(name, kind, *([defaults[name]] if name in defaults else ())) for name, kind in types.items()]
    if has_id:
        fields.append(("attributes", Raw | UnsetType, UNSET))
    wire = msgspec.defstruct(
        form.message.__name__,
        fields,
        namespace={"of": form.message},
        array_like=True,
        tag=form.number,
        forbid_unknown_fields=has_id,
    )
    described = {name: mark for name, hint in types.items() for mark in get_args(hint) if isinstance(mark, Meta)}
    return Plan(
        form,
        has_id,
        None if attributes is None else attributes.read,
        (form.number,) if has_id else (form.number, 0),
        wire,
        tuple((list(types).index(name), mark.read) for name, mark in readers.items()),
        tuple((list(hints).index(name), mark.write) for name, mark in readers.items() if mark.write is not None),
        {name: str(described[name].description) if name in described else "" for name in types},
    )


#: By the class of the message.
PLANS = {form.message: plan_of(form) for form in FORMS}
_NUMBERS = {form.number: form.message for form in FORMS}
#: The class of a named tuple has a `__new__` in Python; the tuple's own takes a fraction of its time.
_NEW = tuple.__new__
_pack = msgspec.msgpack.Encoder().encode
_start_of = msgspec.msgpack.Decoder(_Start).decode
_HANDSHAKE = (Hello,)
#: Of a larger payload `encode` does not read the values back.
_LARGE = 64 * 1024
#: Where an error of the library says it is: the index in the payload's array.
_PLACE = re.compile(r" - at `\$\[(\d+)\]")
_TOO_LONG = re.compile(r"^Expected `array` of length <= (\d+) ")


def encode(message: Message, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """The payload of a message.

    Raises `LocalProtocolError` when a field breaks a rule or the payload is larger than `limits.max_frame`, with the
    failure code that the peer would answer.
    """
    plan = PLANS.get(type(message))
    if plan is None:
        raise LocalProtocolError(f"{type(message).__name__} is not a message of the protocol")
    payload, found = _encoded(plan, message, limits)
    if plan.writers and found != message and not _is_raw(message):
        # The library writes dates and decimals as text.
        payload, found = _encoded(plan, _with_raw_keys(plan, message), limits)
        if found != message:
            # MessagePack writes a list as it writes a tuple.
            unhashable = WrongKeyType(expected="a tuple of columns, no list")
            raise LocalProtocolError(f"{type(message).__name__}: {unhashable}", unhashable.code) from unhashable
    return payload


def _is_raw(message: Message) -> bool:
    """Whether its keys are undecoded, as a server has them."""
    if isinstance(message, Part):
        return message.after is None or type(message.after) is Raw
    if isinstance(message, Changes):
        return any(type(run.namespace) is Raw for run in message.runs[:1])
    return isinstance(message, Page) and any(type(key) is Raw for key in (*message.keys[:1], *(message.after or ())))


def _with_raw_keys(plan: Plan, message: Any) -> Any:
    fields = [*message]
    try:
        for index, write in plan.writers:
            fields[index] = write(fields[index])
    except (ValueError, TypeError, OverflowError) as exc:
        raise LocalProtocolError(f"{type(message).__name__}: MessagePack cannot carry its keys: {exc}") from exc
    return _NEW(type(message), fields)


def _encoded(plan: Plan, message: Message, limits: Limits) -> tuple[bytes, Message]:
    """The payload, and the message that the peer reads."""
    name = type(message).__name__
    try:
        payload = _packed(plan, message)
    except (ValueError, TypeError, OverflowError) as exc:
        # Text with lone surrogates, integers beyond 64 bits, or values of other types.
        raise LocalProtocolError(f"{name}: MessagePack cannot carry it: {exc}") from exc
    if len(payload) > limits.max_frame:
        raise LocalProtocolError(
            f"{name} of {len(payload)} bytes is over the limit of {limits.max_frame}", FailureCode.TOO_LARGE
        )
    try:
        return payload, decode(_without_values(plan, message) if len(payload) > _LARGE else payload, limits)
    except BadContent as exc:
        error = query_error(exc.code, exc.details)
        raise LocalProtocolError(f"{name}: {error}", exc.code) from error
    except RemoteProtocolError as exc:
        raise LocalProtocolError(f"{name}: field='id', expected='integer 1..{MAX_ID}'") from exc


def _without_values(plan: Plan, message: Message) -> bytes:
    """The payload without the values of an answer: any bytes are valid ones, and to read them back would copy them."""
    if isinstance(message, Values):
        message = message._replace(results=tuple(b"" if type(it) is bytes else it for it in message.results))
    elif isinstance(message, Part):
        message = message._replace(result=message.result and b"")
    return _packed(plan, message)


def _packed(plan: Plan, message: Message) -> bytes:
    without = plan.read_attributes is not None and not message[-1]
    return _pack(plan.prefix + (message[:-1] if without else message))


def decode(payload: bytes, limits: Limits = DEFAULT_LIMITS, takes: tuple[type, ...] | None = None) -> Message:
    """The message of a payload. Raises `BadContent` or another `RemoteProtocolError`, and nothing else.

    With `takes`, a message with an id of any other type is UNSUPPORTED, whatever its fields are.
    """
    try:
        wire = decoder_of(takes)(payload)
    except (*FAULTS, RecursionError) as exc:
        raise _fault(payload, takes, exc) from None
    kind = wire.of
    plan = PLANS[kind]
    fields = [*astuple(wire)]
    attributes = fields.pop() if plan.has_id else UNSET
    try:
        for index, read in plan.readers:
            fields[index] = read(fields[index], limits)
        if plan.read_attributes is not None:
            fields.append(NO_ATTRIBUTES if attributes is UNSET else plan.read_attributes(attributes, limits))
        elif attributes is not UNSET:
            check_attributes(attributes)
        message: Message = _NEW(kind, fields if plan.has_id else fields[1:])
        check = plan.form.check
        if check is not None:
            check(message, limits)
    except QueryError as exc:
        raise _refused(fields[0], exc.code, exc.details) from None
    return message


@lru_cache
def decoder_of(takes: tuple[type, ...] | None) -> Callable[[bytes], Any]:
    """The decoder of some messages, by default of all."""
    taken = [plan.wire for message, plan in PLANS.items() if takes is None or message in takes]
    return msgspec.msgpack.Decoder(Union[tuple(taken)]).decode  # noqa: UP007 (a union of types known only here)


def _fault(payload: bytes, takes: tuple[type, ...] | None, error: Exception) -> RemoteProtocolError:
    """What a payload is refused with that no decoder takes. A payload with an id fails only that request."""
    if takes == _HANDSHAKE:  # nothing that a server says depends on how it begins, so do not look at it again
        return RemoteProtocolError(str(error))
    try:
        start = _start_of(payload)
    except (*FAULTS, RecursionError) as exc:
        return RemoteProtocolError(f"a payload is an array that starts with a type and an id, 0..{MAX_ID}: {exc}")
    message = _NUMBERS.get(start.number)
    if message is None or (takes is not None and message not in takes):
        return _refused(start.id, FailureCode.UNSUPPORTED, {"type": start.number})
    plan = PLANS[message]
    details: dict[str, Detail] = {"field": "message", "expected": f"array of {1 + len(plan.expected)}"}
    place = _PLACE.search(str(error))
    if isinstance(error, UnicodeDecodeError):
        details["expected"] = "text in UTF-8"
    elif place:
        name = list(plan.expected)[int(place[1]) - 1]
        details = {"field": name, "expected": plan.expected[name]}
        too_long = _TOO_LONG.search(str(error))
        if too_long:
            return _refused(start.id, FailureCode.TOO_LARGE, {"field": name, "limit": int(too_long[1])})
    return _refused(start.id, FailureCode.MALFORMED, details)


def _refused(request_id: int, code: FailureCode, details: Mapping[str, Detail]) -> RemoteProtocolError:
    if request_id == 0:
        return RemoteProtocolError(f"message about the connection: {code.name.lower()} {dict(details)}")
    return BadContent(request_id, code, details)


def frame(payload: bytes) -> bytes:
    """The payload with its length in front."""
    if len(payload) > MAX_FRAME_LIMIT:
        raise LocalProtocolError(f"a payload of {len(payload)} bytes has no frame", FailureCode.TOO_LARGE)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cuts incoming bytes, however they are split, into payloads.

    `max_frame` may be changed between frames. `buffered` is how many bytes belong to no payload yet. After
    `RemoteProtocolError` the next frame's start is unknown: every later `feed` raises again.
    """

    def __init__(self, max_frame: int = DEFAULT_MAX_FRAME) -> None:
        self.max_frame = max_frame
        #: The buffered bytes are its last ones.
        self._data: bytes | bytearray = b""
        self.buffered = 0

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[bytes]:
        """Add bytes and iterate over the payloads that are complete now.

        `feed` adds the bytes at once, and the iterator cuts one payload at a time. Payloads that are left come with the
        next `feed`. The iterator raises `RemoteProtocolError` at a length over `max_frame`.
        """
        if not self.buffered:
            # The common case, whole frames in one read: cut them out of the caller's bytes directly.
            self._data = data if type(data) is bytes else bytes(data)
        elif type(self._data) is bytearray:
            # Both are cheap: a bytearray drops a prefix by moving its start, and grows geometrically.
            del self._data[: -self.buffered]
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[-self.buffered :])
            self._data += data
        self.buffered = len(self._data)
        return self._payloads()

    def clear(self) -> None:
        """Drop the buffered bytes: the connection has ended."""
        self._data, self.buffered = b"", 0

    def _payloads(self) -> Iterator[bytes]:
        while self.buffered >= HEADER_BYTES:
            data = self._data
            start = len(data) - self.buffered
            (length,) = _LENGTH.unpack_from(data, start)
            if length > self.max_frame:
                raise RemoteProtocolError(
                    f"a frame of {length} bytes is over the limit of {self.max_frame}", FailureCode.TOO_LARGE
                )
            body, end = start + HEADER_BYTES, start + HEADER_BYTES + length
            if len(data) < end:
                return
            self.buffered = len(data) - end
            yield data[body:end] if type(data) is bytes else bytes(memoryview(data)[body:end])
        if not self.buffered:
            self._data = b""  # it may have held a frame of megabytes
