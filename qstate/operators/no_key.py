"""What stands for the current key where there is none.

Rules of this module: it knows no state. Every table hashes its key first, so any use of state there raises the error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from qstate.errors import JobError

__all__ = ["BROADCAST_ROW", "NO_KEY", "ROW_WITHOUT_KEY", "NoKey", "place_of"]


class NoKey:
    """The current key where there is none. `place` says where that is, `hint` what to do."""

    def __init__(self, place: str, hint: str) -> None:
        self._place = place
        self._hint = hint

    def __hash__(self) -> NoReturn:
        where = f"in {self._place}, " if self._place else ""
        raise JobError(f"state was used {where}where there is no current key; {self._hint}")

    def __repr__(self) -> str:
        return self._place or "no current key"


def place_of(key: Any, shown: Callable[[Any], str] = repr) -> str:
    """Where a function is, in messages: its current key, or what stands for one."""
    return repr(key) if isinstance(key, NoKey) else f"key {shown(key)}"


#: Outside of the rows.
NO_KEY: Any = NoKey(
    "",
    "use it inside process_element, or in a loop over a batch's by_key() or over due timers; elsewhere in "
    "process_batch, name the keys, as in get_many(keys)",
)
#: While a broadcast row is processed.
BROADCAST_ROW: Any = NoKey(
    "a broadcast row",
    "every subtask gets it: use broadcast state, and context.apply_to_keyed_state() to change the state of keys",
)
#: While a row of a stream without a key is processed.
ROW_WITHOUT_KEY: Any = NoKey("a row without a key", "use key_by() for keyed state and timers, or operator state")
