"""Serializers: MessagePack by default, or a serializer of the user's own.

Rules of this module: it converts values to bytes and back, and knows no states, keys or sockets. The default is
language-neutral. Extension types hold the Python types that MessagePack lacks; a client in another language may read
their payload:

    ext -1  MessagePack's timestamp    datetime with a time zone, in UTC
    ext  1  MessagePack array          tuple
    ext  2  ISO 8601 text              datetime without a time zone
    ext  3  ISO 8601 text              date
    ext  4  decimal text               Decimal
    ext  5  16 bytes                   UUID
    ext  6  decimal text               timedelta, in microseconds
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from reprlib import repr as shown  # bounded: a value may be of any size and depth
from struct import Struct
from typing import Any, ClassVar
from uuid import UUID

import msgpack

from qstate.errors import SerializationError
from qstate.values.extension_types import (
    DATE_EXT,
    DATETIME_EXT,
    DECIMAL_EXT,
    PACKER_BYTES,
    TIMEDELTA_EXT,
    TUPLE_EXT,
    UUID_EXT,
)
from qstate.values.value_forms import form_of, same
from qstate.values.value_types import value_type_of

__all__ = [
    "MOST_TUPLES",
    "DeclaredSerializer",
    "MessagePackSerializer",
    "Serializer",
    "serializer_for",
    "unpacker",
]

_MICROSECOND = timedelta(microseconds=1)

#: The deepest nesting of tuples that can be read. Each is a MessagePack of its own, for which the unpacker takes 42 KiB
#: of the thread's stack: 190 levels crash a process whose stacks have 8 MiB.
MOST_TUPLES = 100

#: The beginning of a MessagePack array, or of bytes, of up to 2**32 - 1 items.
_HEAD_32 = Struct(">BI")


class Serializer(ABC):
    """Converts the values of one state to bytes and back: `loads` returns an equal value of equal types.

    The state's description contains `name`. If it is not `msgpack`, a client needs a serializer of that name. Several
    threads use an instance at once, and the job pickles it for the task managers, so it must not hold mutable state.

    `version` is stored with the state. Increase it when `dumps` writes other bytes than before, and let
    `loads_version` read those of the older versions: a restore rewrites them.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """The bytes of a value. Raises `SerializationError` when the value does not fit."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """The value of bytes that `dumps` made. Raises `SerializationError` for other bytes."""

    def loads_version(self, data: bytes, version: int) -> Any:
        """The value of bytes that an older version of this serializer made; `version` is never a newer one.

        Raises `SerializationError` when it cannot read them. The default cannot read any other version.
        """
        if version != self.version:
            raise SerializationError(
                f"{type(self).__name__} is version {self.version} and cannot read bytes of version {version}; "
                "override loads_version to read them"
            )
        return self.loads(data)

    def dumper(self) -> Callable[[Any], bytes]:
        """`dumps` for one thread: it may keep its buffers from call to call, so it is faster for many values."""
        return self.dumps

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        """The bytes of each value. Raises `SerializationError` for the first one that does not fit."""
        return list(map(self.dumper(), values))

    def load_all(self, data: Sequence[bytes]) -> list[Any]:
        """`loads` of each."""
        return list(map(self.loads, data))


class MessagePackSerializer(Serializer):
    """Plain values as MessagePack: None, bool, int of 64 bits, float, str, bytes, list, dict, tuple, times, UUID."""

    name = "msgpack"

    def dumps(self, value: Any) -> bytes:
        return _packer()(value)

    def loads(self, data: bytes) -> Any:
        return _read(data)

    def dumper(self) -> Callable[[Any], bytes]:
        # A subclass may override only `dumps`; then that must be used.
        return _packer() if type(self).dumps is MessagePackSerializer.dumps else self.dumps

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        if type(self).dumper is not MessagePackSerializer.dumper or type(self).dumps is not MessagePackSerializer.dumps:
            return super().dump_all(values)
        return _pack_all(values)

    def load_all(self, data: Sequence[bytes]) -> list[Any]:
        if type(self).loads is not MessagePackSerializer.loads:
            return super().load_all(data)
        return _read_all(data)


class DeclaredSerializer(MessagePackSerializer):
    """Values of a declared type that is, or contains, a dataclass, a named tuple or an enum.

    A dataclass and a named tuple are written as a map of their fields, an enum as the name of its member: without the
    class, a client reads these. A field that is missing from the bytes gets its default; unknown fields are ignored.
    """

    def __init__(self, declared: Any) -> None:
        self._declared = declared
        self._set_form()

    def _set_form(self) -> None:
        form = form_of(value_type_of(self._declared))
        self._form: Callable[[Any], Any] = same if form is None else form.write
        #: The value of a stored form: that of the bytes, as `MessagePackSerializer` reads them.
        self.revived: Callable[[Any], Any] = same if form is None else form.read

    def __getstate__(self) -> dict[str, Any]:
        return {name: found for name, found in vars(self).items() if name not in ("_form", "revived")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._set_form()

    def dumps(self, value: Any) -> bytes:
        return super().dumps(self._form(value))

    def dumper(self) -> Callable[[Any], bytes]:
        if type(self).dumps is not DeclaredSerializer.dumps:
            return self.dumps
        pack, form = _packer(), self._form
        return lambda value: pack(form(value))

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        if type(self).dumper is not DeclaredSerializer.dumper or type(self).dumps is not DeclaredSerializer.dumps:
            return super().dump_all(values)
        return _pack_all(map(self._form, values))

    def loads(self, data: bytes) -> Any:
        return self.revived(super().loads(data))

    def load_all(self, data: Sequence[bytes]) -> list[Any]:
        if type(self).loads is not DeclaredSerializer.loads:
            return super().load_all(data)
        return list(map(self.revived, _read_all(data)))


def serializer_for(value_type: Any) -> Serializer:
    """The default serializer of a declared type. Raises `ConfigError` for a type that it cannot store."""
    return MessagePackSerializer() if form_of(value_type_of(value_type)) is None else DeclaredSerializer(value_type)


def unpacker(**options: Any) -> Callable[[bytes], Any]:
    """A function that reads MessagePack, with these options of `msgpack.unpackb` and the extension types above.

    It raises `SerializationError` for bytes that are no MessagePack, and for tuples nested deeper than `MOST_TUPLES`.
    An unknown extension type stays a `msgpack.ExtType`.
    """
    unpack: Callable[[bytes], Any] = _refuse_depth
    for _ in range(MOST_TUPLES + 1):
        extension = partial(_extended, unpack)
        unpack = partial(msgpack.unpackb, ext_hook=extension, strict_map_key=False, timestamp=3, **options)
    return partial(_whole, unpack)


def _whole(unpack: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return unpack(data)
    except (ValueError, TypeError, msgpack.UnpackException, OverflowError, RecursionError) as exc:
        raise SerializationError(f"the bytes are not MessagePack: {exc}") from exc


def _extended(unpack: Callable[[bytes], Any], code: int, data: bytes) -> Any:
    """The value of an extension type; `unpack` reads the items of a tuple."""
    try:
        if code == TUPLE_EXT:
            return tuple(unpack(data))
        if code == DATETIME_EXT:
            return datetime.fromisoformat(data.decode())
        if code == DATE_EXT:
            return date.fromisoformat(data.decode())
        if code == DECIMAL_EXT:
            return Decimal(data.decode())
        if code == UUID_EXT:
            return UUID(bytes=data)
        if code == TIMEDELTA_EXT:
            return int(data) * _MICROSECOND
    except (ValueError, OverflowError, InvalidOperation, TypeError, msgpack.UnpackException) as exc:
        raise SerializationError(f"extension type {code} has an unreadable payload") from exc
    return msgpack.ExtType(code, data)


def _refuse_depth(data: bytes) -> Any:
    raise SerializationError(f"more than {MOST_TUPLES} tuples are in each other")


#: The library copies bytes three times. For larger ones that takes longer than all else about a read.
_LARGE = 1 << 20
#: The errors of msgpack for values that it cannot write.
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError)


def _packer() -> Callable[[Any], bytes]:
    pack: Callable[[Any], bytes] = msgpack.Packer(**_PACKING).pack

    def dump(value: Any) -> bytes:
        if type(value) is bytes and _LARGE < len(value) < 1 << 32:
            return _HEAD_32.pack(0xC6, len(value)) + value
        try:
            return pack(value)
        except _REFUSALS as exc:
            raise SerializationError(f"cannot write {shown(value)} as MessagePack: {exc}") from exc

    return dump


def _pack_all(values: Iterable[Any]) -> list[bytes]:
    pack = msgpack.Packer(**_PACKING).pack
    try:
        return list(map(pack, values))
    except _REFUSALS as exc:
        raise SerializationError(f"cannot write a value as MessagePack: {exc}") from exc


def _extension(value: Any) -> msgpack.ExtType:
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(TUPLE_EXT, MessagePackSerializer().dumps(list(value)))
    if kind is datetime:
        return msgpack.ExtType(DATETIME_EXT, value.isoformat().encode())
    if kind is date:
        return msgpack.ExtType(DATE_EXT, value.isoformat().encode())
    if kind is Decimal:
        return msgpack.ExtType(DECIMAL_EXT, str(value).encode())
    if kind is UUID:
        return msgpack.ExtType(UUID_EXT, value.bytes)
    if kind is timedelta:
        return msgpack.ExtType(TIMEDELTA_EXT, str(value // _MICROSECOND).encode())
    advice = "declare it" if is_dataclass(kind) else "use plain values, declare a type that qstate stores"
    raise SerializationError(
        f"MessagePack has no form for a {kind.__name__}; {advice}, or give the descriptor a serializer"
    )


#: The options for writing values.
_PACKING: dict[str, Any] = {"default": _extension, "strict_types": True, "datetime": True, "buf_size": PACKER_BYTES}


_read = unpacker()


def _read_all(data: Sequence[bytes]) -> list[Any]:
    """`_read` of each, decoded as one array."""
    try:
        found: list[Any] = _read(_HEAD_32.pack(0xDD, len(data)) + b"".join(data))
    except SerializationError:  # read one by one, so that the error is that of the first bad value
        return list(map(_read, data))
    return found
