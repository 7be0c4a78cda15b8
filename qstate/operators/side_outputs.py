"""Side outputs: a function sends rows to several outputs, and one stream carries them all.

Rules of this module: it knows the rows of one call and the declared outputs; it must not know state, time or epochs.

Results have one struct column for each output: `main`, then the side outputs. In each row exactly one is not null.
Rows of one output keep their order; rows of different outputs have no order among each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from qstate.errors import JobError
from qstate.operators.columns.rows import OutputRows
from qstate.operators.handles import ElementContext
from qstate.operators.no_key import NO_KEY

__all__ = ["MAIN", "SideOutputs", "check_names", "united_schema"]

#: The name of the output that a function returns its rows to.
MAIN = "main"

#: `process_element` or `on_timer` of a function.
_Call = Callable[[Any, ElementContext], Iterable[Any] | None]


def check_names(names: Iterable[Any], source: str) -> None:
    """Raise `JobError`, which begins with `source`, for names that side outputs cannot have."""
    taken = {MAIN: MAIN}
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise JobError(f"{source}: a side output has a name like that of a Python variable, got {name!r}")
        if name.lower() == MAIN:
            raise JobError(f"{source}: no side output is called {name!r}: {MAIN!r} is the output of returned rows")
        other = taken.setdefault(name.lower(), name)
        if other != name:
            raise JobError(f"{source}: side outputs {other!r} and {name!r} are the same column for Spark; rename one")


def united_schema(main: pa.Schema, sides: Mapping[str, pa.Schema]) -> pa.Schema:
    """The schema of results with one struct column for each output."""
    return pa.schema([pa.field(name, pa.struct(list(schema))) for name, schema in {MAIN: main, **sides}.items()])


class _Sent(NamedTuple):
    """A row for an output, with the key that it was sent for."""

    output: str
    row: Any
    key: Any


class SideOutputs:
    """The outputs of one function: takes the rows of each call, and makes them batches of the united schema."""

    def __init__(self, main: pa.Schema, sides: Mapping[str, pa.Schema], source: str, cursor: ElementContext) -> None:
        self._schemas = {MAIN: main, **sides}
        self._schema = united_schema(main, sides)
        self._source = source
        self._cursor = cursor
        self._sent: list[_Sent] = []
        self._outputs = {name: OutputRows(schema, self._place(name)) for name, schema in self._schemas.items()}

    def send(self, output: str, row: Any) -> None:
        """Send one row of the running call. Raises `JobError` for an output that is not declared."""
        key = self._cursor.current_key
        if key is NO_KEY:
            raise JobError(f"context.output({output!r}, ...) outside of process_element and on_timer")
        if output == MAIN or output not in self._schemas:
            sides = ", ".join(repr(name) for name in self._schemas if name != MAIN)
            hint = "; return or yield the rows of the main output" if output == MAIN else ""
            raise JobError(f"no side output is called {output!r}; side_outputs declares {sides}{hint}")
        self._sent.append(_Sent(output, row, key))

    def collecting(self, process: _Call) -> _Call:
        """`process` with the rows of all outputs as its result. The next call reuses the result."""
        sent, cursor = self._sent, self._cursor

        def call(row: Any, context: ElementContext) -> Iterable[Any] | None:
            sent.clear()
            outputs = process(row, context)
            if outputs is not None:
                if not isinstance(outputs, Iterable):
                    return outputs  # the caller says what is wrong
                key = cursor.current_key
                for one in outputs:  # a generator may send rows between those that it yields
                    sent.append(_Sent(MAIN, one, key))
            return sent

        return call

    def batch(self, rows: Sequence[_Sent]) -> pa.RecordBatch:
        """All rows as one batch, output by output. Raises `JobError` that names function, key and output."""
        arrays: dict[str, list[pa.Array]] = {name: [] for name in self._schemas}
        for name, schema in self._schemas.items():
            mine = [one for one in rows if one.output == name]
            if not mine:
                continue
            structs = pa.StructArray.from_arrays(self._flat(name, mine).columns, fields=list(schema))
            for other, parts in arrays.items():
                parts.append(structs if other == name else pa.nulls(len(mine), self._schema.field(other).type))
        columns = [pa.concat_arrays(parts) for parts in arrays.values()]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _flat(self, name: str, mine: Sequence[_Sent]) -> pa.RecordBatch:
        try:
            return self._outputs[name].batch([one.row for one in mine])
        except JobError:
            for one in mine:  # find the row, to name its key
                OutputRows(self._schemas[name], self._place(name, one.key)).batch([one.row])
            raise

    def _place(self, name: str, *key: Any) -> str:
        return f"{self._source}{''.join(f', key {one!r}' for one in key)}, output {name!r}"
