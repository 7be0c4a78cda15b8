"""Timers over a byte store: one entry for each, in the order in which they are due.

Rules of this module: as in `table`. The keys of timers are in a range of their own, after that of the key groups (see
`layout`). Until the next commit, a queue keeps

    unwritten   entries that are not in the store yet: added (True) or removed (False)
    changed     the entries that this epoch wrote, each with whether it is held now
    added       those of them that the epoch added first, so that it is not known whether the store held them before

A store may keep a mark of each removed entry for a while, and a scan that begins before them would pass them all again.
So a scan begins at `lowest`: no entry before it is held.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from qstate.backends.admission import admit_time, refused_write
from qstate.backends.byte_stores.layout import (
    TimerKey,
    parse_timer_key,
    prefix_of_timers,
    stop_of_timers,
    timer_key,
)
from qstate.backends.byte_stores.store import ByteSnapshot
from qstate.backends.byte_stores.table import BATCH_ENTRIES, Batch, ByteState, EpochWrites
from qstate.backends.contract import Change, ChangeOp, Timer, TimerQueue
from qstate.keys import KeyGroupRange, decode_key

__all__ = ["ByteTimerQueue"]


class ByteTimerQueue(EpochWrites, TimerQueue):
    """The timers of one time domain."""

    def __init__(self, state: ByteState) -> None:
        self._state = state
        self._store = state.store
        self._data = state.dump(True)
        self._start = prefix_of_timers(state.ordinal)
        self._lowest = self._lowest_committed = self._start
        self._unwritten: dict[bytes, bool] = {}
        self._changed: dict[bytes, bool] = {}
        self._added: set[bytes] = set()

    def add(self, timer: Timer) -> None:
        entry_key = self._entry_key(timer)
        if entry_key not in self._changed:
            self._added.add(entry_key)
        self._write(entry_key, held=True)
        self._lowest = min(self._lowest, entry_key)

    def remove(self, timer: Timer) -> None:
        entry_key = self._entry_key(timer)
        if self._holds(entry_key):
            self._write(entry_key, held=False)

    def take(self, upto: int, limit: int) -> list[Timer]:
        self.flush()
        stop = stop_of_timers(self._state.ordinal, upto)
        taken = [entry_key for entry_key, _ in islice(self._store.scan(self._lowest, stop), limit)]
        for entry_key in taken:
            self._write(entry_key, held=False)
        self._lowest = taken[-1] if len(taken) == limit else stop
        return [_timer(parse_timer_key(entry_key)) for entry_key in taken]

    def first(self) -> int | None:
        self.flush()
        for entry_key, _ in self._store.scan(self._lowest, stop_of_timers(self._state.ordinal)):
            self._lowest = entry_key
            return parse_timer_key(entry_key).time
        return None

    def _write(self, entry_key: bytes, *, held: bool) -> None:
        if not self._changed:
            self._state.touched(self)
        self._unwritten[entry_key] = self._changed[entry_key] = held
        if len(self._unwritten) >= BATCH_ENTRIES:
            self.flush()

    def _holds(self, entry_key: bytes) -> bool:
        held = self._changed.get(entry_key)
        return self._store.get(entry_key) is not None if held is None else held

    def _entry_key(self, timer: Timer) -> bytes:
        admit_time(timer.time)
        try:
            encode = self._state.encode
            group, namespace, key = self._state.group_of(timer.key), encode(timer.namespace), encode(timer.key)
        except Exception as exc:
            raise refused_write(self._state.descriptor.name, timer.namespace, timer.key, exc) from exc
        return timer_key(self._state.ordinal, TimerKey(timer.time, namespace, key, group))

    def flush(self) -> None:
        if self._unwritten:
            self._store.write({key: self._data if held else None for key, held in self._unwritten.items()})
            self._unwritten = {}

    def changes(self, committed: ByteSnapshot) -> Iterator[Change]:
        self.flush()
        for entry_key, held in self._changed.items():
            if held:
                yield self._change(ChangeOp.MAP_PUT, entry_key)
            elif entry_key not in self._added or committed.get(entry_key) is not None:
                yield self._change(ChangeOp.MAP_REMOVE, entry_key)

    def wrote(self) -> bool:
        return bool(self._changed)

    def forget(self) -> None:
        self._unwritten, self._changed, self._added = {}, {}, set()
        self._lowest_committed = self._lowest

    def shrink(self) -> None:
        self.flush()

    def size(self) -> int:
        return len(self._unwritten)

    def revert(self, committed: ByteSnapshot) -> None:
        batch: Batch = {}
        for number, entry_key in enumerate(self._changed):
            batch[entry_key] = committed.get(entry_key)
            if number % BATCH_ENTRIES == 0:
                self._store.write(batch)
                batch = {}
        self._store.write(batch)
        self._lowest = self._lowest_committed
        self.forget()

    def entries(self, committed: ByteSnapshot, groups: KeyGroupRange) -> Iterator[Change]:
        """The committed timers of these key groups."""
        ordinal = self._state.ordinal
        for entry_key, _ in committed.scan(self._start, stop_of_timers(ordinal)):
            change = self._change(ChangeOp.MAP_PUT, entry_key)
            if change.group in groups:
                yield change

    def load(self, change: Change, batch: Batch) -> None:
        """Add a change that is committed already to a batch."""
        time: int = decode_key(change.map_key)  # type: ignore[assignment]
        parts = TimerKey(time, change.namespace, change.key, change.group)
        held = change.op is ChangeOp.MAP_PUT
        batch[timer_key(self._state.ordinal, parts)] = self._data if held else None
        self._lowest = self._lowest_committed = self._start

    def _change(self, op: ChangeOp, entry_key: bytes) -> Change:
        parts = parse_timer_key(entry_key)
        data = self._data if op is ChangeOp.MAP_PUT else b""
        name, encode = self._state.descriptor.name, self._state.encode
        return Change(op, name, parts.group, parts.namespace, parts.key, encode(parts.time), data)


def _timer(parts: TimerKey) -> Timer:
    key: object = decode_key(parts.key)
    return Timer(parts.time, decode_key(parts.namespace), key)  # type: ignore[arg-type]
