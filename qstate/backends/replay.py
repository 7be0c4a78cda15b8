"""Replays epochs into a backend that were committed elsewhere: from a log, or by another backend.

Rules of this module: it uses only the backend contract, so it works for every backend. `StateBackend.restore` fills an
empty backend with final state, and is faster. Replay adds later epochs one by one, so that each is first committed and
then final, as in the original backend.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from qstate.backends.answers import unpack_elements
from qstate.backends.contract import Change, ChangeOp, StateBackend, StateTable, Timer, TimerQueue
from qstate.descriptors import StateDescriptor, StateKind, TimerDescriptor
from qstate.errors import JobError
from qstate.keys import decode_key

__all__ = ["replay_epoch"]


def replay_epoch(
    backend: StateBackend, descriptors: Mapping[str, StateDescriptor], epoch: int, changes: Iterable[Change]
) -> None:
    """Commit an epoch from its changes. The epochs before it become final; it is not final yet.

    Raises `JobError` for a state without a descriptor, and what the changes and the backend raise; the epoch is then
    rolled back.
    """
    backend.begin(epoch)
    try:
        for change in changes:
            descriptor = descriptors.get(change.state)
            if descriptor is None:
                raise JobError(f"the changes of epoch {epoch} contain a state {change.state!r} without a descriptor")
            if isinstance(descriptor, TimerDescriptor):
                _apply_timer(backend.timers(descriptor), change)
            else:
                _apply(backend.table(descriptor, decode_key(change.namespace)), descriptor, change)
        deque(backend.commit(epoch), maxlen=0)
    except BaseException:
        backend.rollback()
        raise


def _apply_timer(queue: TimerQueue, change: Change) -> None:
    time: Any = decode_key(change.map_key)
    key: Any = decode_key(change.key)
    timer = Timer(time, decode_key(change.namespace), key)
    if change.op is ChangeOp.MAP_PUT:
        queue.add(timer)
    else:
        queue.remove(timer)


def _apply(table: StateTable, descriptor: StateDescriptor, change: Change) -> None:
    key: Any = decode_key(change.key)
    loads: Callable[[bytes], Any] = descriptor.serializer.loads
    op = change.op
    if op is ChangeOp.PUT:
        is_list = descriptor.kind is StateKind.LIST
        table.put(key, [*map(loads, unpack_elements(change.data))] if is_list else loads(change.data))
    elif op is ChangeOp.DELETE:
        table.delete(key)
    elif op is ChangeOp.LIST_ADD:
        table.list_add(key, [*map(loads, unpack_elements(change.data))])
    else:
        map_key: Any = decode_key(change.map_key)
        if op is ChangeOp.MAP_PUT:
            table.map_put(key, map_key, loads(change.data))
        else:
            table.map_remove(key, map_key)
