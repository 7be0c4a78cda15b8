"""What a client has learnt about states: where to ask for each, and how to read its answers.

Rules of this module: a cache without I/O. It makes no decision about when an entry is stale; whoever finds out
says so. Through the proxy a state is one pseudo-table that has the proxy as the owner of every key, so that
the same routing serves both ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qstate.keys import ColumnType, Key, KeyGroupRange, check_key, key_class
from qstate.protocol import Location
from qstate.runtime.location import LocationTable, Owner
from qstate.serializers import Serializer
from qstate.views import ViewMaker

__all__ = ["KnownState", "KnownStates"]


@dataclass(frozen=True, slots=True)
class KnownState:
    """One state as a client sees it. `key_class` is the type of its keys when they have one column."""

    table: LocationTable
    maker: ViewMaker
    key_types: tuple[ColumnType, ...] | None
    key_class: type | None

    def check_key(self, key: Key) -> None:
        """Raise `WrongKeyType` unless the state can have that key. Types this client does not know pass."""
        if type(key) is not self.key_class:
            check_key(key, self.key_types)


class KnownStates:
    """The states that a client has asked for, by job and name."""

    def __init__(self, proxy: tuple[str, int], *, direct: bool, serializers: Mapping[str, Serializer]) -> None:
        self._proxy = Owner(KeyGroupRange(0, 1), *proxy, b"")
        #: Who is asked where states are.
        self.proxy = proxy
        #: Whether the owners are asked for values, and not the proxy.
        self.direct = direct
        self._serializers = serializers
        self._known: dict[tuple[str, str], KnownState] = {}

    def find(self, job: str, state: str) -> KnownState | None:
        """What is known about a state, if anything."""
        return self._known.get((job, state))

    def find_target(self, target: tuple[str, str]) -> KnownState | None:
        """`find` by (job, state)."""
        return self._known.get(target)

    def learn(self, job: str, state: str, location: Location) -> KnownState:
        """Keep what a proxy answered. Raises `SerializationError` when this client cannot read the state."""
        types = _column_types(location.state)
        known = KnownState(
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

    def at_proxy(self, job: str, state: Mapping[str, Any]) -> LocationTable:
        """A table that sends everything to the proxy."""
        return LocationTable(job, state, 1, (self._proxy,))


def _column_types(state: Mapping[str, Any]) -> tuple[ColumnType, ...] | None:
    try:
        return tuple(map(ColumnType, state["key_types"]))
    except ValueError:
        return None
