"""The tables of states with a time-to-live: they show a function what has not expired, and write values with times.

Rules of this module: it stands between handles and a backend's table, which holds pairs (time, value). Time is the
processing time of the epoch, which the operator sets before the first row. So the function sees the same when the epoch
is processed again. A state without a time-to-live does without these tables.

A read removes the expired values that it finds; a state that shows expired values keeps them until the sweep.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qstate.backends.admission import admit_list, admit_map, admit_values, none_refused
from qstate.backends.contract import StateTable
from qstate.descriptors import StateDescriptor, StateKind
from qstate.keys import Key
from qstate.operators.expiry.expiry_sweep import WriteCount
from qstate.operators.handles import ElementContext
from qstate.values.ttl import StateTtl, is_expired

__all__ = ["current_contents", "ttl_table"]


def ttl_table(
    inner: StateTable, descriptor: StateDescriptor, context: ElementContext, writes: WriteCount
) -> StateTable:
    """The table of a state with a time-to-live over the backend's table of its stored form."""
    assert descriptor.ttl is not None
    classes: dict[StateKind, type[_TtlTable]] = {StateKind.LIST: _TtlListTable, StateKind.MAP: _TtlMapTable}
    return classes.get(descriptor.kind, _TtlValueTable)(inner, descriptor.ttl, context, writes)


def current_contents(descriptor: StateDescriptor, found: Any, now_ms: int) -> Any:
    """What is current of the contents that a backend holds for a key of a state with a time-to-live; None for nothing.

    It reads and changes no state.
    """
    assert descriptor.ttl is not None
    duration_ms = descriptor.ttl.duration_ms
    if found is None:
        return None
    if descriptor.kind is StateKind.LIST:
        return [value for time_ms, value in found if not is_expired(time_ms, duration_ms, now_ms)] or None
    if descriptor.kind is StateKind.MAP:
        items = found.items()
        return {name: value for name, (time_ms, value) in items if not is_expired(time_ms, duration_ms, now_ms)} or None
    return None if is_expired(found[0], duration_ms, now_ms) else found[1]


class _TtlTable(StateTable):
    """What the tables of all kinds share."""

    def __init__(self, inner: StateTable, ttl: StateTtl, context: ElementContext, writes: WriteCount) -> None:
        self._inner = inner
        self._context = context
        self._writes = writes
        self._duration_ms = ttl.duration_ms
        self._refreshes = ttl.refresh == "on_read_and_write"
        self._shows_expired = ttl.visibility == "until_cleaned"

    def delete(self, key: Key) -> None:
        self._inner.delete(key)

    def _is_expired(self, written_ms: int) -> bool:
        return is_expired(written_ms, self._duration_ms, self._context.processing_time)


class _TtlValueTable(_TtlTable):
    """Value, reducing and aggregating states."""

    def get(self, key: Key) -> Any:
        found = self._inner.get(key)
        if found is None:
            return None
        written_ms, value = found
        if not self._is_expired(written_ms):
            if self._refreshes and written_ms < self._context.processing_time:
                self.put(key, value)
            return value
        if self._shows_expired:
            return value
        self._inner.delete(key)
        return None

    def put(self, key: Key, value: Any) -> None:
        if value is None:
            raise none_refused()
        self._writes.count += 1
        self._inner.put(key, (self._context.processing_time, value))

    def put_many(self, keys: Sequence[Key], values: Sequence[Any]) -> None:
        admit_values(values)
        now_ms = self._context.processing_time
        self._writes.count += len(keys)
        self._inner.put_many(keys, [(now_ms, value) for value in values])


class _TtlListTable(_TtlTable):
    """List states: each element has a time."""

    def get(self, key: Key) -> Any:
        found = self._inner.get(key)
        if found is None:
            return None
        current = [pair for pair in found if not self._is_expired(pair[0])]
        shown = found if self._shows_expired else current
        now_ms = self._context.processing_time
        if self._refreshes and any(written_ms < now_ms for written_ms, _ in current):
            self._inner.put(key, [pair if self._is_expired(pair[0]) else (now_ms, pair[1]) for pair in shown])
        elif 2 * len(shown) <= len(found):
            # A list is rewritten whole. So it waits until half of it has expired: then each expired element costs no
            # more than one rewritten element, however often the list is read.
            self._inner.put(key, current)
        return [value for _, value in shown] or None

    def put(self, key: Key, value: Any) -> None:
        now_ms = self._context.processing_time
        self._writes.count += 1
        self._inner.put(key, [(now_ms, element) for element in admit_list(value)])

    def list_add(self, key: Key, values: Sequence[Any]) -> None:
        admit_values(values)
        now_ms = self._context.processing_time
        self._writes.count += 1
        self._inner.list_add(key, [(now_ms, value) for value in values])


class _TtlMapTable(_TtlTable):
    """Map states: each entry has a time."""

    def get(self, key: Key) -> Any:
        return dict(self.map_items(key)) or None

    def put(self, key: Key, value: Any) -> None:
        entries, now_ms = admit_map(value), self._context.processing_time
        self._writes.count += len(entries)
        self._inner.put(key, {map_key: (now_ms, entry) for map_key, entry in entries.items()})

    def map_get(self, key: Key, map_key: Key) -> Any:
        found = self._inner.map_get(key, map_key)
        return found[1] if found is not None and self._sees(key, map_key, *found) else None

    def map_contains(self, key: Key, map_key: Key) -> bool:
        found = self._inner.map_get(key, map_key)
        return found is not None and self._sees(key, map_key, *found)

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        self._writes.count += 1
        self._inner.map_put(key, map_key, (self._context.processing_time, value))

    def map_remove(self, key: Key, map_key: Key) -> None:
        self._inner.map_remove(key, map_key)

    def map_items(self, key: Key) -> Iterator[tuple[Key, Any]]:
        return self._seen(key, self._inner.map_items(key))

    def _seen(self, key: Key, found: Iterator[tuple[Key, Any]]) -> Iterator[tuple[Key, Any]]:
        for map_key, (written_ms, value) in found:
            current = self._inner.map_get(key, map_key)
            if current is not None and current[0] == written_ms:
                if self._sees(key, map_key, written_ms, value):
                    yield map_key, value
            elif self._shows_expired or not self._is_expired(written_ms):
                # The function has written or removed the entry since the call: that must stay.
                yield map_key, value

    def _sees(self, key: Key, map_key: Key, written_ms: int, value: Any) -> bool:
        """Whether the function sees an entry that it reads."""
        if self._is_expired(written_ms):
            if not self._shows_expired:
                self._inner.map_remove(key, map_key)
            return self._shows_expired
        if self._refreshes and written_ms < self._context.processing_time:
            self.map_put(key, map_key, value)
        return True
