"""Blocks of changes: the same changes, a column at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends.change_blocks import MOST_CHANGES, TARGET_BLOCK, ChangeBlock, ChangeBlocks, blocks_of
from qstate.backends.contract import BackendContext, Change, ChangeOp
from qstate.backends.heap.backend import HeapBackend
from qstate.checkpoint import EpochLog, LogIdentity
from qstate.descriptors import ValueStateDescriptor
from qstate.errors import SerializationError
from qstate.keys import KeyGroupRange, decode_key, encode_key, key_group

VALUE = ValueStateDescriptor("value")
BYTES = st.binary(max_size=3)
CHANGES = st.lists(
    st.builds(
        Change,
        st.sampled_from(ChangeOp),
        st.sampled_from(["one", "two"]),
        st.integers(0, 127),
        st.sampled_from([encode_key(None), encode_key("w")]),
        BYTES,
        BYTES,
        BYTES,
    )
)


def open_heap(directory: Path) -> HeapBackend:
    heap = HeapBackend(BackendContext(KeyGroupRange(0, 128), 128, directory))
    heap.begin(0)
    return heap


@given(CHANGES)
def test_blocks_are_the_same_changes_in_the_same_order(changes: list[Change]) -> None:
    assert [change for block in blocks_of(iter(changes)) for change in block.changes()] == changes
    assert list(ChangeBlocks(blocks_of(changes))) == changes


@given(CHANGES)
def test_blocks_are_passed_on_as_they_are(changes: list[Change]) -> None:
    blocks = list(blocks_of(changes))
    passed = list(blocks_of(ChangeBlocks(blocks)))
    assert len(passed) == len(blocks)
    assert all(one is other for one, other in zip(passed, blocks, strict=True))


def test_changes_are_taken_no_further_ahead_than_a_block() -> None:
    """So that an epoch is never in memory as a whole, however large its values are."""
    taken: list[Change] = []

    def changes() -> Iterator[Change]:
        for number in count():
            taken.append(Change(ChangeOp.PUT, "one", 0, b"\xc0", encode_key(number), b"", bytes(TARGET_BLOCK // 4)))
            yield taken[-1]

    sizes = [len(block.keys) for block in islice(blocks_of(changes()), 4)]
    assert sizes[1:] == [3, 3, 3]
    assert len(taken) == sum(sizes)


def test_a_heap_commits_values_in_blocks_that_follow_their_size(tmp_path: Path) -> None:
    with open_heap(tmp_path) as heap:
        heap.table(VALUE).put_many(range(100), [bytes(TARGET_BLOCK // 4)] * 100)
        heap.table(VALUE, "small").put_many(range(20_000), range(20_000))
        blocks = list(heap.commit(0).blocks())
    large = [len(block.keys) for block in blocks if block.namespace == encode_key(None)]
    small = [len(block.keys) for block in blocks if block.namespace != encode_key(None)]
    assert set(large[1:-1]) == {3}
    assert max(small) == MOST_CHANGES


def test_a_heap_tells_removed_and_written_keys_of_one_epoch_apart(tmp_path: Path) -> None:
    with open_heap(tmp_path) as heap:
        table = heap.table(VALUE)
        table.put_many(["a", "b", "c", "d"], [1, [2], 3, [4]])
        list(heap.commit(0))
        heap.begin(1)
        table.put_many(["a", "b", "new"], [[10], 20, "x"])
        for key in ("c", "d", "new", "never"):
            table.delete(key)
        found = {(change.op, decode_key(change.key), change.group, change.data) for change in heap.commit(1)}
        heap.begin(2)
        table.put_many(["a", "b", "c"], [0, 0, 0])
        heap.rollback()
        assert list(map(table.get, ["a", "b", "c", "d", "new"])) == [[10], 20, None, None, None]
    assert found == {
        (ChangeOp.PUT, "a", key_group("a", 128), b"\x91\x0a"),
        (ChangeOp.PUT, "b", key_group("b", 128), b"\x14"),
        (ChangeOp.DELETE, "c", key_group("c", 128), b""),
        (ChangeOp.DELETE, "d", key_group("d", 128), b""),
    }


@pytest.mark.parametrize("place", [0, 1, 70, 149])
def test_the_value_that_does_not_fit_is_named_wherever_it_stands(tmp_path: Path, place: int) -> None:
    with open_heap(tmp_path) as heap:
        heap.table(VALUE).put_many(range(150), [object() if number == place else number for number in range(150)])
        with pytest.raises(SerializationError, match=f"key {place}:"):
            list(heap.commit(0))


def test_the_log_gives_back_the_changes_of_blocks(tmp_path: Path) -> None:
    """Of many small blocks and of one that is larger than the log would make it."""
    blocks = [
        ChangeBlock(ChangeOp.PUT, "one", encode_key(number), [number], [encode_key(number)], None, [b"\x01"])
        for number in range(100)
    ]
    many = range(3 * MOST_CHANGES)
    blocks.append(ChangeBlock(ChangeOp.DELETE, "one", b"\xc0", [0] * len(many), [*map(encode_key, many)], None, None))
    blocks.append(ChangeBlock(ChangeOp.MAP_PUT, "two", b"\xc0", [1, 2], [b"\x01", b"\x02"], [b"\x03", b""], [b"", b""]))
    log = EpochLog.open(tmp_path, LogIdentity("job", "operator", 0, 1, 128))
    log.seal(0, ChangeBlocks(blocks))
    assert list(log.changes()) == list(ChangeBlocks(blocks))
