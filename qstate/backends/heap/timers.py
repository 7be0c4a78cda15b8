"""The heap's timers of one time domain: a set of timers and a binary heap in the order in which they are due.

Rules of this module: only the operator's thread uses it, and it knows no epoch numbers. It keeps

    held      the timers as of now, by (time, encoded namespace, encoded key)
    queue     a binary heap of at least these; an entry that is not held is skipped when it comes first, and dropped
              with all others like it once they are most of the queue
    before    for each timer that was written since the last commit, whether it was held then
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Any

from qstate.backends.admission import admit_time
from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import Change, ChangeOp, Timer, TimerQueue
from qstate.backends.heap.table import HeapState
from qstate.keys import KeyGroupRange, decode_key, decode_keys

__all__ = ["HeapTimers"]

#: Entries of a queue beyond twice its timers that it may keep.
SPARE_ENTRIES = 1_000

_Entry = tuple[int, bytes, bytes]
_namespace_of = itemgetter(1)


class HeapTimers(TimerQueue):
    """A queue whose timers are Python objects."""

    def __init__(self, state: HeapState) -> None:
        self._name = state.descriptor.name
        self._data = state.dump(True)
        self._group_of = state.group_of
        self._encode = state.encode
        self._held: dict[_Entry, Timer] = {}
        self._queue: list[_Entry] = []
        self._before: dict[_Entry, Timer | None] = {}

    def add(self, timer: Timer) -> None:
        entry = self._entry(timer)
        if entry not in self._held:
            self._before.setdefault(entry, None)
            self._held[entry] = timer
            heappush(self._queue, entry)

    def remove(self, timer: Timer) -> None:
        self._remove(self._entry(timer))

    def take(self, upto: int, limit: int) -> list[Timer]:
        taken: list[Timer] = []
        queue = self._queue
        while queue and queue[0][0] <= upto and len(taken) < limit:
            found = self._remove(heappop(queue))
            if found is not None:
                taken.append(found)
        return taken

    def first(self) -> int | None:
        queue = self._queue
        while queue and queue[0] not in self._held:
            heappop(queue)
        return queue[0][0] if queue else None

    @property
    def count(self) -> int:
        """The number of timers as of now."""
        return len(self._held)

    def changes(self) -> Iterator[Change]:
        """The changes of the running epoch. Nothing changes until `seal`."""
        written = sorted(self._before, key=_namespace_of)
        # One operation and one namespace after the other: they make the largest blocks.
        for op, data in ((ChangeOp.MAP_REMOVE, b""), (ChangeOp.MAP_PUT, self._data)):
            source, other = (self._held, self._before) if op is ChangeOp.MAP_PUT else (self._before, self._held)
            for entry in written:
                timer = source.get(entry)
                if timer is not None and other.get(entry) is None:
                    time, namespace, key = entry
                    yield Change(op, self._name, self._group_of(timer.key), namespace, key, self._encode(time), data)

    def seal(self) -> None:
        """The running epoch, whose changes were read, is committed."""
        self._before = {}
        if len(self._queue) > 2 * len(self._held) + SPARE_ENTRIES:
            self.order()

    def rollback(self) -> None:
        """Return to the timers of the last commit."""
        for entry, timer in self._before.items():
            if timer is None:
                self._held.pop(entry, None)
            elif entry not in self._held:
                self._held[entry] = timer
                heappush(self._queue, entry)
        self._before = {}

    def entries(self, groups: KeyGroupRange) -> Iterator[Change]:
        """The committed timers of these key groups."""
        committed = {**self._held, **self._before}
        for (time, namespace, key), timer in committed.items():
            if timer is not None and (group := self._group_of(timer.key)) in groups:
                yield Change(ChangeOp.MAP_PUT, self._name, group, namespace, key, self._encode(time), self._data)

    def load(self, block: ChangeBlock) -> None:
        """Apply changes that are committed already."""
        namespace = decode_key(block.namespace)
        times: Sequence[Any] = decode_keys(block.map_keys or ())
        keys: Sequence[Any] = decode_keys(block.keys)
        for time, encoded, key in zip(times, block.keys, keys, strict=True):
            entry = (time, block.namespace, encoded)
            if block.op is ChangeOp.MAP_PUT:
                self._held[entry] = Timer(time, namespace, key)
            else:
                self._held.pop(entry, None)

    def order(self) -> None:
        """Rebuild the queue from the timers that are held, such as when all changes were loaded."""
        self._queue = list(self._held)
        heapify(self._queue)

    def is_empty(self) -> bool:
        """Whether there is neither a timer nor a write."""
        return not (self._held or self._before)

    def _remove(self, entry: _Entry) -> Timer | None:
        found = self._held.pop(entry, None)
        if found is not None:
            self._before.setdefault(entry, found)
        return found

    def _entry(self, timer: Timer) -> _Entry:
        admit_time(timer.time)
        return timer.time, self._encode(timer.namespace), self._encode(timer.key)
