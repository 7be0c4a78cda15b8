"""Unpacks payloads into plain values, with bounded time and memory for any bytes.

Rules of this module: it knows MessagePack and the shape that all messages share: an array of fields, some of which are
arrays or maps. It knows neither messages nor the rules of fields.

An unpacker allocates an array when it reads the header, and headers nest: a thousand of them in three kilobytes
allocate hundreds of megabytes. A single byte can also be a tuple, which costs a quarter of a microsecond under the GIL.
So only small payloads are unpacked at once (`unpack_small`). `FieldReader` reads the others one array at a time, within
the length and the nesting that the message allows, and stops at the first value that breaks a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

import msgpack

from qstate.protocol.limits import MAX_ID, MAX_MAP_ENTRIES

__all__ = ["UNREADABLE", "FieldReader", "OutOfShape", "is_small", "unpack_small"]

#: Up to this size a payload may be unpacked at once.
SMALL_BYTES = 4096
#: Up to this size even a payload of nested headers allocates little.
TINY_BYTES = 512
#: The bound on elements that are allocated but not sent: a megabyte.
MOST_ROOM = 1 << 17
#: Up to this size a payload is checked to its end first, which takes less than two milliseconds.
WHOLE_BYTES = 1 << 20
#: The first bytes of arrays with a separate length. Smaller arrays have at most 15 elements.
_ARRAY16, _ARRAY32 = b"\xdc", b"\xdd"
#: Unpack no array or map whose header `FieldReader` did not read. msgpack's Python form would also
#: refuse the headers that `FieldReader` reads. It needs no such bound: other threads run while it unpacks.
_PLAIN_ONLY = {"max_array_len": 0, "max_map_len": 0} if msgpack.Unpacker.__module__ != "msgpack.fallback" else {}
#: The first bytes of values, by their type.
_INTEGERS = frozenset((*range(0x80), *range(0xCC, 0xD4)))
_MAPS = frozenset((*range(0x80, 0x90), 0xDE, 0xDF))
_ARRAYS = frozenset((*range(0x90, 0xA0), 0xDC, 0xDD))
_CONTAINERS = _MAPS | _ARRAYS
_TEXTS = frozenset((*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB))
_EXTENSIONS = frozenset((0xC7, 0xC8, 0xC9, *range(0xD4, 0xD9)))


class _Unreadable:
    """Replaces a MessagePack value that no field allows, so that the field's own check refuses it."""


UNREADABLE = _Unreadable()


class OutOfShape(Exception):
    """A value is longer or nested deeper than any message allows, or a map's key is not text.

    `path` is its place: the field's index, its element's, ... `length` is that of an array that is too long, else 0.
    """

    def __init__(self, path: tuple[int, ...], length: int = 0) -> None:
        super().__init__(path, length)
        self.path = path
        self.length = length


def unpack_small(payload: bytes, longest: int) -> Any:
    """The value of a payload. None when it is not small, is malformed, or has an array over `longest`.

    Values that no field allows become `UNREADABLE`.
    """
    if not is_small(payload, longest):
        return None
    try:
        return msgpack.unpackb(
            payload,
            use_list=False,
            object_pairs_hook=_map_of,
            ext_hook=_refuse_extension,
            max_array_len=longest,
            max_map_len=MAX_MAP_ENTRIES,
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def is_small(payload: bytes, longest: int, most_bytes: int = SMALL_BYTES) -> bool:
    """Whether a payload can be unpacked at once in little time and memory, with arrays of up to `longest` elements."""
    size = len(payload)
    if size <= TINY_BYTES:
        return True
    headers = payload.count(_ARRAY16) + payload.count(_ARRAY32)
    return size <= most_bytes and (headers <= 2 or headers * min(size, longest) <= MOST_ROOM)


class FieldReader:
    """Reads the fields of one payload, from its beginning.

    `longest` bounds an array that is a field. Maps, and arrays within fields, have at most 64 elements. The methods
    raise `UnicodeDecodeError` for text that is not UTF-8, and another `ValueError` or a `msgpack.UnpackException` for a
    payload that is not one whole MessagePack value.
    """

    def __init__(self, payload: bytes, longest: int) -> None:
        self._payload = payload
        self._longest = longest
        self._reader = self._reader_from(0)
        self._start = 0
        if len(payload) <= WHOLE_BYTES and not self._is_whole():
            raise ValueError("it is not one MessagePack value")
        #: How many elements the message has, including the type and the id.
        self.size: int = self._reader.read_array_header()

    def unsigned(self) -> int | None:
        """The next value if it is an integer of 32 bits, else None. It unpacks no other value, which could be large."""
        if self._first() in _INTEGERS:
            number: int = self._reader.unpack()
            return number if 0 <= number <= MAX_ID else None
        return None

    def field(self, index: int, depth: int) -> Any:
        """The next field, with arrays and maps nested at most `depth` deep. Raises `OutOfShape`."""
        if self._first() not in _ARRAYS:
            return self._value((index,), depth)
        count = self._reader.read_array_header()
        if depth < 1 or count > self._longest:
            raise OutOfShape((index,), count)
        if depth == 1 or self._first() not in _CONTAINERS:
            return self._plain(count, (index,), depth)
        if depth == 2:
            return self._rows(count, index)
        return tuple(self._value((index, place), depth - 1) for place in range(count))

    def end(self) -> None:
        """Raise `ValueError` unless this was the last byte."""
        if self._tell() != len(self._payload):
            raise ValueError("there are bytes after the message")

    def _value(self, path: tuple[int, ...], depth: int) -> Any:
        first = self._first()
        if first in _ARRAYS:
            count = self._reader.read_array_header()
            self._check(count, depth, path)
            if depth == 1:
                return self._plain(count, path, depth)
            return tuple(self._value((*path, place), depth - 1) for place in range(count))
        if first in _MAPS:
            count = self._reader.read_map_header()
            self._check(count, depth, path)
            return _map_of([(self._name(path), self._value((*path, place), depth - 1)) for place in range(count)])
        if first in _EXTENSIONS:
            raise OutOfShape(path)
        return self._reader.unpack()

    def _rows(self, count: int, index: int) -> tuple[Any, ...]:
        """Elements that are arrays of plain values. There may be thousands, so it saves the calls of `_value`."""
        payload, reader, start = self._payload, self._reader, self._start
        tell, header = reader.tell, reader.read_array_header
        rows: list[Any] = []
        at = 0
        try:
            while len(rows) < count:
                at = tell()
                if payload[start + at] not in _ARRAYS or (length := header()) > MAX_MAP_ENTRIES:
                    break
                row = tuple(islice(reader, length))
                if len(row) < length:
                    break
                rows.append(row)
        except (ValueError, IndexError, msgpack.UnpackException):
            pass
        if len(rows) < count:  # an element of another shape: continue one by one
            self._start, self._reader = start + at, self._reader_from(start + at)
            rows += [self._value((index, place), 1) for place in range(len(rows), count)]
        return tuple(rows)

    def _plain(self, count: int, path: tuple[int, ...], depth: int) -> tuple[Any, ...]:
        """The elements of an array: all at once if they are neither arrays nor maps, else one by one."""
        start = self._tell()
        try:
            found = tuple(islice(self._reader, count))
            if len(found) == count:
                return found
        except (ValueError, msgpack.UnpackException):
            pass
        # A new reader copies the remaining bytes, but only once: with `depth` 1 `_value` finds the fault and raises.
        self._start, self._reader = start, self._reader_from(start)
        return tuple(self._value((*path, place), depth - 1) for place in range(count))

    def _name(self, path: tuple[int, ...]) -> Any:
        if self._first() not in _TEXTS:
            raise OutOfShape(path)
        return self._reader.unpack()

    def _check(self, count: int, depth: int, path: tuple[int, ...]) -> None:
        if depth < 1 or count > MAX_MAP_ENTRIES:
            raise OutOfShape(path)

    def _is_whole(self) -> bool:
        """Whether the payload is exactly one value. Skipping without unpacking takes about a nanosecond per value."""
        reader = msgpack.Unpacker(raw=True, max_buffer_size=max(1, len(self._payload)))
        reader.feed(self._payload)
        try:
            reader.skip()
        except (ValueError, msgpack.UnpackException):
            return False
        return bool(reader.tell() == len(self._payload))

    def _reader_from(self, start: int) -> Any:
        reader = msgpack.Unpacker(
            use_list=False,
            ext_hook=_refuse_extension,
            **_PLAIN_ONLY,
            max_buffer_size=max(1, len(self._payload)),
        )
        reader.feed(memoryview(self._payload)[start:])
        return reader

    def _tell(self) -> int:
        position: int = self._start + self._reader.tell()
        return position

    def _first(self) -> int:
        """The next byte, -1 at the end."""
        position = self._start + self._reader.tell()
        return self._payload[position] if position < len(self._payload) else -1


def _map_of(pairs: Iterable[tuple[Any, Any]]) -> Any:
    # A list in msgpack's C extension, a generator in its Python form.
    items = list(pairs)
    found = dict(items)
    return found if len(found) == len(items) else UNREADABLE


def _refuse_extension(code: int, data: bytes) -> Any:
    return UNREADABLE
