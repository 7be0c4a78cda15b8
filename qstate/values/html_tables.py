"""Tables of HTML, for notebooks: small, whatever is in them, and nothing in them is taken for HTML.

Rules of this module: values in, text out. It knows neither states nor notebooks. The values of a state may come from
anyone, so each is cut and escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import islice
from reprlib import Repr
from typing import Any

__all__ = ["html_table"]

MOST_ROWS = 50
#: The most characters of one cell.
MOST_TEXT = 200


class _Shown(Repr):
    """`reprlib`, which shows no more of a value than fits, for the read-only containers, too."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = MOST_TEXT

    def repr_ReadOnlyList(self, value: Any, level: int) -> str:
        return self.repr_list(value, level)

    def repr_ReadOnlyDict(self, value: Any, level: int) -> str:
        return self.repr_dict(value, level)


_shown = _Shown()


def html_table(caption: str, heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of at most `MOST_ROWS` rows. Texts are shown as they are, other values as Python writes them."""
    given = iter(rows)
    lines = [_line("td", row) for row in islice(given, MOST_ROWS)]
    if next(given, None) is not None:
        lines.append(_line("td", ["..."]))
    head = _line("th", heads) if heads else ""
    return f"<table><caption>{escape(_cut(caption))}</caption>{head}{''.join(lines)}</table>"


def _line(tag: str, cells: Sequence[object]) -> str:
    found = (f"<{tag} style='text-align:left'>{escape(_text(cell))}</{tag}>" for cell in cells)
    return f"<tr>{''.join(found)}</tr>"


def _text(cell: object) -> str:
    return _cut(cell if type(cell) is str else _shown.repr(cell))


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else f"{text[: MOST_TEXT - 3]}..."
