"""An ordered key-value store of bytes: all that a third party writes to get a full state backend.

Rules of this module: it knows bytes and their order, nothing of states, keys or epochs. Wrap a store in a
`ByteStoreBackend` (`qstate.backends.byte_stores.backend`), which builds the five kinds of state on it.

Threads: one thread writes, takes snapshots and closes; any thread reads, from the store and from snapshots, while
it does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

__all__ = ["ByteSnapshot", "ByteStore"]


class ByteSnapshot(ABC):
    """The store's content at one moment, whatever is written afterwards."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries with `start <= key < stop`, in the order of their bytes."""

    @abstractmethod
    def close(self) -> None:
        """Free what the snapshot holds. Idempotent; called from any thread, by the last one that reads from it."""


class ByteStore(ABC):
    """An open store.

    S1: `write` MUST be atomic: a reader sees all of a batch or nothing of it.
    S2: `scan` MUST show the store of one moment, between its call and its first entry, and ignore later writes.
    S3: a snapshot MUST NOT change after `snapshot` returned.
    S4: after `close`, every method of the store and its snapshots MUST raise `ClosedError` or answer as before; it
        MUST NOT crash the process, whichever thread calls.
    S5: keys of any length up to a MiB, and values of any length, MUST come back as they were, and keys MUST differ
        wherever their bytes do.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    @abstractmethod
    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, or remove it where the value is None. Need not survive the process."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries with `start <= key < stop`, in the order of their bytes."""

    @abstractmethod
    def snapshot(self) -> ByteSnapshot:
        """The store as it is now. Taken once or twice per epoch, so it should cost no more than a batch."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. Idempotent; snapshots may still be open."""
