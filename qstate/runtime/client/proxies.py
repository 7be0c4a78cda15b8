"""The proxies of one job: which of them requests go to now, and which are left alone for a while.

Rules of this module: decisions only. It opens no socket, reads no clock (every event brings the time) and draws its
jitter from a generator it is given.

A client stays with the proxy that answers. When that one fails, the next one in the list follows. A proxy that has
failed is left alone for a pause, which doubles with each failure in a row: so however many requests wait, each address
gets one connection at a time, and few while it is down. With one proxy there are no pauses: each request waits by
itself.

A name of the list may have several addresses. `ResolvedAddresses` orders them for the next connection: the address
that failed last comes last.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from random import Random
from typing import Any

from qstate.errors import Detail

__all__ = ["FIRST_PAUSE_S", "LONGEST_PAUSE_S", "Proxies", "ResolvedAddresses"]

#: How long a proxy is left alone after a failure, less a random part of up to a half.
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0

Address = tuple[str, int]


class Proxies:
    """The addresses of the proxies of one job. Not thread-safe."""

    __slots__ = ("_addresses", "_at", "_failures", "_not_before", "_random", "_reached", "may_be_several")

    def __init__(self, addresses: Sequence[Address], random: Random) -> None:
        """Clients that share a list begin at random places of it, so they share the proxies' work."""
        self._addresses = list(dict.fromkeys(addresses))
        self._random = random
        self._at = random.randrange(len(self._addresses)) if self.several else 0
        #: By address: how many failures in a row, and until when to leave it alone.
        self._failures: dict[Address, int] = {}
        self._not_before: dict[Address, float] = {}
        self._reached = False
        #: Whether there may be another one: the list has several, or its one host is a name.
        self.may_be_several = self.several or not _is_numeric(self._addresses[0][0])

    def __contains__(self, address: object) -> bool:
        return address in self._addresses

    def __iter__(self) -> Iterator[Address]:
        return iter(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)

    @property
    def several(self) -> bool:
        """Whether there is another proxy to go to."""
        return len(self._addresses) > 1

    @property
    def current(self) -> Address:
        """The proxy that requests go to, or the last one that failed."""
        return self._addresses[self._at]

    @property
    def hopeless(self) -> bool:
        """Whether no proxy was ever reached, although each was tried."""
        return not self._reached and all(address in self._failures for address in self._addresses)

    def choose(self, now: float) -> Address | None:
        """The proxy for a request: the current one, or the next one that may be tried; None while all have pauses."""
        if not self._failures:
            return self._addresses[self._at]
        for step in range(len(self._addresses)):
            place = (self._at + step) % len(self._addresses)
            if self._not_before.get(self._addresses[place], -math.inf) <= now:
                self._at = place
                return self._addresses[place]
        return None

    def reached(self, address: Address) -> None:
        """The proxy has sent a Welcome."""
        if address in self._addresses:
            self._reached = True
            self._failures.pop(address, None)
            self._not_before.pop(address, None)

    def failed(self, address: Address, now: float) -> None:
        """The connection to the proxy has ended or could not be made, or the proxy refuses requests for a while."""
        if address not in self._addresses:
            return
        long_ago = now - self._not_before.get(address, -math.inf) > LONGEST_PAUSE_S
        failures = 1 if long_ago else self._failures[address] + 1
        self._failures[address] = failures
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * (1 << min(failures - 1, 10)))
        pause_s = longest * (1.0 - self._random.random() / 2) if self.several else 0.0
        self._not_before[address] = now + pause_s

    def pausing(self) -> Mapping[str, Detail]:
        """The details of a request that finds no proxy to go to."""
        host, port = self.current
        reason = f"none of the {len(self._addresses)} proxies can be reached; the next try follows"
        return {"host": host, "port": port, "reason": reason, "connected": False}


class ResolvedAddresses:
    """What a client knows of the addresses of names that have several. Not thread-safe."""

    __slots__ = ("_failed_at",)

    def __init__(self) -> None:
        #: By name: when the connection to each of its addresses ended or could not be made.
        self._failed_at: dict[str, dict[Any, float]] = {}

    def several(self, host: str) -> bool:
        """Whether the name has several addresses of one family. One of IPv4 and one of IPv6 are the same host."""
        return host in self._failed_at

    def ordered(self, host: str, found: Iterable[Any]) -> list[Any]:
        """The entries of `getaddrinfo` for a name, in the order in which to try them."""
        entries = list(dict.fromkeys(found))
        failed = self._failed_at.pop(host, {})
        if max(Counter(entry[0] for entry in entries).values(), default=0) > 1:
            self._failed_at[host] = {entry[4]: failed.get(entry[4], -math.inf) for entry in entries}
        return sorted(entries, key=lambda entry: failed.get(entry[4], -math.inf))

    def failed(self, host: str, address: Any, now: float) -> None:
        """The connection to an address of the name has ended or could not be made."""
        if address in self._failed_at.get(host, ()):
            self._failed_at[host][address] = now


def _is_numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
