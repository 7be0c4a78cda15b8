"""The location of a state: a table of the owners of its key groups, and the interface that looks it up.

Rules of this module: it knows tables of owners and their form on the wire. It must not know how a table is found
(`LocationOracle` is only an interface here) or used (`routed_get` does that).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import groupby
from typing import Any, Protocol

from qstate.errors import ConfigError, QueryError, WrongKeyType
from qstate.keys import (
    ColumnType,
    Key,
    KeyGroupRange,
    all_of_class,
    check_key,
    check_max_parallelism,
    key_class,
    key_grouper,
)
from qstate.protocol.messages import Location

__all__ = ["UNSOUND_KEY", "LocationOracle", "LocationTable", "Owner", "column_types"]

#: The exceptions that hashing an unsound key raises.
UNSOUND_KEY = (AttributeError, TypeError, ValueError, struct.error)


@dataclass(frozen=True, slots=True)
class Owner:
    """A state server with a range of a state's key groups, and its id of the state.

    `host` and `port` are those where the proxy and direct clients reach the server; "0.0.0.0" is no such host.
    `state_id` is what `StateRegistry.register` returned.
    """

    key_groups: KeyGroupRange
    host: str
    port: int
    state_id: bytes
    #: (host, port)
    address: tuple[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", (self.host, self.port))


@dataclass(frozen=True, slots=True)
class LocationTable:
    """The owners of the key groups of one state. Groups without an owner are legal: their owner is restarting.

    `state` is the state's description on the wire, `StateInstance.describe()`. `max_parallelism` is the number of key
    groups, the same for every instance of the state. Several ranges may have one owner: the same address and state id.
    Immutable, so any thread may use it. Raises `ConfigError` when ranges overlap or exceed `max_parallelism`.

    `standbys` are state servers that have the committed state of key groups as well; their ranges may overlap.
    `others` is whom to ask for the key groups without an owner, whatever its own range; None: no one has them.
    """

    job: str
    state: Mapping[str, Any]
    max_parallelism: int
    owners: tuple[Owner, ...]
    standbys: tuple[Owner, ...] = ()
    others: Owner | None = None
    #: Whom to ask for committed state: this table, with standbys in the place of owners that are missing.
    committed: LocationTable = field(init=False, repr=False, compare=False)
    #: Whether standbys stand in the place of owners. Ask the oracle again soon: the owners may be back.
    borrows: bool = field(init=False, repr=False, compare=False)
    #: The owner of every group, which saves hashing keys; None when there are several owners or a gap.
    sole_owner: Owner | None = field(init=False, repr=False, compare=False)
    #: That of the description.
    fingerprint: str = field(init=False, repr=False, compare=False)
    _slots: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _group: Callable[[Key], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_max_parallelism(self.max_parallelism)
        slots = [-1] * self.max_parallelism
        first: dict[tuple[str, int, bytes], int] = {}
        for index, owner in enumerate(self.owners):
            groups = owner.key_groups
            if groups.stop > self.max_parallelism or any(slot >= 0 for slot in slots[groups.start : groups.stop]):
                raise ConfigError(f"key groups {groups} overlap another owner's or exceed {self.max_parallelism}")
            same = first.setdefault((owner.host, owner.port, owner.state_id), index)
            slots[groups.start : groups.stop] = [same] * len(groups)
        sole = self.owners[0] if len(first) == 1 and -1 not in slots else None if first else self.others
        object.__setattr__(self, "sole_owner", sole)
        object.__setattr__(self, "fingerprint", self.state.get("fingerprint", ""))
        object.__setattr__(self, "_slots", tuple(slots))
        object.__setattr__(self, "_group", key_grouper(self.max_parallelism))
        object.__setattr__(self, "borrows", False)
        object.__setattr__(self, "committed", self._with_standbys() if self.standbys and -1 in slots else self)

    def __reduce__(self) -> tuple[type[LocationTable], tuple[object, ...]]:
        return LocationTable, (self.job, self.state, self.max_parallelism, self.owners, self.standbys, self.others)

    def gaps(self) -> list[KeyGroupRange]:
        """The key groups without an owner."""
        return list(_ranges([group for group, slot in enumerate(self._slots) if slot < 0]))

    def _with_standbys(self) -> LocationTable:
        missing = {group for gap in self.gaps() for group in range(gap.start, gap.stop)}
        borrowed: list[Owner] = []
        for standby in self.standbys:
            found = sorted(missing.intersection(range(standby.key_groups.start, standby.key_groups.stop)))
            missing.difference_update(found)
            borrowed += (replace(standby, key_groups=groups) for groups in _ranges(found))
        if not borrowed:
            return self
        table = LocationTable(self.job, self.state, self.max_parallelism, (*self.owners, *borrowed))
        object.__setattr__(table, "borrows", True)
        return table

    def check_keys(self, keys: Sequence[Key]) -> None:
        """Raise `WrongKeyType` unless every key has the state's types. Leaves unknown types to the state server."""
        wanted = column_types(self.state)
        sole = key_class(wanted)
        if sole is not None and all_of_class(keys, sole):
            return
        for index, key in enumerate(keys):
            try:
                check_key(key, wanted)
            except WrongKeyType as exc:
                raise WrongKeyType(field="keys", index=index, expected=exc.details["expected"]) from None

    def split(self, keys: Sequence[Key]) -> list[tuple[Owner | None, list[int]]]:
        """The positions of `keys` by owner; the owner None is for keys without an owner.

        Raises one of `UNSOUND_KEY` when a key is unsound. Costs time for the keys, not for the owners.
        """
        slots, group = self._slots, self._group
        positions: dict[int, list[int]] = {}
        for position, key in enumerate(keys):
            slot = slots[group(key)]
            found = positions.get(slot)
            if found is None:
                positions[slot] = [position]
            else:
                found.append(position)
        owners = self.owners
        return [(owners[slot] if slot >= 0 else self.others, found) for slot, found in positions.items()]

    def of_groups(self) -> LocationTable:
        """This table for requests about key groups: what `split` takes for keys are the numbers of key groups.

        The last group stands for those after it, which have no keys.
        """
        last = self.max_parallelism - 1
        found = object.__new__(LocationTable)
        for one in fields(self):
            object.__setattr__(found, one.name, getattr(self, one.name))
        object.__setattr__(found, "_group", lambda group: min(group, last))
        return found

    def message(self, request_id: int) -> Location:
        """The answer to a Locate. The protocol requires the owners in ascending order."""
        rows = sorted(
            (owner.key_groups.start, owner.key_groups.stop, owner.host, owner.port, owner.state_id)
            for owner in self.owners
        )
        return Location(request_id, self.state, self.max_parallelism, tuple(rows))

    @classmethod
    def from_message(cls, job: str, message: Location) -> LocationTable:
        """The table in a peer's message. The protocol has checked it: ranges within bounds, without overlap."""
        owners = tuple(
            Owner(KeyGroupRange(start, stop), host, port, state_id)
            for start, stop, host, port, state_id in message.owners
        )
        return cls(job, message.state, message.max_parallelism, owners)


def column_types(state: Mapping[str, Any]) -> tuple[ColumnType, ...] | None:
    """The types of the key columns in a description; None for types that this version does not know."""
    try:
        return tuple(map(ColumnType, state.get("key_types", ()))) or None
    except ValueError:
        return None


def _ranges(groups: Sequence[int]) -> Iterator[KeyGroupRange]:
    """The ranges of ascending key groups."""
    for _, run in groupby(enumerate(groups), key=lambda entry: entry[1] - entry[0]):
        found = [group for _, group in run]
        yield KeyGroupRange(found[0], found[-1] + 1)


class LocationOracle(Protocol):
    """Looks up the locations of the states of one job. A proxy calls it; any class with these methods is an oracle.

    Both methods return at once. The oracle calls `reply` exactly once, from any thread, with the answer or with an
    error: `UnknownState`, or `UnknownKeyGroupLocation` when the location is not known at the moment; the proxy or its
    client then asks again. `reply` does not block.

    The proxy calls it on its `query_threads` lookup threads, several at the same time; an oracle that blocks delays the
    lookups of all jobs, but no get whose location is known. The proxy asks once for all gets that wait for a location,
    and keeps the answer until a state server refuses it or cannot be reached, or until the oracle is replaced. A get
    that has no answer by its deadline fails with DEADLINE_EXCEEDED.

    A method that raises a `QueryError` has answered with it. Any other exception is logged, and the gets that wait fail
    with INTERNAL.
    """

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        """Look up the location of the queryable state of that name."""

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        """List the job's queryable states, as description maps: `StateInstance.describe()` of each name once."""
