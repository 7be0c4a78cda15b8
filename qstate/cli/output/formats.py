"""The formats of what commands print: the option `--format`, and the printer of records in each.

Rules of this module: records of JSON types in, text on standard output. It knows no command.

    table   for people: columns with heads. What is not printable is written as in Python's source
    json    one document: a list of objects
    jsonl   one object a line, each printed as it comes
    csv     heads, then a line for each record. Text is as it is, also when it begins with `=`; everything else is JSON
            in a cell, and null is an empty cell
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from qstate.cli.output.tables import Table
from qstate.cli.output.terminal import BOLD, say, shown, styled

__all__ = ["CSV", "JSON", "JSONL", "TABLE", "Printer", "add_format", "print_value", "text_of"]

TABLE, JSON, JSONL, CSV = "table", "json", "jsonl", "csv"
#: A table that grows is printed piece by piece: after so many rows or characters, or seconds.
PIECE_ROWS, PIECE_CHARACTERS, PIECE_S = 200, 1 << 20, 0.5

_SPECIAL = re.compile(r'[",\r\n]')

Record = Mapping[str, Any]


def add_format(parser: argparse.ArgumentParser, *choices: str) -> None:
    """Add the option to a command; the first choice is the default."""
    parser.add_argument(
        "--format", choices=choices, default=choices[0], help="form of the output (default: %(default)s)"
    )


class Printer:
    """Prints records in a format; a context manager. Each record has all columns.

    `shown` says how a column is written in a table, when that differs from the record's own form.
    """

    def __init__(
        self,
        form: str,
        columns: Sequence[str],
        *,
        shown: Mapping[str, Callable[[Any], str]] | None = None,
        style: Callable[[str, str], str] | None = None,
    ) -> None:
        """`style` gets the text of a cell and its column, and returns its style."""
        self._form = form
        self._columns = tuple(columns)
        self._shown = shown or {}
        self._style = style
        self._rows: list[list[str]] = []
        self._characters = 0
        self._printed = 0
        self._since = time.monotonic()
        self._table = Table(self._styled)

    def __enter__(self) -> Printer:
        if self._form == CSV:
            print(",".join(self._columns))
        elif self._form == TABLE:
            self._add([column.replace("_", " ").upper() for column in self._columns])
        return self

    def print(self, record: Record) -> None:
        """Print the next record, in a table soon."""
        if self._form == TABLE:
            self._add([self._shown.get(column, text_of)(record[column]) for column in self._columns])
            over = len(self._rows) >= PIECE_ROWS or self._characters >= PIECE_CHARACTERS
            if over or time.monotonic() - self._since >= PIECE_S:
                self.flush()
        elif self._form == CSV:
            safe = shown if sys.stdout.isatty() else str
            line = ",".join(_quoted(safe(_cell(record[column]))) for column in self._columns)
            print(line or '""')  # readers skip an empty line
        elif self._form == JSONL:
            print(json.dumps(record))
        else:
            print("," if self._printed else "[", json.dumps(record), sep="\n", end="")
            self._printed += 1

    def flush(self) -> None:
        """Print what has come so far."""
        for line in self._table.lines(self._rows) if self._rows else ():
            print(line)
            self._printed += 1
        self._rows, self._characters, self._since = [], 0, time.monotonic()
        sys.stdout.flush()

    def __exit__(self, kind: type[BaseException] | None, *exc_info: object) -> None:
        if self._form == JSON and kind is None:  # after an error, the document shows that it is not whole
            print("\n]" if self._printed else "[]")
        if kind is not BrokenPipeError:
            self.flush()

    def _add(self, row: list[str]) -> None:
        self._rows.append(row)
        self._characters += sum(map(len, row))

    def _styled(self, cell: str, at: int) -> str:
        if not self._printed:
            return styled(cell, BOLD)
        return styled(cell, self._style(cell, self._columns[at])) if self._style else cell


def text_of(value: Any) -> str:
    """A value of JSON types as the text of a cell for people: text as it is, nothing as `-`, everything else JSON."""
    return "-" if value is None else _cell(value)


def print_value(form: str, value: Any) -> None:
    """Print one value of JSON types by itself. Text is printed without quotes in a table."""
    if form == CSV:
        with Printer(CSV, ["value"]) as printer:
            printer.print({"value": value})
    elif form == TABLE:
        say(_cell(value) if value is not None else "null")
    else:
        print(json.dumps(value))


def _quoted(cell: str) -> str:
    """A cell of a CSV file. The writer of Python 3.10 refuses a null character."""
    return '"{}"'.format(cell.replace('"', '""')) if _SPECIAL.search(cell) else cell


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
