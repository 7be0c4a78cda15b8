"""The state cache of a client: for each state, its location and its description.

Rules of this module: caches without I/O. The operations decide when an entry is stale, and `Links` connects to owners.

Whom to ask for a key is always said by a table of owners, so that all clients share the same routing. The proxy takes
the place of owners that are not to be asked: of all of them (`Way.PROXY`), or of those to which the client has no
connection (`Way.REACHED`).

An entry may outlive the job that it describes: values have the fingerprint of the description that they are to be read
by, so a value of another one shows that the entry is stale.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from qstate.errors import WrongKeyType
from qstate.keys import ColumnType, Key, KeyGroupRange, check_key, key_class
from qstate.protocol.messages import Location
from qstate.runtime.client.failover_plan import CircuitBreaker
from qstate.runtime.client.proxies import Proxies, ResolvedAddresses
from qstate.runtime.client.query import COMMITTED, Query
from qstate.runtime.routing.location import LocationTable, Owner, column_types
from qstate.serializers import Serializer
from qstate.views import ViewMaker

__all__ = ["MOST_OWNERS", "CachedState", "Endpoints", "StateCache", "Way"]

#: The most addresses of one state's owners that a client connects to beside its gets.
MOST_OWNERS = 128
#: How long a client asks the proxy instead of an owner whose connection has ended or could not be made. The time
#: doubles with each failure in a row.
RETRY_OWNER_S = 1.0
LONGEST_RETRY_OWNER_S = 60.0

Address = tuple[str, int]


class Way(Enum):
    """Whom a client asks for values."""

    PROXY = "proxy"
    OWNERS = "owners"
    #: The owners to which it has a connection, and the proxy for the keys of the others.
    REACHED = "reached"


@dataclass(frozen=True, slots=True)
class CachedState:
    """The cached facts of one state.

    `table` says whom to ask; `location` has the owners, or the proxy where only that is asked. At `expires_at` it is
    time to look the state up again. `key_class` is the type of the keys when they have one column.
    """

    table: LocationTable
    location: LocationTable
    expires_at: float
    maker: ViewMaker
    key_types: tuple[ColumnType, ...] | None
    key_class: type | None
    #: The number of key groups, which `table` has only where owners are asked.
    max_parallelism: int

    @property
    def fingerprint(self) -> str:
        """That of the description."""
        return str(self.location.state["fingerprint"])

    def suits(self, key: Key) -> bool:
        """Whether the key has the types of the description. True for types that this client does not know."""
        try:
            check_key(key, self.key_types)
        except WrongKeyType:
            return False
        return True


class StateCache:
    """The states that a client has asked the proxies of one job for, by job and name."""

    def __init__(self, proxies: Proxies, *, way: Way, serializers: Mapping[str, Serializer]) -> None:
        #: The proxies that look-ups go to.
        self.proxies = proxies
        self.way = way
        self._serializers = serializers
        self._known: dict[tuple[str, str], CachedState] = {}
        #: The addresses of peers to which there is a connection.
        self._reached: set[Address] = set()
        #: By the address of a peer that could not be reached: how often in a row, and when to try again.
        self._failed: dict[Address, tuple[int, float]] = {}

    def find(self, job: str, state: str) -> CachedState | None:
        """The entry of a state, or None; None for names that are not text."""
        return self._known.get((job, state)) if type(job) is str and type(state) is str else None

    def learn(self, job: str, state: str, location: Location, now: float) -> CachedState:
        """Add a proxy's answer to a Locate. Raises `SerializationError` when this client cannot read the state."""
        types = column_types(location.state)
        proxied = self.way is Way.PROXY
        owners = self.at_proxy(job, location.state) if proxied else LocationTable.from_message(job, location)
        maker = ViewMaker(location.state, self._serializers)
        failed = (self._failed[owner.address][1] for owner in owners.owners if owner.address in self._failed)
        missing = (now + RETRY_OWNER_S,) if owners.gaps() else ()
        expires_at = min((*failed, *missing), default=math.inf)
        known = CachedState(
            self._table(owners), owners, expires_at, maker, types, key_class(types), location.max_parallelism
        )
        self._known[job, state] = known
        return known

    def unreached(self, known: CachedState, now: float) -> list[Address]:
        """The addresses of owners to which to connect beside the gets."""
        if self.way is not Way.REACHED:
            return []
        owners = list(dict.fromkeys(owner.address for owner in known.location.owners))[:MOST_OWNERS]
        return [one for one in owners if one not in self._reached and self._failed.get(one, (0, now))[1] <= now]

    def drop(self, job: str, state: str) -> None:
        """Remove the entry of a state, if there is one."""
        self._known.pop((job, state), None)

    def reached(self, address: Address) -> None:
        """There is a connection to a peer."""
        self._reached.add(address)
        self._failed.pop(address, None)
        if self.way is Way.REACHED:
            for target, known in self._known.items():
                if _names(known, address):
                    self._known[target] = replace(known, table=self._table(known.location))

    def ended(self, address: Address, now: float) -> None:
        """The connection to a peer has ended or could not be made, or gets no more requests."""
        self._reached.discard(address)
        if self.way is Way.REACHED:
            failures = self._failed.get(address, (0, now))[0] + 1
            pause_s = min(LONGEST_RETRY_OWNER_S, RETRY_OWNER_S * (1 << min(failures - 1, 10)))
            self._failed[address] = failures, now + pause_s
            for target, known in list(self._known.items()):
                if _names(known, address):
                    del self._known[target]

    def at_proxy(self, job: str, state: Mapping[str, Any]) -> LocationTable:
        """A table with the proxy as the owner of every key: whichever proxy is current when a request is sent."""
        return LocationTable(job, state, 1, (Owner(KeyGroupRange(0, 1), *self.proxies.current, b""),))

    def _table(self, location: LocationTable) -> LocationTable:
        """Whom to ask for the keys of a state.

        The proxy also takes the place of an owner that is missing: it may know a standby, and waits otherwise. A state
        may have ten thousand owners, and this is called for each one that is reached: so it looks at each owner once,
        and the table has only those that were reached.
        """
        if self.way is not Way.REACHED:
            return location
        reached = tuple(owner for owner in location.owners if owner.address in self._reached)
        if len(reached) == len(location.owners) and not location.gaps():
            return location
        proxy = Owner(KeyGroupRange(0, location.max_parallelism), *self.proxies.current, b"")
        return LocationTable(location.job, location.state, location.max_parallelism, reached, others=proxy)


class Endpoints:
    """The endpoints of one client: the job's own proxies, then its fallbacks.

    Each has a state cache, and the job has a circuit breaker. Two endpoints may have the same address.
    """

    def __init__(self, caches: Sequence[StateCache]) -> None:
        self.caches = caches
        self.breaker = CircuitBreaker()
        self.addresses = ResolvedAddresses()

    def find(self, job: str, state: str) -> CachedState | None:
        """The first cache's entry for a state, or None when no cache has one."""
        return next((known for cache in self.caches if (known := cache.find(job, state)) is not None), None)

    def may_answer(self, query: Query) -> bool:
        """Whether fallbacks may answer the query instead of the job."""
        return len(self.caches) > 1 and query.isolation == COMMITTED

    def has_others(self, host: str, port: int) -> bool:
        """Whether a proxy may be left for another one: the list has several, or its name has several addresses."""
        return self.addresses.several(host) or any(
            cache.proxies.several and (host, port) in cache.proxies for cache in self.caches
        )

    def is_new(self, host: str, port: int) -> bool:
        """Whether this is the address of a proxy, and neither it nor another one of its list was ever reached."""
        return any((host, port) in cache.proxies and cache.proxies.hopeless for cache in self.caches)

    def reached(self, host: str, port: int) -> None:
        """The peer at the address has sent a Welcome."""
        for cache in self.caches:
            cache.proxies.reached((host, port))
            cache.reached((host, port))

    def ended(self, host: str, port: int, now: float) -> None:
        """The connection to the address has ended or could not be made, or gets no more requests."""
        for cache in self.caches:
            cache.proxies.failed((host, port), now)
            cache.ended((host, port), now)

    def declined(self, host: str, port: int, now: float) -> None:
        """The peer at the address has answered that it shuts down or is overloaded."""
        for cache in self.caches:
            cache.proxies.failed((host, port), now)


def _names(known: CachedState, address: Address) -> bool:
    return any(owner.address == address for owner in known.location.owners)
