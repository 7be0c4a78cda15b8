"""Laws of restoring: another instance, a part of the key groups, and several sources: rescaling up and down."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Capability, Change, Isolation, StateBackend
from qstate.descriptors import StateDescriptor, ValueStateDescriptor
from qstate.errors import JobError
from qstate.keys import KeyGroupRange, encode_key, key_group
from qstate_conformance.backend.contents import all_places, answered, check_reads, check_tables, read_answer
from qstate_conformance.backend.instances import Instances, sealed
from qstate_conformance.backend.model import Model, Place, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import FRAMED_MAP, KINDS, LIST, MAP, STATES, VALUE, numbered
from qstate_conformance.backend.strategies import cuts, parallelisms, programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject


def _run(backend: StateBackend, program: list[list[Write]]) -> tuple[Model, list[Change]]:
    """Commit every epoch of the program. Return the model's contents and the changes of the commits."""
    model, changes = Model(), list[Change]()
    for epoch, writes in enumerate(program):
        backend.begin(epoch)
        apply(writes, backend, model)
        changes += backend.commit(epoch)
    return model, changes


def _part(model: Model, groups: KeyGroupRange, max_parallelism: int = 128) -> dict[Place, Any]:
    return {
        place: contents for place, contents in model.entries.items() if key_group(place[2], max_parallelism) in groups
    }


@law("B5", "B3")
@given(program=programs(epochs=3), by_entries=st.booleans())
def test_another_instance_goes_on_from_a_snapshot(
    subject: BackendSubject, program: list[list[Write]], by_entries: bool
) -> None:
    """An instance that is restored from entries or changes holds the state, and continues with the next epoch."""
    places = all_places(write.place for epoch in program for write in epoch)
    with Instances(subject) as instances:
        backend = instances.open()
        model, changes = _run(backend, program[:-1])
        other = instances.restored(6, list(backend.entries(ALL)) if by_entries else changes)
        check_tables(other, model, places)
        other.begin(7)
        attempt = model.copy()
        apply(program[-1], other, attempt)
        check_tables(other, attempt, places)
        other.rollback()
        check_tables(other, model, places)
        other.begin(7)
        apply(program[-1], other, model)
        replica = Replica()
        replica.load(chain(changes, sealed(other, 7)))
        check_tables(other, model, places)
        check_same(replica.model().entries, model.entries)


@law("B13")
@given(program=programs(epochs=3), data=st.data())
def test_restore_keeps_its_own_key_groups_only(
    subject: BackendSubject, program: list[list[Write]], data: st.DataObject
) -> None:
    """An instance that owns some key groups restores only their entries, however many it is given."""
    with Instances(subject) as instances:
        model, changes = _run(instances.open(), program)
        # Often exactly around a group that holds something: its first and its last are where an error is.
        held = [key_group(place[2], 128) for place in model.entries]
        bounds = sorted({0, 128, *held, *(group + 1 for group in held)})
        bound = st.one_of(st.sampled_from(bounds), st.sampled_from(bounds), st.integers(0, 128))
        asked = KeyGroupRange(*sorted(data.draw(st.tuples(bound, bound).filter(lambda pair: pair[0] != pair[1]))))
        backend = instances.restored(5, changes, asked)
        expected = Model(_part(model, asked))
        check_tables(backend, expected, all_places(model.entries))
        replica = Replica()
        replica.load(backend.entries(ALL))
        check_same(replica.model().entries, expected.entries)


@law("B5")
@given(program=programs(epochs=2), data=st.data(), max_parallelism=parallelisms.filter(lambda number: number > 1))
def test_entries_are_of_exactly_the_asked_key_groups(
    subject: BackendSubject, program: list[list[Write]], data: st.DataObject, max_parallelism: int
) -> None:
    """`entries` of a key group gives all entries of that group, first and last group included, and no others."""
    with Instances(subject) as instances:
        backend = instances.open(max_parallelism=max_parallelism)
        model, _ = _run(backend, program)
        asked = data.draw(cuts(max_parallelism))
        for place in model.entries:  # and exactly around a group that holds something
            group = key_group(place[2], max_parallelism)
            asked.append(KeyGroupRange(group, group + 1))
            asked += [KeyGroupRange(0, group)] if group else []
            asked += [KeyGroupRange(group + 1, max_parallelism)] if group + 1 < max_parallelism else []
        for groups in asked:
            replica = Replica(max_parallelism)
            replica.load(backend.entries(groups))
            check_same(replica.model().entries, _part(model, groups, max_parallelism), groups)


@law("B5", "B13")
@given(program=programs(epochs=3), data=st.data())
def test_rescaling_keeps_every_entry_once(
    subject: BackendSubject, program: list[list[Write]], data: st.DataObject
) -> None:
    """Instances restore from others with other key groups, more or fewer: each entry is at the owner of its group."""
    before, after = data.draw(cuts(128)), data.draw(cuts(128))
    with Instances(subject) as instances:
        model, changes = _run(instances.open(), program)
        sources = [instances.restored(3, changes, groups) for groups in before]
        places = all_places(model.entries)
        for groups in after:
            parts = (source.entries(groups) for source in sources)
            target = instances.restored(4, list(chain.from_iterable(parts)), groups)
            expected = Model(_part(model, groups))
            check_tables(target, expected, places)
            target.publish()
            check_reads(target, Isolation.LIVE, expected, places)


@law("B13")
def test_several_sources_are_restored_one_after_the_other(subject: BackendSubject) -> None:
    """A restore from two sources holds the entries of both, also lists and maps of neighbouring keys."""
    halves = [KeyGroupRange(0, 64), KeyGroupRange(64, 128)]
    with Instances(subject) as instances:
        changes: list[Change] = []
        for groups in halves:
            source = instances.open(groups)
            mine = [number for number in range(40) if key_group(number, 128) in groups]
            assert mine
            source.begin(0)
            for number in mine:
                source.table(LIST).list_add(number, [number, "first"])
                source.table(MAP, "w").map_put(number, "m", number)
            changes += sealed(source, 0)
            source.begin(1)
            for number in mine:
                source.table(LIST).list_add(number, ["second"])
                source.table(VALUE).put(number, number)
            changes += sealed(source, 1)
        target = instances.restored(1, changes)
        for number in range(40):
            assert target.table(LIST).get(number) == [number, "first", "second"]
            assert target.table(MAP, "w").get(number) == {"m": number}
            assert target.table(VALUE).get(number) == number


@law("B14")
def test_what_was_restored_is_committed_and_final(subject: BackendSubject) -> None:
    """After `restore` the epoch cannot begin again, a rollback gives the restored state, and `entries` holds it."""
    with Instances(subject) as instances:
        source = instances.open()
        source.begin(0)
        for descriptor in KINDS:
            source.table(descriptor).put("k", numbered(descriptor, 1))
        changes = sealed(source, 0)
        backend = instances.restored(7, changes)
        for refused in (lambda: backend.begin(7), lambda: sealed(backend, 7), lambda: backend.begin(3)):
            with pytest.raises(JobError):
                refused()
        backend.rollback()
        backend.begin(8)
        backend.table(VALUE).delete("k")
        backend.publish()
        backend.rollback()
        assert backend.table(VALUE).get("k") == 1
        assert sorted(map(tuple, backend.entries(ALL)), key=repr) == sorted(map(tuple, source.entries(ALL)), key=repr)


@law("R6", "B14")
@pytest.mark.parametrize("asked", [False, True], ids=["not asked yet", "asked before"])
def test_what_was_opened_before_a_restore_shows_it(subject: BackendSubject, asked: bool) -> None:
    """Readers and tables that were opened before `restore` show the restored state, whether they were used or not."""
    with Instances(subject) as instances:
        source, target = instances.open(), instances.open()
        source.begin(0)
        for kind in KINDS:
            source.table(kind, "w").put("k", numbered(kind, 1))
        changes = sealed(source, 0)
        isolations = [Isolation.LIVE, *[Isolation.COMMITTED] * (Capability.COMMITTED_READS in subject.capabilities)]
        readers = {isolation: target.reader(isolation) for isolation in isolations}
        tables = {kind: target.table(kind, "w") for kind in KINDS}
        for kind, table in tables.items() if asked else ():
            assert table.get("k") is None
            assert [list(reader.get(kind, "w", ["k"]).values) for reader in readers.values()] == [[None]] * len(readers)
        target.restore(7, changes)
        for kind, table in tables.items():
            check_same(table.get("k"), numbered(kind, 1), kind.name)
            for isolation, reader in readers.items():
                epoch, (answer,) = reader.get(kind, "w", ["k"])
                assert epoch == 7, f"{isolation.value} reads of a {kind.name}"
                assert isinstance(answer, bytes), f"{isolation.value} reads of a {kind.name} gave {answer}"
                check_same(read_answer(kind, answer), answered(numbered(kind, 1), kind), isolation.value)


@law("B14")
def test_an_empty_restore_is_a_restore(subject: BackendSubject) -> None:
    """A backend whose key groups had nothing is restored too: its next epoch follows the given one."""
    with Instances(subject) as instances:
        backend = instances.restored(4, [])
        with pytest.raises(JobError):
            backend.begin(4)
        backend.begin(5)
        backend.table(VALUE).put("k", 1)
        assert len(sealed(backend, 5)) == 1


@law("T9", "B3", "B5")
@pytest.mark.parametrize("by_entries", [False, True], ids=["from changes", "from entries"])
@pytest.mark.parametrize("descriptor", [MAP, FRAMED_MAP], ids=["msgpack", "own serializer"])
def test_nulls_in_a_map_are_restored(subject: BackendSubject, descriptor: StateDescriptor, by_entries: bool) -> None:
    """Entries whose value is None are in changes, with the serializer's bytes, in `entries`, and in a new instance."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        backend.table(descriptor).put("k", {"null": None, "removed": None, "value": 1})
        changes = sealed(backend, 0)
        written = {change.map_key: change.data for change in changes}
        assert written.get(encode_key("null")) == descriptor.serializer.dumps(None), "the change has other bytes"
        backend.begin(1)
        backend.table(descriptor).map_put("k", "value", None)
        backend.table(descriptor).map_remove("k", "removed")
        changes += sealed(backend, 1)
        other = instances.restored(1, list(backend.entries(ALL)) if by_entries else changes)
        check_same(other.table(descriptor).get("k"), {"null": None, "value": None})
        assert other.table(descriptor).map_contains("k", "null")


@law("B15")
def test_restore_wants_an_empty_backend(subject: BackendSubject) -> None:
    """`restore` refuses a backend that holds writes, has committed, or was restored."""
    with Instances(subject) as instances:
        source, written, committed = (instances.open() for _ in range(3))
        source.begin(0)
        source.table(VALUE).put("k", 1)
        changes = sealed(source, 0)
        written.begin(0)
        written.table(VALUE).put("mine", 1)
        committed.begin(0)
        committed.table(VALUE).put("mine", 1)
        sealed(committed, 0)
        for backend in (written, committed):
            with pytest.raises(JobError):
                backend.restore(3, changes)
            assert (backend.table(VALUE).get("mine"), backend.table(VALUE).get("k")) == (1, None)
        with pytest.raises(JobError):
            instances.restored(0, changes).restore(1, changes)


@law("B15")
def test_restore_refuses_a_state_that_nobody_asked_for(subject: BackendSubject) -> None:
    """`restore` raises for changes of a state that no function has declared: it neither drops nor hides them."""
    unclaimed = ValueStateDescriptor("unclaimed")
    assert unclaimed.name not in STATES
    with Instances(subject) as instances:
        source = instances.open()
        source.begin(0)
        source.table(unclaimed).put("k", 1)
        changes = sealed(source, 0)
        assert changes[0].key == encode_key("k")
        with pytest.raises(JobError):
            instances.open().restore(0, changes)
