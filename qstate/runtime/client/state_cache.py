"""The state cache of a client: for each state, its location and its description.

Rules of this module: caches without I/O. The operations decide when an entry is stale. For a client that asks the
proxy, the location of a state is a pseudo-table with the proxy as the owner of every key, so that clients with and
without `direct` share the same routing.

A proxy's description of a state is valid as long as the connection that brought it: the next connection may lead to a
job that was restarted with another program. A direct client keeps its entries, because it asks by state id, and a state
id stands for one description of the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qstate.errors import WrongKeyType
from qstate.keys import ColumnType, Key, KeyGroupRange, check_key, key_class
from qstate.protocol import Location
from qstate.runtime.client.failover_plan import CircuitBreaker
from qstate.runtime.client.query import COMMITTED, Query
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.serializers import Serializer
from qstate.views import ViewMaker

__all__ = ["CachedState", "Endpoints", "StateCache"]


@dataclass(frozen=True, slots=True)
class CachedState:
    """The cached facts of one state. `key_class` is the type of its keys when they have one column."""

    table: LocationTable
    maker: ViewMaker
    key_types: tuple[ColumnType, ...] | None
    key_class: type | None

    def suits(self, key: Key) -> bool:
        """Whether the key has the types of the description. True for types that this client does not know."""
        try:
            check_key(key, self.key_types)
        except WrongKeyType:
            return False
        return True


class StateCache:
    """The states that a client has asked one proxy for, by job and name."""

    def __init__(self, proxy: tuple[str, int], *, direct: bool, serializers: Mapping[str, Serializer]) -> None:
        self._proxy = Owner(KeyGroupRange(0, 1), *proxy, b"")
        #: The address of the proxy that look-ups go to.
        self.proxy = proxy
        #: Whether gets go to the owners instead of the proxy.
        self.direct = direct
        self._serializers = serializers
        self._known: dict[tuple[str, str], CachedState] = {}

    def find(self, job: str, state: str) -> CachedState | None:
        """The entry of a state, or None; None for names that are not text."""
        return self._known.get((job, state)) if type(job) is str and type(state) is str else None

    def learn(self, job: str, state: str, location: Location) -> CachedState:
        """Add a proxy's answer to a Locate. Raises `SerializationError` when this client cannot read the state."""
        types = _column_types(location.state)
        known = CachedState(
            LocationTable.from_message(job, location) if self.direct else self.at_proxy(job, location.state),
            ViewMaker(location.state, self._serializers),
            types,
            key_class(types),
        )
        self._known[job, state] = known
        return known

    def drop(self, job: str, state: str, stale: LocationTable | None = None) -> None:
        """Remove the entry of a state; with `stale`, only if the entry still has that table."""
        known = self._known.get((job, state))
        if known is not None and (stale is None or known.table is stale):
            del self._known[job, state]

    def forget(self) -> None:
        """The connection to the proxy has ended: remove what it described. A direct client keeps its entries."""
        if not self.direct:
            self._known.clear()

    def at_proxy(self, job: str, state: Mapping[str, Any]) -> LocationTable:
        """A table with the proxy as the owner of every key."""
        return LocationTable(job, state, 1, (self._proxy,))


class Endpoints:
    """The endpoints of one client: the job's own proxy, then its fallbacks.

    Each has a state cache, and the job has a circuit breaker. Two endpoints may have the same address.
    """

    def __init__(self, caches: Sequence[StateCache]) -> None:
        self.caches = caches
        self.breaker = CircuitBreaker()
        self._reached: set[tuple[str, int]] = set()

    def find(self, job: str, state: str) -> CachedState | None:
        """The first cache's entry for a state, or None when no cache has one."""
        return next((known for cache in self.caches if (known := cache.find(job, state)) is not None), None)

    def may_answer(self, query: Query) -> bool:
        """Whether fallbacks may answer the query instead of the job."""
        return len(self.caches) > 1 and query.isolation == COMMITTED

    def is_new(self, host: str, port: int) -> bool:
        """Whether this is the address of a proxy that the client has never reached."""
        known = any(cache.proxy == (host, port) for cache in self.caches)
        return known and (host, port) not in self._reached

    def reached(self, host: str, port: int) -> None:
        """The peer at the address has sent a Welcome."""
        self._reached.add((host, port))

    def ended(self, host: str, port: int) -> None:
        """The connection to the address has ended, or gets no more requests."""
        for cache in self.caches:
            if cache.proxy == (host, port):
                cache.forget()


def _column_types(state: Mapping[str, Any]) -> tuple[ColumnType, ...] | None:
    try:
        return tuple(map(ColumnType, state["key_types"]))
    except ValueError:
        return None
