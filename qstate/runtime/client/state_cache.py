"""What a client has learnt about states: where to ask for each, and how to read its answers.

Rules of this module: a cache without I/O. It makes no decision about when an entry is stale: the finder says so.
Through the proxy a state is one pseudo-table that has the proxy as the owner of every key, so that the same
routing serves both ways.

What a proxy says of a state holds for the connection that it said it on: behind the next one there may be a job that
was started again with another program. A client that asks the owners may keep it, for the state ids that it asks by
stand for the state as it was described.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qstate.errors import WrongKeyType
from qstate.keys import ColumnType, Key, KeyGroupRange, check_key, key_class
from qstate.protocol import Location
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.serializers import Serializer
from qstate.views import ViewMaker

__all__ = ["AddressBook", "CachedState", "StateCache"]


@dataclass(frozen=True, slots=True)
class CachedState:
    """One state as a client sees it. `key_class` is the type of its keys when they have one column."""

    table: LocationTable
    maker: ViewMaker
    key_types: tuple[ColumnType, ...] | None
    key_class: type | None

    def suits(self, key: Key) -> bool:
        """Whether the state could have that key when it was described. Types this client does not know pass."""
        try:
            check_key(key, self.key_types)
        except WrongKeyType:
            return False
        return True


class StateCache:
    """The states that a client has asked for, by job and name."""

    def __init__(self, proxy: tuple[str, int], *, direct: bool, serializers: Mapping[str, Serializer]) -> None:
        self._proxy = Owner(KeyGroupRange(0, 1), *proxy, b"")
        #: Who is asked where states are.
        self.proxy = proxy
        #: Whether the owners are asked for values, and not the proxy.
        self.direct = direct
        self._serializers = serializers
        self._known: dict[tuple[str, str], CachedState] = {}

    def find(self, job: str, state: str) -> CachedState | None:
        """What is known about a state, if anything."""
        return self._known.get((job, state))

    def find_target(self, target: tuple[str, str]) -> CachedState | None:
        """`find` by (job, state)."""
        return self._known.get(target)

    def learn(self, job: str, state: str, location: Location) -> CachedState:
        """Keep what a proxy answered. Raises `SerializationError` when this client cannot read the state."""
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
        """Forget a state; when `stale` is given, only if that is still what is known."""
        known = self._known.get((job, state))
        if known is not None and (stale is None or known.table is stale):
            del self._known[job, state]

    def forget(self) -> None:
        """The connection to the proxy has ended, and with it what was said on it."""
        if not self.direct:
            self._known.clear()

    def at_proxy(self, job: str, state: Mapping[str, Any]) -> LocationTable:
        """A table that sends everything to the proxy."""
        return LocationTable(job, state, 1, (self._proxy,))


class AddressBook:
    """The proxies that a client may ask: what was learnt from each, and whether it was ever reached."""

    def __init__(self, caches: Sequence[StateCache]) -> None:
        self._caches: dict[tuple[str, int], list[StateCache]] = {}
        for cache in caches:
            self._caches.setdefault(cache.proxy, []).append(cache)
        self._reached: set[tuple[str, int]] = set()

    def is_new(self, host: str, port: int) -> bool:
        """Whether this is a proxy that was never reached."""
        return (host, port) in self._caches and (host, port) not in self._reached

    def reached(self, host: str, port: int) -> None:
        """The address has answered in the protocol."""
        self._reached.add((host, port))

    def ended(self, host: str, port: int) -> None:
        """The connection to the address has ended, or is not used any more."""
        for cache in self._caches.get((host, port), ()):
            cache.forget()


def _column_types(state: Mapping[str, Any]) -> tuple[ColumnType, ...] | None:
    try:
        return tuple(map(ColumnType, state["key_types"]))
    except ValueError:
        return None
