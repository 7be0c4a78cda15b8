"""The memory that the connections of an endpoint hold together: input that is no message yet, and unsent answers.

Rules of this module: it counts bytes and chooses who must give theirs up. It must not know what the bytes are, nor how
a connection ends.

When the budget is exceeded, the address whose connections hold most loses: its connection that has held memory longest
is given up. So clients of one address, however many, take nothing from a proxy or client on another one. The
proxies of the job lose only when no one else holds anything: clients of their own host have the same address. A client
that sends and reads as fast as it can holds memory for moments only, so it is not the one that has held it longest.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Protocol

__all__ = ["FREE_BYTES", "Holder", "MemoryBudget"]

#: What a connection may hold without being counted. Nearly all requests and answers are smaller.
FREE_BYTES = 16 * 1024


class Holder(Protocol):
    """A connection."""

    #: The host of its client.
    host: str
    #: Whether its client is a proxy of the job.
    is_proxy: bool

    def held_bytes(self) -> int:
        """How many bytes it holds now. Any thread."""

    def give_up_memory(self) -> None:
        """End, soon and with everything that it holds. Any thread; must not wait."""


class MemoryBudget:
    """At most `limit` bytes in all, beside those that are not counted. Any thread may call any method."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        #: The bytes that were last counted.
        self.total = 0
        self._most = 0
        #: In the order in which they began to hold memory.
        self._held: dict[Holder, int] = {}

    def hold(self, holder: Holder, size: int) -> None:
        """The holder holds so many bytes now. Tells the holder that must give up, perhaps this one."""
        with self._lock:
            self._set(holder, size)
            if self.total <= self._limit:
                return
            self._count_again()
            while self.total > self._limit:
                victim = self._longest_of_the_largest_host()
                self._drop(victim)
                victim.give_up_memory()

    def drop(self, holder: Holder) -> None:
        """The holder holds nothing that counts. Idempotent."""
        with self._lock:
            self._drop(holder)

    def has_fallen(self, from_bytes: int) -> bool:
        """Whether more than `from_bytes` were held since this was last True, and no more are held now."""
        with self._lock:
            self._count_again()
            fallen = self._most > from_bytes >= self.total
            if fallen:
                self._most = self.total
            return fallen

    def _count_again(self) -> None:
        """What was sent since it was counted is not held any more."""
        for each in list(self._held):
            self._set(each, each.held_bytes())

    def _set(self, holder: Holder, size: int) -> None:
        if size <= FREE_BYTES:
            self._drop(holder)
        else:
            self.total += size - self._held.get(holder, 0)
            self._held[holder] = size
            self._most = max(self._most, self.total)

    def _drop(self, holder: Holder) -> None:
        self.total -= self._held.pop(holder, 0)

    def _longest_of_the_largest_host(self) -> Holder:
        clients = [holder for holder in self._held if not holder.is_proxy] or list(self._held)
        by_host: Counter[str] = Counter()
        for holder in clients:
            by_host[holder.host] += self._held[holder]
        ((largest, _),) = by_host.most_common(1)
        return next(holder for holder in clients if holder.host == largest)
