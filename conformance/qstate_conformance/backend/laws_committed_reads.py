"""Laws of committed reads: exactly the last finalized epoch, whatever runs, fails or is sealed meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Capability, Isolation
from qstate.errors import FailureCode
from qstate_conformance.backend.contents import all_places, check_reads, query, query_one
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.states import AGGREGATING, FRAMED_MAP, KINDS, LIST, MAP, VALUE, numbered
from qstate_conformance.backend.strategies import programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

_COMMITTED = Isolation.COMMITTED


@law("R3", "B12", proves=[Capability.COMMITTED_READS])
@given(
    program=programs(epochs=4), fates=st.lists(st.sampled_from("rfb"), min_size=4, max_size=4), published=st.booleans()
)
def test_committed_reads_show_the_last_final_epoch(
    subject: BackendSubject, program: list[list[Write]], fates: list[str], published: bool
) -> None:
    """At every step of every epoch, committed reads show what the last finalized epoch had, and its number."""
    final, sealed_model, final_epoch, sealed_epoch = Model(), Model(), -1, -1
    places = all_places(write.place for writes in program for write in writes)
    with opened(subject, begin=False) as backend:

        def check() -> None:
            check_reads(backend, _COMMITTED, final, places)
            assert query(backend, _COMMITTED, VALUE, [])[0] == final_epoch

        for writes, fate in zip(program, fates, strict=False):
            backend.begin(sealed_epoch + 1)
            final, final_epoch = sealed_model.copy(), sealed_epoch
            check()
            attempt = sealed_model.copy()
            apply(writes, backend, attempt)
            if published:
                backend.publish()
            check()
            if fate == "r":
                backend.rollback()
                check()
                continue
            sealed_epoch += 1
            sealed(backend, sealed_epoch)
            sealed_model = attempt
            check()
            if fate == "f":
                backend.finalize(sealed_epoch)
                final, final_epoch = sealed_model.copy(), sealed_epoch
                check()


@law("R3", needs=[Capability.COMMITTED_READS])
def test_before_the_first_final_epoch_committed_reads_show_nothing(subject: BackendSubject) -> None:
    """A new backend has no final epoch: committed reads give epoch -1 and nothing, also of what is sealed."""
    with opened(subject) as backend:
        for descriptor in KINDS:
            assert query(backend, _COMMITTED, descriptor, ["k"]) == (-1, [None])
            backend.table(descriptor).put("k", numbered(descriptor, 1))
        backend.publish()
        assert [query(backend, _COMMITTED, kind, ["k"]) for kind in KINDS] == [(-1, [None])] * len(KINDS)
        sealed(backend, 0)
        assert [query(backend, _COMMITTED, kind, ["k"]) for kind in KINDS] == [(-1, [None])] * len(KINDS)
        backend.finalize(0)
        assert query(backend, _COMMITTED, VALUE, ["k"]) == (0, [1])


@law("R3", "R5", "T9", needs=[Capability.COMMITTED_READS])
def test_committed_reads_show_nulls_in_a_map(subject: BackendSubject) -> None:
    """Entries whose value is None show once they are final, and until their removal is final."""
    with opened(subject) as backend:
        for descriptor in (MAP, FRAMED_MAP):
            backend.table(descriptor).put("k", {"null": None, "other": 1})
        sealed(backend, 0)
        backend.finalize(0)
        backend.begin(1)
        for descriptor in (MAP, FRAMED_MAP):
            backend.table(descriptor).map_remove("k", "null")
            backend.table(descriptor).map_put("k", "other", None)
        sealed(backend, 1)
        for descriptor in (MAP, FRAMED_MAP):
            found = query_one(backend, _COMMITTED, descriptor, "k")
            check_same(found, {"null": None, "other": 1}, "before epoch 1 is final")
        backend.finalize(1)
        for descriptor in (MAP, FRAMED_MAP):
            check_same(query_one(backend, _COMMITTED, descriptor, "k"), {"other": None}, "epoch 1 is final")


@law("R3", "B12", needs=[Capability.COMMITTED_READS])
def test_a_sealed_epoch_does_not_show_before_it_is_final(subject: BackendSubject) -> None:
    """Between commit and finalize, committed reads show the epoch before, for additions, removals and clears too."""
    with opened(subject) as backend:
        values, lists, maps = backend.table(VALUE), backend.table(LIST), backend.table(MAP)
        values.put_many(["k", "gone"], [[1], 1])
        lists.put("k", [1])
        maps.put("k", {"a": 1, "b": 1})
        sealed(backend, 0)
        backend.finalize(0)
        backend.begin(1)
        found = values.get("k")
        found.append(2)  # in place, and put: the committed image must not be the same object
        values.put("k", found)
        values.delete("gone")
        lists.list_add("k", [2])
        maps.map_remove("k", "a")
        maps.map_put("k", "c", 2)
        sealed(backend, 1)

        def shown() -> list[object]:
            epoch, of_values = query(backend, _COMMITTED, VALUE, ["k", "gone"])
            return [
                epoch,
                *of_values,
                query_one(backend, _COMMITTED, LIST, "k"),
                query_one(backend, _COMMITTED, MAP, "k"),
            ]

        assert shown() == [0, [1], 1, [1], {"a": 1, "b": 1}]
        backend.finalize(1)
        assert shown() == [1, [1, 2], None, [1, 2], {"b": 1, "c": 2}]


@law("B12", needs=[Capability.COMMITTED_READS])
def test_begin_proves_the_epoch_before_final(subject: BackendSubject) -> None:
    """`begin` alone makes the epoch before it final: the notification of Spark's commit may have been lost."""
    with opened(subject, begin=False) as backend:
        for epoch in range(3):
            backend.begin(epoch)
            backend.table(VALUE).put("k", epoch)
            assert query(backend, _COMMITTED, VALUE, ["k"]) == (epoch - 1, [epoch - 1 if epoch else None])
            sealed(backend, epoch)


@law("B12", "R3", needs=[Capability.COMMITTED_READS])
def test_finalize_again_or_of_an_older_epoch_does_nothing(subject: BackendSubject) -> None:
    """A notification that comes twice, or late, neither goes back nor shows what is not final."""
    with opened(subject, begin=False) as backend:
        for epoch in range(2):
            backend.begin(epoch)
            backend.table(VALUE).put("k", epoch)
            sealed(backend, epoch)
        backend.finalize(0)
        assert query(backend, _COMMITTED, VALUE, ["k"]) == (0, [0])
        for epoch in (1, 1, 0):
            backend.finalize(epoch)
            assert query(backend, _COMMITTED, VALUE, ["k"]) == (1, [1])
        backend.begin(2)
        backend.table(VALUE).put("k", 2)
        backend.publish()
        backend.finalize(1)
        assert query(backend, _COMMITTED, VALUE, ["k"]) == (1, [1])


@law("R3", "B4", needs=[Capability.COMMITTED_READS])
@given(program=programs(epochs=2), finalize=st.booleans())
def test_a_rollback_does_not_show_in_committed_reads(
    subject: BackendSubject, program: list[list[Write]], finalize: bool
) -> None:
    """Committed reads do not notice that an epoch was tried and undone."""
    places, model = all_places(write.place for writes in program for write in writes), Model()
    with opened(subject) as backend:
        apply(program[0], backend, model)
        sealed(backend, 0)
        if finalize:
            backend.finalize(0)
        backend.begin(1)
        for _ in range(2):
            apply(program[-1], backend, model.copy())
            backend.publish()
            check_reads(backend, _COMMITTED, model, places)
            backend.rollback()
            check_reads(backend, _COMMITTED, model, places)
            backend.begin(1)


@law("B14", "R3", needs=[Capability.COMMITTED_READS])
@given(program=programs(epochs=1), epoch=st.sampled_from((7, -1, 0)))
def test_restored_state_is_final(subject: BackendSubject, program: list[list[Write]], epoch: int) -> None:
    """Committed reads survive a failover and a new start: right after `restore` they show what was restored."""
    model, places = Model(), all_places(write.place for writes in program for write in writes)
    with Instances(subject) as instances:
        source = instances.open()
        source.begin(0)
        apply(program[0], source, model)
        backend = instances.restored(epoch, sealed(source, 0))
        check_reads(backend, _COMMITTED, model, places)
        assert query(backend, _COMMITTED, VALUE, [])[0] == epoch
        backend.begin(epoch + 1)
        apply(program[0], backend, Model())
        backend.publish()
        check_reads(backend, _COMMITTED, model, places)


@law("R1", needs=[Capability.COMMITTED_READS])
def test_one_bad_key_spoils_no_other_committed_answer(subject: BackendSubject) -> None:
    """A committed reader answers the key whose result fails with a failure code, and the others with theirs."""
    with opened(subject) as backend:
        for number in range(4):
            backend.table(AGGREGATING).put(number, [1.0, number])
        sealed(backend, 0)
        backend.finalize(0)
        _, found = query(backend, _COMMITTED, AGGREGATING, [3, 0, 1, 9, 2])
        assert isinstance(found[1], FailureCode)
        assert [found[0], *found[2:]] == [1 / 3, 1.0, None, 0.5]
