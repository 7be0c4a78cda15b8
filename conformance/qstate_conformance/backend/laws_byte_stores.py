"""Laws of ordered byte stores: what the adapter relies on, asked of the store itself. Skipped for other backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import ByteSnapshot, ByteStore, ByteStoreBackend
from qstate.errors import ClosedError
from qstate_conformance.backend.instances import Instances
from qstate_conformance.backend.model import check_equal
from qstate_conformance.backend.schedules import Readers, tiny_switch_interval
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

_PREFIX = b"law"
#: After every key of these laws.
_END = _PREFIX + b"\xff" * 40
#: The longest keys of some stores, a byte more, and what the contract asks for.
_LENGTHS = (255, 256, 511, 512, 1023, 1024, 1978, 4096, 65_535, 65_536, 2**20)
#: Suffixes with the bytes that orders and text forms get wrong, and values with the empty one.
_suffixes = st.one_of(
    st.sampled_from([b"", b"\x00", b"\xff", b"\xff\xff", b"a\x00", b"\x80", b"\xff" * 20]), st.binary(max_size=6)
)
_keys = _suffixes.map(lambda suffix: _PREFIX + suffix)
_batches = st.lists(st.dictionaries(_keys, st.one_of(st.none(), st.binary(max_size=8)), max_size=6), max_size=5)


@contextmanager
def _store(subject: BackendSubject) -> Iterator[ByteStore]:
    """The store of a backend that is not used otherwise."""
    if not issubclass(subject.backend, ByteStoreBackend):
        pytest.skip("not built on a ByteStore")
    with Instances(subject) as instances:
        backend = instances.open()
        assert isinstance(backend, ByteStoreBackend)
        yield backend.live_store()[1]


def _written(batches: list[Mapping[bytes, bytes | None]]) -> dict[bytes, bytes]:
    merged: dict[bytes, bytes | None] = {}
    for batch in batches:
        merged.update(batch)
    return {key: value for key, value in sorted(merged.items()) if value is not None}


@law("S5")
def test_long_keys_and_values_come_back_as_they_were(subject: BackendSubject) -> None:
    """Keys up to a MiB that differ in their last byte alone are different keys; values have any length, or none."""
    with _store(subject) as store:
        for length in _LENGTHS:
            for last in (b"a", b"b"):
                store.write({_PREFIX.ljust(length - 1, b"k") + last: last * (length - 256)})
        store.write({_PREFIX: b"v" * (4 * 1024 * 1024 + 1), _PREFIX + b"c": b""})
        snapshot = store.snapshot()
        sources: list[ByteStore | ByteSnapshot] = [store, snapshot]
        for source in sources:
            for length in _LENGTHS:
                for last in (b"a", b"b"):
                    found = source.get(_PREFIX.ljust(length - 1, b"k") + last)
                    check_equal(found, last * (length - 256), f"the value of a key of {length:,} bytes")
            check_equal(source.get(_PREFIX), b"v" * (4 * 1024 * 1024 + 1))
            assert source.get(_PREFIX + b"c") == b""
            lengths = [len(key) for key, _ in source.scan(_PREFIX, _PREFIX + b"\xff")]
            assert lengths == [3, 4, *(length for length in _LENGTHS for _ in "ab")]
        snapshot.close()


@law("S1", "S2")
@given(batches=_batches, bounds=st.tuples(_keys, _keys))
def test_a_scan_gives_the_entries_between_its_bounds_in_order(
    subject: BackendSubject, batches: list[Mapping[bytes, bytes | None]], bounds: tuple[bytes, bytes]
) -> None:
    """Entries come in the order of their bytes, from the first bound to before the second, and `get` agrees."""
    start, stop = bounds
    with _store(subject) as store:
        for batch in batches:
            store.write(batch)
        expected = _written(batches)
        inside = [(key, value) for key, value in expected.items() if start <= key < stop]
        snapshot = store.snapshot()
        sources: list[ByteStore | ByteSnapshot] = [store, snapshot]
        for source in sources:
            assert list(source.scan(start, stop)) == inside
            assert list(source.scan(_PREFIX, _END)) == list(expected.items())
            for key in {key for batch in batches for key in batch}:
                assert source.get(key) == expected.get(key)
        snapshot.close()


@law("S7")
@given(batches=_batches, asked=st.lists(_keys, max_size=8))
def test_get_many_is_get_of_each_key(
    subject: BackendSubject, batches: list[Mapping[bytes, bytes | None]], asked: list[bytes]
) -> None:
    """`get_many` returns the value of each key, None for a missing one, in the order of the keys, repeated or not."""
    with _store(subject) as store:
        for batch in batches:
            store.write(batch)
        expected = _written(batches)
        wanted = [*asked, *expected, *reversed(expected), *asked]
        assert list(store.get_many(wanted)) == [expected.get(key) for key in wanted]
        assert list(store.get_many([])) == []


@law("S3")
@given(batches=_batches, later=_batches)
def test_a_snapshot_does_not_change(
    subject: BackendSubject, batches: list[Mapping[bytes, bytes | None]], later: list[Mapping[bytes, bytes | None]]
) -> None:
    """Neither `get` nor `scan` of a snapshot shows what was written after it, also when it was never read before."""
    with _store(subject) as store:
        for batch in batches:
            store.write(batch)
        snapshots = [store.snapshot()]
        for batch in later:
            store.write(batch)
            snapshots.append(store.snapshot())
        for number, snapshot in enumerate(snapshots):
            expected = _written([*batches, *later[:number]])
            assert list(snapshot.scan(_PREFIX, _END)) == list(expected.items())
            for key in {key for batch in (*batches, *later) for key in batch}:
                assert snapshot.get(key) == expected.get(key)
        for snapshot in snapshots:
            snapshot.close()
            snapshot.close()


@law("S2")
def test_a_scan_ignores_what_is_written_while_it_runs(subject: BackendSubject) -> None:
    """A scan shows the store as it was when the scan began."""
    with _store(subject) as store:
        keys = [_PREFIX + b"%04d" % number for number in range(3_000)]
        store.write(dict.fromkeys(keys, b"old"))
        found = store.scan(_PREFIX, _PREFIX + b"\xff")
        told = [next(found)]
        store.write({key: None if number % 2 else b"new" for number, key in enumerate(keys)})
        store.write({_PREFIX + b"%04d+" % number: b"new" for number in range(3_000)})
        told += found
        assert {value for _, value in told} == {b"old"}
        assert len(told) == len(keys)


@law("S1", "S2")
def test_a_batch_is_seen_whole_or_not_at_all(subject: BackendSubject) -> None:
    """Readers in other threads never see a part of a batch, in a scan of the store or of a snapshot."""
    with _store(subject) as store:
        keys = [_PREFIX + b"%02d" % number for number in range(40)]

        def write(number: int) -> None:
            # Old keys go and new ones come, as when a map is rewritten.
            store.write(
                {key + b"%d" % ((number + 1) % 2): None for key in keys}
                | {key + b"%d" % (number % 2): b"%d" % number for key in keys}
            )

        def read() -> None:
            found = list(store.scan(_PREFIX, _PREFIX + b"\xff"))
            assert len(found) == len(keys) and len({value for _, value in found}) == 1, f"part of a batch: {found}"

        write(0)
        with tiny_switch_interval(), Readers(read, read) as readers:
            for number in range(1, 120):
                write(number)
                if number % 4 == 0:
                    readers.one_more()


@law("S4")
def test_a_closed_store_answers_or_raises_closed_error(subject: BackendSubject) -> None:
    """After `close`, the store and its snapshots raise `ClosedError` or answer as before."""
    with _store(subject) as store:
        store.write({_PREFIX: b"1"})
        snapshot = store.snapshot()
        store.close()
        store.close()
        uses: list[Callable[[], object]] = [
            lambda: store.get(_PREFIX),
            lambda: dict(store.scan(_PREFIX, _PREFIX + b"\xff"))[_PREFIX],
            lambda: snapshot.get(_PREFIX),
            lambda: dict(snapshot.scan(_PREFIX, _PREFIX + b"\xff"))[_PREFIX],
        ]
        for use in uses:
            try:
                assert use() == b"1"
            except ClosedError:
                continue
        snapshot.close()
