"""Laws of exchange: every backend loads the changes and entries of every other one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Change, StateBackend
from qstate.keys import KeyGroupRange
from qstate_conformance.backend.contents import all_places, check_tables
from qstate_conformance.backend.instances import Instances, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.strategies import programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.profiles import examples
from qstate_conformance.subjects import ALL, BackendSubject, SubjectError, backend_subject

#: The backends that come with qstate; those whose package is installed take part.
_BUILT_IN = ("heap", "rocksdb")


@cache
def _others() -> tuple[BackendSubject, ...]:
    return tuple(_installed())


def _installed() -> Iterator[BackendSubject]:
    for name in _BUILT_IN:
        try:
            yield backend_subject(name)
        except SubjectError:
            continue


def _committed(backend: StateBackend, program: list[list[Write]]) -> tuple[Model, list[Change]]:
    model, changes = Model(), list[Change]()
    for epoch, writes in enumerate(program):
        backend.begin(epoch)
        apply(writes, backend, model)
        changes += sealed(backend, epoch)
    return model, changes


@law("B10", "B5")
@examples(0.6)
@given(program=programs(epochs=2), by_entries=st.booleans())
def test_every_other_backend_loads_what_this_one_tells(
    subject: BackendSubject, program: list[list[Write]], by_entries: bool
) -> None:
    """The changes and the entries of this backend build the same state in heap, in RocksDB and in a plain dict."""
    with Instances(subject) as instances:
        backend = instances.open()
        model, changes = _committed(backend, program)
        told, places = list(backend.entries(ALL)) if by_entries else changes, all_places(model.entries)
        replica = Replica()
        replica.load(told)
        check_same(replica.model().entries, model.entries)
        for other in _others():
            target = instances.open(of=other)
            target.restore(2, told)
            check_tables(target, model, places)


@law("B10", "B13")
@examples(0.6)
@given(program=programs(epochs=2), by_entries=st.booleans(), cut=st.integers(1, 127))
def test_this_backend_loads_what_every_other_tells(
    subject: BackendSubject, program: list[list[Write]], by_entries: bool, cut: int
) -> None:
    """The changes and the entries of heap, of RocksDB and of a plain dict build the same state in this backend."""
    with Instances(subject) as instances:
        for other in _others():
            source = instances.open(of=other)
            model, changes = _committed(source, program)
            told, places = list(source.entries(ALL)) if by_entries else changes, all_places(model.entries)
            check_tables(instances.restored(2, told), model, places)
            replica = Replica()
            replica.load(told)
            # Two dumps one after the other, as after a rescale.
            parts = [*replica.dump(KeyGroupRange(0, cut)), *replica.dump(KeyGroupRange(cut, 128))]
            check_tables(instances.restored(2, parts), model, places)


@law("B10", "B5")
@examples(0.4)
@given(program=programs(epochs=2))
def test_a_dump_survives_the_way_there_and_back(subject: BackendSubject, program: list[list[Write]]) -> None:
    """Entries that went into another backend and out of it again are the same entries, byte for byte."""
    with Instances(subject) as instances:
        backend = instances.open()
        _committed(backend, program)
        told = sorted(backend.entries(ALL), key=repr)
        for other in _others():
            middle = instances.open(of=other)
            middle.restore(2, told)
            back = instances.restored(2, list(middle.entries(ALL)))
            assert sorted(back.entries(ALL), key=repr) == told
