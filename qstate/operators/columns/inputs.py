"""The inputs of an operator: one, or several that are united in one stream of batches.

Rules of this module: it knows names of columns, batches and rows; it must not know state, keys or epochs.

Spark gives a task one stream of rows. So several inputs are united under one schema, and each row has the columns of
all of them:

    columns of input 1 | columns of input 2 | number of the row's input | key columns | order columns
    null in rows of the other inputs        | from 0                    | of both inputs: hidden from the functions

A single input has its columns as they are, then hidden ones.

A stream united with broadcast rows has one more column, and its orders are apart from theirs:

    broadcast columns | stream's columns | input | subtask | keys | broadcast orders | stream's orders
                                           0, 1    that a broadcast row goes to; null in the stream's rows

All rows are sorted, the input first. So a subtask processes the broadcast rows of an epoch before the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, count
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from qstate.errors import JobError
from qstate.operators.columns.column_values import column_values
from qstate.operators.columns.rows import Row, RowMaker

__all__ = [
    "BROADCAST",
    "INPUT_COLUMN",
    "KEY_SUFFIX",
    "TARGET_COLUMN",
    "BroadcastNames",
    "InputNames",
    "InputRows",
    "UnitedNames",
    "unused_name",
]

#: The column with the number of a row's input.
INPUT_COLUMN = "__qstate_input"
#: The column with the subtask that a broadcast row goes to.
TARGET_COLUMN = "__qstate_subtask_of_row"
#: What the name of a hidden key column ends with.
KEY_SUFFIX = " (key)"
#: The number of the broadcast input, of two.
BROADCAST = 0


@dataclass(frozen=True, slots=True)
class InputNames:
    """The names of one input: of the columns that its rows have, its keys and orders, and a broadcast's target."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    order_by: tuple[str, ...] = ()
    target: str = ""


#: A column of an input: the input's number, and the column's name. A row of another input has a null there.
Source = tuple[int, str]


class UnitedNames:
    """The names of the columns that several inputs have when they are united. They are unique.

    The inputs have equally many keys and orders. `columns` are the united names of each input's columns. Of rows with
    equal orders, those of the first input come first. Raises `JobError` for a column with a name that is reserved.
    """

    def __init__(self, inputs: Sequence[InputNames]) -> None:
        for name in (INPUT_COLUMN, TARGET_COLUMN):
            if any(name in one.columns for one in inputs):
                raise JobError(f"a column of the stream is called {name!r}, which qstate uses itself: rename it")
        self.all: list[str] = []
        self._inputs = inputs
        self.columns: list[dict[str, str]] = [{name: self._added(name) for name in one.columns} for one in inputs]
        self.all.append(INPUT_COLUMN)
        self.keys, self.order_by = self._hidden()

    def _hidden(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Add the hidden columns; returns the names of the keys and of the orders."""
        first = self._inputs[0]
        keys = tuple(self._added(name + KEY_SUFFIX) for name in first.keys)
        orders = tuple(self._added(f"{name} (order)") for name in first.order_by)
        return keys, (*orders, INPUT_COLUMN) if orders else ()

    def sources(self, number: int) -> list[Source | None]:
        """What the rows of an input have in each united column; None in the place of the input's number."""
        columns = [(other, name) for other, one in enumerate(self._inputs) for name in one.columns]
        return [*columns, None, *self._hidden_sources(number)]

    def _hidden_sources(self, number: int) -> Iterable[Source]:
        mine = self._inputs[number]
        return ((number, name) for name in (*mine.keys, *mine.order_by))

    def _added(self, label: str) -> str:
        self.all.append(unused_name(label, self.all))
        return self.all[-1]


class BroadcastNames(UnitedNames):
    """The names of the columns of a stream that is united with broadcast rows: the inputs are (broadcast, stream)."""

    def _hidden(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        self.all.append(TARGET_COLUMN)
        keys = tuple(self._added(name + KEY_SUFFIX) for name in self._inputs[1].keys)
        orders = tuple(self._added(f"{name} (order)") for one in self._inputs for name in one.order_by)
        return keys, (INPUT_COLUMN, *orders)

    def _hidden_sources(self, number: int) -> Iterable[Source]:
        broadcast, stream = self._inputs
        yield BROADCAST, broadcast.target
        yield from ((1, name) for name in stream.keys)
        yield from ((other, name) for other, one in enumerate(self._inputs) for name in one.order_by)


def unused_name(label: str, used: Collection[str]) -> str:
    """The label, or with the first number from 2 that makes it a name not used yet."""
    labels = chain([label], (f"{label} ({number})" for number in count(2)))
    return next(one for one in labels if one not in used)


class InputRows:
    """Makes the rows of each input, which have that input's columns only. `inputs` are the columns' names."""

    def __init__(self, inputs: Sequence[Sequence[str]]) -> None:
        self._makers = [RowMaker(names) for names in inputs]
        ends = list(accumulate(map(len, inputs)))
        self._places = [range(end - len(names), end) for end, names in zip(ends, inputs, strict=True)]

    def dispatched(self, calls: Sequence[Callable[[Any, Any], Any]]) -> Callable[[Any, Any], Any]:
        """One call for the rows of all inputs, which calls that of the row's input."""
        if len(calls) == 1:
            return calls[0]
        of_class = {maker.row_class: call for maker, call in zip(self._makers, calls, strict=True)}

        def process_element(row: Any, context: Any) -> Any:
            return of_class[type(row)](row, context)

        return process_element

    def rows(self, batch: pa.RecordBatch, known: Mapping[int, list[Any]]) -> Iterator[Row]:
        """The rows of a batch, in its order. `known` has the values of some columns, by position."""
        if len(self._makers) == 1:
            return self._rows_of(0, batch, known)
        numbers = batch.column(INPUT_COLUMN)
        rows = [
            self._rows_of(number, batch.filter(pc.equal(numbers, number)), {}) for number in range(len(self._makers))
        ]
        return map(next, map(rows.__getitem__, numbers.to_pylist()))

    def _rows_of(self, number: int, batch: pa.RecordBatch, known: Mapping[int, list[Any]]) -> Iterator[Row]:
        columns = [
            known[place] if place in known else column_values(batch.column(place)) for place in self._places[number]
        ]
        return self._makers[number].rows(columns)
