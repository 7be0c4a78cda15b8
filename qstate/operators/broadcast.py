"""Broadcast state handles: maps that all subtasks of an operator hold alike, written by broadcast rows only.

Rules of this module: a handle keeps the whole map in memory, as Python objects and as the bytes that are stored. It
does not know rows. `qstate.checkpoint.log.operator_state` stores the maps with each epoch.

Each entry is also a value in the backend of the subtask that owns its map key: a value state of the same name, whose
keys are the map keys. So queries, standbys and offline readers find the entries as those of any keyed state, and each
of them is served once. The function reads the map in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from qstate.backends.admission import admit_map_key
from qstate.backends.contract import StateTable
from qstate.checkpoint.log.operator_state import pack_entry, unpack_entry
from qstate.descriptors import MapStateDescriptor, ValueStateDescriptor
from qstate.errors import JobError, SerializationError
from qstate.evolution.admission import admission_of
from qstate.keys import ColumnType, Key, decode_key, encode_key
from qstate.operators.handles import check_map_key

__all__ = ["BroadcastState", "BroadcastWrites", "check_broadcast_states", "map_key_types", "owned_state"]

_COLUMN_TYPES = {str: ColumnType.STRING, bytes: ColumnType.BINARY, int: ColumnType.BIGINT}


def map_key_types(descriptor: MapStateDescriptor) -> tuple[ColumnType, ...]:
    """The types that keys of queries have: one for each column of a map key; empty if they are not declared."""
    declared = descriptor.map_key_type
    kinds = get_args(declared) or (declared,)
    return tuple(_COLUMN_TYPES[kind] for kind in kinds) if set(kinds) <= _COLUMN_TYPES.keys() else ()


def owned_state(descriptor: MapStateDescriptor) -> ValueStateDescriptor:
    """The value state that has the entries of a broadcast state, each in the subtask that owns its map key."""
    return ValueStateDescriptor(
        descriptor.name,
        descriptor.value_type,
        serializer=descriptor.serializer,
        queryable_name=descriptor.queryable_name,
        schema_version=descriptor.schema_version,
        migration=descriptor.migration,
    )


def check_broadcast_states(source: str, descriptors: Iterable[Any]) -> None:
    """Raise `JobError`, which begins with `source`, for descriptors that no broadcast state can have."""
    names: set[str] = set()
    for one in descriptors:
        if not isinstance(one, MapStateDescriptor):
            raise JobError(f"{source}: a broadcast state needs a MapStateDescriptor, got {one!r}")
        if one.name in names:
            raise JobError(f"{source}: two broadcast states are named {one.name!r}")
        names.add(one.name)
        if one.ttl is not None:
            raise JobError(
                f"{source}: broadcast state {one.name!r} has a time-to-live, which only keyed state can "
                "have; leave ttl out, or let a broadcast row remove the entry"
            )
        if one.queryable_name is not None and not map_key_types(one):
            raise JobError(
                f"{source}: broadcast state {one.name!r} is queried by its map keys, so it needs their "
                f"type: map_key_type is str, bytes, int or a tuple of those, not {one.map_key_type!r}"
            )


class BroadcastWrites:
    """Whether the function may write broadcast state now: only while it processes a broadcast row."""

    __slots__ = ("allowed",)

    def __init__(self) -> None:
        self.allowed = False


class _Entry(NamedTuple):
    """An entry, and how it is stored."""

    map_key: Any
    value: Any
    element: bytes


class BroadcastState:
    """A map that all subtasks hold alike. `process_broadcast_element` may write it; elsewhere it can only be read.

    A value that `get` returns may be the stored object: treat it as read-only, or change it and put it again. Every
    subtask must make the same changes: they may depend on the broadcast rows and the state, not on the subtask.
    """

    __slots__ = ("_admit", "_descriptor", "_dumps", "_entries", "_loads", "_owned", "_owns", "_writes")

    def __init__(
        self,
        descriptor: MapStateDescriptor,
        elements: Iterable[bytes],
        writes: BroadcastWrites,
        *,
        dumps: Callable[[Any], bytes],
        owned: StateTable,
        owns: Callable[[Key], bool],
    ) -> None:
        """`elements` are the stored entries. `dumps` makes the bytes of a value, and refuses wrong ones.

        `owned` gets the entries whose map keys the subtask `owns`.
        """
        self._descriptor = descriptor
        self._writes = writes
        self._dumps = dumps
        self._loads = descriptor.serializer.loads
        self._admit = admission_of(descriptor.value_type).admit
        self._owned = owned
        self._owns = owns
        #: By map key: those that are equal in Python and different keys, such as 1 and True, are refused.
        self._entries: dict[Any, _Entry] = {}
        for element in elements:
            map_key: Any = decode_key(unpack_entry(element)[0])
            value = self._loads(unpack_entry(element)[1])
            self._entries[map_key] = _Entry(map_key, value, element)

    def get(self, map_key: Key) -> Any:
        """The value of an entry, or None when there is none."""
        found = self._entries.get(map_key)
        return None if found is None else found.value

    def contains(self, map_key: Key) -> bool:
        """Whether there is an entry."""
        return map_key in self._entries

    def entries(self) -> Iterator[tuple[Any, Any]]:
        """The entries, in the order in which their keys were first put. They must not be changed meanwhile."""
        return ((one.map_key, one.value) for one in self._entries.values())

    def keys(self) -> Iterator[Any]:
        """The map keys, in the order of `entries`."""
        return (one.map_key for one in self._entries.values())

    def values(self) -> Iterator[Any]:
        """The values, in the order of `entries`."""
        return (one.value for one in self._entries.values())

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return not self._entries

    def put(self, map_key: Key, value: Any) -> None:
        """Set the value of an entry.

        The state keeps a copy of the value. Raises `JobError` outside of `process_broadcast_element` and for None, and
        `SerializationError` for a map key or a value that does not have the declared type.
        """
        self._check_writable("put()")
        self._set([self._entry(map_key, value, "put()")])

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        """Set the values of several entries. Raises as `put`, before any entry is set."""
        self._check_writable("put_all()")
        self._set([self._entry(map_key, value, "put_all()") for map_key, value in entries.items()])

    def _entry(self, map_key: Any, value: Any, operation: str) -> _Entry:
        name = self._descriptor.name
        if value is None:
            raise JobError(f"broadcast state {name!r}: {operation} got None, which is not a value")
        try:
            admit_map_key(map_key)
            check_map_key(self._descriptor, map_key)
            data = self._dumps(self._admit(value))
        except SerializationError as exc:
            raise SerializationError(f"broadcast state {name!r}, map key {map_key!r}: {exc}") from None
        # A copy: what the function does to its own object afterwards is no change of the state.
        return _Entry(map_key, self._loads(data), pack_entry(encode_key(map_key), data))

    def _set(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            self._entries[entry.map_key] = entry
            if self._owns(entry.map_key):
                self._owned.put(entry.map_key, self._loads(unpack_entry(entry.element)[1]))

    def remove(self, map_key: Key) -> None:
        """Remove an entry, if it exists. Raises `JobError` outside of `process_broadcast_element`."""
        self._check_writable("remove()")
        if self._entries.pop(map_key, None) is not None and self._owns(map_key):
            self._owned.delete(map_key)

    def clear(self) -> None:
        """Remove all entries. Raises `JobError` outside of `process_broadcast_element`."""
        self._check_writable("clear()")
        for map_key in list(self.keys()):
            self.remove(map_key)

    def packed(self) -> tuple[bytes, ...]:
        """For the operator: the entries as they are stored."""
        return tuple(one.element for one in self._entries.values())

    def _check_writable(self, operation: str) -> None:
        if not self._writes.allowed:
            raise JobError(
                f"broadcast state {self._descriptor.name!r}: {operation} is for process_broadcast_element only, where "
                "every subtask makes the same change; elsewhere broadcast state can only be read"
            )
