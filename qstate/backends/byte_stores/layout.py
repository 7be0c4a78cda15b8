"""How a state entry becomes a key of an ordered byte store.

Rules of this module: it knows the layout and nothing else.

    0        2        4
    +--------+--------+-------------+-------------+------------------+
    | group  | state  | namespace   | key         | sub-key          |
    +--------+--------+-------------+-------------+------------------+
     u16 BE   u16 BE   MessagePack   MessagePack   value, reducing, aggregating: empty
                                                   map: the map key as MessagePack
                                                   list: u64 BE, the sequence number of an addition

The key group comes first, so a key-group range is one range of the store. `state` is the ordinal in which the
state was first asked for; it means nothing outside the process. MessagePack objects tell their own end, so no
encoding is the beginning of another and needs no length before it: the entries of one key are exactly those that
begin with `group | state | namespace | key`.

What is stored: for value, reducing and aggregating states and for a map's entry the serializer's bytes; for an
addition to a list a MessagePack array of bins, the elements' bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

import msgpack

__all__ = ["EntryKey", "group_bounds", "pack_sequence", "parse_entry_key", "prefix_of", "stop_of"]

_HEAD = Struct(">HH")
_U16 = Struct(">H")
_U64 = Struct(">Q")
# Longer than any run of 0xff a sub-key can begin with: a sequence number never reaches 2**64 - 1, and as the first
# byte of MessagePack 0xff is a whole object (-1).
_PAST_ANY_SUB_KEY = b"\xff" * 9

pack_sequence = _U64.pack


class EntryKey(NamedTuple):
    """A store key, taken apart."""

    group: int
    state: int
    namespace: bytes
    key: bytes
    sub_key: bytes


def prefix_of(group: int, state: int, namespace: bytes) -> bytes:
    """What the store keys of a group, state and (encoded) namespace begin with."""
    return _HEAD.pack(group, state) + namespace


def stop_of(prefix: bytes) -> bytes:
    """The end (exclusive) of the entries of one key, of which `prefix` is group to key."""
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
