"""Freed memory goes back to the system.

Rules of this module: it wraps two functions of the C library, where there are such. It decides nothing.

The GNU C library keeps what was freed for later. After connections have held much at one time, that is as much, for
ever: 130 MiB of half requests left a process with 500 MiB. It does the same with large pieces once it has seen one of
their size, and what is left of them between other pieces cannot be given back. So large pieces are memory of
their own here, which the system has back as soon as they are freed.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

__all__ = ["give_back", "give_large_pieces_back"]

_M_MMAP_THRESHOLD = -3
#: The library's own first value. It raises it whenever a larger piece is freed, unless it is set.
LARGE_BYTES = 128 * 1024


def give_back() -> None:
    """Give back what is free. Takes milliseconds, and longer the more pieces are free. Other threads run meanwhile."""
    with suppress(AttributeError, OSError):  # another C library keeps less
        ctypes.CDLL(None).malloc_trim(0)


def give_large_pieces_back() -> None:
    """From now on give each large piece back when it is freed. For the whole process, idempotent."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BYTES)
