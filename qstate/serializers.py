"""Serializers: MessagePack by default, or a serializer of the user's own.

Rules of this module: it converts values to bytes and back, and knows no states, keys or sockets. The default is
language-neutral. Extension types hold the Python types that MessagePack lacks; a client in another language may read
their payload:

    ext -1  MessagePack's timestamp    datetime with a time zone, in UTC
    ext  1  MessagePack array          tuple
    ext  2  ISO 8601 text              datetime without a time zone
    ext  3  ISO 8601 text              date
    ext  4  decimal text               Decimal
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from functools import partial
from inspect import signature
from reprlib import repr as shown  # bounded: a value may be of any size and depth
from struct import Struct
from typing import Any, ClassVar

import msgpack

from qstate.errors import ConfigError, SerializationError

__all__ = [
    "MOST_TUPLES",
    "MessagePackSerializer",
    "RecordSerializer",
    "Serializer",
    "has_default",
    "serializer_for",
    "unpacker",
]

TUPLE_EXT, DATETIME_EXT, DATE_EXT, DECIMAL_EXT = 1, 2, 3, 4

#: The deepest nesting of tuples that can be read. Each is a MessagePack of its own, for which the unpacker takes 42 KiB
#: of the thread's stack: 190 levels crash a process whose stacks have 8 MiB.
MOST_TUPLES = 100

#: The beginning of a MessagePack array of up to 2**32 - 1 items.
_ARRAY = Struct(">BI")


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
    """Plain Python values as MessagePack: None, bool, int of 64 bits, float, str, bytes, list, dict, tuple, times."""

    name = "msgpack"

    def dumps(self, value: Any) -> bytes:
        try:
            packed: bytes = msgpack.packb(value, **_PACKING)
        except SerializationError:
            raise
        except _REFUSALS as exc:
            raise SerializationError(f"cannot write {shown(value)} as MessagePack: {exc}") from exc
        return packed

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


class RecordSerializer(MessagePackSerializer):
    """A dataclass as a MessagePack map of its fields: without the class, a client reads it as a mapping.

    A field that is missing from the bytes gets its default; unknown fields are ignored.
    """

    def __init__(self, record: type) -> None:
        self._record = record
        self._names = tuple(field.name for field in fields(record))
        self._required = {field.name for field in fields(record) if not has_default(field)}

    def dumps(self, value: Any) -> bytes:
        return super().dumps(self._mapping(value))

    def dumper(self) -> Callable[[Any], bytes]:
        if type(self).dumps is not RecordSerializer.dumps:
            return self.dumps
        pack, mapping = _packer(), self._mapping
        return lambda value: pack(mapping(value))

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        if type(self).dumper is not RecordSerializer.dumper or type(self).dumps is not RecordSerializer.dumps:
            return super().dump_all(values)
        found, names = list(values), self._names
        if set(map(type, found)) - {self._record}:
            return list(map(self.dumps, found))  # raises for the first value that is no record
        return _pack_all([{name: getattr(value, name) for name in names} for value in found])

    def _mapping(self, value: Any) -> dict[str, Any]:
        if type(value) is not self._record:
            raise SerializationError(f"expected a {self._record.__name__}, got {shown(value)}")
        return {name: getattr(value, name) for name in self._names}

    def loads(self, data: bytes) -> Any:
        found = super().loads(data)
        if not isinstance(found, dict):
            raise SerializationError(f"the bytes are not a {self._record.__name__}: got {shown(found)}")
        return self.record(found)

    def load_all(self, data: Sequence[bytes]) -> list[Any]:
        if type(self).loads is not RecordSerializer.loads:
            return super().load_all(data)
        found = _read_all(data)
        if set(map(type, found)) != {dict}:
            return super().load_all(data)  # raises for the first value that is no record
        return list(map(self.record, found))

    def record(self, found: Mapping[str, Any]) -> Any:
        """The record of these fields. Raises `SerializationError` when a field without a default is missing."""
        if not self._required <= found.keys():
            raise SerializationError(f"the bytes are not a {self._record.__name__}: got {shown(found)}")
        return self._record(**{name: found[name] for name in self._names if name in found})


def serializer_for(value_type: type) -> Serializer:
    """The default serializer of a declared type: a record for a dataclass, plain MessagePack otherwise."""
    if isinstance(value_type, type) and is_dataclass(value_type):
        if any(not field.init for field in fields(value_type)):
            raise ConfigError(f"{value_type.__name__} has fields outside __init__, so it cannot be read back")
        try:
            signature(value_type).bind(**{field.name: None for field in fields(value_type)})
        except TypeError as exc:
            raise ConfigError(
                f"{value_type.__name__} cannot be made of its fields, so it cannot be read back: {exc}"
            ) from None
        return RecordSerializer(value_type)
    return MessagePackSerializer()


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
    except SerializationError:
        raise
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
    except (ValueError, InvalidOperation, TypeError, msgpack.UnpackException) as exc:
        raise SerializationError(f"extension type {code} has an unreadable payload") from exc
    return msgpack.ExtType(code, data)


def _refuse_depth(data: bytes) -> Any:
    raise SerializationError(f"more than {MOST_TUPLES} tuples are in each other")


#: The errors of msgpack for values that it cannot write.
_REFUSALS = (TypeError, ValueError, OverflowError, RecursionError)


def _packer() -> Callable[[Any], bytes]:
    pack: Callable[[Any], bytes] = msgpack.Packer(**_PACKING).pack

    def dump(value: Any) -> bytes:
        try:
            return pack(value)
        except SerializationError:
            raise
        except _REFUSALS as exc:
            raise SerializationError(f"cannot write {shown(value)} as MessagePack: {exc}") from exc

    return dump


def _pack_all(values: Iterable[Any]) -> list[bytes]:
    pack = msgpack.Packer(**_PACKING).pack
    try:
        return list(map(pack, values))
    except SerializationError:
        raise
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
    if is_dataclass(kind):
        raise SerializationError(
            f"MessagePack has no form for a {kind.__name__}: a dataclass is taken only as the declared type itself; "
            "inside other types give dataclasses.asdict(value), or give the descriptor a serializer"
        )
    raise SerializationError(
        f"MessagePack has no form for a {kind.__name__}; use plain values, a dataclass as the declared type itself, "
        "or give the descriptor a serializer"
    )


#: The options for writing values.
_PACKING: dict[str, Any] = {"default": _extension, "strict_types": True, "datetime": True}


_read = unpacker()


def _read_all(data: Sequence[bytes]) -> list[Any]:
    """`_read` of each, decoded as one array."""
    try:
        found: list[Any] = _read(_ARRAY.pack(0xDD, len(data)) + b"".join(data))
    except SerializationError:  # read one by one, so that the error is that of the first bad value
        return list(map(_read, data))
    return found


def has_default(field: Field[Any]) -> bool:
    """Whether a field of a dataclass has a default.

    A class that came by value, as cloudpickle sends those of a script or a notebook, has a `MISSING` of its own. So it
    is known by its class.
    """
    return not (isinstance(field.default, type(MISSING)) and isinstance(field.default_factory, type(MISSING)))
