"""The index of the keys that a scan of the heap visits: it can be made in parts, and is the same then."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qstate.backends.contract import Selection
from qstate.backends.key_index import KEYS_AT_ONCE, MOST_SORTED, KeyIndex
from qstate.keys import Key, key_group

GROUPS = 4
KEYS = [f"key {number}" for number in range(2 * KEYS_AT_ONCE)]


class Table:
    """The part of a table, and of its state, that an index needs."""

    def __init__(self, namespace: bytes, groups: int = GROUPS) -> None:
        self.encoded_namespace = namespace
        self.groups = groups
        self.state = self

    @property
    def group_of(self) -> Callable[[Key], int]:
        return lambda key: key_group(key, self.groups)


def keys_of(index: KeyIndex[Table]) -> list[tuple[bytes, Key]]:
    return [
        (place.namespace, place.plain) for group in range(GROUPS) for place in index.selected(group, None, Selection())
    ]


def test_an_index_is_made_in_parts_and_the_same_without_them() -> None:
    tables = [(Table(b"a"), lambda: KEYS), (Table(b"b"), lambda: KEYS[:10])]
    prepared, at_once = (KeyIndex(1, tables) for _ in range(2))
    assert len(list(prepared.prepare())) == 3
    assert keys_of(prepared) == keys_of(at_once)
    assert len(keys_of(prepared)) == len(KEYS) + 10
    assert list(prepared.prepare()) == []


def test_a_key_that_cannot_be_read_leaves_no_index_with_some_of_the_keys() -> None:
    found = [None, KEYS]

    def keys() -> list[str]:
        keys = found.pop(0)
        if keys is None:
            raise RuntimeError("dictionary changed size during iteration")
        return keys

    index = KeyIndex(1, [(Table(b""), keys)])
    with pytest.raises(RuntimeError):
        keys_of(index)
    assert len(keys_of(index)) == len(KEYS)


def test_few_groups_are_sorted_at_a_time_and_any_can_be_read_again() -> None:
    groups = 4 * MOST_SORTED
    index = KeyIndex(1, [(Table(b"", groups), lambda: KEYS)])

    def read() -> list[list[Key]]:
        return [[place.plain for place in index.selected(group, None, Selection())] for group in range(groups)]

    found = read()
    assert sorted(key for keys in found for key in keys) == sorted(KEYS)
    assert list(index._sorted) == list(range(groups))[-MOST_SORTED:]
    assert read() == found
    kept = index._places(groups - 1)
    assert index._places(groups - 1) is kept, "a scan that reads a group in several pages sorts it once"
