"""A file that is read in ranges, with one request for each range.

Rules of this module: it chooses the ranges, and knows no store. Readers of a checkpoint file read its end, then its
start, then perhaps the rest in order. So a range at a new position is small, and a range that continues an earlier one
is large.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

__all__ = ["RemoteFile"]

EDGE_BYTES = 1 << 16
BODY_BYTES = 1 << 22
#: How many ranges memory keeps: the end, the start, and the one at the reader's position.
KEPT = 3


class RemoteFile(io.RawIOBase):
    """A file of `size` bytes; `fetch(start, stop)` returns a range of it."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._position = 0
        self._ranges: list[tuple[int, bytes]] = []

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"a position before the start of the file: {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        if self._position >= self._size:
            return 0
        start, data = self._range(self._position)
        begin = self._position - start
        target = memoryview(buffer).cast("B")
        count = min(len(target), len(data) - begin)
        target[:count] = data[begin : begin + count]
        self._position += count
        return count

    def _range(self, position: int) -> tuple[int, bytes]:
        for start, data in self._ranges:
            if start <= position < start + len(data):
                return start, data
        continues = any(start + len(data) == position for start, data in self._ranges)
        start = position if continues else min(position, max(0, self._size - EDGE_BYTES))
        stop = min(self._size, start + (BODY_BYTES if continues else EDGE_BYTES))
        data = self._fetch(start, stop)
        if len(data) != stop - start:
            raise OSError(f"asked for the bytes {start} to {stop}, got {len(data)} of them")
        self._ranges = [*self._ranges[1 - KEPT :], (start, data)]
        return start, data
