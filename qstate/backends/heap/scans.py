"""Scans of the heap: the keys of one state, and what its tables have for them.

Rules of this module: it reads tables through `HeapTable`, and knows no epochs and no locks: the heap gives it tables,
and the keys that they had at one moment. Committed scans that begin in one epoch share the index of the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from qstate.backends.answers import Answer
from qstate.backends.contract import Scanned, Selection, StateScan
from qstate.backends.heap.table import HeapTable
from qstate.backends.key_index import KeyIndex
from qstate.keys import Key

__all__ = ["HeapScan"]

#: What a table has for a key, in the isolation of the scan; None without a value.
Find = Callable[[HeapTable, Key], Any]
#: From a table, what it has for a key, and the most bytes of the answer to the answer; None without a value.
AnswerOf = Callable[[HeapTable, Any, int], Answer]


class HeapScan(StateScan):
    """Visits the keys of an index."""

    def __init__(self, index: KeyIndex[HeapTable], find: Find, answer_of: AnswerOf) -> None:
        self.epoch = index.epoch
        self._index = index
        self._find = find
        self._answer_of = answer_of

    def prepare(self) -> Iterator[None]:
        return self._index.prepare()

    def entries(self, group: int, after: tuple[bytes, bytes] | None, selection: Selection) -> Iterator[Scanned]:
        for namespace, key, table, plain in self._index.selected(group, after, selection):
            found = self._find(table, plain)
            answer = self._answer_of(table, found, selection.most_bytes) if selection.values else None
            if found is not None and (answer is not None or not selection.values):
                yield Scanned(namespace, key, answer)

    def close(self) -> None:
        self._index = KeyIndex(self.epoch, ())
