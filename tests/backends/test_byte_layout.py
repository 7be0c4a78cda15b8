"""The store keys of the byte-store adapter: unambiguous, and together what belongs together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qstate.backends.byte_stores.layout import (
    EntryKey,
    group_bounds,
    pack_sequence,
    parse_entry_key,
    prefix_of,
    stop_of,
)
from qstate.keys import Key, Namespace, encode_key

columns = st.one_of(st.text(max_size=40), st.binary(max_size=300), st.integers(-(2**63), 2**63 - 1))
keys: st.SearchStrategy[Key] = st.one_of(columns, st.tuples(columns, columns))
namespaces: st.SearchStrategy[Namespace] = st.one_of(st.none(), keys)
heads = st.tuples(st.integers(0, 32767), st.integers(0, 65535))
sub_keys = st.one_of(keys.map(encode_key), st.integers(0, 2**63).map(pack_sequence), st.just(b""))


@given(heads, namespaces, keys, sub_keys)
def test_a_store_key_can_be_taken_apart(head: tuple[int, int], namespace: Namespace, key: Key, sub_key: bytes) -> None:
    entry_key = prefix_of(*head, encode_key(namespace)) + encode_key(key) + sub_key
    assert parse_entry_key(entry_key) == EntryKey(*head, encode_key(namespace), encode_key(key), sub_key)


@given(heads, st.lists(st.tuples(namespaces, keys), min_size=2, max_size=2, unique_by=repr), sub_keys)
def test_the_entries_of_a_key_are_one_range_that_holds_no_other_keys(
    head: tuple[int, int], places: list[tuple[Namespace, Key]], sub_key: bytes
) -> None:
    one, other = (prefix_of(*head, encode_key(namespace)) + encode_key(key) for namespace, key in places)
    assert one <= one + sub_key < stop_of(one)
    assert not one <= other + sub_key < stop_of(one)


@given(heads, namespaces, keys, sub_keys)
def test_the_entries_of_a_key_group_are_one_range(
    head: tuple[int, int], namespace: Namespace, key: Key, sub_key: bytes
) -> None:
    group = head[0]
    start, stop = group_bounds(group, group + 1)
    assert start <= prefix_of(*head, encode_key(namespace)) + encode_key(key) + sub_key < stop
