"""Prints tables as text: the one place that aligns columns.

Rules of this module: cells in, lines out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["table"]


def table(rows: Sequence[Sequence[object]], *, indent: str = "") -> Iterator[str]:
    """A line for each row, with every cell as wide as the widest one of its column. The heads are the first row."""
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield indent + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
