"""The keys of state entries in an ordered byte store.

Rules of this module: it knows the layout and nothing else.

    0        2        4
    +--------+--------+-------------+-------------+------------------+
    | group  | state  | namespace   | key         | sub-key          |
    +--------+--------+-------------+-------------+------------------+
     u16 BE   u16 BE   MessagePack   MessagePack   value, reducing, aggregating: empty
                                                   map: the map key as MessagePack
                                                   list: u64 BE, the sequence number of an addition

The key group comes first, so a key-group range is one range of the store. `state` is the number of the state in the
order of their first use; it has no meaning outside the process. A MessagePack object determines its own end, so no
encoding is a prefix of another, and none needs a length: the entries of one key are exactly those that begin with
`group | state | namespace | key`.

The stored value is the serializer's bytes for value, reducing and aggregating states and for a map's entry. For an
addition to a list it is a MessagePack array of bins, the elements' bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import msgpack

__all__ = ["EntryKey", "group_bounds", "pack_sequence", "parse_entry_key", "prefix_of", "stop_of"]

_HEAD = Struct(">HH")
_U16 = Struct(">H")
_U64 = Struct(">Q")
# Longer than any run of 0xff at the start of a sub-key: a sequence number never reaches 2**64 - 1, and a map key that
# begins with 0xff is the whole MessagePack object -1.
_PAST_ANY_SUB_KEY = b"\xff" * 9

pack_sequence = _U64.pack


class EntryKey(NamedTuple):
    """The parts of a store key."""

    group: int
    state: int
    namespace: bytes
    key: bytes
    sub_key: bytes


def prefix_of(group: int, state: int, namespace: bytes) -> bytes:
    """The prefix of the store keys of a group, state and (encoded) namespace."""
    return _HEAD.pack(group, state) + namespace


def stop_of(prefix: bytes) -> bytes:
    """The end (exclusive) of the entries of one key; `prefix` is their common part, from group to key."""
    return prefix + _PAST_ANY_SUB_KEY


def group_bounds(start: int, stop: int) -> tuple[bytes, bytes]:
    """The range of the store that holds the key groups `start` to `stop` (exclusive)."""
    return _U16.pack(start), _U16.pack(stop)


def parse_entry_key(entry_key: bytes) -> EntryKey:
    group, state = _HEAD.unpack_from(entry_key)
    rest = entry_key[_HEAD.size :]
    objects = msgpack.Unpacker(max_buffer_size=len(rest))
    objects.feed(rest)
    objects.skip()
    namespace_end = objects.tell()
    objects.skip()
    key_end = objects.tell()
    return EntryKey(group, state, rest[:namespace_end], rest[namespace_end:key_end], rest[key_end:])
