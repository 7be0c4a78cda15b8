"""Text for a terminal: what may be shown, in which colour, how wide it is.

Rules of this module: text in, text out. Keys, values and names come from others. A terminal obeys control characters in
them: it would change colours, its title or the lines above. So none reaches it; `shown` says how it is written instead.
"""

from __future__ import annotations

import os
import sys
import unicodedata
from typing import TextIO

__all__ = ["BOLD", "GREEN", "RED", "has_colours", "say", "shown", "styled", "width"]

BOLD, RED, GREEN = "1", "31", "32"


def shown(text: str) -> str:
    r"""The text with every character that is not printable as in Python's source: `\n`, `\x1b`, `\u202e`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def say(text: str = "") -> None:
    """Print a line that may hold names of others."""
    print(shown(text))


def has_colours(stream: TextIO) -> bool:
    """Whether a stream takes colours: a terminal that can show them, unless the user set NO_COLOR."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def styled(text: str, style: str, stream: TextIO | None = None) -> str:
    """The text in a style, if the stream takes colours; by default standard output."""
    return f"\x1b[{style}m{text}\x1b[0m" if style and has_colours(stream or sys.stdout) else text


def width(text: str) -> int:
    """How many columns of a terminal a shown text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) != 0 for one in text)
