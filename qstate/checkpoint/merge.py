"""Merging: the state that a base and the epochs since make, as one stream in ascending order.

Rules of this module: changes in, changes out, by the block; it knows no file. The order is that of key group, state,
namespace, key and map key, the last four as their encoded bytes (a state's name as UTF-8). Equal states give equal
streams, cut into equal blocks, whatever backend and parallelism they come from: the neutral dump is this stream.

The epochs' changes are held in memory, one entry each, the base is read as it goes: so memory follows what
changed since the base, not the size of the state. What no epoch changed is passed on by the block.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import TypeGuard

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.change_blocks import ChangeBlock, ChangeBlocks, blocks_of, recut
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.chain import Part

__all__ = ["Overlay", "ascending", "merged", "merged_parts"]

#: Key group, state as UTF-8, namespace: where an entry stands, key and map key aside.
Place = tuple[int, bytes, bytes]

_key_of = itemgetter(4)
_PLAIN = frozenset((bytes, type(None)))


class _Addition:
    """Additions to one key's list or map, over a value that they hide or over what the base has."""

    __slots__ = ("added", "entries", "opaque", "value")

    def __init__(self, *, opaque: bool, value: bytes | None) -> None:
        #: Nothing of the base shows: the key was put anew, or deleted.
        self.opaque = opaque
        self.value = value
        #: List elements behind the value, or the base's.
        self.added: list[bytes] = []
        #: Map entries; None: removed.
        self.entries: dict[bytes, bytes | None] = {}

    def add(self, change: Change) -> None:
        if change.op is ChangeOp.LIST_ADD:
            self.added.append(change.data)
        else:
            self.entries[change.map_key] = change.data if change.op is ChangeOp.MAP_PUT else None

    def over(self, base: list[Change]) -> Iterator[tuple[ChangeOp, bytes, bytes]]:
        """Operation, map key and data of each entry that the key has, given what the base has for it."""
        if self.entries:
            shown = {} if self.opaque else {change.map_key: change.data for change in base}
            for map_key, data in sorted({**shown, **self.entries}.items(), key=itemgetter(0)):
                if data is not None:
                    yield ChangeOp.MAP_PUT, map_key, data
            return
        value = self.value if self.opaque else base[0].data if base else None
        if self.added:
            value = _joined(([] if value is None else [value]) + self.added)
        if value is not None:
            yield ChangeOp.PUT, b"", value


def _joined(additions: list[bytes]) -> bytes:
    return pack_elements(element for addition in additions for element in unpack_elements(addition))


#: What the epochs made of the keys of a place: a value put, None for a deletion, or additions.
_Keys = dict[bytes, bytes | _Addition | None]
_PlainKeys = dict[bytes, bytes | None]


class Overlay:
    """What the epochs since a base made of the keys that they changed."""

    def __init__(self) -> None:
        self._states: dict[tuple[str, bytes], defaultdict[int, _Keys]] = {}

    def add(self, block: ChangeBlock) -> None:
        """Apply more changes."""
        by_group = self._states.setdefault((block.state, block.namespace), defaultdict(dict))
        if block.op is ChangeOp.PUT:
            data = repeat(b"") if block.data is None else block.data
            for group, key, value in zip(block.groups, block.keys, data, strict=False):
                by_group[group][key] = value
        elif block.op is ChangeOp.DELETE:
            for group, key in zip(block.groups, block.keys, strict=True):
                by_group[group][key] = None
        else:
            for change in block.changes():
                keys = by_group[change.group]
                found = keys.get(change.key)
                if not isinstance(found, _Addition):
                    found = keys[change.key] = _Addition(opaque=change.key in keys, value=found)
                found.add(change)

    def places(self) -> list[Place]:
        """Where there is something, ascending."""
        return sorted(
            (group, state.encode(), namespace)
            for (state, namespace), by_group in self._states.items()
            for group in by_group
        )

    def over(self, place: Place, base: Iterable[ChangeBlock]) -> Iterator[ChangeBlock]:
        """What a place has, given what the base has there."""
        group, encoded, namespace = place
        state = encoded.decode()
        keys = self._states[state, namespace][group]
        parts = iter(base)
        first = next(parts, None)
        if first is not None:
            parts = chain((first,), parts)
        if (first is None or first.op is ChangeOp.PUT) and _are_plain(keys):
            for there, data in _replaced(parts, keys):
                yield ChangeBlock(ChangeOp.PUT, state, namespace, [group] * len(there), there, None, data)
        else:
            changes = chain.from_iterable(part.changes() for part in parts)
            found = _key_by_key(changes, keys)
            yield from blocks_of(Change(op, state, group, namespace, *entry) for op, *entry in found)


def _are_plain(keys: _Keys) -> TypeGuard[_PlainKeys]:
    return _PLAIN.issuperset(map(type, keys.values()))


def _replaced(base: Iterable[ChangeBlock], laid: _PlainKeys) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and values of one place, ascending, with whole values laid over them."""
    keys = sorted(laid)
    at = 0
    for part in base:
        start, at = at, bisect_right(keys, part.keys[-1], at)
        data = [b""] * len(part.keys) if part.data is None else part.data
        if start == at:
            yield list(part.keys), list(data)
            continue
        # Python sorts two ascending runs in one pass: this beats looking at each entry.
        found: _PlainKeys = dict(zip(part.keys, data, strict=True))
        found.update((key, laid[key]) for key in keys[start:at])
        yield _shown(found)
    yield _shown({key: laid[key] for key in keys[at:]})


def _shown(found: _PlainKeys) -> tuple[list[bytes], list[bytes]]:
    pairs = [(key, data) for key in sorted(found) if (data := found[key]) is not None]
    return [key for key, _ in pairs], [data for _, data in pairs]


def _key_by_key(base: Iterable[Change], laid: _Keys) -> Iterator[tuple[ChangeOp, bytes, bytes, bytes]]:
    """Operation, key, map key and data of each entry of one place, ascending."""
    keys = deque(sorted(laid))
    for key, found in groupby(base, _key_of):
        while keys and keys[0] < key:
            yield from _over(laid, keys.popleft(), [])
        if keys and keys[0] == key:
            yield from _over(laid, keys.popleft(), list(found))
        else:
            yield from ((change.op, key, change.map_key, change.data) for change in found)
    for key in keys:
        yield from _over(laid, key, [])


def _over(laid: _Keys, key: bytes, base: list[Change]) -> Iterator[tuple[ChangeOp, bytes, bytes, bytes]]:
    found = laid[key]
    if isinstance(found, _Addition):
        yield from ((op, key, map_key, data) for op, map_key, data in found.over(base))
    elif found is not None:
        yield ChangeOp.PUT, key, b"", found


def merged(base: Iterable[Change], overlay: Overlay) -> ChangeBlocks:
    """The base, in ascending order, with the overlay over it, in ascending order."""
    return ChangeBlocks(recut(_merged(blocks_of(base), overlay)))


def _merged(base: Iterable[ChangeBlock], overlay: Overlay) -> Iterator[ChangeBlock]:
    places = deque(overlay.places())
    for place, parts in groupby(_by_group(base), _place_of):
        while places and places[0] < place:
            yield from overlay.over(places.popleft(), ())
        if places and places[0] == place:
            yield from overlay.over(places.popleft(), parts)
        else:
            yield from parts
    for place in places:
        yield from overlay.over(place, ())


def _by_group(blocks: Iterable[ChangeBlock]) -> Iterator[ChangeBlock]:
    """Blocks whose groups ascend, as blocks of one group each."""
    for block in blocks:
        start, end = 0, len(block.groups)
        while start < end:
            stop = bisect_right(block.groups, block.groups[start], start)
            yield block.part(start, stop)
            start = stop


def _place_of(block: ChangeBlock) -> Place:
    return block.groups[0], block.state.encode(), block.namespace


def merged_parts(parts: Iterable[Part]) -> ChangeBlocks:
    """The state that a history makes, in ascending order; a first part in that order is read as it goes.

    All parts but the first are read before anything is given, so files that go missing show before that.
    """
    remaining = iter(parts)
    first = next(remaining, None)
    overlay = Overlay()
    if first is not None and not first.ascending:
        _lay(first.changes, overlay)
        first = None
    for part in remaining:
        _lay(part.changes, overlay)
    return merged(first.changes if first else (), overlay)


def ascending(changes: Iterable[Change]) -> ChangeBlocks:
    """Any changes that build a state, as the ascending stream of it; held in memory."""
    overlay = Overlay()
    _lay(changes, overlay)
    return merged((), overlay)


def _lay(changes: Iterable[Change], overlay: Overlay) -> None:
    for block in blocks_of(changes):
        overlay.add(block)
