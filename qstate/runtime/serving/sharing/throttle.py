"""Connections that are not read for a while, because their peers are over the request quota.

Rules of this module: it decides when a connection is read again, on the reactor's thread. The quota decides who waits.
It must not know what a connection has sent.

The connections of a peer wait in a queue. When the peer may go on, the first one is read, and what that takes is
charged before the next one's turn comes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from qstate.host.line_limit import limited
from qstate.runtime.net.reactor import Reactor
from qstate.runtime.serving.sharing.request_quota import RequestQuota

__all__ = ["Throttle", "Throttled"]

log = limited(logging.getLogger(__name__))

#: After a connection of a peer is read, the next one is, at the earliest.
TURN_S = 0.001
#: How often to look at a peer that waits: it may go on earlier when others owe nothing more.
LOOK_S = 0.05


class Throttled(Protocol):
    """A connection that can wait."""

    #: Whose quota it uses. It does not change while it waits.
    peer: str

    def read_on(self, waited_s: float) -> None:
        """Be read again. On the reactor's thread."""


class Throttle:
    """The connections of one endpoint that wait. `waited(seconds)` is told after each wait how long it was."""

    def __init__(self, quota: RequestQuota, reactor: Reactor, waited: Callable[[float], None]) -> None:
        self.quota = quota
        self._reactor = reactor
        self._waited = waited
        #: Peer -> its connections that wait, in their order, and since when.
        self._queues: dict[str, dict[Throttled, float]] = {}

    def wait(self, connection: Throttled) -> None:
        """The connection's peer is over the quota: call its `read_on` when it may go on. Any thread."""
        self._reactor.call_soon(self._wait, connection)

    def forget(self, connection: Throttled) -> None:
        """The connection is closed. On the reactor's thread."""
        self._queues.get(connection.peer, {}).pop(connection, None)

    def _wait(self, connection: Throttled) -> None:
        queue = self._queues.get(connection.peer)
        if queue is None:
            queue = self._queues[connection.peer] = {}
            log.info("%s is over query_quota: its connections are read more slowly", connection.peer)
            self._next_later(connection.peer)
        queue.setdefault(connection, self._reactor.clock())

    def _next_later(self, peer: str) -> None:
        delay_s = max(TURN_S, min(self.quota.wait_s(peer), LOOK_S))
        self._reactor.call_later(delay_s, partial(self._next, peer))

    def _next(self, peer: str) -> None:
        queue = self._queues[peer]
        if queue and not self.quota.wait_s(peer):
            connection = next(iter(queue))
            waited_s = self._reactor.clock() - queue.pop(connection)
            self._waited(waited_s)
            connection.read_on(waited_s)
        if queue:
            self._next_later(peer)
        else:
            del self._queues[peer]
