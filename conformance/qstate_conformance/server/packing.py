"""MessagePack as bytes: values in their shortest form, and arrays and maps cut into their pieces.

Rules of this module: bytes and values only; it knows no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgpack

from qstate_conformance import packing

__all__ = ["array_of", "elements_of", "map_of", "pack", "pairs_of", "unpack"]


def pack(value: Any) -> bytes:
    """A value in its shortest form. It may contain what `qstate_conformance.packing` packs."""
    try:
        packed: bytes = msgpack.packb(value, strict_types=True, default=_plain)
    except TypeError:
        return packing.pack(value)
    return packed


def _plain(value: Any) -> Any:
    """Tuples as arrays, members of enums as integers."""
    if isinstance(value, int):
        return int(value)
    if type(value) is tuple:
        return list(value)
    raise TypeError


def unpack(data: bytes) -> Any:
    """The value of bytes that are one value; arrays are tuples."""
    return msgpack.unpackb(data, use_list=False, strict_map_key=False)


def array_of(elements: Sequence[bytes]) -> bytes:
    """The array of elements that are packed already."""
    packed: bytes = msgpack.Packer().pack_array_header(len(elements))
    return packed + b"".join(elements)


def map_of(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """The map of keys and values that are packed already."""
    packed: bytes = msgpack.Packer().pack_map_header(len(pairs))
    return packed + b"".join(key + value for key, value in pairs)


def elements_of(data: bytes) -> list[bytes]:
    """The bytes of each element of an array. Raises `ValueError` when the bytes are not exactly one array."""
    reader = _reader(data)
    return _pieces(reader, data, reader.read_array_header())


def pairs_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """The bytes of each key and value of a map. Raises `ValueError` when the bytes are not exactly one map."""
    reader = _reader(data)
    pieces = _pieces(reader, data, 2 * reader.read_map_header())
    return list(zip(pieces[::2], pieces[1::2], strict=True))


def _reader(data: bytes) -> Any:
    reader = msgpack.Unpacker(raw=True, strict_map_key=False, max_buffer_size=max(1, len(data)))
    reader.feed(data)
    return reader


def _pieces(reader: Any, data: bytes, count: int) -> list[bytes]:
    borders = [reader.tell()]
    for _ in range(count):
        reader.skip()
        borders.append(reader.tell())
    if borders[-1] != len(data):
        raise ValueError(f"{len(data) - borders[-1]} bytes after the value")
    return [data[start:stop] for start, stop in pairwise(borders)]
