"""Visits the keys of a keyed state: `context.apply_to_keyed_state`.

Rules of this module: it uses the backend's contract alone, on the operator's thread. It visits the keys that have a
value at the end of the epoch before, and asks for each whether it still has one. So it needs no memory for the others,
and it may be called only before an epoch gives other keys a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from qstate.backends.contract import StateBackend
from qstate.errors import JobError
from qstate.keys import Key, KeyGroupRange, decode_key, encode_key
from qstate.operators.handles import ElementContext, StateHandle
from qstate.operators.user_traceback import described

__all__ = ["keys_of", "visit_keys"]

_VOID = encode_key(None)


def keys_of(backend: StateBackend, key_groups: KeyGroupRange, name: str) -> Iterator[Any]:
    """The keys of a state in the void namespace, each once: the entries of one map come one after another."""
    last: bytes | None = None
    for change in backend.walk({name: lambda data: True}, key_groups):
        if change is not None and change.namespace == _VOID and change.key != last:
            last = change.key
            yield decode_key(change.key)


def visit_keys(
    keys: Iterator[Any],
    name: str,
    state: StateHandle,
    cursor: ElementContext,
    function: Callable[[Key, Any], None],
) -> None:
    """Call `function(key, state)` for each of the keys that has a value of the state.

    `state` takes its key from `cursor`.

    Raises `JobError`, which names the state and the key, when the function fails.
    """
    for key in keys:
        cursor.current_key = key
        if state.has_value():
            try:
                function(key, state)
            except Exception as exc:
                raise JobError(f"apply_to_keyed_state({name!r}), key {key!r}: {described(exc)}") from exc
