"""The connections of a proxy to the state servers: for each server, some for each address of clients.

Rules of this module: it keeps connections and chooses among them. It must not know what they are used for, nor how one
is made. Only the thread that drives the proxy's reactor may use it.

A state server charges what a request takes to the address that it comes from (see `request_quota`), and reads
connections of an address that has taken too much more slowly. So the requests of two addresses must not share a
connection: one would wait for the other. The proxy says in its Hello for which address it asks, and the server takes
its word if it has proved that it is a proxy of the job.
"""

from __future__ import annotations

from collections.abc import Callable

from qstate.runtime.net.reactor import Reactor
from qstate.runtime.routing.pipelined_connection import Peers
from qstate.runtime.serving.owner_connection import OwnerConnection

__all__ = ["MOST_APART", "OwnerConnections"]

#: So many addresses have connections of their own to a server. Those of further ones share, while these are busy.
MOST_APART = 16
#: The address in the place of those that share.
_SHARED = ""

_Connections = dict[str, list[OwnerConnection]]


class OwnerConnections(Peers):
    """`connect(host, port, origin, peers)` makes a connection for requests of clients at `origin`, "" for all.

    Each connection has `most_in_flight` requests at a time, None for any number. With `apart`, addresses of clients
    have connections of their own.
    """

    def __init__(
        self,
        reactor: Reactor,
        connect: Callable[[str, int, str, Peers], OwnerConnection],
        *,
        apart: bool,
        most_in_flight: int | None = None,
    ) -> None:
        self._reactor = reactor
        self._connect = connect
        self._apart = apart
        self._most_in_flight = most_in_flight
        #: Server -> address -> its connections. The addresses are in the order in which they were used last.
        self._open: dict[tuple[str, int], _Connections] = {}

    def find(self, host: str, port: int, origin: str) -> OwnerConnection:
        """A connection to a server for a request of a client: an open one, or a new one."""
        known = self._open.setdefault((host, port), {})
        name = origin if self._apart and (origin in known or self._has_room(known)) else _SHARED
        connections = known.pop(name, [])
        for connection in connections:
            connection.notice_end()
        connections = known[name] = [one for one in connections if one.takes_requests]
        most = self._most_in_flight
        free = next((one for one in connections if most is None or one.in_flight < most), None)
        if free is None:
            free = self._connect(host, port, name, self)
            connections.append(free)
        return free

    def _has_room(self, known: _Connections) -> bool:
        """Whether there is room for another address, after one that asks for nothing has given way."""
        if len(known) - (_SHARED in known) < MOST_APART:
            return True
        for name, connections in known.items():
            if name != _SHARED and not any(one.in_flight for one in connections):
                del known[name]
                for connection in connections:
                    connection.unreachable("it is not needed", self._reactor.clock())
                return True
        return False

    def _forget_ended(self, host: str, port: int) -> None:
        known = self._open.pop((host, port), {})
        left = {name: [one for one in connections if one.takes_requests] for name, connections in known.items()}
        kept = {name: connections for name, connections in left.items() if connections}
        if kept:
            self._open[host, port] = kept

    # `Peers`: the oracle says where the owners are, so nothing is kept of those that were reached.

    def is_new(self, host: str, port: int) -> bool:
        return False

    def reached(self, host: str, port: int) -> None:
        """Nothing to do."""

    def declined(self, host: str, port: int, now: float) -> None:
        """Nothing to do."""

    def ended(self, host: str, port: int, now: float) -> None:
        self._reactor.call_soon(self._forget_ended, host, port)  # the connection still takes requests now
