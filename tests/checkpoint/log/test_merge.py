"""Merging a base with the epochs since: the same state as applying them one after the other, in ascending order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, groupby, islice
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends.change_blocks import ChangeBlocks, blocks_of
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.chain import Part
from qstate.checkpoint.log.merge import Overlay, ascending, merged, merged_changes, merged_parts
from tests.checkpoint.histories import KEYS, NAMESPACES, VALUE, histories, order_of, plain


def overlay_of(history: list[Change]) -> Overlay:
    overlay = Overlay()
    for block in blocks_of(history):
        overlay.add(block)
    return overlay


@given(histories, histories)
def test_merged_is_the_state_of_both_histories(before: list[Change], after: list[Change]) -> None:
    base = list(ascending(before))
    found = list(merged(base, overlay_of(after)))
    assert plain(found) == plain(before + after)
    assert {change.op for change in found} <= {ChangeOp.PUT, ChangeOp.MAP_PUT}
    assert found == sorted(found, key=order_of)
    assert len({order_of(change) for change in found}) == len(found)


@given(histories, histories)
def test_equal_states_give_equal_streams(before: list[Change], after: list[Change]) -> None:
    assert list(merged(list(ascending(before)), overlay_of(after))) == list(ascending(before + after))


def test_base_is_read_as_it_goes() -> None:
    def endless() -> object:
        number = 0
        while True:
            number += 1
            yield Change(ChangeOp.PUT, VALUE, number, NAMESPACES[0], KEYS[0], b"", b"")

    overlay = overlay_of([Change(ChangeOp.PUT, VALUE, 3, NAMESPACES[0], KEYS[0], b"", b"new")])
    found = list(islice(merged(endless(), overlay), 4))  # type: ignore[arg-type]
    assert [change.data for change in found] == [b"", b"", b"new", b""]


def resolved_order_of(change: Change) -> tuple[object, ...]:
    return change.group, change.state.encode(), change.namespace, change.op.value, change.key, change.map_key


def partial(history: list[Change]) -> Part:
    return Part(0, (), ChangeBlocks(overlay_of(history).blocks()), ascending=True)


@given(histories, histories)
def test_resolved_changes_do_the_same_to_any_state(before: list[Change], history: list[Change]) -> None:
    found = list(ChangeBlocks(overlay_of(history).blocks()))
    assert plain(before + found) == plain(before + history)
    assert found == sorted(found, key=resolved_order_of)
    assert len({resolved_order_of(change) for change in found}) == len(found)
    for change in found:
        of_key = {one.op for one in found if one[1:5] == change[1:5]}
        assert len(of_key) == 1 or of_key in (
            {ChangeOp.DELETE, ChangeOp.MAP_PUT},
            {ChangeOp.MAP_PUT, ChangeOp.MAP_REMOVE},
        )


@given(histories, st.lists(histories, max_size=4), histories)
def test_stack_and_epochs_are_merged_to_the_state_of_all(
    before: list[Change], between: list[list[Change]], after: list[Change]
) -> None:
    stack = [Part(0, (), ascending(before), ascending=True), *map(partial, between)]
    found = list(merged_parts([*stack, Part(1, (), after, ascending=False)]))
    assert found == list(ascending(chain(before, *between, after)))


@given(histories, st.lists(histories, max_size=4), histories)
def test_partial_snapshots_and_epochs_are_merged_to_changes_that_do_the_same(
    before: list[Change], between: list[list[Change]], after: list[Change]
) -> None:
    epochs = Part(1, (), after, ascending=False)
    found = list(merged_changes([*map(partial, between), epochs]))
    assert plain(before + found) == plain([*before, *chain(*between, after)])
    assert found == list(merged_changes([Part(1, (), list(chain(*between, after)), ascending=False)])), (
        "equal, however cut"
    )


class Counted(bytes):
    """Data that knows how much of it there is in memory."""

    held = most = 0

    def __new__(cls, data: bytes) -> Counted:
        cls.held += 1
        cls.most = max(cls.most, cls.held)
        return super().__new__(cls, data)

    def __del__(self) -> None:
        type(self).held -= 1


GROUPS, KEYS_OF_GROUP, LAYERS = 40, 50, 3
#: So large that a block, which aims at a MiB, has 256 of them.
VALUE_OF_4_KIB = b"x" * 4096
IN_BLOCKS = 2 * 256


def counted(step: int) -> Iterator[Change]:
    """Every so many keys of every group, ascending."""
    for group in range(GROUPS):
        for number in range(0, KEYS_OF_GROUP, step):
            yield Change(ChangeOp.PUT, VALUE, group, NAMESPACES[0], b"%05d" % number, b"", Counted(VALUE_OF_4_KIB))


@pytest.mark.parametrize("whole", [True, False])
def test_merge_of_partial_snapshots_holds_a_key_group_and_not_the_files(whole: bool) -> None:
    def blocks(step: int) -> ChangeBlocks:
        groups = groupby(counted(step), attrgetter("group"))
        return ChangeBlocks(block for _, changes in groups for block in blocks_of(changes))

    Counted.most = Counted.held = 0
    layers = [Part(0, (), blocks(number + 1), ascending=True) for number in range(LAYERS)]
    epochs = Part(1, (), counted(KEYS_OF_GROUP), ascending=False)  # one key of each group
    found = (merged_parts if whole else merged_changes)([*layers, epochs])
    entries = sum(len(block.keys) for block in found.blocks())
    assert entries == GROUPS * KEYS_OF_GROUP
    # The epochs, a block that is given and the next one, and of each layer a key group and the next one.
    assert Counted.most < GROUPS + IN_BLOCKS + 2 * LAYERS * KEYS_OF_GROUP < GROUPS * KEYS_OF_GROUP
