"""How values become bytes: MessagePack by default, or a serializer of the user's own.

Rules of this module: it turns values into bytes and back, and knows nothing of states, keys or sockets. The
default is language-neutral; Python's own types that MessagePack lacks travel as extension types, which a
client in another language may read as their payload:

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

__all__ = ["MOST_TUPLES", "MessagePackSerializer", "RecordSerializer", "Serializer", "serializer_for", "unpacker"]

TUPLE_EXT, DATETIME_EXT, DATE_EXT, DECIMAL_EXT = 1, 2, 3, 4

#: Tuples within tuples that are read. Each is a MessagePack of its own, for which the unpacker takes 42 KiB of the
#: thread's stack: 190 of them end a process whose stacks have 8 MiB.
MOST_TUPLES = 100

#: The beginning of a MessagePack array of up to 2**32 - 1 items.
_ARRAY = Struct(">BI")


class Serializer(ABC):
    """Turns the values of one state into bytes and back: `loads` gives an equal value of equal types.

    `name` travels in the state's description: a client that meets a name other than `msgpack` must be given
    a serializer of that name. Instances are used by several threads at once and shipped to the task managers
    with the job, so they hold no mutable state and can be pickled.

    `version` is stored with the state. Raise it when `dumps` writes other bytes than before, and let
    `loads_version` read those of the older versions: they are rewritten when the state is restored.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    @abstractmethod
    def dumps(self, value: Any) -> bytes:
        """The bytes of a value. Raises `SerializationError` when the value does not fit."""

    @abstractmethod
    def loads(self, data: bytes) -> Any:
        """The value of bytes that `dumps` made. Raises `SerializationError` when they are not."""

    def loads_version(self, data: bytes, version: int) -> Any:
        """The value of bytes that an older version of this serializer made; `version` is never a newer one.

        Raises `SerializationError` when it cannot read them. Unless overridden, that is so for any other version.
        """
        if version != self.version:
            raise SerializationError(
                f"{type(self).__name__} is version {self.version} and cannot read bytes of version {version}; "
                "override loads_version to read them"
            )
        return self.loads(data)

    def dumper(self) -> Callable[[Any], bytes]:
        """`dumps` for the use of one thread: it may keep its buffers from call to call, so it is faster for many."""
        return self.dumps

    def dump_all(self, values: Iterable[Any]) -> list[bytes]:
        """The bytes of each value. Raises `SerializationError` as soon as one does not fit."""
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
        # A subclass that overrides `dumps` alone must not be bypassed.
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
    """A dataclass as a MessagePack map of its fields: readable as a mapping where the class is unknown.

    Fields missing from the bytes take their default; unknown fields are ignored.
    """

    def __init__(self, record: type) -> None:
        self._record = record
        self._names = tuple(field.name for field in fields(record))
        self._required = {field.name for field in fields(record) if not _has_default(field)}

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
            return list(map(self.dumps, found))  # which raises for the first that is no record
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
            return super().load_all(data)  # which raises for the first that is no record
        return list(map(self.record, found))

    def record(self, found: Mapping[str, Any]) -> Any:
        """The record of these fields. Raises `SerializationError` when one is missing that has no default."""
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

    It raises `SerializationError` for what is no MessagePack, and for more than `MOST_TUPLES` tuples in each other. An
    unknown extension type stays a `msgpack.ExtType`.
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
    """The value of an extension type; `unpack` reads what a tuple holds."""
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


#: What msgpack raises for values that it cannot write.
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
    raise SerializationError(
        f"MessagePack has no form for a {kind.__name__}; use plain values, a dataclass as the declared type, "
        "or give the descriptor a serializer"
    )


#: How values are written.
_PACKING: dict[str, Any] = {"default": _extension, "strict_types": True, "datetime": True}


_read = unpacker()


def _read_all(data: Sequence[bytes]) -> list[Any]:
    """`_read` of each, read as one array."""
    try:
        found: list[Any] = _read(_ARRAY.pack(0xDD, len(data)) + b"".join(data))
    except SerializationError:  # one by one the first bad one is told
        return list(map(_read, data))
    return found


def _has_default(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING
