"""Laws of isolation: states, namespaces, keys, key groups and instances do not see each other's entries."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from qstate.descriptors import StateDescriptor
from qstate.keys import Key, Namespace
from qstate_conformance.backend.contents import check_tables
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.states import KINDS, LIST, MAP, STATES, TWIN, TWIN_LIST, TWIN_MAP, VALUE, numbered
from qstate_conformance.backend.strategies import key_lists, keys, map_keys, namespaces
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

#: Pairs that look alike: (one, other).
_TWINS: list[tuple[StateDescriptor, StateDescriptor]] = [(VALUE, TWIN), (LIST, TWIN_LIST), (MAP, TWIN_MAP)]
_ALIKE: list[tuple[Key, Key]] = [
    ("1", 1), (1, b"1"), ("", b""), ("a", "A"), ("\u00e9", "e\u0301"), ("a", "a\x00"), (("a", "b"), "ab"),
    (("a", "b", 1), ("ab", 1)), (("", "a"), ("a", "")), (-1, 2**63 - 1), (-(2**63), 2**63 - 1), (0, 2**32),
    (b"\x01", 1), (("1", 1), (1, "1")), ("None", "none"), (255, -1),
]  # fmt: skip


@law("T3")
@given(chosen=key_lists(2, 6), descriptor=st.sampled_from(KINDS))
def test_keys_do_not_see_each_other(subject: BackendSubject, chosen: list[Key], descriptor: StateDescriptor) -> None:
    """Different keys have different values, and one that is deleted takes no other with it."""
    with opened(subject) as backend:
        table = backend.table(descriptor)
        for number, key in enumerate(chosen):
            table.put(key, numbered(descriptor, number))
        for epoch in (0, 1):
            for number, key in enumerate(chosen):
                check_same(table.get(key), numbered(descriptor, number), key)
            sealed(backend, epoch)
            backend.begin(epoch + 1)
        table.delete(chosen[0])
        found = [table.get(key) for key in chosen]
        check_same(found, [None, *(numbered(descriptor, number) for number in range(1, len(chosen)))])


@law("T3")
def test_keys_that_look_alike_are_different_keys(subject: BackendSubject) -> None:
    """Text is not bytes, a number is not its digits, and no character is taken for another that looks the same."""
    chosen = list(dict.fromkeys((type(key), key) for pair in _ALIKE for key in pair))
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        for number, (_, key) in enumerate(chosen):
            backend.table(VALUE).put(key, number)
            backend.table(MAP).map_put("k", key, number)
        changes = sealed(backend, 0)
        for holder in (backend, instances.restored(0, changes)):
            assert [holder.table(VALUE).get(key) for _, key in chosen] == list(range(len(chosen)))
            assert [holder.table(MAP).map_get("k", key) for _, key in chosen] == list(range(len(chosen)))


@law("T3")
@given(spaces=st.lists(namespaces, min_size=2, max_size=5, unique_by=lambda space: (type(space), space)), key=keys)
@example(spaces=[None, "", b"", 0], key="k")
@example(spaces=["a", ("a", "b")], key="b")
def test_namespaces_do_not_see_each_other(subject: BackendSubject, spaces: list[Namespace], key: Key) -> None:
    """A key has its own value in every namespace, and the void namespace is one of them."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        for descriptor in KINDS:
            for number, space in enumerate(spaces[1:], 1):
                backend.table(descriptor, space).put(key, numbered(descriptor, number))
            assert backend.table(descriptor, spaces[0]).get(key) is None
        changes = sealed(backend, 0)
        for holder in (backend, instances.restored(0, changes)):
            for descriptor in KINDS:
                found = [holder.table(descriptor, space).get(key) for space in spaces]
                expected = [None, *(numbered(descriptor, number) for number in range(1, len(spaces)))]
                check_same(found, expected, descriptor.name)


@law("T3")
@given(key=keys, pair=st.sampled_from(_TWINS), namespace=namespaces)
def test_states_do_not_see_each_other(
    subject: BackendSubject, key: Key, pair: tuple[StateDescriptor, StateDescriptor], namespace: Namespace
) -> None:
    """States of one kind whose names look alike hold different entries, committed or not."""
    one, other = pair
    with opened(subject) as backend:
        backend.table(one, namespace).put(key, numbered(one, 1))
        assert backend.table(other, namespace).get(key) is None
        sealed(backend, 0)
        assert backend.table(other, namespace).get(key) is None
        backend.begin(1)
        backend.table(other, namespace).put(key, numbered(other, 2))
        sealed(backend, 1)
        backend.begin(2)
        backend.table(one, namespace).delete(key)
        check_same(backend.table(other, namespace).get(key), numbered(other, 2))


@law("T3")
@given(where=st.lists(st.tuples(st.sampled_from(sorted(STATES)), namespaces, keys), min_size=2, max_size=6))
def test_states_namespaces_and_keys_together_do_not_collide(
    subject: BackendSubject, where: list[tuple[str, Namespace, Key]]
) -> None:
    """No two places have the same entry, however their state, namespace and key are put together."""
    model = Model()
    with opened(subject) as backend:
        for number, place in enumerate(where):
            contents = numbered(STATES[place[0]], number)
            backend.table(STATES[place[0]], place[1]).put(place[2], contents)
            model.put(place, contents)
        check_tables(backend, model, where)
        sealed(backend, 0)
        check_tables(backend, model, where)


@law("T3")
@given(map_key=map_keys, other=map_keys)
def test_map_keys_do_not_see_each_other(subject: BackendSubject, map_key: Key, other: Key) -> None:
    """The entries of one key's map are those that were put there, not a neighbour's."""
    with opened(subject) as backend:
        table = backend.table(MAP)
        table.map_put("k", map_key, 1)
        table.map_put("k\x00", other, 2)
        table.map_put(("k", "l"), other, 3)
        for epoch in (0, 1):
            check_same(table.get("k"), {map_key: 1})
            check_same(table.get("k\x00"), {other: 2})
            check_same(table.get(("k", "l")), {other: 3})
            sealed(backend, epoch)
            backend.begin(epoch + 1)


@law("T3", "B1")
def test_two_instances_do_not_see_each_other(subject: BackendSubject) -> None:
    """Two backends in one process, as a task manager has them, share neither entries nor epochs nor their end."""
    with Instances(subject) as instances:
        one, other = instances.open(), instances.open()
        one.begin(0)
        other.begin(5)
        one.table(VALUE).put("k", "one")
        assert other.table(VALUE).get("k") is None
        sealed(one, 0)
        other.table(VALUE).put("k", "other")
        sealed(other, 5)
        one.begin(1)
        one.table(VALUE).delete("k")
        sealed(one, 1)
        one.close()
        assert other.table(VALUE).get("k") == "other"
        assert len(list(other.entries(ALL))) == 1
