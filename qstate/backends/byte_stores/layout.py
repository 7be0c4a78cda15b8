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

Timers are in a range of their own, in the order in which they are due:

    0        2        4          12
    +--------+--------+----------+-------------+-------------+----------------+--------+
    | 0xffff | state  | time     | namespace   | key         | namespace size | group  |
    +--------+--------+----------+-------------+-------------+----------------+--------+
              u16 BE   u64 BE     MessagePack   MessagePack   u32 BE           u16 BE
                       (time + 2**63)

The size and the group do not count in the order: no two timers have the same bytes before them.

The stored value is the serializer's bytes for value, reducing and aggregating states and for a map's entry. For an
addition to a list it is a MessagePack array of bins, the elements' bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import msgpack

from qstate.descriptors import StateKind

__all__ = [
    "EntryKey",
    "TimerKey",
    "group_and_state",
    "group_bounds",
    "groups_and_keys",
    "namespace_and_key",
    "pack_sequence",
    "parse_entry_key",
    "parse_timer_key",
    "prefix_of",
    "prefix_of_timers",
    "stop_of",
    "stop_of_prefix",
    "stop_of_timers",
    "timer_key",
    "without_sequence",
]

_HEAD = Struct(">HH")
_U16 = Struct(">H")
_U64 = Struct(">Q")
# Longer than any run of 0xff at the start of a sub-key: a sequence number never reaches 2**64 - 1, and a map key that
# begins with 0xff is the whole MessagePack object -1.
_PAST_ANY_SUB_KEY = b"\xff" * 9

pack_sequence = _U64.pack

#: In the place of a key group, which is below 2**15.
_TIMERS = 0xFFFF
_TIMER_HEAD = Struct(">HHQ")
_TIMER_TAIL = Struct(">IH")
_FIRST_TIME = 1 << 63
#: The void namespace.
_NIL = 0xC0


class EntryKey(NamedTuple):
    """The parts of a store key."""

    group: int
    state: int
    namespace: bytes
    key: bytes
    sub_key: bytes


class TimerKey(NamedTuple):
    """The parts of the store key of a timer."""

    time: int
    namespace: bytes
    key: bytes
    group: int


def prefix_of(group: int, state: int, namespace: bytes) -> bytes:
    """The prefix of the store keys of a group, state and (encoded) namespace."""
    return _HEAD.pack(group, state) + namespace


def stop_of(prefix: bytes) -> bytes:
    """The end (exclusive) of the entries of one key; `prefix` is their common part, from group to key."""
    return prefix + _PAST_ANY_SUB_KEY


def group_and_state(entry_key: bytes) -> tuple[int, int]:
    """The first two parts of a store key."""
    group, state = _HEAD.unpack_from(entry_key)
    return group, state


def without_sequence(entry_key: bytes) -> bytes:
    """The common part of the store keys of a list's additions, from that of one of them."""
    return entry_key[: -_U64.size]


def group_bounds(start: int, stop: int) -> tuple[bytes, bytes]:
    """The range of the store that holds the key groups `start` to `stop` (exclusive)."""
    return _U16.pack(start), _U16.pack(stop)


def groups_and_keys(entry_keys: Sequence[bytes], namespace: bytes) -> tuple[list[int], list[bytes]]:
    """The groups and the encoded keys of entries without sub-keys, all in one (encoded) namespace."""
    start = _HEAD.size + len(namespace)
    return [entry_key[0] << 8 | entry_key[1] for entry_key in entry_keys], [
        entry_key[start:] for entry_key in entry_keys
    ]


def stop_of_prefix(prefix: bytes) -> bytes:
    """The end (exclusive) of the store keys that begin with these bytes."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,))  # the first byte is that of a key group, which is never 0xff


def namespace_and_key(entry_key: bytes, kind: StateKind) -> tuple[bytes, bytes]:
    """The encoded namespace and key of an entry of a state of this kind."""
    start = _HEAD.size
    if kind is StateKind.MAP:
        parsed = parse_entry_key(entry_key)
        return parsed.namespace, parsed.key
    stop = len(entry_key) - _U64.size if kind is StateKind.LIST else len(entry_key)
    if entry_key[start] == _NIL:  # the usual case, without a parser
        return entry_key[start : start + 1], entry_key[start + 1 : stop]
    objects = msgpack.Unpacker(max_buffer_size=stop)
    objects.feed(entry_key[start:stop])
    objects.skip()
    middle = start + objects.tell()
    return entry_key[start:middle], entry_key[middle:stop]


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


def timer_key(state: int, timer: TimerKey) -> bytes:
    """The store key of a timer. Its time is a signed integer of 64 bits."""
    head = _TIMER_HEAD.pack(_TIMERS, state, timer.time + _FIRST_TIME)
    return head + timer.namespace + timer.key + _TIMER_TAIL.pack(len(timer.namespace), timer.group)


def prefix_of_timers(state: int) -> bytes:
    """The prefix of the store keys of a state's timers."""
    return _HEAD.pack(_TIMERS, state)


def stop_of_timers(state: int, upto: int = _FIRST_TIME - 1) -> bytes:
    """The end (exclusive) of the store keys of a state's timers up to and including a time."""
    if upto + 1 >= _FIRST_TIME:
        return prefix_of_timers(state + 1)
    return _TIMER_HEAD.pack(_TIMERS, state, upto + 1 + _FIRST_TIME)


def parse_timer_key(entry_key: bytes) -> TimerKey:
    _, _, time = _TIMER_HEAD.unpack_from(entry_key)
    tail = len(entry_key) - _TIMER_TAIL.size
    namespace_size, group = _TIMER_TAIL.unpack_from(entry_key, tail)
    middle = _TIMER_HEAD.size + namespace_size
    return TimerKey(time - _FIRST_TIME, entry_key[_TIMER_HEAD.size : middle], entry_key[middle:tail], group)
