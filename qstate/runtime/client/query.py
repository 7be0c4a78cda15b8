"""What a get asks: the question that all keys of one call share.

Rules of this module: a value. `arguments` makes it of what the caller passed; the operations ask it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from qstate.errors import Detail
from qstate.keys import Key, Namespace, check_key
from qstate.protocol.messages import NO_ATTRIBUTES

__all__ = ["COMMITTED", "LIVE", "NO_OPTIONS", "Query"]

LIVE = "live"
#: The isolation that fallbacks can answer.
COMMITTED = "committed"
#: The options of a live get without demands.
NO_OPTIONS: Mapping[str, Detail] = {}


class Query(NamedTuple):
    """A state, and how to read it. The keys and the deadline are apart: a query is asked again for some of its keys.

    `options` is what the request says about isolation and demands, `attributes` what else it carries.
    """

    job: str
    state: str
    namespace: Namespace
    isolation: str
    options: Mapping[str, Detail]
    attributes: Mapping[str, Detail] = NO_ATTRIBUTES

    @property
    def wait_s(self) -> float | None:
        """How long a failure that may pass is tried again, in seconds; None: until the deadline."""
        found: Any = self.options.get("wait_ms") if self.options else None
        return None if found is None else found / 1000

    def check_keys(self, keys: Iterable[Key]) -> None:
        """Raise `WrongKeyType` for a namespace or a key that no state can have."""
        for key in keys:
            check_key(key)
        if self.namespace is not None:
            check_key(self.namespace)
