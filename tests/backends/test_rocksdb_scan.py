"""A scan of the RocksDB store ends at its bound, whatever happens to the memory that held the bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from qstate.backends.byte_stores.rocksdb import RocksDBBackend, RocksDBStore
from qstate.backends.byte_stores.store import ByteSnapshot, ByteStore

KEYS = 500


@pytest.mark.parametrize("through_snapshot", [False, True])
def test_scans_that_are_held_open_together_each_reach_their_own_bound(tmp_path: Path, through_snapshot: bool) -> None:
    """rocksdict frees an upper bound with the Python object that carried it; scans then ended early, now and then."""
    settings = {name: option.default for name, option in RocksDBBackend.options.items()}
    store = RocksDBStore(str(tmp_path / "db"), settings)
    store.write({b"%06d-%d" % (key, part): b"v" for key in range(KEYS) for part in range(3)})
    source: ByteStore | ByteSnapshot = store.snapshot() if through_snapshot else store
    scans = [source.scan(b"%06d-" % key, b"%06d-\xff" % key) for key in range(KEYS)]
    assert [len(list(scan)) for scan in scans] == [3] * KEYS
    if isinstance(source, ByteSnapshot):
        source.close()
    store.close()
