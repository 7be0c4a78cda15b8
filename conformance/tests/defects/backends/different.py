"""Sound backends that differ from those of qstate: each uses another freedom of the contract.

`EagerBackend` serializes at every write. `TalkativeBackend` returns more changes than it must, and what has no order in
another order every time. A law that fails one of them raises a false alarm.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import count
from random import Random
from typing import Any, TypeVar

from qstate.backends import Change, ChangeOp
from qstate.backends.admission import admit_map_key
from qstate.descriptors import StateDescriptor, StateKind
from qstate.errors import SerializationError
from qstate.keys import Key, KeyGroupRange, Namespace, decode_key, key_group
from tests.defects.backends.sound import PlainBackend, PlainTable

_Item = TypeVar("_Item")

_SHUFFLES = count()


def shuffled(items: Iterable[_Item]) -> list[_Item]:
    """The items in an order of their own, the same in every run."""
    found = list(items)
    Random(next(_SHUFFLES)).shuffle(found)
    return found


class _EagerTable(PlainTable):
    """Holds the serialized form of each value, so the write itself refuses a value of a wrong type."""

    def get(self, key: Key) -> Any:
        return deepcopy(super().get(key))

    def put(self, key: Key, value: Any) -> None:
        super().put(key, None if value is None else self._copied(value))

    def map_get(self, key: Key, map_key: Key) -> Any:
        return deepcopy((super().get(key) or {}).get(map_key))

    def map_put(self, key: Key, map_key: Key, value: Any) -> None:
        admit_map_key(map_key)
        super().put(key, {**(super().get(key) or {}), map_key: self._once(value)})

    def _copied(self, value: Any) -> Any:
        if self._descriptor.kind is StateKind.LIST:
            return [self._once(element) for element in value]
        if self._descriptor.kind is StateKind.MAP and isinstance(value, dict):
            return {map_key: self._once(entry) for map_key, entry in value.items()}
        return self._once(value)

    def _once(self, value: Any) -> Any:
        serializer = self._descriptor.serializer
        try:
            return value if value is None else serializer.loads(serializer.dumps(value))
        except Exception as exc:
            raise SerializationError(f"state {self._descriptor.name!r}: {exc}") from exc


class EagerBackend(PlainBackend):
    """Serializes at every write, and returns a new object to every reader."""

    name = "eager"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        super().table(descriptor, namespace)
        return _EagerTable(self, descriptor, namespace)


class _TalkativeTable(PlainTable):
    def put(self, key: Key, value: Any) -> None:
        if isinstance(value, dict) and value and self._descriptor.kind is StateKind.MAP:
            first, *others = value.items()  # to shuffle thousands of entries with each put would take minutes
            value = dict([*others, first])
        super().put(key, value)

    def map_items(self, key: Key) -> Iterator[tuple[Key, Any]]:
        return iter(shuffled(list(super().map_items(key))))


class TalkativeBackend(PlainBackend):
    """Returns every written entry as a change, even unchanged ones, in another order every time."""

    name = "talkative"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        super().table(descriptor, namespace)
        return _TalkativeTable(self, descriptor, namespace)

    def commit(self, epoch: int) -> list[Change]:
        # Of a map, the DELETE stays before the MAP_PUTs.
        return sorted(shuffled(super().commit(epoch)), key=lambda change: change.op is not ChangeOp.DELETE)

    def _changes(self, place: tuple[str, bytes, bytes]) -> Iterator[Change]:
        state, namespace, key = place
        if self._states[state].kind is StateKind.MAP or place not in self.live:
            group = key_group(decode_key(key), self._context.max_parallelism)  # type: ignore[arg-type]
            yield Change(ChangeOp.DELETE, state, group, namespace, key, b"", b"")
        yield from (change for change in super()._changes(place) if change.op is not ChangeOp.DELETE)

    def entries(self, key_groups: KeyGroupRange) -> Iterator[Change]:
        return iter(shuffled(super().entries(key_groups)))
