"""RocksDB's write buffers keep their size, however large the values of an epoch are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.byte_stores.rocksdb import RocksDBBackend
from qstate.backends.byte_stores.table import BATCH_BYTES
from qstate.backends.catalog import open_backend
from qstate.backends.contract import StateBackend
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.keys import KeyGroupRange

MIB = 1 << 20
BUFFER_MIB = 4
VALUES = 48
#: By kind: the descriptor; writes the large value of a number; reads it.
KINDS: dict[str, tuple[StateDescriptor, Callable[[Any, int, bytes], None], Callable[[Any, int], Any]]] = {
    "value": (
        ValueStateDescriptor("blob", bytes),
        lambda table, number, blob: table.put(f"key {number}", blob),
        lambda table, number: table.get(f"key {number}"),
    ),
    "list": (
        ListStateDescriptor("blob", bytes),
        lambda table, number, blob: table.list_add(f"key {number}", [blob]),
        lambda table, number: table.get(f"key {number}")[0],
    ),
    "map": (
        MapStateDescriptor("blob", bytes),
        lambda table, number, blob: table.map_put("key", f"entry {number}", blob),
        lambda table, number: table.map_get("key", f"entry {number}"),
    ),
}


def opened(directory: Path) -> StateBackend:
    directory.mkdir()
    return open_backend(
        "rocksdb",
        key_groups=KeyGroupRange(0, 16),
        max_parallelism=16,
        directory=directory,
        options={"write_buffer_mib": BUFFER_MIB},
    )


def largest_buffers(backend: StateBackend) -> int:
    assert isinstance(backend, RocksDBBackend)
    size = backend._store._database.property_int_value("rocksdb.size-all-mem-tables")  # type: ignore[attr-defined]
    assert isinstance(size, int)
    return size


@pytest.mark.parametrize("restored", [False, True], ids=["written", "restored"])
@pytest.mark.parametrize("kind", KINDS)
def test_large_values_stay_within_the_write_buffers(tmp_path: Path, kind: str, restored: bool) -> None:
    descriptor, write, read = KINDS[kind]
    backend = opened(tmp_path / "first")
    try:
        backend.begin(0)
        table = backend.table(descriptor)
        for number in range(VALUES):
            write(table, number, bytes(MIB))
        changes = list(backend.commit(0))
        backend.finalize(0)
        if restored:
            backend.close()
            backend = opened(tmp_path / "second")
            backend.table(descriptor)
            backend.restore(0, changes)
        # RocksDB looks at the size of a buffer at the next write.
        backend.begin(1)
        write(backend.table(descriptor), VALUES, b"")
        assert [change.key for change in backend.commit(1)]
        backend.finalize(1)
        # Two buffers, and what pins one more; each may exceed its size by one batch.
        assert largest_buffers(backend) <= 3 * (BUFFER_MIB * MIB + 2 * BATCH_BYTES)
        backend.begin(2)
        assert all(read(backend.table(descriptor), number) == bytes(MIB) for number in range(VALUES))
    finally:
        backend.close()
