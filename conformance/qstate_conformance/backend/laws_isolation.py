"""Laws of isolation: states, namespaces, keys, key groups and instances do not see each other's entries."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.backends import Isolation, StateBackend
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.keys import MAX_PARALLELISM_LIMIT, Key, KeyGroupRange, Namespace, encode_key
from qstate_conformance.backend.contents import answered, check_reads, check_tables, query, query_one
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import KINDS, LIST, MAP, TABLES, TWIN, TWIN_LIST, TWIN_MAP, VALUE, numbered
from qstate_conformance.backend.strategies import key_lists, keys, map_keys, namespaces
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

#: Pairs that look alike: (one, other).
_TWINS: list[tuple[StateDescriptor, StateDescriptor]] = [(VALUE, TWIN), (LIST, TWIN_LIST), (MAP, TWIN_MAP)]
_ALIKE: list[tuple[Key, Key]] = [
    ("1", 1), (1, b"1"), ("", b""), ("a", "A"), ("\u00e9", "e\u0301"), ("a", "a\x00"), (("a", "b"), "ab"),
    (("a", "b", 1), ("ab", 1)), (("", "a"), ("a", "")), (-1, 2**63 - 1), (-(2**63), 2**63 - 1), (0, 2**32),
    (b"\x01", 1), (("1", 1), (1, "1")), ("None", "none"), (255, -1),
]  # fmt: skip
#: Integers that one of fewer bits, without a sign or with a float's precision takes for a neighbour.
_NEIGHBOURS = sorted(
    number
    for power in (7, 8, 15, 16, 24, 31, 32, 53, 63)
    for number in (sign * 2**power + step for sign in (-1, 1) for step in (-1, 0, 1))
    if -(2**63) <= number < 2**63
)
#: Keys whose encodings are the last of their kind: a range whose end is computed badly leaves them out.
_LAST: list[Key] = [
    -1, 2**63 - 1, b"\xff", b"\xff" * 16, b"\xff" * 255, b"\xff" * 300, "\U0010ffff" * 8, (-1, -1), (b"\xff" * 9, -1),
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
def test_neighbouring_integers_are_different_keys(subject: BackendSubject) -> None:
    """Integers beside 2**31, 2**53 and 2**63 are different keys, namespaces and map keys, in tuples too."""
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        for number in _NEIGHBOURS:
            backend.table(VALUE).put(number, number)
            backend.table(VALUE).put(("k", number), number)
            backend.table(VALUE, number).put("k", number)
            backend.table(MAP).map_put("k", number, number)
            backend.table(MAP).map_put("k", ("m", number), number)
        changes, numbers = sealed(backend, 0), _NEIGHBOURS
        for holder in (backend, instances.restored(0, changes)):
            assert [holder.table(VALUE).get(number) for number in numbers] == numbers
            assert [holder.table(VALUE).get(("k", number)) for number in numbers] == numbers
            assert [holder.table(VALUE, number).get("k") for number in numbers] == numbers
            assert [holder.table(MAP).map_get("k", number) for number in numbers] == numbers
            assert [holder.table(MAP).map_get("k", ("m", number)) for number in numbers] == numbers
            assert query(holder, Isolation.LIVE, VALUE, numbers)[1] == numbers


@law("T3", "B5")
@pytest.mark.parametrize("max_parallelism", [1, 128, MAX_PARALLELISM_LIMIT])
def test_keys_of_the_last_bytes_are_told_and_read(subject: BackendSubject, max_parallelism: int) -> None:
    """Keys, namespaces and map keys of 0xff bytes are in every read, in `entries` and after a restore."""
    model, everything = Model(), KeyGroupRange(0, max_parallelism)
    with Instances(subject) as instances:
        backend, other = (instances.open(max_parallelism=max_parallelism) for _ in range(2))
        backend.begin(0)
        for number, key in enumerate(_LAST):
            for space in (None, -1, b"\xff" * 16, (-1, -1)):
                writes = [Write("put", VALUE.name, space, key, (number,))]
                writes += [Write("list_add", LIST.name, space, key, ([number],)) for _ in range(3)]
                writes += [Write("map_put", MAP.name, space, key, (map_key, number)) for map_key in _LAST]
                apply(writes, backend, model)
        sealed(backend, 0)
        entries = list(backend.entries(everything))
        replica = Replica(max_parallelism)
        replica.load(entries)
        check_same(replica.model().entries, model.entries)
        other.restore(0, entries)
        for holder in (backend, other):
            check_tables(holder, model, model.entries)
            check_reads(holder, Isolation.LIVE, model, model.entries)


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
def test_namespaces_that_are_equal_in_a_language_do_not_see_each_other(subject: BackendSubject) -> None:
    """True, 1 and the decimals 1 and 1.0 are four namespaces, also as columns, in tables, queries and restored.

    A live query gives no value of another one, also while the job has not published what it wrote.
    """
    ones: list[Any] = [1, True, Decimal(1), Decimal("1.0")]
    spaces: list[Namespace] = [*ones, *(("a", one) for one in ones)]

    def contents(descriptor: StateDescriptor) -> list[Any]:
        return [numbered(descriptor, number) for number in range(len(spaces))]

    def check_queries(holder: StateBackend, descriptor: StateDescriptor, *, published: bool = True) -> None:
        found = [query_one(holder, Isolation.LIVE, descriptor, "k", space) for space in spaces]
        expected = [answered(one, descriptor) for one in contents(descriptor)]
        if not published:
            expected = [None if one is None else other for one, other in zip(found, expected, strict=True)]
        check_same(found, expected)

    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        for descriptor in KINDS:
            for space, one in zip(spaces, contents(descriptor), strict=True):
                backend.table(descriptor, space).put("k", one)
            check_queries(backend, descriptor, published=False)
        changes = sealed(backend, 0)
        for holder in (backend, instances.restored(0, changes)):
            for descriptor in KINDS:
                check_same([holder.table(descriptor, space).get("k") for space in spaces], contents(descriptor))
                check_queries(holder, descriptor)


_NOON = datetime(2013, 7, 18, 12, tzinfo=timezone.utc)
#: Keys of one column, and of several: those of one keyed stream have the same types.
_TYPED_KEYS: dict[str, list[Key]] = {
    "boolean": [True, False],
    "date": [date(2013, 7, 18), date.min, date.max, date(1970, 1, 1)],
    "timestamp": [_NOON, _NOON + timedelta(microseconds=1), datetime(1969, 12, 31, tzinfo=timezone.utc)],
    "decimal": [Decimal("0.00"), Decimal("1.00"), Decimal("-1.00"), Decimal(f"{10**38 - 1}E-2")],
    "several": [(True, _NOON, "a"), (False, _NOON, "a"), (True, _NOON + timedelta(hours=1), "a")],
}


@law("T1", "T3", "B10")
@pytest.mark.parametrize("kind", _TYPED_KEYS)
def test_keys_of_every_type_are_told_and_read(subject: BackendSubject, kind: str) -> None:
    """Keys, and namespaces, of each type are in every read, in `entries` and after a restore; a moment in any zone."""
    found = _TYPED_KEYS[kind]
    with Instances(subject) as instances:
        backend = instances.open()
        backend.begin(0)
        for number, key in enumerate(found):
            for descriptor in KINDS:
                backend.table(descriptor, found[0]).put(key, numbered(descriptor, number))
        changes = sealed(backend, 0)
        assert {change.key for change in changes} == set(map(encode_key, found))
        entries = list(backend.entries(ALL))
        for holder in (backend, instances.restored(0, changes), instances.restored(0, entries)):
            for descriptor in KINDS:
                expected = [numbered(descriptor, number) for number in range(len(found))]
                for asked in (found, list(map(_elsewhere, found))):
                    table = holder.table(descriptor, _elsewhere(found[0]))
                    check_same([table.get(key) for key in asked], expected)
                    _, answers = query(holder, Isolation.LIVE, descriptor, asked, found[0])
                    check_same(answers, [answered(contents, descriptor) for contents in expected])


def _elsewhere(key: Any) -> Any:
    """The same key, with its moments in another time zone."""
    if isinstance(key, tuple):
        return tuple(map(_elsewhere, key))
    return key.astimezone(timezone(timedelta(hours=9))) if isinstance(key, datetime) else key


@law("T3", "B2")
@pytest.mark.parametrize("length", [32, 64, 128, 255])
@pytest.mark.parametrize("letter", ["x", "\u00e9"])
def test_names_that_differ_in_their_last_letter_are_different_states(
    subject: BackendSubject, length: int, letter: str
) -> None:
    """States of the longest names that are alike but for the end are different ones, in changes and restored too."""
    names = [letter * (length - 1) + last for last in "ab"] + [letter * (length - 1), letter * length]
    kinds = [ValueStateDescriptor, ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor]
    states = [make(name) for make, name in zip(kinds, names, strict=True)]
    with Instances(subject) as instances:
        backend, other = instances.open(), instances.open()
        backend.begin(0)
        for number, state in enumerate(states):
            backend.table(state).put("k", numbered(state, number))
            other.table(state)
        changes = sealed(backend, 0)
        assert {change.state for change in changes} == set(names)
        other.restore(0, changes)
        for holder in (backend, other):
            for number, state in enumerate(states):
                check_same(holder.table(state).get("k"), numbered(state, number))
                check_same(query(holder, Isolation.LIVE, state, ["k"])[1], [numbered(state, number)])


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
@given(where=st.lists(st.tuples(st.sampled_from(sorted(TABLES)), namespaces, keys), min_size=2, max_size=6))
def test_states_namespaces_and_keys_together_do_not_collide(
    subject: BackendSubject, where: list[tuple[str, Namespace, Key]]
) -> None:
    """No two places have the same entry, however their state, namespace and key are put together."""
    model = Model()
    with opened(subject) as backend:
        for number, place in enumerate(where):
            contents = numbered(TABLES[place[0]], number)
            backend.table(TABLES[place[0]], place[1]).put(place[2], contents)
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
