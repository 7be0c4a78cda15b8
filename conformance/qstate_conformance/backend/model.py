"""What a backend should hold after a program of writes: a plain dict, and when two contents are the same.

Rules of this module: it shares no code with any backend and knows nothing of bytes, epochs or key groups. An empty
list or map is no entry.
"""

from __future__ import annotations

from copy import deepcopy
from datetime import datetime, timezone
from typing import Any

from qstate.keys import Key, Namespace
from qstate_conformance.differences import labelled

__all__ = ["Model", "Place", "canonical", "check_equal", "check_same", "same"]

#: Where an entry is: the state's name, the namespace and the key.
Place = tuple[str, Namespace, Key]


class Model:
    """Contents by place: a value, a list or a dict."""

    def __init__(self, entries: dict[Place, Any] | None = None) -> None:
        self.entries: dict[Place, Any] = deepcopy(entries or {})

    def copy(self) -> Model:
        return Model(self.entries)

    def get(self, place: Place) -> Any:
        return self.entries.get(place)

    def put(self, place: Place, value: Any) -> None:
        self.entries[place] = deepcopy(value)

    def delete(self, place: Place) -> None:
        self.entries.pop(place, None)

    def put_contents(self, place: Place, contents: Any) -> None:
        """Set a list or a map, which is no entry when it is empty."""
        if contents:
            self.put(place, contents)
        else:
            self.delete(place)

    def list_add(self, place: Place, elements: list[Any]) -> None:
        self.put_contents(place, [*self.entries.get(place, []), *elements])

    def map_put(self, place: Place, map_key: Key, value: Any) -> None:
        self.put_contents(place, {**self.entries.get(place, {}), map_key: value})

    def map_remove(self, place: Place, map_key: Key) -> None:
        rest = {key: value for key, value in self.entries.get(place, {}).items() if key != map_key}
        self.put_contents(place, rest)


def canonical(value: Any) -> Any:
    """Equal for equal contents of equal types only: True is not 1, a tuple is no list, NaN is NaN, -0.0 is not 0.0."""
    if isinstance(value, dict):
        pairs = ((canonical(key), canonical(found)) for key, found in value.items())
        return "dict", sorted(pairs, key=repr)
    if isinstance(value, list | tuple):
        return type(value).__name__, [canonical(element) for element in value]
    if type(value) is datetime and value.tzinfo is not None:
        return "moment", repr(value.astimezone(timezone.utc))
    return type(value).__name__, repr(value)


def same(one: Any, other: Any) -> bool:
    return bool(canonical(one) == canonical(other))


def check_equal(found: Any, expected: Any, where: object = "") -> None:
    """Fail unless the two are equal. For what is so large that `canonical` and pytest's comparisons take too long."""
    if found != expected:
        raise AssertionError("\n".join([str(where), *labelled(found, expected)]).strip())


def check_same(found: Any, expected: Any, where: object = "") -> None:
    """Fail unless the two are the same; `where` says what was looked at."""
    if not same(found, expected):
        raise AssertionError("\n".join([str(where), *labelled(found, expected)]).strip())
