"""Timers over a byte store: one entry for each, in the order in which they are due.

Rules of this module: as in `table`. The keys of timers are in a range of their own, after that of the key groups (see
`layout`). No query reads timers, so the store has those of the last commit until the next one. Until then a queue keeps

    changed   the entries that the epoch added (True), and the committed ones that it removed (False)
    added     a binary heap of the entries that the epoch added; one that was removed again is skipped
    next      the first committed entry that was not passed yet; `rest` has those after it

A store may keep a mark of each removed entry for a while, and a scan that begins before them would pass them all again.
So a scan begins at `lowest`: no committed entry is before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from qstate.backends.admission import admit_time
from qstate.backends.byte_stores.layout import (
    TimerKey,
    parse_timer_key,
    prefix_of_timers,
    stop_of_timers,
    timer_key,
)
from qstate.backends.byte_stores.store import ByteSnapshot
from qstate.backends.byte_stores.table import Batch, ByteState, EpochWrites, write_in_pieces
from qstate.backends.contract import Change, ChangeOp, Timer, TimerQueue
from qstate.keys import KeyGroupRange, decode_key, decode_keys

__all__ = ["ByteTimerQueue"]


class ByteTimerQueue(EpochWrites, TimerQueue):
    """The timers of one time domain. `committed` gives the snapshot of the last commit."""

    def __init__(self, state: ByteState, committed: Callable[[], ByteSnapshot]) -> None:
        self._state = state
        self._committed = committed
        self._data = state.dump(True)
        self._start, self._stop = prefix_of_timers(state.ordinal), stop_of_timers(state.ordinal)
        self._lowest = self._lowest_after_commit = self._start
        self._changed: dict[bytes, bool] = {}
        self._added: list[bytes] = []
        self._rest: Iterator[tuple[bytes, bytes]] | None = None
        self._next = self._stop
        self._written = False

    def add(self, timer: Timer) -> None:
        entry_key = self._entry_key(timer)
        if not self._changed.get(entry_key):
            self._state.touched(self)
            self._changed[entry_key] = True
            heappush(self._added, entry_key)

    def remove(self, timer: Timer) -> None:
        self._remove(self._entry_key(timer))

    def take(self, upto: int, limit: int) -> list[Timer]:
        due = self._removed_until(stop_of_timers(self._state.ordinal, upto))
        parts = list(map(parse_timer_key, islice(due, limit)))
        namespaces: Any = decode_keys([part.namespace for part in parts])
        keys: Any = decode_keys([part.key for part in parts])
        return list(map(Timer, [part.time for part in parts], namespaces, keys))

    def first(self) -> int | None:
        entry_key = self._first()
        return None if entry_key == self._stop else parse_timer_key(entry_key).time

    def _removed_until(self, stop: bytes) -> Iterator[bytes]:
        """Remove the entries before `stop`, the earliest first, each when it is asked for."""
        while (entry_key := self._first()) < stop:
            if entry_key == self._next:
                self._changed[entry_key] = False
            else:
                self._remove(entry_key)
            yield entry_key

    def _remove(self, entry_key: bytes) -> None:
        held = self._changed.get(entry_key)
        if held is False:
            return
        if self._committed().get(entry_key) is not None:
            self._state.touched(self)
            self._changed[entry_key] = False
        elif held:
            del self._changed[entry_key]

    def _first(self) -> bytes:
        """The entry of the earliest timer, `_stop` if there is none."""
        changed, added = self._changed, self._added
        if self._rest is None:
            self._state.touched(self)
            self._rest = self._committed().scan(self._lowest, self._stop)
            self._pass()
        while self._next in changed:
            self._pass()
        while added and not changed.get(added[0]):
            heappop(added)
        return min(self._next, added[0]) if added else self._next

    def _pass(self) -> None:
        assert self._rest is not None
        self._next = next(self._rest, (self._stop, b""))[0]

    def _entry_key(self, timer: Timer) -> bytes:
        admit_time(timer.time)
        encode = self._state.encode
        parts = TimerKey(timer.time, encode(timer.namespace), encode(timer.key), self._state.group_of(timer.key))
        return timer_key(self._state.ordinal, parts)

    def changes(self, committed: ByteSnapshot) -> Iterator[Change]:
        self._written = True
        changed, ordered = self._changed, sorted(self._changed)
        entries = ((entry_key, self._data if changed[entry_key] else None) for entry_key in ordered)
        write_in_pieces(self._state.store, entries)
        self._lowest_after_commit = self._first()
        # One operation after the other, in time windows one namespace after the other: they make the largest blocks.
        for op in (ChangeOp.MAP_REMOVE, ChangeOp.MAP_PUT):
            wanted = op is ChangeOp.MAP_PUT
            for entry_key in ordered:
                if changed[entry_key] is wanted:
                    yield self._change(op, entry_key)

    def wrote(self) -> bool:
        return bool(self._changed)

    def flush(self) -> None:
        """There is nothing to show to queries."""

    def forget(self) -> None:
        self._changed, self._added = {}, []
        self._rest, self._next = None, self._stop
        self._written = False
        self._lowest = self._lowest_after_commit

    def shrink(self) -> None:
        """Nothing is cached: all entries in memory are changes of the epoch."""

    def size(self) -> int:
        return 0

    def revert(self, committed: ByteSnapshot) -> None:
        if self._written:
            write_in_pieces(self._state.store, ((entry_key, committed.get(entry_key)) for entry_key in self._changed))
        self._lowest_after_commit = self._lowest
        self.forget()

    def entries(self, committed: ByteSnapshot, groups: KeyGroupRange) -> Iterator[Change]:
        """The committed timers of these key groups."""
        for entry_key, _ in committed.scan(self._start, self._stop):
            change = self._change(ChangeOp.MAP_PUT, entry_key)
            if change.group in groups:
                yield change

    def load(self, change: Change, batch: Batch) -> None:
        """Add a change that is committed already to a batch."""
        time: int = decode_key(change.map_key)  # type: ignore[assignment]
        parts = TimerKey(time, change.namespace, change.key, change.group)
        held = change.op is ChangeOp.MAP_PUT
        batch[timer_key(self._state.ordinal, parts)] = self._data if held else None

    def _change(self, op: ChangeOp, entry_key: bytes) -> Change:
        parts = parse_timer_key(entry_key)
        data = self._data if op is ChangeOp.MAP_PUT else b""
        name, encode = self._state.descriptor.name, self._state.encode
        return Change(op, name, parts.group, parts.namespace, parts.key, encode(parts.time), data)
