"""A batch of rows with their keys, and its rows by key.

Rules of this module: it knows Arrow columns and keys, and no state. The keys of a batch are made when they are first
asked for: a function that takes the rows by key needs only those of the batch's different keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qstate.keys import Key, Namespace
from qstate.operators.columns.column_values import column_values
from qstate.operators.handles import ElementContext
from qstate.operators.no_key import NO_KEY

__all__ = ["KeyedBatch", "ManyKeys", "RowsByKey", "RowsOfKey", "combined"]

Item = TypeVar("Item", bound=Any)


class RowsOfKey(NamedTuple):
    """The rows of one key in a batch; with namespace columns, those of one key and namespace."""

    key: Key
    namespace: Namespace
    rows: pa.RecordBatch


class ManyKeys:
    """What a batch function gets at once for many keys, one of which may be the current key in a loop."""

    def __init__(self, cursor: ElementContext) -> None:
        self._cursor = cursor
        #: The key at which a loop is, or was left before its end. For errors.
        self.key_of_loop: Any = NO_KEY

    def one_by_one(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items of a loop. While it has an item, that item's `key` is the current key."""
        cursor = self._cursor
        try:
            for item in items:
                cursor.current_key = self.key_of_loop = item.key
                yield item
            self.key_of_loop = NO_KEY
        finally:
            cursor.current_key = NO_KEY


class KeyedBatch(ManyKeys):
    """A batch of rows with their keys. Made by the operator."""

    def __init__(
        self,
        rows: pa.RecordBatch,
        cursor: ElementContext,
        keys: Sequence[pa.Array],
        namespaces: Sequence[pa.Array] = (),
    ) -> None:
        super().__init__(cursor)
        self._rows = rows
        self._key_columns = keys
        self._namespace_columns = namespaces

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows, with the columns of the stream."""
        return self._rows

    @cached_property
    def keys(self) -> list[Key]:
        """The key of each row: a bare value for one key column, a tuple for several."""
        return combined(list(map(column_values, self._key_columns)))

    @cached_property
    def namespaces(self) -> list[Namespace] | None:
        """The namespace of each row, in the form of a key; None when the operator has no namespace columns."""
        return combined(list(map(column_values, self._namespace_columns))) if self._namespace_columns else None

    def by_key(self) -> RowsByKey:
        """The rows in another order: those of a key are neighbours, and keep their order among themselves."""
        codes = _codes([*self._key_columns, *self._namespace_columns])
        order = np.argsort(codes, kind="stable")
        return RowsByKey(self, order, _starts(codes[order]))

    # For RowsByKey.

    def at(self, rows: npt.NDArray[Any]) -> tuple[list[Key], list[Namespace] | None]:
        """The keys and namespaces of these rows."""
        wanted = pa.array(rows)
        keys = [column_values(column.take(wanted)) for column in self._key_columns]
        namespaces = [column_values(column.take(wanted)) for column in self._namespace_columns]
        return combined(keys), combined(namespaces) if namespaces else None


class RowsByKey:
    """The rows of a batch by key; with namespace columns, by key and namespace.

    Iterate it for one key after the other. In the loop, state handles have the loop's key as their current key, as in
    `process_element`. For work on all keys at once, take `rows`, `keys`, `first_rows` and `last_rows`.
    """

    def __init__(self, batch: KeyedBatch, order: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> None:
        self._batch = batch
        self._rows = batch.rows.take(pa.array(order))
        self._starts = starts
        self._keys, self._namespaces = batch.at(order[starts])

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows: those of a key are neighbours, and among themselves in the batch's order."""
        return self._rows

    @property
    def keys(self) -> list[Key]:
        """The different keys, in the order of their rows."""
        return self._keys

    @property
    def namespaces(self) -> list[Namespace] | None:
        """The namespace of each item of `keys`; None without namespace columns."""
        return self._namespaces

    @property
    def first_rows(self) -> npt.NDArray[np.int64]:
        """The index in `rows` of each key's first row."""
        return self._starts

    @property
    def last_rows(self) -> npt.NDArray[np.int64]:
        """The index in `rows` of each key's last row."""
        return np.append(self._starts[1:], self._rows.num_rows) - 1

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[RowsOfKey]:
        lengths = self.last_rows + 1 - self._starts
        slices = map(self._rows.slice, self._starts.tolist(), lengths.tolist())
        return self._batch.one_by_one(map(RowsOfKey, self._keys, self._namespaces or repeat(None), slices))


def combined(columns: Sequence[Sequence[Any]]) -> list[Any]:
    """Bare values for one column, tuples for several: the form of keys and namespaces."""
    return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))


def _codes(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """A number for each row, equal for rows whose columns have equal values."""
    codes: Any = None
    for column in columns:
        encoded = column.dictionary_encode()
        own = encoded.indices.to_numpy()
        if codes is None:
            codes = own
        else:
            _, codes = np.unique(codes.astype(np.int64) * len(encoded.dictionary) + own, return_inverse=True)
    found: npt.NDArray[np.int64] = codes
    return found


def _starts(ordered: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The index of each first item of equal neighbours."""
    return np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
