"""The requests in flight of an endpoint: how many there are, what they cost, and which one is too many.

Rules of this module: it counts. It ends no request. Its endpoint holds a lock around each call.

Polls have the same limits as all other requests together, and are counted apart from these. A poll may wait for weeks,
and a poll that waits must not keep other requests from being answered.
"""

from __future__ import annotations

from typing import get_args

from qstate.protocol.connection import Served
from qstate.protocol.messages import Poll
from qstate.runtime.serving.client_connection import Call
from qstate.runtime.serving.sharing.memory_budget import FREE_BYTES

__all__ = ["InFlight"]

#: Proxies of the job have so much more room for requests in flight than all clients together.
PROXY_SHARE = 1.25


class _Load:
    """How many requests, and the sum of their costs."""

    __slots__ = ("cost", "count")

    def __init__(self) -> None:
        self.count = self.cost = 0


class InFlight:
    """At most `most` requests that together cost at most `most_bytes`, beside small ones; and as many polls."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._polls, self._others = _Load(), _Load()
        self._load_of: dict[type, _Load] = {**dict.fromkeys(get_args(Served), self._others), Poll: self._polls}

    @property
    def count(self) -> int:
        """How many requests were added and not removed."""
        return self._polls.count + self._others.count

    def add(self, call: Call) -> bool:
        """Count a request. Returns whether there is room for it; it counts in any case."""
        load = self._load_of[type(call.request)]
        share = PROXY_SHARE if call.connection.is_proxy else 1
        room = load.count < share * self._most
        load.count += 1
        load.cost += call.cost
        return room and (call.cost <= FREE_BYTES or load.cost <= share * self._most_bytes)

    def remove(self, call: Call) -> None:
        """A request was answered, or refused."""
        load = self._load_of[type(call.request)]
        load.count -= 1
        load.cost -= call.cost
