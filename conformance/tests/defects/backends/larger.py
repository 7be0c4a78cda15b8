"""Defects of backends that are larger than memory. Each names the law that catches it. They need RocksDB."""

from __future__ import annotations

from typing import Any

from qstate.backends.byte_stores.rocksdb import RocksDBBackend
from qstate.descriptors import StateDescriptor
from qstate.keys import Key, Namespace
from tests.defects.backends.sound import TableProxy


class MapItemsAllAtOnce(RocksDBBackend):
    """`map_items` makes a list of the entries first."""

    caught_by = "backend.memory.memory_stays_bounded_while_a_large_map_and_list_are_read"

    def table(self, descriptor: StateDescriptor, namespace: Namespace = None) -> Any:
        return _Eager(super().table(descriptor, namespace), descriptor, self)


class _Eager(TableProxy):
    def map_items(self, key: Key) -> Any:
        return iter(list(super().map_items(key)))
