"""Lists and maps of a byte store part by part: each element and entry is read from the store when it is asked for.

Rules of this module: it knows the layout (`layout`). It reads a store or a snapshot of it, and knows no epochs: a
backend gives it the epoch of what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qstate.backends.answers import unpack_elements
from qstate.backends.byte_stores.layout import stop_of
from qstate.backends.byte_stores.store import ByteSnapshot, ByteStore
from qstate.backends.value_parts import ValueParts

__all__ = ["StoredParts"]


class StoredParts(ValueParts):
    """The list or map whose entries begin with `prefix`; None: its state has never been opened. `release` frees the
    source."""

    def __init__(
        self, source: ByteStore | ByteSnapshot, epoch: int, prefix: bytes | None, release: Callable[[], None]
    ) -> None:
        self.epoch = epoch
        self._source = source
        self._prefix = prefix
        self._release: Callable[[], None] | None = release

    def value(self) -> bytes | None:
        raise AssertionError("a list or map has elements or entries")

    def elements(self) -> Iterator[bytes]:
        if self._prefix is not None:
            for _, addition in self._source.scan(self._prefix, stop_of(self._prefix)):
                yield from unpack_elements(addition)

    def entries(self, after: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        prefix = self._prefix
        if prefix is not None:
            start = prefix if after is None else prefix + after + b"\0"
            for entry_key, data in self._source.scan(start, stop_of(prefix)):
                yield entry_key[len(prefix) :], data

    def entry(self, map_key: bytes) -> bytes | None:
        return None if self._prefix is None else self._source.get(self._prefix + map_key)

    def close(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()
