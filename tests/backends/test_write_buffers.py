"""RocksDB's write buffers keep their size, however large the values of an epoch are."""

from __future__ import annotations

from pathlib import Path

import pytest

from qstate.backends.byte_stores.rocksdb import RocksDBBackend
from qstate.backends.byte_stores.table import BATCH_BYTES
from qstate.backends.catalog import open_backend
from qstate.backends.contract import StateBackend
from qstate.descriptors import ValueStateDescriptor
from qstate.keys import KeyGroupRange

MIB = 1 << 20
BUFFER_MIB = 4
VALUES = 48
BLOB = ValueStateDescriptor("blob", bytes)


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
def test_large_values_stay_within_the_write_buffers(tmp_path: Path, restored: bool) -> None:
    backend = opened(tmp_path / "first")
    try:
        backend.begin(0)
        table = backend.table(BLOB)
        for number in range(VALUES):
            table.put(f"key {number}", bytes(MIB))
        changes = list(backend.commit(0))
        backend.finalize(0)
        if restored:
            backend.close()
            backend = opened(tmp_path / "second")
            backend.table(BLOB)
            backend.restore(0, changes)
        # RocksDB looks at the size of a buffer at the next write.
        backend.begin(1)
        backend.table(BLOB).put("small", b"")
        assert [change.key for change in backend.commit(1)]
        backend.finalize(1)
        # Two buffers, and what pins one more; each may exceed its size by one batch.
        assert largest_buffers(backend) <= 3 * (BUFFER_MIB * MIB + 2 * BATCH_BYTES)
        backend.begin(2)
        assert all(backend.table(BLOB).get(f"key {number}") == bytes(MIB) for number in range(VALUES))
    finally:
        backend.close()
