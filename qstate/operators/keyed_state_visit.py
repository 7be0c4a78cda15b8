"""Visits the keys of a keyed state: `context.apply_to_keyed_state`.

Rules of this module: it uses the backend's contract alone, on the operator's thread. It visits the keys that have a
value at the end of the epoch before, and asks for each whether it still has one. So it needs no memory for the others,
and it may be called only before an epoch gives other keys a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from qstate.backends.contract import StateBackend, StateTable
from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import JobError
from qstate.keys import Key, KeyGroupRange, decode_key, encode_key
from qstate.operators.handles import ElementContext, StateHandle
from qstate.operators.user_traceback import described
from qstate.values.ttl import is_expired

__all__ = ["keys_with_values", "visit_keys"]

_VOID = encode_key(None)


def visit_keys(
    keys: Iterable[Any],
    descriptor: StateDescriptor,
    state: StateHandle,
    cursor: ElementContext,
    function: Callable[[Key, Any], object],
) -> None:
    """Call `function(key, state)` for each of the keys. `state` takes its key from `cursor`.

    Raises `JobError`, which names the state and the key, when the function fails or returns something.
    """
    for key in keys:
        cursor.current_key = key
        where = f"apply_to_keyed_state({descriptor.name!r}), key {key!r}"
        try:
            found = function(key, state)
        except Exception as exc:
            raise JobError(f"{where}: {described(exc)}") from exc
        if found is not None:
            raise JobError(f"{where}: expected None from the function, got {found!r}; a generator would not run")


def keys_with_values(
    backend: StateBackend, key_groups: KeyGroupRange, descriptor: StateDescriptor, table: StateTable, now_ms: int
) -> Iterator[Any]:
    """The keys that have a value of a state in the void namespace, each once.

    `table` has the values as they are stored, so that a visit does not count as a read of one with a time-to-live. What
    has expired at `now_ms` is no value, unless the function sees that, too.
    """
    last: bytes | None = None
    has_value = _value_test(descriptor, table, now_ms)
    for change in backend.walk({descriptor.name: lambda data: True}, key_groups):
        if change is not None and change.namespace == _VOID and change.key != last:
            last = change.key  # the entries of one map come one after another
            key: Any = decode_key(change.key)
            if has_value(key):
                yield key


def _value_test(descriptor: StateDescriptor, table: StateTable, now_ms: int) -> Callable[[Any], bool]:
    ttl = descriptor.ttl

    def counts(stored: Any) -> bool:
        if ttl is None or ttl.visibility == "until_cleaned":
            return True
        return not is_expired(stored[0], ttl.duration_ms, now_ms)

    if descriptor.kind is StateKind.MAP:
        return lambda key: any(counts(stored) for _, stored in table.map_items(key))
    if descriptor.kind is StateKind.LIST:
        return lambda key: any(map(counts, table.list_items(key)))

    def has_value(key: Any) -> bool:
        stored = table.get(key)
        return stored is not None and counts(stored)

    return has_value
