"""Checks each entry of a checkpoint file, as a dump or a restore would read it.

Rules of this module: changes in, nothing or an error out; it reads no file. A checksum proves that the bytes have not
changed; this check proves that they are valid. The file describes the state, the state's kind has the operation, the
keys have the state's key types and are in the right key group, the default serializer can read the values, and the
entries of a snapshot ascend. Only the job's program can read the values of other serializers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qstate.backends.answers import unpack_elements
from qstate.backends.change_blocks import ChangeBlock
from qstate.backends.contract import ChangeOp
from qstate.checkpoint.log.chain import States
from qstate.checkpoint.log.file_facts import WHAT_TO_DO, readable
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.descriptors import StateKind
from qstate.errors import DamagedCheckpoint
from qstate.evolution.schema import serializer_in
from qstate.keys import ColumnType, KeyGroupRange, check_key, decode_key, decode_keys, key_encoder, key_grouper
from qstate.serializers import MessagePackSerializer
from qstate.values.ttl import time_of, untimed

__all__ = ["ContentCheck", "check_list_elements"]

_SINGLE = frozenset((ChangeOp.PUT, ChangeOp.DELETE))
_OPERATIONS = {
    StateKind.VALUE: _SINGLE,
    StateKind.REDUCING: _SINGLE,
    StateKind.AGGREGATING: _SINGLE,
    StateKind.LIST: _SINGLE | {ChangeOp.LIST_ADD},
    StateKind.MAP: frozenset((ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE, ChangeOp.DELETE)),
}
_OF_WHOLE = frozenset((ChangeOp.PUT, ChangeOp.MAP_PUT))
_OF_MAPS = frozenset((ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE))
_WITHOUT_DATA = frozenset((ChangeOp.DELETE, ChangeOp.MAP_REMOVE))

_loads = MessagePackSerializer().loads

#: The position of an entry in the order of a snapshot.
Position = tuple[Any, ...]


class ContentCheck:
    """Checks the entries of one file. The caller passes each block to `check`, in their order."""

    def __init__(
        self,
        path: object,
        states: States,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        ascending: bool = False,
        whole: bool = False,
    ) -> None:
        """`ascending`: the file is a snapshot or savepoint. `whole`: it builds on no other."""
        self._path = path
        self._schemas: Mapping[str, Mapping[str, Any]] = {plain["name"]: plain for plain in states}
        self._key_groups = key_groups
        self._group_of = key_grouper(max_parallelism)
        self._encode = key_encoder()
        self._ascending = ascending
        self._whole = whole
        self._last: Position = ()
        #: The number of entries checked so far.
        self.entries = 0

    def check(self, block: ChangeBlock) -> None:
        """Raise `DamagedCheckpoint` for the first entry that is invalid."""
        with readable(self._path):
            self._check_operation(block)
            self._check_keys(block)
            self._check_data(block)
            if self._ascending:
                self._check_order(block)
        self.entries += len(block.keys)

    def _check_operation(self, block: ChangeBlock) -> None:
        schema = self._schemas.get(block.state)
        if schema is None:
            raise self._wrong(block, "which it does not describe")
        allowed = _OPERATIONS[StateKind(schema["kind"])] & (_OF_WHOLE if self._whole else frozenset(ChangeOp))
        if block.op not in allowed:
            raise self._wrong(block, f"with the operation {block.op.name}, which there cannot be")

    def _check_keys(self, block: ChangeBlock) -> None:
        namespace = decode_key(block.namespace)
        if namespace is not None:
            check_key(namespace)
        types = tuple(map(ColumnType, self._schemas[block.state].get("key_types", ()))) or None
        keys: Sequence[Any] = decode_keys(block.keys)
        for key, encoded, group in zip(keys, block.keys, block.groups, strict=True):
            check_key(key, types)
            if self._encode(key) != encoded or group not in self._key_groups or self._group_of(key) != group:
                raise self._wrong(block, f"with the key {key!r:.80}, which is not of key group {group}")
        if (block.op in _OF_MAPS) is (block.map_keys is None):
            raise self._wrong(block, f"with the operation {block.op.name} and map keys that do not go with it")
        map_keys = () if block.map_keys is None else block.map_keys
        for map_key, encoded in zip(decode_keys(map_keys), map_keys, strict=True):
            check_key(map_key)
            if self._encode(map_key) != encoded:
                raise self._wrong(block, f"with the map key {map_key!r:.80}, which is not in its shortest form")

    def _check_data(self, block: ChangeBlock) -> None:
        schema = self._schemas[block.state]
        if block.op in _WITHOUT_DATA:
            if block.data is not None:
                raise self._wrong(block, f"with the operation {block.op.name} and data, which it has not")
            return
        data: Sequence[bytes] = [b""] * len(block.keys) if block.data is None else block.data
        if schema["kind"] == StateKind.LIST.value:
            data = [element for elements in data for element in _elements(elements)]
        if schema.get("ttl_ms") is not None:
            data = [untimed(value) for value in data if time_of(value) >= 0]  # raises for a value without a time
        if serializer_in(schema) == MessagePackSerializer.name:
            for value in data:  # not joined into one array: two invalid values may be valid together
                _loads(value)

    def _check_order(self, block: ChangeBlock) -> None:
        # In a partial snapshot a place is a few long runs, one for each operation.
        run = (block.state.encode(), block.namespace, 0 if self._whole else block.op.value)
        map_keys: Sequence[bytes] = [b""] * len(block.keys) if block.map_keys is None else block.map_keys
        for group, key, map_key in zip(block.groups, block.keys, map_keys, strict=True):
            position = (group, *run, key, map_key)
            if position <= self._last:
                raise self._wrong(block, "whose entries do not ascend")
            self._last = position

    def _wrong(self, block: ChangeBlock, what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self._path} has changes of state {block.state!r}, {what}; {WHAT_TO_DO}")


def _elements(data: bytes) -> list[bytes]:
    found = unpack_elements(data)
    if not isinstance(found, list) or not all(type(element) is bytes for element in found):
        raise ValueError("a list that is no array of bins")
    return found


def check_list_elements(states: Iterable[OperatorState], path: object) -> None:
    """Raise `DamagedCheckpoint` when the default serializer cannot read its elements of operator state."""
    with readable(path):
        for state in states:
            for one in state:
                if one.schema["serializer"] == MessagePackSerializer.name:
                    for element in one.elements:
                        _loads(element)
