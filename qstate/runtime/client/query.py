"""What a get asks: the question that all keys of one call share.

Rules of this module: a value. `arguments` makes it of what the caller passed; the operations ask it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from qstate.errors import Detail
from qstate.keys import Key, Namespace, check_key
from qstate.protocol.messages import NO_ATTRIBUTES

__all__ = ["COMMITTED", "LIVE", "NO_OPTIONS", "Query"]

LIVE = "live"
#: The isolation that fallbacks can answer.
COMMITTED = "committed"
#: The options of a live get without demands.
NO_OPTIONS: Mapping[str, Detail] = {}


# A struct of msgspec, because each call makes one: a named tuple takes four times as long to make.
class Query(Struct, frozen=True):
    """A state, and how to read it. The keys and the deadline are apart: a query is asked again for some of its keys.

    `options` is what the request says about isolation and demands, `attributes` what else it carries.
    """

    job: str
    state: str
    namespace: Namespace
    isolation: str
    options: Mapping[str, Detail]
    attributes: Mapping[str, Detail] = NO_ATTRIBUTES

    def check_keys(self, keys: Iterable[Key]) -> None:
        """Raise `WrongKeyType` for a namespace or a key that no state can have."""
        for key in keys:
            check_key(key)
        if self.namespace is not None:
            check_key(self.namespace)
