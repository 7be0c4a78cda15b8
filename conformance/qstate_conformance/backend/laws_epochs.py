"""Laws of epochs: what a commit seals, what a rollback undoes, and the order in which epochs go."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Isolation, StateBackend, StateTable
from qstate.descriptors import StateDescriptor
from qstate.errors import JobError, SerializationError
from qstate_conformance.backend.contents import all_places, check_reads, check_tables, query
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import AGGREGATING, KINDS, LIST, MAP, REDUCING, VALUE, numbered
from qstate_conformance.backend.strategies import programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

#: What each kind starts with, and what can be done to it.
_START: dict[StateDescriptor, Any] = {
    VALUE: [1, 2], LIST: [1, 2], MAP: {"a": 1, "b": 2}, REDUCING: 3, AGGREGATING: [2.0, 1],
}  # fmt: skip


@law("B4", "T6")
@given(program=programs(epochs=2), published=st.booleans())
def test_rollback_undoes_every_write_of_the_epoch(
    subject: BackendSubject, program: list[list[Write]], published: bool
) -> None:
    """After a rollback tables and live readers show the last commit, and the next commit has no changes."""
    model = Model()
    places = all_places(write.place for epoch in program for write in epoch)
    with opened(subject) as backend:
        apply(program[0], backend, model)
        sealed(backend, 0)
        backend.begin(1)
        apply(program[-1], backend, model.copy())
        if published:
            backend.publish()
        backend.rollback()
        check_tables(backend, model, places)
        backend.publish()
        check_reads(backend, Isolation.LIVE, model, places)
        backend.begin(1)
        assert sealed(backend, 1) == []
        check_tables(backend, model, places)


@law("B4")
@given(descriptor=st.sampled_from(KINDS), committed=st.booleans(), published=st.booleans())
def test_rollback_brings_back_what_was_deleted(
    subject: BackendSubject, descriptor: StateDescriptor, committed: bool, published: bool
) -> None:
    """A delete of the failed epoch is undone as any other write is."""
    start = _START[descriptor]
    with opened(subject) as backend:
        table = backend.table(descriptor)
        if committed:
            table.put("k", deepcopy(start))
        sealed(backend, 0)
        backend.begin(1)
        table.put("k", deepcopy(start))
        table.delete("k")
        if published:
            backend.publish()
        backend.rollback()
        check_same(table.get("k"), start if committed else None)


@law("B4", "T8")
@given(counts=st.lists(st.integers(1, 3), min_size=1, max_size=3), published=st.booleans())
def test_rollback_takes_list_elements_off_again(subject: BackendSubject, counts: list[int], published: bool) -> None:
    """Elements that a failed epoch added are gone; those of the next attempt come right after the old ones."""
    with opened(subject) as backend:
        table = backend.table(LIST)
        table.list_add("k", ["old"])
        sealed(backend, 0)
        for attempt, count in enumerate(counts):
            backend.begin(1)
            table.list_add("k", [f"attempt {attempt}"] * count)
            if published:
                backend.publish()
            assert table.get("k") == ["old", *[f"attempt {attempt}"] * count]
            backend.rollback()
            assert table.get("k") == ["old"]
        backend.begin(1)
        table.list_add("k", ["new"])
        changes = sealed(backend, 1)
        assert table.get("k") == ["old", "new"]
        assert len(changes) == 1


@law("B4")
def test_rollback_before_the_first_commit_empties_the_backend(subject: BackendSubject) -> None:
    """The state before the first commit is the empty one."""
    with opened(subject) as backend:
        for descriptor in KINDS:
            backend.table(descriptor, "w").put("k", deepcopy(_START[descriptor]))
        backend.publish()
        backend.rollback()
        assert [backend.table(descriptor, "w").get("k") for descriptor in KINDS] == [None] * len(KINDS)
        backend.begin(0)
        assert sealed(backend, 0) == []
        assert list(backend.entries(ALL)) == []


@law("B4")
def test_rollback_twice_is_rollback_once(subject: BackendSubject) -> None:
    """A second rollback finds nothing to undo, not even after a commit."""
    with opened(subject) as backend:
        table = backend.table(VALUE)
        table.put("k", [1])
        sealed(backend, 0)
        backend.rollback()
        backend.rollback()
        assert table.get("k") == [1]


@law("B4", "B8", "R6")
@pytest.mark.parametrize("begun", [False, True], ids=["between epochs", "in an epoch"])
@pytest.mark.parametrize("moment", ["new", "sealed", "final", "restored"])
def test_a_rollback_without_writes_changes_nothing(subject: BackendSubject, moment: str, begun: bool) -> None:
    """A rollback that has nothing to undo leaves the state, its epoch and the number of the next one as they are."""
    model = Model()
    with Instances(subject) as instances:
        backend, last = instances.open(), -1
        if moment != "new":
            backend.begin(4)
            apply([Write("put", kind.name, "w", "k", (_START[kind],)) for kind in KINDS], backend, model)
            changes, last = sealed(backend, 4), 4
        if moment == "final":
            backend.finalize(4)
        if moment == "restored":
            backend = instances.restored(4, changes)
        for _ in range(2):
            if begun:
                backend.begin(last + 1)
            backend.rollback()
            check_tables(backend, model, all_places(model.entries))
            check_reads(backend, Isolation.LIVE, model, all_places(model.entries))
            assert query(backend, Isolation.LIVE, VALUE, ["k"], "w")[0] == last
            check_same(_entries(backend).entries, model.entries)
        backend.begin(last + 1)
        apply([Write("put", VALUE.name, "w", "j", (1,))], backend, model)
        assert len(sealed(backend, last + 1)) == 1
        check_tables(backend, model, model.entries)
        check_same(_entries(backend).entries, model.entries)


@law("T6", "B3")
@given(program=programs(epochs=4), outcomes=st.lists(st.booleans(), min_size=4, max_size=4))
def test_committed_and_failed_epochs_add_up(
    subject: BackendSubject, program: list[list[Write]], outcomes: list[bool]
) -> None:
    """Over many epochs, exactly the writes of the committed ones are in the state and in the changes of the commits."""
    model, replica, epoch = Model(), Replica(), 0
    places = all_places(write.place for writes in program for write in writes)
    with Instances(subject) as instances:
        backend = instances.open()
        for writes, succeeds in zip(program, outcomes, strict=False):
            backend.begin(epoch)
            attempted = model.copy()
            apply(writes, backend, attempted)
            if succeeds:
                replica.load(backend.commit(epoch))
                model, epoch = attempted, epoch + 1
            else:
                backend.rollback()
            check_tables(backend, model, places)
        check_same(replica.model().entries, model.entries)


@law("B8")
def test_epochs_go_forward(subject: BackendSubject) -> None:
    """An epoch that is not later than the last committed one is refused, by `begin` and by `commit`."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(3)
        backend.table(VALUE).put("k", 3)
        sealed(backend, 3)
        for epoch in (3, 2):
            with pytest.raises(JobError):
                backend.begin(epoch)
            with pytest.raises(JobError):
                sealed(backend, epoch)
        backend.begin(7)  # epochs that the operator never saw may be left out
        backend.table(VALUE).put("k", 7)
        sealed(backend, 7)
        assert backend.table(VALUE).get("k") == 7


@law("B8", "B4")
def test_an_epoch_that_was_rolled_back_begins_again(subject: BackendSubject) -> None:
    """A failed epoch leaves its number free, and nothing of its first attempt in the second."""
    with opened(subject, begin=False) as backend:
        for attempt in range(3):
            backend.begin(0)
            backend.table(VALUE).put(("attempt", attempt), attempt)
            backend.table(MAP).map_put("k", attempt, attempt)
            backend.publish()
            if attempt < 2:
                backend.rollback()
        replica = Replica()
        replica.load(sealed(backend, 0))
        check_same(replica.model().entries, {(VALUE.name, None, ("attempt", 2)): 2, (MAP.name, None, "k"): {2: 2}})
        assert backend.table(MAP).get("k") == {2: 2}


_BAD: list[tuple[StateDescriptor, Callable[[StateTable], None]]] = [
    (VALUE, lambda table: table.put("bad", object())),
    (VALUE, lambda table: table.put("bad", [1, {"deep": object()}])),
    (VALUE, lambda table: table.put_many(["bad", "worse"], [object(), 1])),
    (LIST, lambda table: table.list_add("k", [1, object()])),
    (LIST, lambda table: table.put("bad", [object()])),
    (MAP, lambda table: table.map_put("k", "m", object())),
    (MAP, lambda table: table.put("k", {"m": 1, "n": object()})),
    (REDUCING, lambda table: table.put("bad", 2**64)),
    (AGGREGATING, lambda table: table.put("bad", [object(), 1])),
]


@law("B11", "T10")
@given(bad=st.sampled_from(_BAD), good=st.sampled_from(KINDS), last=st.booleans())
def test_a_value_that_does_not_fit_fails_the_epoch_and_no_more(
    subject: BackendSubject,
    bad: tuple[StateDescriptor, Callable[[StateTable], None]],
    good: StateDescriptor,
    last: bool,
) -> None:
    """A commit that raises `SerializationError` has sealed nothing; after the rollback the state is the old one."""
    descriptor, write = bad
    with opened(subject) as backend:
        for kind in KINDS:
            backend.table(kind).put("k", deepcopy(_START[kind]))
        sealed(backend, 0)
        backend.begin(1)
        with pytest.raises(SerializationError):
            if not last:
                backend.table(good).put("j", deepcopy(_START[good]))
            write(backend.table(descriptor))
            if last:
                backend.table(good).put("j", deepcopy(_START[good]))
            sealed(backend, 1)
        check_same(_entries(backend).entries, {(kind.name, None, "k"): _START[kind] for kind in KINDS})
        backend.rollback()
        for kind in KINDS:
            check_same(backend.table(kind).get("k"), _START[kind], kind.name)
            assert [backend.table(kind).get(key) for key in ("j", "bad", "worse")] == [None] * 3
        backend.begin(1)
        backend.table(good).put("j", deepcopy(_START[good]))
        assert {change.state for change in sealed(backend, 1)} == {good.name}


@law("B11", "B9")
@given(bad=st.sampled_from(_BAD), again=st.booleans())
def test_a_failed_commit_still_holds_the_epoch(
    subject: BackendSubject, bad: tuple[StateDescriptor, Callable[[StateTable], None]], again: bool
) -> None:
    """After a commit that raised, the epoch's writes are still there: without the bad ones it commits as a whole."""
    descriptor, write = bad
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        for kind in KINDS:
            backend.table(kind).put("k", deepcopy(_START[kind]))
            backend.table(kind).put("j", deepcopy(_START[kind]))
        for _ in range(2 if again else 1):
            with pytest.raises(SerializationError):
                write(backend.table(descriptor))
                sealed(backend, 0)
        for key in ("bad", "worse"):
            backend.table(descriptor).delete(key)
        backend.table(descriptor).put("k", deepcopy(_START[descriptor]))
        restored = instances.restored(0, sealed(backend, 0))
        for holder in (backend, restored):
            for kind in KINDS:
                for key in ("j", "k"):
                    check_same(holder.table(kind).get(key), _START[kind], f"{kind.name}, {key}")
                assert [holder.table(kind).get(key) for key in ("bad", "worse")] == [None] * 2


@law("B5")
@given(program=programs(epochs=3), published=st.booleans())
def test_entries_are_those_of_the_last_commit(
    subject: BackendSubject, program: list[list[Write]], published: bool
) -> None:
    """`entries` builds the last committed state; what was written since does not show in it."""
    model = Model()
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program[:-1]):
            backend.begin(epoch)
            apply(writes, backend, model)
            sealed(backend, epoch)
        backend.begin(len(program))
        apply(program[-1], backend, model.copy())
        if published:
            backend.publish()
        check_same(_entries(backend).entries, model.entries)


@law("B5")
def test_entries_do_not_move_while_they_are_read(subject: BackendSubject) -> None:
    """Entries that are read while the epoch becomes final and the next one writes are those of the commit before."""
    model, numbers = Model(), list(range(300))
    states = [VALUE, LIST, MAP, REDUCING]
    with opened(subject) as backend:
        for state in states:
            apply([Write("put", state.name, None, number, (numbered(state, 0),)) for number in numbers], backend, model)
        sealed(backend, 0)
        entries = backend.entries(ALL)
        told = [next(entries)]
        backend.finalize(0)
        backend.begin(1)
        for state in states:
            table = backend.table(state)
            table.put_many(numbers, [numbered(state, 1) for _ in numbers])
            for number in numbers[::2]:
                table.delete(number)
        for number in numbers:
            backend.table(LIST).list_add(number, [2])
            backend.table(MAP).map_put(number, "n", 2)
        backend.publish()
        replica = Replica()
        replica.load([*told, *entries])
        check_same(replica.model().entries, model.entries)


@law("B3", "T6")
def test_a_snapshot_does_not_alias_live_data(subject: BackendSubject) -> None:
    """Changes of a commit, and `entries`, stay as they were when user code later changes the same objects in place."""
    with opened(subject) as backend:
        table, value = backend.table(VALUE), [1]
        table.put("k", value)
        changes, entries = sealed(backend, 0), list(backend.entries(ALL))
        backend.begin(1)
        found = table.get("k")
        found.append(2)
        table.put("k", found)
        backend.table(LIST).list_add("k", [1])
        assert [change.data for change in (*changes, *entries)] == [b"\x91\x01"] * 2
        assert [change.data for change in backend.entries(ALL)] == [b"\x91\x01"]


def _entries(backend: StateBackend) -> Model:
    replica = Replica()
    replica.load(backend.entries(ALL))
    return replica.model()
