"""The entries of a byte store's snapshot as changes: all of a range, or page by page.

Rules of this module: as in `layout`; it reads snapshots and knows no epochs. `states` is by the ordinals of the states.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from typing import NamedTuple

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.byte_stores.layout import (
    EntryKey,
    group_and_state,
    parse_entry_key,
    prefix_of,
    stop_of,
    without_sequence,
)
from qstate.backends.byte_stores.store import ByteSnapshot
from qstate.backends.contract import Change, ChangeOp
from qstate.descriptors import StateDescriptor, StateKind

__all__ = ["StoredEntry", "changes_between", "page_of"]


class StoredEntry(NamedTuple):
    """An entry of a page: a value, a whole list or an entry of a map; `data` as in `Change`."""

    descriptor: StateDescriptor
    entry_key: bytes
    data: bytes

    def change(self) -> Change:
        return _change(self.descriptor, parse_entry_key(self.entry_key), self.data)


#: The most entries of the store and the most bytes of values in a page; the last value may be larger.
_PAGE_ENTRIES, _PAGE_BYTES = 1000, 1 << 20


def changes_between(
    snapshot: ByteSnapshot, states: Mapping[int, StateDescriptor], start: bytes, stop: bytes
) -> Iterator[Change]:
    """The changes that build all entries of a range of the store."""
    parsed = ((parse_entry_key(entry_key), data) for entry_key, data in snapshot.scan(start, stop))
    for entry, values in groupby(parsed, lambda pair: pair[0][:4]):
        yield from _entry_changes(states[entry[1]], values)


def page_of(
    snapshot: ByteSnapshot, states: Mapping[int, StateDescriptor], start: bytes, stop: bytes
) -> tuple[list[StoredEntry], bytes | None]:
    """The first entries of these states in a range, and where the next page starts; None: there is no other page.

    A page may be empty. It does not divide a list.
    """
    page: list[StoredEntry] = []
    left = _PAGE_BYTES
    entries = 0
    for entry_key, data in islice(snapshot.scan(start, stop), _PAGE_ENTRIES):
        entries += 1
        if entry_key < start:  # an addition to a list that was read whole
            continue
        group, ordinal = group_and_state(entry_key)
        descriptor = states.get(ordinal)
        if descriptor is None:
            return page, prefix_of(group, ordinal + 1, b"")
        start = entry_key + b"\0"
        if descriptor.kind is StateKind.LIST:
            prefix = without_sequence(entry_key)
            start = stop_of(prefix)
            data = _whole_list(addition for _, addition in snapshot.scan(prefix, start))
        page.append(StoredEntry(descriptor, entry_key, data))
        left -= len(data)
        if left < 0:
            return page, start
    return page, start if entries == _PAGE_ENTRIES else None


def _entry_changes(descriptor: StateDescriptor, values: Iterable[tuple[EntryKey, bytes]]) -> Iterator[Change]:
    """The changes that build one key's value from its store entries."""
    if descriptor.kind is StateKind.LIST:
        found = list(values)
        values = [(found[0][0], _whole_list(addition for _, addition in found))]
    for entry, data in values:
        yield _change(descriptor, entry, data)


def _whole_list(additions: Iterable[bytes]) -> bytes:
    return pack_elements(data for addition in additions for data in unpack_elements(addition))


def _change(descriptor: StateDescriptor, entry: EntryKey, data: bytes) -> Change:
    is_map = descriptor.kind is StateKind.MAP
    op, map_key = (ChangeOp.MAP_PUT, entry.sub_key) if is_map else (ChangeOp.PUT, b"")
    return Change(op, descriptor.name, entry.group, entry.namespace, entry.key, map_key, data)
