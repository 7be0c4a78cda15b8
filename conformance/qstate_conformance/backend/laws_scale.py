"""Laws of scale: no number and no size at which a backend begins to lose, to cut or to mix up what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from qstate.backends import Isolation, StateBackend
from qstate.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate_conformance.backend.contents import check_reads, check_tables, query_one
from qstate_conformance.backend.instances import Instances, sealed
from qstate_conformance.backend.model import Model, check_equal, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import KINDS, LIST, MAP, VALUE, numbered
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

_NAMESPACES = 200
_STATES = 100
#: Changes of one epoch and state.
_CHANGES = 20_500
#: More than four MiB, the size of a frame in several protocols, and not to be compressed.
_LARGE = Random(0).randbytes(4 * 1024 * 1024 + 300_001)


@law("B19", "T3", "B9")
def test_many_namespaces_are_kept_told_and_restored(subject: BackendSubject) -> None:
    """Two hundred namespaces of each kind of state have their own entries, in each commit and in `entries`."""
    model, replica = Model(), Replica()
    with Instances(subject) as instances:
        backend = instances.open()
        for epoch in (0, 1):
            backend.begin(epoch)
            for kind in KINDS:
                for number in range(_NAMESPACES):
                    contents = (numbered(kind, number + epoch),)
                    apply([Write("put", kind.name, ("w", number), "k", contents)], backend, model)
            changes = sealed(backend, epoch)
            replica.load(changes)
            check_same(replica.model().entries, model.entries, f"in the commit of epoch {epoch}")
        for holder in (backend, instances.restored(1, list(backend.entries(ALL)))):
            check_tables(holder, model, model.entries)
            check_reads(holder, Isolation.LIVE, model, model.entries)


def _many_states() -> Iterator[tuple[StateDescriptor, Any]]:
    """States of several kinds, each with contents that identify it."""
    makes: list[Callable[[str], StateDescriptor]] = [
        ValueStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        lambda name: ReducingStateDescriptor(name, int, reduce_function=int.__add__),
    ]
    for number in range(_STATES):
        descriptor = makes[number % len(makes)](f"state {number}")
        yield descriptor, numbered(descriptor, number)


@law("B19", "T3", "B2")
def test_many_states_are_kept_told_and_restored(subject: BackendSubject) -> None:
    """A hundred states of one operator have their own entries, in tables, answers, changes and after a restore."""
    states = list(_many_states())

    def check(holder: StateBackend) -> None:
        for descriptor, contents in states:
            check_same(holder.table(descriptor, "w").get("k"), contents, descriptor.name)
            check_same(query_one(holder, Isolation.LIVE, descriptor, "k", "w"), contents, descriptor.name)

    with Instances(subject) as instances:
        backend, of_changes, of_entries = (instances.open() for _ in range(3))
        backend.begin(0)
        for descriptor, contents in states:
            backend.table(descriptor, "w").put("k", contents)
            for other in (of_changes, of_entries):
                other.table(descriptor)
        changes = sealed(backend, 0)
        assert {change.state for change in changes} == {descriptor.name for descriptor, _ in states}
        of_changes.restore(0, changes)
        of_entries.restore(0, list(backend.entries(ALL)))
        for holder in (backend, of_changes, of_entries):
            check(holder)
        backend.begin(1)
        for descriptor, _ in states:
            backend.table(descriptor, "w").delete("k")
        backend.rollback()
        check(backend)


@law("B19", "B3", "B4", "B9")
def test_a_large_epoch_is_told_undone_and_restored_whole(subject: BackendSubject) -> None:
    """An epoch of 41,000 changes loses none: in its commit, in a restore, in `entries`, in a rollback, in a delete."""
    many = list(range(_CHANGES))
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        backend.table(VALUE).put_many(many, many)
        backend.table(MAP).put("k", dict.fromkeys(many, 1))
        changes = sealed(backend, 0)
        assert len({(change.state, change.key, change.map_key) for change in changes if change.data}) == 2 * _CHANGES
        for told in (changes, list(backend.entries(ALL))):
            restored = instances.restored(0, told)
            assert _missing(restored) == []
            check_equal(restored.table(MAP).get("k"), dict.fromkeys(many, 1))
            restored.close()
        for undone in (True, False):
            backend.begin(1)
            for key in many:
                backend.table(VALUE).delete(key)
            backend.table(MAP).delete("k")
            if undone:
                backend.rollback()
                assert _missing(backend) == []
                check_equal(backend.table(MAP).get("k"), dict.fromkeys(many, 1))
        changes = sealed(backend, 1)
        assert len({change.key for change in changes if change.state == VALUE.name}) == _CHANGES
        assert list(backend.entries(ALL)) == []


def _missing(backend: StateBackend) -> list[int]:
    """The first of the keys that do not have their own value."""
    table = backend.table(VALUE)
    return [key for key in range(_CHANGES) if table.get(key) != key][:5]


@law("B19", "T1", "R5")
def test_values_of_many_megabytes_are_kept_told_and_restored(subject: BackendSubject) -> None:
    """Values, elements and map values of more than four MiB come back whole, also from answers and after a restore."""

    def check(holder: StateBackend, what: str) -> None:
        for descriptor, contents in ((VALUE, _LARGE), (LIST, [1, _LARGE, 2]), (MAP, {"l": 1, "m": _LARGE, "n": 2})):
            check_equal(holder.table(descriptor).get("k"), contents, f"a {descriptor.name}, {what}")
            found = query_one(holder, Isolation.LIVE, descriptor, "k")
            check_equal(found, contents, f"the answer of a {descriptor.name}, {what}")

    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        backend.table(VALUE).put("k", _LARGE)
        for element in (1, _LARGE, 2):
            backend.table(LIST).list_add("k", [element])
        for map_key, value in (("l", 1), ("m", _LARGE), ("n", 2)):
            backend.table(MAP).map_put("k", map_key, value)
        backend.publish()
        check(backend, "before the commit")
        changes = sealed(backend, 0)
        check(backend, "after the commit")
        check(instances.restored(0, changes), "restored from changes")
        check(instances.restored(0, list(backend.entries(ALL))), "restored from entries")
