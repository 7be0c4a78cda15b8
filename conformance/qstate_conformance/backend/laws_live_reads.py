"""Laws of live reads: which writes they show, in which form, and that one bad key spoils no other."""

from __future__ import annotations

from typing import Any

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st

from qstate.backends import Isolation
from qstate.descriptors import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from qstate.errors import FailureCode
from qstate.keys import Key, Namespace
from qstate.serializers import MessagePackSerializer
from qstate_conformance.backend.contents import all_places, check_reads, query, query_one
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.states import (
    AGGREGATING,
    FRAMED,
    FRAMED_LIST,
    FRAMED_MAP,
    KINDS,
    LIST,
    MAP,
    REDUCING,
    VALUE,
    numbered,
)
from qstate_conformance.backend.strategies import key_lists, keys, namespaces, programs, values
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject


@law("R6", "R5")
@given(program=programs(epochs=2), order=st.randoms())
def test_published_writes_show(subject: BackendSubject, program: list[list[Write]], order: Any) -> None:
    """After `publish`, and after a commit, live queries of all kinds give what the job wrote."""
    model = Model()
    places = all_places(write.place for epoch in program for write in epoch)
    order.shuffle(places)
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, model)
            backend.publish()
            check_reads(backend, Isolation.LIVE, model, places)
            sealed(backend, epoch)
            check_reads(backend, Isolation.LIVE, model, places)


@law("R6")
@given(program=programs(epochs=2))
def test_committed_writes_show_without_publish(subject: BackendSubject, program: list[list[Write]]) -> None:
    """A commit and a restore make every write visible to live queries, published or not."""
    model, changes = Model(), []
    places = all_places(write.place for epoch in program for write in epoch)
    with Instances(subject) as instances:
        backend = instances.open()
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, model)
            changes += sealed(backend, epoch)
            check_reads(backend, Isolation.LIVE, model, places)
        check_reads(instances.restored(1, changes), Isolation.LIVE, model, places)


@law("R6")
def test_live_answers_tell_the_running_epoch(subject: BackendSubject) -> None:
    """The epoch of a live answer is the one that began, was committed or restored last, or was rolled back to."""
    with Instances(subject) as instances:
        backend = instances.open()

        def epoch() -> int:
            backend.publish()
            return query(backend, Isolation.LIVE, VALUE, ["k"])[0]

        backend.begin(4)
        assert epoch() == 4
        backend.table(VALUE).put("k", 1)
        changes = sealed(backend, 4)
        assert epoch() == 4
        backend.begin(5)
        backend.table(VALUE).put("k", 2)
        assert epoch() == 5
        backend.rollback()
        assert epoch() == 4
        assert query(instances.restored(9, changes), Isolation.LIVE, VALUE, ["k"]) == (9, [1])


@law("R1")
@given(chosen=key_lists(2, 6), repeated=st.lists(st.integers(0, 5), max_size=8), descriptor=st.sampled_from(KINDS))
def test_answers_come_in_the_order_of_the_keys(
    subject: BackendSubject, chosen: list[Key], repeated: list[int], descriptor: StateDescriptor
) -> None:
    """One answer per key, in the order asked, for keys that are repeated or have no value too."""
    with opened(subject) as backend:
        expected: list[Any] = []
        for number, key in enumerate(chosen):
            contents = numbered(descriptor, number)
            if number != 1:
                backend.table(descriptor).put(key, contents)
            answer = float(number) if descriptor is AGGREGATING else contents
            expected.append(None if number == 1 else answer)
        sealed(backend, 0)
        asked = [*range(len(chosen)), *(number % len(chosen) for number in repeated)]
        _, found = query(backend, Isolation.LIVE, descriptor, [chosen[number] for number in asked])
        check_same(found, [expected[number] for number in asked])
        assert query(backend, Isolation.LIVE, descriptor, [])[1] == []


@law("R7")
@given(key=keys, namespace=namespaces, descriptor=st.sampled_from(KINDS))
def test_what_has_no_value_is_answered_none(
    subject: BackendSubject, key: Key, namespace: Namespace, descriptor: StateDescriptor
) -> None:
    """Keys, namespaces and states that hold nothing are answered None, before any write and after a delete."""
    never = type(descriptor)(**{**_fields(descriptor), "name": "never asked for"})
    with opened(subject) as backend:
        for asked in (never, descriptor):
            assert query_one(backend, Isolation.LIVE, asked, key, namespace) is None
        table = backend.table(descriptor, namespace)
        table.put(key, numbered(descriptor, 1))
        sealed(backend, 0)
        assert query_one(backend, Isolation.LIVE, never, key, namespace) is None
        assert query_one(backend, Isolation.LIVE, descriptor, key, ("other", 1)) is None
        backend.begin(1)
        table.delete(key)
        backend.publish()
        assert query_one(backend, Isolation.LIVE, descriptor, key, namespace) is None


def _fields(descriptor: StateDescriptor) -> dict[str, Any]:
    names = ("value_type", "serializer", "reduce_function", "aggregate_function")
    return {name: getattr(descriptor, name) for name in names if hasattr(descriptor, name)}


@law("R7", "T5")
def test_an_emptied_list_or_map_is_answered_none(subject: BackendSubject) -> None:
    """A list or map that became empty is no value for a query, as it is none for the job."""
    with opened(subject) as backend:
        lists, maps = backend.table(LIST), backend.table(MAP)
        for whole in (False, True):
            lists.list_add("k", [1])
            maps.map_put("k", "m", 1)
            backend.publish()
            if whole:
                lists.put("k", [])
                maps.put("k", {})
            else:
                lists.delete("k")
                maps.map_remove("k", "m")
            backend.publish()
            assert query_one(backend, Isolation.LIVE, LIST, "k") is None
            assert query_one(backend, Isolation.LIVE, MAP, "k") is None
        sealed(backend, 0)
        assert query_one(backend, Isolation.LIVE, LIST, "k") is None


@law("R5")
@given(value=values)
@example(value=float("nan"))
def test_answers_have_the_documented_form(subject: BackendSubject, value: Any) -> None:
    """Serialized values as they are; lists and maps as MessagePack around them, in bins for other serializers."""
    plain, framed = MessagePackSerializer().dumps(value), FRAMED.serializer.dumps(value)
    with opened(subject) as backend:
        for of_value, of_list, of_map in ((VALUE, LIST, MAP), (FRAMED, FRAMED_LIST, FRAMED_MAP)):
            backend.table(of_value).put("k", value)
            backend.table(of_list).put("k", [value, value])
            backend.table(of_map).put("k", {("m", -1): value})
        backend.table(REDUCING).put("k", 300)
        backend.table(AGGREGATING).put("k", [3.0, 2])
        sealed(backend, 0)
        reader = backend.reader(Isolation.LIVE)
        map_key, wrapped = b"\x92\xa1m\xff", msgpack.packb(framed)
        answers: list[tuple[StateDescriptor, bytes]] = [
            (VALUE, plain),
            (FRAMED, framed),
            (LIST, b"\x92" + plain * 2),
            (FRAMED_LIST, b"\x92" + wrapped * 2),
            (MAP, b"\x81" + map_key + plain),
            (FRAMED_MAP, b"\x81" + map_key + wrapped),
            (REDUCING, b"\xcd\x01\x2c"),
            (AGGREGATING, b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"),
        ]
        for descriptor, expected in answers:
            assert list(reader.get(descriptor, None, ["k"]).values) == [expected], descriptor.name


@law("R5", "T9")
def test_nulls_in_a_map_are_answered(subject: BackendSubject) -> None:
    """A live answer has the entries whose value is None: as nil, or as a bin of the bytes of another serializer."""
    with opened(subject) as backend:
        for descriptor in (MAP, FRAMED_MAP):
            backend.table(descriptor).put("k", {"null": None})
            backend.publish()
            check_same(query_one(backend, Isolation.LIVE, descriptor, "k"), {"null": None}, "published")
        sealed(backend, 0)
        for descriptor in (MAP, FRAMED_MAP):
            check_same(query_one(backend, Isolation.LIVE, descriptor, "k"), {"null": None}, "committed")


@law("R5")
def test_long_lists_and_maps_are_answered_whole(subject: BackendSubject) -> None:
    """Lists and maps around the sizes at which MessagePack changes its headers come back as they are."""
    with opened(subject) as backend:
        for count in (15, 16, 65_535, 65_536):
            backend.table(LIST).put(count, [number % 100 for number in range(count)])
            backend.table(MAP).put(count, dict.fromkeys(range(count), 1))
            backend.publish()
            whole = query_one(backend, Isolation.LIVE, LIST, count) == [number % 100 for number in range(count)]
            assert whole, f"a list of {count} elements"
            whole = query_one(backend, Isolation.LIVE, MAP, count) == dict.fromkeys(range(count), 1)
            assert whole, f"a map of {count} entries"


@law("R1")
@given(position=st.integers(0, 3), kind=st.sampled_from(["result", "class"]))
def test_one_bad_key_spoils_no_other(subject: BackendSubject, position: int, kind: str) -> None:
    """A key whose answer cannot be computed is answered with a failure code; the keys beside it are answered."""
    with opened(subject) as backend:
        asked = [f"k{number}" for number in range(4)]
        table = backend.table(AGGREGATING)
        for number, key in enumerate(asked):
            bad = [1.0, 0] if kind == "result" else ["text", "text"]  # no mean of nothing, and none of text
            table.put(key, bad if number == position else [float(number), 1])
        sealed(backend, 0)
        _, found = query(backend, Isolation.LIVE, AGGREGATING, asked)
        expected = [number if position != number else None for number in range(4)]
        assert isinstance(found[position], FailureCode), found
        assert [None if isinstance(answer, FailureCode) else answer for answer in found] == expected


@law("R5", "R7")
def test_a_query_may_bring_its_own_equal_descriptor(subject: BackendSubject) -> None:
    """The server asks with a descriptor of its own; the answer is found by name and namespace."""
    with opened(subject) as backend:
        backend.table(VALUE, "w").put("k", [1])
        backend.table(MAP, "w").map_put("k", "m", 1)
        sealed(backend, 0)
        assert query_one(backend, Isolation.LIVE, ValueStateDescriptor(VALUE.name), "k", "w") == [1]
        assert query_one(backend, Isolation.LIVE, MapStateDescriptor(MAP.name), "k", "w") == {"m": 1}
