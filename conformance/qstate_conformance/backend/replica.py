"""A dict that loads changes and returns them: the neutral form of a state, written from its documentation alone.

Rules of this module: it follows the docstring of `qstate.backends.Change` to the letter, knows MessagePack, and
shares no code with any backend. A change that the docstring does not allow is an `AssertionError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgpack

from qstate.backends import Change, ChangeOp
from qstate.descriptors import StateKind
from qstate.keys import KeyGroupRange, key_group
from qstate_conformance.backend.model import Model
from qstate_conformance.backend.states import STATES
from qstate_conformance.packing import extension_column, pack

__all__ = ["Replica"]

#: (state, encoded namespace, encoded key)
_Where = tuple[str, bytes, bytes]


class Replica:
    """Bytes by place: of a list the elements, of a map the entries by encoded map key."""

    def __init__(self, max_parallelism: int = 128) -> None:
        self._max_parallelism = max_parallelism
        self._entries: dict[_Where, Any] = {}

    def load(self, changes: Iterable[Change]) -> None:
        for change in changes:
            self._check(change)
            self._load(change)

    def _load(self, change: Change) -> None:
        where, kind = (change.state, change.namespace, change.key), STATES[change.state].kind
        if change.op is ChangeOp.DELETE:
            self._entries.pop(where, None)
        elif change.op is ChangeOp.MAP_PUT:
            self._entries.setdefault(where, {})[change.map_key] = change.data
        elif change.op is ChangeOp.MAP_REMOVE:
            self._entries.get(where, {}).pop(change.map_key, None)
        elif change.op is ChangeOp.LIST_ADD:
            self._entries.setdefault(where, []).extend(_elements(change.data))
        else:
            self._entries[where] = _elements(change.data) if kind is StateKind.LIST else change.data

    def _check(self, change: Change) -> None:
        kind, op = STATES[change.state].kind, change.op
        allowed = {
            StateKind.LIST: {ChangeOp.PUT, ChangeOp.DELETE, ChangeOp.LIST_ADD},
            StateKind.MAP: {ChangeOp.DELETE, ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE},
        }.get(kind, {ChangeOp.PUT, ChangeOp.DELETE})
        assert op in allowed, f"a {kind.value} state has no {op}: {change}"
        key = _decoded(change.key)
        assert pack(key) == change.key, f"not the shortest encoding of a key: {change}"
        assert pack(_decoded(change.namespace)) == change.namespace, f"not an encoded namespace: {change}"
        assert change.group == key_group(key, self._max_parallelism), f"not the key's group: {change}"
        if op in (ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE):
            assert pack(_decoded(change.map_key)) == change.map_key, f"not an encoded map key: {change}"
        else:
            assert change.map_key == b"", f"a map key in a change that has none: {change}"
        if op in (ChangeOp.DELETE, ChangeOp.MAP_REMOVE):
            assert change.data == b"", f"data in a change that has none: {change}"

    def dump(self, key_groups: KeyGroupRange | None = None) -> Iterator[Change]:
        """The state of the key groups as PUT and MAP_PUT changes."""
        for (state, namespace, key), found in self._entries.items():
            group = key_group(_decoded(key), self._max_parallelism)
            if key_groups is not None and group not in key_groups:
                continue
            if isinstance(found, dict):
                for map_key, data in found.items():
                    yield Change(ChangeOp.MAP_PUT, state, group, namespace, key, map_key, data)
            else:
                data = msgpack.packb(found) if isinstance(found, list) else found
                yield Change(ChangeOp.PUT, state, group, namespace, key, b"", data)

    def model(self) -> Model:
        """The contents, decoded with the states' serializers."""
        model = Model()
        for (state, namespace, key), found in self._entries.items():
            load, place = STATES[state].serializer.loads, (state, _decoded(namespace), _decoded(key))
            if isinstance(found, dict):
                model.put_contents(place, {_decoded(map_key): load(data) for map_key, data in found.items()})
            elif isinstance(found, list):
                model.put_contents(place, [load(data) for data in found])
            else:
                model.put(place, load(found))
        return model


def _decoded(data: bytes) -> Any:
    return msgpack.unpackb(data, use_list=False, timestamp=3, ext_hook=extension_column)


def _elements(data: bytes) -> list[bytes]:
    """A MessagePack array of bins."""
    found = msgpack.unpackb(data)
    assert isinstance(found, list) and all(type(element) is bytes for element in found), (
        f"not an array of bins: {data!r}"
    )
    return found
