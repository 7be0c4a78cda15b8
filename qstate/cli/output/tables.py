"""Prints tables as text: the one place that aligns columns.

Rules of this module: cells in, lines out. Cells are made safe for terminals here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from qstate.cli.output.terminal import shown, width

__all__ = ["WIDEST", "Table", "table"]

#: A longer cell stands out of its column instead of moving all others to the right.
WIDEST = 60


class Table:
    """A table that grows: each piece is as wide as the ones before it, or wider."""

    def __init__(self, style: Callable[[str, int], str] | None = None, *, indent: str = "") -> None:
        """`style` gets each padded cell and its column, and returns what is printed."""
        self._style = style
        self._indent = indent
        self._widths: list[int] = []

    def lines(self, rows: Sequence[Sequence[object]]) -> Iterator[str]:
        """A line for each row."""
        texts = [[shown(str(cell)) for cell in row] for row in rows]
        found = [max(min(width(cell), WIDEST) for cell in column) for column in zip(*texts, strict=True)]
        self._widths = list(map(max, self._widths or found, found))
        for row in texts:
            yield self._indent + self._line(row)

    def _line(self, row: Sequence[str]) -> str:
        last = max((at for at, cell in enumerate(row) if cell), default=-1)
        cells = []
        for at, cell in enumerate(row[: last + 1]):
            padding = " " * (self._widths[at] - width(cell)) if at < last else ""
            cells.append((self._style(cell, at) if self._style else cell) + padding)
        return "  ".join(cells)


def table(rows: Sequence[Sequence[object]], *, indent: str = "") -> Iterator[str]:
    """A line for each row, with every cell as wide as the widest one of its column. The heads are the first row."""
    return Table(indent=indent).lines(rows)
