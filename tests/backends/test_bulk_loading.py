"""Loading by the column is loading one by one, only faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends.catalog import open_backend
from qstate.backends.change_blocks import ChangeBlock, ChangeBlocks, blocks_of, recut
from qstate.backends.contract import Change, ChangeOp, StateBackend
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from qstate.errors import SerializationError
from qstate.keys import KeyGroupRange, decode_keys, encode_key, key_group
from qstate.serializers import DeclaredSerializer, MessagePackSerializer

VOID = encode_key(None)
ANY = ValueStateDescriptor("any")
ELEMENTS = ListStateDescriptor("elements")
ENTRIES = MapStateDescriptor("entries")
COLUMNS = st.one_of(st.text(max_size=5), st.binary(max_size=5), st.integers(-(2**63), 2**63 - 1))
KEYS = st.one_of(COLUMNS, st.tuples(COLUMNS, COLUMNS))
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(max_size=3), st.binary(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(st.text(), inner, max_size=3)
    ),
)


@dataclass
class Reading:
    at: int
    unit: str = "C"


@given(st.lists(KEYS))
def test_keys_decoded_together_are_the_keys(keys: list[Any]) -> None:
    assert list(decode_keys([encode_key(key) for key in keys])) == keys


@given(st.lists(PLAIN))
def test_values_loaded_together_are_the_values(values: list[Any]) -> None:
    serializer = MessagePackSerializer()
    assert serializer.load_all(serializer.dump_all(values)) == values


def test_records_loaded_together_take_their_defaults() -> None:
    data = [*DeclaredSerializer(Reading).dump_all([Reading(1, "F")]), MessagePackSerializer().dumps({"at": 2})]
    assert DeclaredSerializer(Reading).load_all(data) == [Reading(1, "F"), Reading(2)]
    assert DeclaredSerializer(Reading).load_all([]) == []


@pytest.mark.parametrize("bad", [b"\xc1", b"\x92\x01", MessagePackSerializer().dumps(3)])
def test_bytes_that_are_no_record_are_told_as_by_loads(bad: bytes) -> None:
    serializer = DeclaredSerializer(Reading)
    good = serializer.dumps(Reading(1))
    with pytest.raises(SerializationError) as one:
        serializer.loads(bad)
    with pytest.raises(SerializationError, match="^" + str(one.value).replace("(", r"\(")[:40]):
        serializer.load_all([good, bad, good])


def test_a_serializer_that_reads_in_its_own_way_is_asked() -> None:
    class Doubling(MessagePackSerializer):
        def loads(self, data: bytes) -> Any:
            return 2 * super().loads(data)

    class Later(DeclaredSerializer):
        def loads(self, data: bytes) -> Any:
            found = super().loads(data)
            return Reading(found.at + 1)

    assert Doubling().load_all([b"\x01", b"\x02"]) == [2, 4]
    assert Later(Reading).load_all([Later(Reading).dumps(Reading(1))]) == [Reading(2)]


BYTES = st.binary(max_size=3)
SINGLE = st.builds(
    Change,
    st.sampled_from(ChangeOp),
    st.sampled_from(["one", "two"]),
    st.integers(0, 127),
    st.sampled_from([VOID, encode_key("w")]),
    BYTES,
    BYTES,
    BYTES,
)


@given(st.lists(SINGLE, max_size=200), st.lists(st.integers(0, 200), max_size=10))
def test_blocks_are_the_same_however_the_changes_were_cut(changes: list[Change], cuts: list[int]) -> None:
    edges = sorted({0, len(changes), *(min(cut, len(changes)) for cut in cuts)})
    parts = (changes[start:stop] for start, stop in pairwise(edges))
    cut = chain.from_iterable(blocks_of(iter(part)) for part in parts)
    assert list(recut(cut)) == list(blocks_of(iter(changes)))


@given(st.lists(SINGLE, max_size=50), st.integers(0, 100), st.integers(1, 27))
def test_within_keeps_the_changes_of_the_key_groups(changes: list[Change], start: int, count: int) -> None:
    groups = KeyGroupRange(start, start + count)
    kept = [change for block in blocks_of(iter(changes)) for change in block.within(groups).changes()]
    assert kept == [change for change in changes if change.group in groups]


def _opened(name: str, directory: Path, groups: KeyGroupRange) -> StateBackend:
    directory.mkdir()
    return open_backend(name, key_groups=groups, max_parallelism=128, directory=directory, options={})


def _block(op: ChangeOp, state: str, keys: Sequence[Any], data: list[bytes] | None, *map_keys: Any) -> ChangeBlock:
    groups = [key_group(key, 128) for key in keys]
    return ChangeBlock(op, state, VOID, groups, [*map(encode_key, keys)], [*map(encode_key, map_keys)] or None, data)


#: Twice the same key in one block, in either order of mutable and immutable; removals; what is not there.
BLOCKS = [
    _block(
        ChangeOp.PUT,
        "any",
        ["a", "b", "c", "a", "b", "d"],
        [b"\x91\x01", b"\x02", b"\x03", b"\x04", b"\x91\x05", b"\x06"],
    ),
    _block(ChangeOp.DELETE, "any", ["c", "never"], None),
    _block(ChangeOp.PUT, "elements", ["a", "b"], [b"\x91\xc4\x01\x01", b"\x91\xc4\x01\x02"]),
    _block(ChangeOp.LIST_ADD, "elements", ["a", "c"], [b"\x91\xc4\x01\x03", b"\x91\xc4\x01\x04"]),
    _block(ChangeOp.DELETE, "elements", ["b"], None),
    _block(ChangeOp.MAP_PUT, "entries", ["a", "a", "b"], [b"\x01", b"\x02", b"\x03"], "x", "y", "x"),
    _block(ChangeOp.MAP_REMOVE, "entries", ["a", "b", "c"], None, "x", "x", "x"),
    _block(ChangeOp.MAP_PUT, "entries", ["d"], [b"\x01"], 1),
    _block(ChangeOp.DELETE, "entries", ["d"], None),
]
TOLD = {
    "any": {"a": 4, "b": [5], "c": None, "d": 6},
    "elements": {"a": [1, 3], "b": None, "c": [4], "d": None},
    "entries": {"a": {"y": 2}, "b": None, "c": None, "d": None},
}


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    "given_as", [lambda: ChangeBlocks(BLOCKS), lambda: iter(list(ChangeBlocks(BLOCKS)))], ids=["blocks", "changes"]
)
def test_blocks_and_changes_restore_the_same_state(tmp_path: Path, backend: str, given_as: Callable[[], Any]) -> None:
    for number, groups in enumerate([KeyGroupRange(0, 128), KeyGroupRange(0, 64), KeyGroupRange(64, 128)]):
        with _opened(backend, tmp_path / str(number), groups) as opened:
            tables = {descriptor.name: opened.table(descriptor) for descriptor in (ANY, ELEMENTS, ENTRIES)}
            opened.restore(3, given_as())
            opened.begin(4)
            tables["any"].put("b", [7])
            opened.rollback()  # back to what was restored: a stale committed value would show here
            for state, expected in TOLD.items():
                for key, value in expected.items():
                    wanted = value if key_group(key, 128) in groups else None
                    assert tables[state].get(key) == wanted, (state, key)
