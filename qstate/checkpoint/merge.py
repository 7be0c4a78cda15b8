"""Merging: the state that a base and the epochs since make, as one stream in ascending order.

Rules of this module: changes in, changes out; it knows no file. The order is that of key group, state, namespace, key
and map key, the last four as their encoded bytes (a state's name as UTF-8). Equal states give equal streams, whatever
backend and parallelism they come from: the neutral dump is this stream.

The epochs' changes are held in memory, one entry each, the base is read as it goes: so memory follows what
changed since the base, not the size of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.chain import Part

__all__ = ["Overlay", "ascending", "merged", "merged_parts"]

#: Key group, state as UTF-8, namespace, key: where an entry stands, map key aside.
Place = tuple[int, bytes, bytes, bytes]

_place_fields = itemgetter(2, 1, 3, 4)


def place_of(change: Change) -> Place:
    group, state, namespace, key = _place_fields(change)
    return group, state.encode(), namespace, key


class Overlay:
    """What the epochs since a base made of the keys that they changed."""

    def __init__(self) -> None:
        self._keys: dict[Place, _Key] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, change: Change) -> None:
        """Apply one more change."""
        place = place_of(change)
        found = self._keys.get(place)
        if found is None:
            found = self._keys[place] = _Key(change.state)
        found.add(change)

    def places(self) -> list[Place]:
        return sorted(self._keys)

    def over(self, place: Place, base: list[Change]) -> Iterator[Change]:
        """What a key has, given what the base has for it."""
        return self._keys[place].over(place, base)


class _Key:
    """What became of one key: whether the base still shows, and what lies over it."""

    __slots__ = ("added", "entries", "opaque", "state", "value")

    def __init__(self, state: str) -> None:
        self.state = state
        #: Nothing of the base shows: the key was put anew, or deleted.
        self.opaque = False
        self.value: bytes | None = None
        #: List elements behind the value, or the base's.
        self.added: list[bytes] = []
        #: Map entries; None: removed.
        self.entries: dict[bytes, bytes | None] = {}

    def add(self, change: Change) -> None:
        op = change.op
        if op is ChangeOp.PUT or op is ChangeOp.DELETE:
            self.opaque = True
            self.value = change.data if op is ChangeOp.PUT else None
            self.added, self.entries = [], {}
        elif op is ChangeOp.LIST_ADD:
            self.added.append(change.data)
        else:
            self.entries[change.map_key] = change.data if op is ChangeOp.MAP_PUT else None

    def over(self, place: Place, base: list[Change]) -> Iterator[Change]:
        group, _, namespace, key = place
        if self.entries:
            shown = {} if self.opaque else {change.map_key: change.data for change in base}
            for map_key, data in sorted({**shown, **self.entries}.items(), key=itemgetter(0)):
                if data is not None:
                    yield Change(ChangeOp.MAP_PUT, self.state, group, namespace, key, map_key, data)
            return
        value = self.value if self.opaque else base[0].data if base else None
        if self.added:
            value = _joined(([] if value is None else [value]) + self.added)
        if value is not None:
            yield Change(ChangeOp.PUT, self.state, group, namespace, key, b"", value)


def _joined(additions: list[bytes]) -> bytes:
    return pack_elements(element for addition in additions for element in unpack_elements(addition))


def merged(base: Iterable[Change], overlay: Overlay) -> Iterator[Change]:
    """The base, in ascending order, with the overlay over it, in ascending order."""
    places = iter(overlay.places())
    place = next(places, None)
    if place is None:
        yield from base
        return
    for at, run in groupby(base, place_of):
        while place is not None and place < at:
            yield from overlay.over(place, [])
            place = next(places, None)
        if place == at:
            yield from overlay.over(at, list(run))
            place = next(places, None)
        else:
            yield from run
    while place is not None:
        yield from overlay.over(place, [])
        place = next(places, None)


def merged_parts(parts: Iterable[Part]) -> Iterator[Change]:
    """The state that a history makes, in ascending order; a first part in that order is read as it goes.

    All parts but the first are read before anything is given, so files that go missing show before that.
    """
    remaining = iter(parts)
    first = next(remaining, None)
    overlay = Overlay()
    if first is not None and not first.ascending:
        for change in first.changes:
            overlay.add(change)
        first = None
    for part in remaining:
        for change in part.changes:
            overlay.add(change)
    return merged(first.changes if first else (), overlay)


def ascending(changes: Iterable[Change]) -> Iterator[Change]:
    """Any changes that build a state, as the ascending stream of it; held in memory."""
    overlay = Overlay()
    for change in changes:
        overlay.add(change)
    return merged((), overlay)
