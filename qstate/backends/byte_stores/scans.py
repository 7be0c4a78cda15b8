"""Scans of a byte store: the keys of one state in the order of the store.

Rules of this module: it knows the layout (`layout`) and how answers are made of stored entries (`stored_answers`). It
reads a store or a snapshot of it, and knows no epochs: a backend gives it the epoch of what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter

from qstate.backends.answers import Answer
from qstate.backends.byte_stores.layout import namespace_and_key, prefix_of, stop_of, stop_of_prefix
from qstate.backends.byte_stores.store import ByteSnapshot, ByteStore
from qstate.backends.byte_stores.stored_answers import AnswerOf
from qstate.backends.byte_stores.table import ByteTable
from qstate.backends.contract import Scanned, Selection, StateScan
from qstate.backends.key_index import KeyIndex
from qstate.descriptors import StateKind
from qstate.keys import Key

__all__ = ["ByteStoreScan", "LiveByteStoreScan"]

_place_of = itemgetter(0)


class ByteStoreScan(StateScan):
    """Visits the keys of the state with this ordinal. `release` frees the source."""

    def __init__(
        self,
        source: ByteStore | ByteSnapshot,
        epoch: int,
        place: tuple[int, StateKind] | None,
        answer_of: AnswerOf,
        release: Callable[[], None],
    ) -> None:
        """`place` is the state's ordinal and kind; None: it has never been opened, so it has no keys."""
        self.epoch = epoch
        self._source = source
        self._place = place
        self._answer_of = answer_of
        self._release: Callable[[], None] | None = release

    def entries(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Scanned]:
        if self._place is None:
            return
        ordinal, kind = self._place
        start, stop = _range(group, ordinal, selection)
        if after is not None:
            start = max(start, stop_of(prefix_of(group, ordinal, after[0]) + after[1]))
        stored = ((namespace_and_key(entry, kind), (entry, data)) for entry, data in self._source.scan(start, stop))
        prefix = selection.prefix if selection.namespace is None else b""
        for (namespace, key), found in groupby(stored, _place_of):
            if key.startswith(prefix):
                value = None
                if selection.values:
                    before = len(prefix_of(group, ordinal, namespace)) + len(key)
                    value = self._answer_of((entry for _, entry in found), before, selection.most_bytes)
                yield Scanned(namespace, key, value)

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


class LiveByteStoreScan(ByteStoreScan):
    """Visits also the keys that tables had in their cache when the scan began, with `newest` as their answer."""

    def __init__(
        self,
        store: ByteStore,
        place: tuple[int, StateKind] | None,
        answer_of: AnswerOf,
        cached: KeyIndex[ByteTable],
        newest: Callable[[ByteTable, Key, int], Answer],
    ) -> None:
        super().__init__(store, cached.epoch, place, answer_of, lambda: None)
        self._cached = cached
        self._newest = newest

    def prepare(self) -> Iterator[None]:
        return self._cached.prepare()

    def entries(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Scanned]:
        # The cache first: what it writes meanwhile is in the store afterwards.
        cached = {(one.namespace, one.key): one for one in self._cached.selected(group, after, selection)}
        stored = super().entries(group, after, selection)
        if not cached:
            yield from stored
            return
        unstored = (Scanned(*place, None) for place in cached)
        for place, found in groupby(merge(stored, unstored, key=_order), _order):
            one = cached.get(place)
            if one is None:
                yield from found
                continue
            answer = self._newest(one.table, one.plain, selection.most_bytes)
            if answer is not None:
                yield Scanned(*place, answer if selection.values else None)


def _order(entry: Scanned) -> tuple[bytes, bytes]:
    return entry.namespace, entry.key


def _range(group: int, ordinal: int, selection: Selection) -> tuple[bytes, bytes]:
    """The smallest range of the store with every selected entry of a group."""
    if selection.namespace is None:
        return prefix_of(group, ordinal, b""), prefix_of(group, ordinal + 1, b"")
    start = prefix_of(group, ordinal, selection.namespace) + selection.prefix
    return start, stop_of_prefix(start)
