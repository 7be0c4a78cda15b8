"""An ordered key-value store of bytes: the interface that a third party implements to get a full state backend.

Rules of this module: it knows bytes and their order, and no states, keys or epochs. Wrap a store in a
`ByteStoreBackend` (`qstate.backends.byte_stores.backend`), which builds the five kinds of state on it.

Threads: one thread writes, takes snapshots and closes. Any thread may read the store and its snapshots at the same
time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["ByteSnapshot", "ByteStore"]


class ByteSnapshot(ABC):
    """The store's content at one moment; later writes do not change it."""

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries with `start <= key < stop`, in the order of their bytes."""

    @abstractmethod
    def close(self) -> None:
        """Free the snapshot's resources. Idempotent; the last reader calls it, from any thread."""


class ByteStore(ABC):
    """An open store.

    S1: `write` MUST be atomic: a reader sees all of a batch or nothing of it.
    S2: `scan` MUST show the store of one moment, between its call and its first entry, and ignore later writes.
    S3: A snapshot MUST NOT change after `snapshot` returned.
    S4: After `close`, every method of the store and its snapshots MUST raise `ClosedError` or answer as before; it
        MUST NOT crash the process, whichever thread calls.
    S5: Keys of any length up to a MiB, and values of any length, MUST be read back unchanged. Keys with different bytes
        MUST be different keys.
    S6: A store that is larger than memory MUST read the entries of a `scan` in parts, also those of a snapshot.
    S7: `get_many` MUST return what `get` of each key returns, in their order.
    """

    @abstractmethod
    def get(self, key: bytes) -> bytes | None:
        """The value of a key, or None."""

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """`get` of each key, in their order."""
        return list(map(self.get, keys))

    @abstractmethod
    def write(self, batch: Mapping[bytes, bytes | None]) -> None:
        """Set each key to its value, or remove it if the value is None. The write need not survive the process."""

    @abstractmethod
    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries with `start <= key < stop`, in the order of their bytes."""

    @abstractmethod
    def snapshot(self) -> ByteSnapshot:
        """The store as it is now. The backend takes one or two in an epoch, so one should cost no more than a batch."""

    def estimate(self) -> tuple[int | None, int | None]:
        """About how many entries the store has, and how many bytes of memory and disk they take; None: unknown.

        For metrics: it is called about once an epoch, so it must not take longer with more entries.
        """
        return None, None

    @abstractmethod
    def close(self) -> None:
        """Free all resources. Idempotent; snapshots may still be open."""
