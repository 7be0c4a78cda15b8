"""The places for the connections of an endpoint: who has one, and who loses it to a new connection.

Rules of this module: it counts connections and chooses among them. It accepts none and ends none. Its endpoint holds a
lock around each call.

Proxies of the job take no place, so clients, however many, do not shut them out. A new connection shows only with its
Hello that it is a proxy's. So when no place is left, some connections may present themselves all the same: they are
beside the places, and only proxies stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import ip_address
from operator import attrgetter
from typing import NamedTuple

from qstate.protocol.connection import ConnectionState
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

    def find(self, host: str) -> Place | None:
        """The place of a new connection from this address, None if there is none."""
        crowded = self._hosts[host] >= self._most_of(host)
        if not crowded and len(self.connections) - len(self._beside) < self._most:
            return Place()
        taken = self.connections - self._beside
        idle = _longest_idle((each for each in taken if not crowded or each.host == host), self._clock())
        if idle is not None:
            return Place(of=idle)
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

    def remove(self, connection: AcceptedConnection) -> None:
        """The connection is closed or about to be. Idempotent."""
        if connection not in self.connections:
            return
        self.connections.remove(connection)
        if connection in self._beside:
            self._beside.remove(connection)
        else:
            self._leave(connection.host)

    def presented(self, connection: AcceptedConnection) -> bool:
        """Whether the connection stays now that its client has presented itself."""
        beside = connection in self._beside
        if connection.is_proxy and not beside and connection in self.connections:
            self._beside.add(connection)
            self._leave(connection.host)
        return connection.is_proxy or not beside

    def _leave(self, host: str) -> None:
        self._hosts[host] -= 1
        if not self._hosts[host]:
            del self._hosts[host]

    def _most_of(self, host: str) -> int:
        """How many places the clients of one address may have."""
        if self._most_of_address:
            return self._most_of_address
        return self._most if _is_loopback(host) else max(1, self._most // 2)


@lru_cache
def _is_loopback(host: str) -> bool:
    return ip_address(host).is_loopback


def _longest_idle(connections: Iterable[AcceptedConnection], now: float) -> AcceptedConnection | None:
    """The connection to replace: the oldest one without a handshake, else the one that has been idle longest."""
    connections = list(connections)
    waiting = [connection for connection in connections if connection.protocol.state is ConnectionState.HANDSHAKE]
    idle = waiting or [
        connection for connection in connections if not connection.in_flight and connection.active_at <= now - IDLE_S
    ]
    return min(idle, key=_active_at, default=None)
