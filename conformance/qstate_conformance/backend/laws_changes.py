"""Laws of changes: what a commit returns, in which bytes, and that the state can be rebuilt from it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.backends import Change, ChangeOp
from qstate.backends.change_blocks import blocks_of
from qstate.descriptors import StateDescriptor, StateKind
from qstate.keys import Key, KeyGroupRange, encode_key, key_group
from qstate_conformance.backend.contents import all_places, check_tables
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import AGGREGATING, FRAMED, FRAMED_LIST, LIST, MAP, REDUCING, STATES, VALUE
from qstate_conformance.backend.strategies import keys, parallelisms, programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject


@law("B3")
@given(program=programs(epochs=4))
def test_replaying_the_changes_of_all_epochs_gives_the_state(
    subject: BackendSubject, program: list[list[Write]]
) -> None:
    """The changes of every commit, in order, build the same state in an empty backend."""
    model, changes = Model(), list[Change]()
    places = all_places(write.place for epoch in program for write in epoch)
    with Instances(subject) as instances:
        backend = instances.open()
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, model)
            changes += backend.commit(epoch)
            check_tables(instances.restored(epoch, changes), model, places)


@law("B3", "B10")
@given(program=programs(epochs=3))
def test_changes_mean_what_their_documentation_says(subject: BackendSubject, program: list[list[Write]]) -> None:
    """A dict that follows the documentation of `Change` to the letter holds the state after every commit."""
    model, replica = Model(), Replica()
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, model)
            replica.load(sealed(backend, epoch))
            check_same(replica.model().entries, model.entries)


@law("B9")
@given(program=programs(epochs=3))
@example(program=[[Write("put", MAP.name, None, "k", ({name: 1},))] for name in ("a", "b")])
def test_a_commit_tells_each_changed_entry_once(subject: BackendSubject, program: list[list[Write]]) -> None:
    """A commit has each written entry once and no other entry, and a map's DELETE comes first."""
    model = Model()
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, model)
            changes = sealed(backend, epoch)
            entries = Counter((change.state, change.namespace, change.key, change.map_key) for change in changes)
            deletes = Counter((change.state, change.namespace, change.key, b"") for change in _map_deletes(changes))
            twice = [entry for entry, count in entries.items() if count > 1]
            assert not twice, f"returned more than once: {twice}"
            _check_deletes_first(changes)
            written = {(state, encode_key(space), encode_key(key)) for state, space, key in _written(writes)}
            told = {entry[:3] for entry in (entries | deletes)}
            assert told <= written, f"a commit returned {told - written}, which was not written"


def _written(writes: list[Write]) -> list[tuple[str, Any, Any]]:
    found = [write.place for write in writes]
    for write in writes:
        if write.operation == "put_many":
            found += [(write.state, write.namespace, key) for key in write.arguments[0]]
    return found


def _map_deletes(changes: list[Change]) -> list[Change]:
    return [change for change in changes if change.op is ChangeOp.DELETE and STATES[change.state].kind is StateKind.MAP]


def _check_deletes_first(changes: list[Change]) -> None:
    seen: set[tuple[str, bytes, bytes]] = set()
    for change in changes:
        where = (change.state, change.namespace, change.key)
        assert change.op is not ChangeOp.DELETE or where not in seen, f"a DELETE after other changes of {where}"
        seen.add(where)


@law("B9")
@pytest.mark.parametrize("published", [False, True], ids=["at once", "published in between"])
def test_an_epoch_tells_the_last_values_only(subject: BackendSubject, published: bool) -> None:
    """Of many writes to one entry the commit has the last one, and the next commit does not repeat it."""
    with opened(subject) as backend:
        for number in range(3):
            backend.table(VALUE).put("k", number)
            backend.table(LIST).put("k", [number])
            backend.table(MAP).map_put("k", "m", number)
            if published:
                backend.publish()
        told = {change.state: change.data for change in sealed(backend, 0)}
        assert told == {VALUE.name: b"\x02", LIST.name: b"\x91\xc4\x01\x02", MAP.name: b"\x02"}
        backend.begin(1)
        backend.table(VALUE).put("j", 9)
        assert [(change.key, change.data) for change in sealed(backend, 1)] == [(b"\xa1j", b"\x09")]


@law("B3", "B9")
@given(descriptor=st.sampled_from([VALUE, LIST, MAP, REDUCING]), again=st.booleans())
def test_changes_tell_a_clear(subject: BackendSubject, descriptor: StateDescriptor, again: bool) -> None:
    """The commit shows a cleared value, list or map as cleared, also when the same epoch filled it again."""
    contents: dict[StateKind, tuple[Any, Any]] = {
        StateKind.LIST: ([1, 2], [3]),
        StateKind.MAP: ({"a": 1, "b": 2}, {"c": 3}),
    }
    first, second = contents.get(descriptor.kind, (1, 2))
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        table = backend.table(descriptor, "w")
        table.put("k", first)
        changes = sealed(backend, 0)
        backend.begin(1)
        table.delete("k")
        if again and descriptor is LIST:
            table.list_add("k", second)
        elif again and descriptor is MAP:
            table.map_put("k", "c", 3)
        elif again:
            table.put("k", second)
        changes += sealed(backend, 1)
        found = instances.restored(1, changes).table(descriptor, "w").get("k")
        check_same(found, second if again else None, changes)


@law("B3", "B9")
@given(removed=st.sets(st.sampled_from("abcd")), published=st.booleans())
def test_changes_tell_a_removed_map_entry(subject: BackendSubject, removed: set[str], published: bool) -> None:
    """Map entries that were removed are gone in what is built from the changes, and the others are not."""
    start = {name: number for number, name in enumerate("abcd")}
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        table = backend.table(MAP)
        table.put("k", dict(start))
        changes = sealed(backend, 0)
        backend.begin(1)
        for name in sorted(removed):
            table.map_remove("k", name)
        if published:
            backend.publish()
        changes += sealed(backend, 1)
        expected = {name: number for name, number in start.items() if name not in removed}
        check_same(instances.restored(1, changes).table(MAP).get("k"), expected or None)


@law("B10")
def test_changes_have_the_documented_bytes(subject: BackendSubject) -> None:
    """Golden bytes of a PUT of each kind, of a list as an array of bins, and of map entries."""
    with opened(subject) as backend:
        backend.table(VALUE, ("w", 7)).put("JFK", [1.5, None, {"a": True}])
        backend.table(REDUCING).put(-33, -129)
        backend.table(AGGREGATING).put(b"\x00", [2.0, 1])
        backend.table(LIST).put(("JFK", 1), [1, "\u00e9"])
        backend.table(MAP).put("k", {("m", -1): b"\xff"})
        backend.table(FRAMED).put("k", 1)
        backend.table(FRAMED_LIST).put("k", [1])
        put, void = ChangeOp.PUT, b"\xc0"
        expected = {
            Change(put, "value", 120, b"\x92\xa1w\x07", b"\xa3JFK", b"",
                   b"\x93\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xc0\x81\xa1a\xc3"),
            Change(put, "reducing", 91, void, b"\xd0\xdf", b"", b"\xd1\xff\x7f"),
            Change(put, "aggregating", 39, void, b"\xc4\x01\x00", b"",
                   b"\x92\xcb\x40\x00\x00\x00\x00\x00\x00\x00\x01"),
            Change(put, "list", 100, void, b"\x92\xa3JFK\x01", b"", b"\x92\xc4\x01\x01\xc4\x03\xa2\xc3\xa9"),
            Change(ChangeOp.MAP_PUT, "map", 26, void, b"\xa1k", b"\x92\xa1m\xff", b"\xc4\x01\xff"),
            Change(put, "framed", 26, void, b"\xa1k", b"", b"<\x01>"),
            Change(put, "framed list", 26, void, b"\xa1k", b"", b"\x91\xc4\x03<\x01>"),
        }  # fmt: skip
        changes = {Change(*change) for change in sealed(backend, 0)}
        # A backend that writes maps as a whole may clear what was not there.
        assert changes - {Change(ChangeOp.DELETE, "map", 26, void, b"\xa1k", b"", b"")} == expected
        assert {Change(*change) for change in backend.entries(ALL)} == expected


@law("B10")
def test_later_changes_have_the_documented_bytes(subject: BackendSubject) -> None:
    """Golden bytes of additions to a committed list, of a removed map entry and of a delete."""
    with opened(subject) as backend:
        backend.table(LIST).put("k", [1])
        backend.table(MAP).put("k", {"a": 1, "b": 2})
        backend.table(VALUE).put("k", 1)
        sealed(backend, 0)
        backend.begin(1)
        backend.table(LIST).list_add("k", [2, 3])
        backend.table(MAP).map_remove("k", "a")
        backend.table(MAP).map_put("k", "b", 3)
        backend.table(VALUE).delete("k")
        told = {Change(*change) for change in sealed(backend, 1)}
        k, void = b"\xa1k", b"\xc0"
        added = Change(ChangeOp.LIST_ADD, "list", 26, void, k, b"", b"\x92\xc4\x01\x02\xc4\x01\x03")
        rewritten = Change(ChangeOp.PUT, "list", 26, void, k, b"", b"\x93\xc4\x01\x01\xc4\x01\x02\xc4\x01\x03")
        removed = Change(ChangeOp.MAP_REMOVE, "map", 26, void, k, b"\xa1a", b"")
        cleared = Change(ChangeOp.DELETE, "map", 26, void, k, b"", b"")
        assert len(told & {added, rewritten}) == 1, "a list that grew needs one LIST_ADD or one PUT of all"
        assert len(told & {removed, cleared}) == 1, "a removed entry needs one MAP_REMOVE, or DELETE and the map"
        assert told - {added, rewritten, removed, cleared} == {
            Change(ChangeOp.MAP_PUT, "map", 26, void, k, b"\xa1b", b"\x03"),
            Change(ChangeOp.DELETE, "value", 26, void, k, b"", b""),
        }


@law("B10")
@given(key=keys, max_parallelism=parallelisms)
def test_changes_carry_the_group_of_their_key(subject: BackendSubject, key: Key, max_parallelism: int) -> None:
    """The key group of a change is that of its key for the backend's maximum parallelism, whatever that is."""
    with Instances(subject) as instances:
        backend = instances.open(max_parallelism=max_parallelism)
        backend.begin(0)
        backend.table(VALUE, "w").put(key, 1)
        backend.table(LIST).list_add(key, [1])
        backend.table(MAP).map_put(key, "m", 1)
        assert {change.group for change in sealed(backend, 0)} == {key_group(key, max_parallelism)}
        assert {change.group for change in backend.entries(KeyGroupRange(0, max_parallelism))} == {
            key_group(key, max_parallelism)
        }


@law("B10")
@given(program=programs(epochs=2))
def test_changes_are_the_same_one_by_one_and_by_the_block(subject: BackendSubject, program: list[list[Write]]) -> None:
    """The epoch log takes changes by the block; the blocks hold the changes that iterating gives."""
    with Instances(subject) as instances:
        one, other = instances.open(), instances.open()
        single, blocked = Replica(), Replica()
        for epoch, writes in enumerate(program):
            for backend in (one, other):
                backend.begin(epoch)
                apply(writes, backend, Model())
            single.load(one.commit(epoch))
            blocked.load(change for block in blocks_of(other.commit(epoch)) for change in block.changes())
            check_same(single.model().entries, blocked.model().entries)
