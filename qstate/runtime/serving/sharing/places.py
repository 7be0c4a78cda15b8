"""The places for the connections of an endpoint: who has one, and who loses it to a new connection.

Rules of this module: it counts connections and chooses among them. It accepts none and ends none. Its endpoint holds a
lock around each call.

Proxies of the job take no place, so clients, however many, do not shut them out. A new connection shows only with its
Hello that it is a proxy's. So when no place is left, some connections may present themselves all the same: they are
beside the places, and only proxies stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from ipaddress import ip_address
from operator import attrgetter
from typing import NamedTuple

from qstate.runtime.serving.client_connection import AcceptedConnection

__all__ = ["IDLE_S", "Place", "Places"]

#: A connection that was idle for so long may be replaced by a new one when all places are taken.
IDLE_S = 1.0
#: So many connections may present themselves at a time when all places are taken.
MOST_BESIDE = 64

_active_at = attrgetter("active_at")


class Place(NamedTuple):
    """Where a new connection goes. `of`: the connection that it replaces. `beside`: it must be a proxy's to stay."""

    of: AcceptedConnection | None = None
    beside: bool = False


class Places:
    """`most` places, of which the clients of one address take `most_of_address`, 0 for the default.

    With `for_proxies`, connections of proxies take none.
    """

    def __init__(self, most: int, most_of_address: int, *, for_proxies: bool, clock: Callable[[], float]) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._for_proxies = for_proxies
        self._clock = clock
        self.connections: set[AcceptedConnection] = set()
        self._beside: set[AcceptedConnection] = set()
        #: How many places each address has taken.
        self._hosts: Counter[str] = Counter()
        #: Those with a place whose clients have not presented themselves, in the order in which they came. The oldest
        #: is found at once, however many come.
        self._newcomers: dict[AcceptedConnection, None] = {}

    def find(self, host: str) -> Place | None:
        """The place of a new connection from this address, None if there is none."""
        crowded = self._hosts[host] >= self._most_of(host)
        if not crowded and len(self.connections) - len(self._beside) < self._most:
            return Place()
        replaced = self._oldest_newcomer(host if crowded else None) or self._longest_idle(host if crowded else None)
        if replaced is not None:
            return Place(of=replaced)
        if not self._for_proxies:
            return None
        waiting = [each for each in self._beside if not each.is_proxy]
        oldest = min(waiting, key=_active_at) if len(waiting) >= MOST_BESIDE else None
        return Place(of=oldest, beside=True)

    def add(self, connection: AcceptedConnection, *, beside: bool) -> None:
        """The connection is open."""
        self.connections.add(connection)
        if beside:
            self._beside.add(connection)
        else:
            self._hosts[connection.host] += 1
            self._newcomers[connection] = None

    def remove(self, connection: AcceptedConnection) -> None:
        """The connection is closed or about to be. Idempotent."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        if connection in self._beside:
            self._beside.remove(connection)
        else:
            self._leave(connection)

    def presented(self, connection: AcceptedConnection) -> bool:
        """Whether the connection stays now that its client has presented itself."""
        beside = connection in self._beside
        if connection.is_proxy and not beside and connection in self.connections:
            self._beside.add(connection)
            self._leave(connection)
        self._newcomers.pop(connection, None)
        return connection.is_proxy or not beside

    def _leave(self, connection: AcceptedConnection) -> None:
        """The connection takes no place any more."""
        host = connection.host
        self._newcomers.pop(connection, None)
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]

    def _oldest_newcomer(self, host: str | None) -> AcceptedConnection | None:
        """Of this address, None for all."""
        return next((each for each in self._newcomers if host in (None, each.host)), None)

    def _longest_idle(self, host: str | None) -> AcceptedConnection | None:
        """Of this address, None for all."""
        until = self._clock() - IDLE_S
        taken = (each for each in self.connections - self._beside if host in (None, each.host))
        idle = (each for each in taken if not each.in_flight and each.active_at <= until)
        return min(idle, key=_active_at, default=None)

    def _most_of(self, host: str) -> int:
        """How many places the clients of one address may have."""
        if self._most_of_address:
            return self._most_of_address
        return self._most if _is_loopback(host) else max(1, self._most // 2)


@lru_cache
def _is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback
