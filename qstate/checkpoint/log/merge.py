"""Merges a base with the epochs since into one stream of changes, in ascending order.

Rules of this module: changes in, changes out, in blocks; it knows no file. The stream ascends by key group, state,
namespace, key and map key, the last four as encoded bytes (a state's name as UTF-8). Equal states give equal streams
in equal blocks, whatever backend and parallelism they come from: the neutral dump is this stream.

Memory holds the changes of the epochs, one entry each, and streams the base. So memory depends on what changed since
the base, not on the size of the state. Blocks that no epoch changed pass unopened.

**Partial snapshots** hold resolved changes: for each key the changes that give the right value over any base. That is
a PUT, a DELETE, a LIST_ADD of all added elements, MAP_PUT and MAP_REMOVE of single entries, or DELETE and then MAP_PUT
for a map that was deleted and filled again. A list that was deleted and filled again is a PUT. The changes ascend by
key group, state, namespace, operation, key and map key, so that a place is a few long runs. A whole snapshot and any
number of partial ones are merged key group by key group: memory holds their changes of one key group.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby, repeat
from operator import itemgetter
from typing import TypeGuard

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.change_blocks import ChangeBlock, ChangeBlocks, blocks_of, recut
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.chain import Part

__all__ = ["Overlay", "ascending", "merged", "merged_changes", "merged_parts"]

#: Key group, state as UTF-8, namespace: the position of an entry, without its key and map key.
Place = tuple[int, bytes, bytes]

_key_of = itemgetter(4)
_group_of = itemgetter(0)
_group_and_layer = itemgetter(0, 1)
_PLAIN = frozenset((bytes, type(None)))


class _Addition:
    """Additions to one key's list or map: over a known value, which hides the base, or over the base's value."""

    __slots__ = ("added", "entries", "opaque", "value")

    def __init__(self, *, opaque: bool, value: bytes | None) -> None:
        #: Whether the base is hidden: the key was put or deleted before the additions.
        self.opaque = opaque
        self.value = value
        #: List elements to append to the value, or to the base's value.
        self.added: list[bytes] = []
        #: Map entries; None for a removed one.
        self.entries: dict[bytes, bytes | None] = {}

    def add(self, change: Change) -> None:
        if change.op is ChangeOp.LIST_ADD:
            self.added.append(change.data)
        else:
            self.entries[change.map_key] = change.data if change.op is ChangeOp.MAP_PUT else None

    def over(self, base: list[Change]) -> Iterator[tuple[ChangeOp, bytes, bytes]]:
        """Operation, map key and data of each entry of the key's value over the base's entries."""
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

    def changes(self) -> Iterator[tuple[ChangeOp, bytes, bytes]]:
        """Operation, map key and data of the changes that have the same effect over any base."""
        if self.added:
            if self.opaque:
                yield ChangeOp.PUT, b"", _joined(([] if self.value is None else [self.value]) + self.added)
            else:
                yield ChangeOp.LIST_ADD, b"", _joined(self.added)
            return
        if self.opaque:
            yield ChangeOp.DELETE, b"", b""
        for map_key, data in self.entries.items():
            if data is not None:
                yield ChangeOp.MAP_PUT, map_key, data
            elif not self.opaque:
                yield ChangeOp.MAP_REMOVE, map_key, b""


def _joined(additions: list[bytes]) -> bytes:
    return pack_elements(element for addition in additions for element in unpack_elements(addition))


#: The effect of the epochs on the keys of a place: a value put, None for a deletion, or additions.
_Keys = dict[bytes, bytes | _Addition | None]
_PlainKeys = dict[bytes, bytes | None]


class Overlay:
    """The effect of the epochs since a base on the keys that they changed."""

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
        """The places with changes, ascending."""
        return sorted(
            (group, state.encode(), namespace)
            for (state, namespace), by_group in self._states.items()
            for group in by_group
        )

    def blocks(self) -> Iterator[ChangeBlock]:
        """The resolved changes, ascending: over any base they have the effect of all added changes."""
        for place in self.places():
            group, encoded, namespace = place
            state = encoded.decode()
            found = _by_operation(self._states[state, namespace][group])
            for op in sorted(found, key=lambda op: op.value):
                entries = sorted(found[op])
                keys, map_keys, data = ([*column] for column in zip(*entries, strict=True))
                yield ChangeBlock(
                    op,
                    state,
                    namespace,
                    [group] * len(keys),
                    keys,
                    map_keys if any(map_keys) else None,
                    data if any(data) else None,
                )

    def over(self, place: Place, base: Iterable[ChangeBlock]) -> Iterator[ChangeBlock]:
        """The entries of a place over the base's entries of that place."""
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


def _by_operation(keys: _Keys) -> dict[ChangeOp, list[tuple[bytes, bytes, bytes]]]:
    """Key, map key and data of the resolved changes of a place, by operation."""
    found: defaultdict[ChangeOp, list[tuple[bytes, bytes, bytes]]] = defaultdict(list)
    puts, deletions = found[ChangeOp.PUT], found[ChangeOp.DELETE]
    for key, laid in keys.items():
        if isinstance(laid, bytes):
            puts.append((key, b"", laid))
        elif laid is None:
            deletions.append((key, b"", b""))
        else:
            for op, map_key, data in laid.changes():
                found[op].append((key, map_key, data))
    return {op: entries for op, entries in found.items() if entries}


def _are_plain(keys: _Keys) -> TypeGuard[_PlainKeys]:
    return _PLAIN.issuperset(map(type, keys.values()))


def _replaced(base: Iterable[ChangeBlock], laid: _PlainKeys) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Keys and values of one place, ascending, after puts and deletions of whole values."""
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
    """The base with the overlay applied; both are in ascending order."""
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
    """Blocks whose key groups ascend, split into blocks of one key group each."""
    for block in blocks:
        start, end = 0, len(block.groups)
        while start < end:
            stop = bisect_right(block.groups, block.groups[start], start)
            yield block.part(start, stop)
            start = stop


def _place_of(block: ChangeBlock) -> Place:
    return block.groups[0], block.state.encode(), block.namespace


def merged_parts(parts: Iterable[Part]) -> ChangeBlocks:
    """The state that a history results in, in ascending order. The ascending parts, which come first, are streamed.

    Before it yields anything, it has opened those files and read all others. So a file that a job removes meanwhile
    fails the read before the first change.
    """
    layers, overlay = _layers(parts)
    whole, *partial = layers or [()]
    if not partial:
        return merged(whole, overlay)
    return ChangeBlocks(recut(_laid(blocks_of(whole), _overlays([*partial, ChangeBlocks(overlay.blocks())]))))


def merged_changes(parts: Iterable[Part]) -> ChangeBlocks:
    """The resolved changes of a history, as a partial snapshot holds them.

    The files are read as `merged_parts` reads them.
    """
    layers, overlay = _layers(parts)
    if not layers:
        return ChangeBlocks(recut(overlay.blocks()))
    overlays = _overlays([*layers, ChangeBlocks(overlay.blocks())])
    return ChangeBlocks(recut(block for _, laid in overlays for block in laid.blocks()))


def _layers(parts: Iterable[Part]) -> tuple[list[Iterable[Change]], Overlay]:
    """The changes of the ascending parts, still unread, and an overlay of all others."""
    layers: list[Iterable[Change]] = []
    overlay = Overlay()
    for part in parts:
        if part.ascending:
            layers.append(part.changes)
        else:
            _lay(part.changes, overlay)
    return layers, overlay


def _overlays(layers: Sequence[Iterable[Change]]) -> Iterator[tuple[int, Overlay]]:
    """An overlay for each key group, ascending, from layers of ascending changes; later layers go over earlier ones."""
    streams = [_numbered(number, layer) for number, layer in enumerate(layers)]
    for group, found in groupby(merge(*streams, key=_group_and_layer), key=_group_of):
        overlay = Overlay()
        for _, _, block in found:
            overlay.add(block)
        yield group, overlay


def _numbered(number: int, layer: Iterable[Change]) -> Iterator[tuple[int, int, ChangeBlock]]:
    """The blocks of a layer, each with its key group and the layer's number before it."""
    return ((block.groups[0], number, block) for block in _by_group(blocks_of(layer)))


def _laid(base: Iterable[ChangeBlock], overlays: Iterator[tuple[int, Overlay]]) -> Iterator[ChangeBlock]:
    """The base, in ascending order, with the overlay of each key group applied."""
    upper = next(overlays, None)
    for group, blocks in groupby(_by_group(base), lambda block: block.groups[0]):
        while upper is not None and upper[0] < group:
            yield from _merged((), upper[1])
            upper = next(overlays, None)
        if upper is not None and upper[0] == group:
            yield from _merged(blocks, upper[1])
            upper = next(overlays, None)
        else:
            yield from blocks
    while upper is not None:
        yield from _merged((), upper[1])
        upper = next(overlays, None)


def ascending(changes: Iterable[Change]) -> ChangeBlocks:
    """The ascending stream of the state that any changes build; memory holds all of it."""
    overlay = Overlay()
    _lay(changes, overlay)
    return merged((), overlay)


def _lay(changes: Iterable[Change], overlay: Overlay) -> None:
    for block in blocks_of(changes):
        overlay.add(block)
