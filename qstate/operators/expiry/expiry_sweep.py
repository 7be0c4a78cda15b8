"""Removes the expired values of states with a time-to-live in the background: a part of the state in each epoch.

Rules of this module: it uses the backend's contract alone, on the operator's thread. Its removals are writes of the
running epoch like the function's, so they are logged, rolled back and restored with it. They happen at the end of the
epoch, so they do not change what the function sees in it.

A walk visits the committed entries, a number of them in each epoch, and a new walk begins when one ends. So an expired
value is removed at the latest by the end of the next whole walk: after 2 * ceil(entries / most) + 1 epochs.

An epoch also visits `VISITS_PER_WRITE` more entries for each value that the function wrote in it. So the state stays
bounded however fast it is written: in a steady job, expired entries take no more room than current ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from qstate.backends.answers import unpack_elements
from qstate.backends.contract import Change, StateBackend, StateTable, Wanted
from qstate.descriptors import StateKind
from qstate.keys import KeyGroupRange, Namespace, decode_key
from qstate.values.ttl import is_expired, time_of

__all__ = ["ExpiringState", "ExpirySweep", "WriteCount"]

#: With v visits for each new entry, a share of 1/v of all entries has expired when as many expire as are removed.
VISITS_PER_WRITE = 2


class WriteCount:
    """How many values with a time the function has written since the count was last set to zero."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@dataclass(frozen=True, slots=True)
class ExpiringState:
    """A state with a time-to-live: `table` gives the backend's tables, whose values are pairs (time, value)."""

    name: str
    kind: StateKind
    duration_ms: int
    table: Callable[[Namespace], StateTable]


class ExpirySweep:
    """The removal of one subtask's expired values. Without states it does nothing."""

    def __init__(
        self,
        backend: StateBackend,
        key_groups: KeyGroupRange,
        states: Mapping[str, ExpiringState],
        *,
        most: int,
        writes: WriteCount,
    ) -> None:
        """`states` by name; more may be added before the first run.

        `most`: the number of entries to visit in an epoch without writes; 0: the sweep does nothing.
        """
        self._backend = backend
        self._key_groups = key_groups
        self._states = states
        self._most = most
        self._writes = writes
        self._now_ms = 0
        self._walk: Iterator[Change | None] = iter(())
        #: The entries that the last run removed, without their data, and those to remove once more after a rollback.
        self._removed: list[Change] = []
        self._again: list[Change] = []

    def run(self, now_ms: int) -> None:
        """Visit the next entries, and remove what has expired at `now_ms`."""
        self._removed = []
        if not self._states or not self._most:
            return
        visits = self._most + VISITS_PER_WRITE * self._writes.count
        self._writes.count = 0
        self._now_ms = now_ms
        again, self._again = self._again, []
        for change in chain(again, islice(self._next_entries(), max(visits - len(again), 0))):
            if change is not None:
                self._removed.append(change._replace(data=b""))
                _remove(change, self._states[change.state], now_ms)

    def discard(self) -> None:
        """The epoch of the last run is abandoned: the next run removes once more what that one removed."""
        self._again, self._removed = self._removed, []
        self._writes.count = 0

    def _next_entries(self) -> Iterator[Change | None]:
        """The rest of the walk, then one more walk from the beginning. An entry is None unless it has expired."""
        for change in self._walk:  # not `yield from`, which would close the walk when the caller has read enough
            yield change
        wanted = {name: self._expiry_test(state) for name, state in self._states.items()}
        self._walk = self._backend.walk(wanted, self._key_groups)
        for change in self._walk:
            yield change

    def _expiry_test(self, state: ExpiringState) -> Wanted:
        """Whether an entry, or an element of a list, has expired at the time of the running epoch."""
        duration_ms = state.duration_ms
        if state.kind is StateKind.LIST:
            return lambda data: any(
                is_expired(time_of(element), duration_ms, self._now_ms) for element in unpack_elements(data)
            )
        return lambda data: is_expired(time_of(data), duration_ms, self._now_ms)


def _remove(change: Change, state: ExpiringState, now_ms: int) -> None:
    """Remove what has expired of an entry as it is now: the function may have written it in this epoch."""
    table = state.table(decode_key(change.namespace))
    key: Any = decode_key(change.key)
    if state.kind is StateKind.LIST:
        found = table.get(key) or []
        kept = [pair for pair in found if not is_expired(pair[0], state.duration_ms, now_ms)]
        if len(kept) < len(found):
            table.put(key, kept)
    elif state.kind is StateKind.MAP:
        map_key: Any = decode_key(change.map_key)
        pair = table.map_get(key, map_key)
        if pair is not None and is_expired(pair[0], state.duration_ms, now_ms):
            table.map_remove(key, map_key)
    else:
        pair = table.get(key)
        if pair is not None and is_expired(pair[0], state.duration_ms, now_ms):
            table.delete(key)
