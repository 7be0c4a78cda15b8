"""Laws of expiring state: values with times are kept as they were written, and a walk finds those that have expired."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import groupby, islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qstate.backends import Capability, Change, Isolation, StateBackend
from qstate.backends.answers import unpack_elements
from qstate.backends.expiry import current_reader, stored_form
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    StateTtl,
    ValueStateDescriptor,
)
from qstate.keys import decode_key
from qstate.values.ttl import time_of
from qstate_conformance.backend.contents import read_answer
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.laws_parts import contents_of
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.replica import Replica
from qstate_conformance.backend.states import KINDS, LIST, MAP, VALUE, Mean, numbered
from qstate_conformance.backend.strategies import cuts, programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import ALL, BackendSubject

_TTL = StateTtl(timedelta(milliseconds=100))
_START = 1_700_000_000_000
_EXPIRING: tuple[StateDescriptor, ...] = (
    ValueStateDescriptor("expiring value", ttl=_TTL),
    ListStateDescriptor("expiring list", ttl=_TTL),
    MapStateDescriptor("expiring map", ttl=_TTL),
    ReducingStateDescriptor("expiring reducing", int, reduce_function=int.__add__, ttl=_TTL),
    AggregatingStateDescriptor("expiring aggregating", list, aggregate_function=Mean(), ttl=_TTL),
)
_NAMES = [descriptor.name for descriptor in _EXPIRING]
_of_each_kind = pytest.mark.parametrize("descriptor", _EXPIRING, ids=lambda descriptor: descriptor.kind.value)


def _timed(descriptor: StateDescriptor, number: int, after_ms: int) -> Any:
    """Contents of the right kind, as a backend holds them: each value with its time."""
    found, time_ms = numbered(descriptor, number), _START + after_ms
    if descriptor.kind is StateKind.LIST:
        return [(time_ms, element) for element in found]
    if descriptor.kind is StateKind.MAP:
        return {map_key: (time_ms, value) for map_key, value in found.items()}
    return time_ms, found


def _open(instances: Instances) -> StateBackend:
    backend = instances.open()
    for descriptor in _EXPIRING:
        backend.table(stored_form(descriptor))
    return backend


def _restored(instances: Instances, epoch: int, changes: list[Change]) -> StateBackend:
    backend = _open(instances)
    backend.restore(epoch, changes)
    return backend


def _isolations(subject: BackendSubject) -> list[Isolation]:
    return [Isolation.LIVE, *[Isolation.COMMITTED] * (Capability.COMMITTED_READS in subject.capabilities)]


def _answer(backend: StateBackend, isolation: Isolation, descriptor: StateDescriptor, after_ms: int) -> Any:
    """What a client gets for key "k" at a time."""
    reader = current_reader(descriptor, backend.reader(isolation), clock=lambda: _START + after_ms)
    (found,) = reader.get(descriptor, None, ["k"]).values
    answer = read_answer(descriptor, found) if isinstance(found, bytes) else found
    parts = reader.parts(descriptor, None, "k")
    check_same(contents_of(parts, descriptor), answer, f"the parts of {descriptor.name}")
    parts.close()
    return answer


def _result(descriptor: StateDescriptor, number: int) -> Any:
    return float(number) if descriptor.kind is StateKind.AGGREGATING else numbered(descriptor, number)


@law("T14")
@_of_each_kind
@pytest.mark.parametrize("by_entries", [False, True], ids=["from changes", "from entries"])
def test_a_restore_keeps_the_times(subject: BackendSubject, descriptor: StateDescriptor, by_entries: bool) -> None:
    """A restored value has the time of its write, and not that of the restore, however often it is restored."""
    stored = stored_form(descriptor)
    with Instances(subject) as instances:
        backend = _open(instances)
        backend.begin(0)
        backend.table(stored).put("k", _timed(descriptor, 1, 0))
        changes = sealed(backend, 0)
        check_same(backend.table(stored).get("k"), _timed(descriptor, 1, 0), "committed")
        for epoch in (1, 2):
            if by_entries:
                changes = list(backend.entries(ALL))
            backend = _restored(instances, epoch, changes)
            check_same(backend.table(stored).get("k"), _timed(descriptor, 1, 0), f"restored {epoch} times")


@law("T14", "R5")
@_of_each_kind
def test_answers_end_with_the_time_to_live(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """A query answers a value until its time-to-live has passed, and has no value from then on."""
    with Instances(subject) as instances:
        backend = _open(instances)
        backend.begin(0)
        backend.table(stored_form(descriptor)).put("k", _timed(descriptor, 1, 0))
        sealed(backend, 0)
        backend.finalize(0)
        for isolation in _isolations(subject):
            check_same(_answer(backend, isolation, descriptor, 99), _result(descriptor, 1), isolation.value)
            assert _answer(backend, isolation, descriptor, 100) is None, f"{isolation.value}: it has expired"


@law("T14", "R5", "T8", "T9")
def test_elements_and_entries_expire_one_by_one(subject: BackendSubject) -> None:
    """Of a list and of a map a query answers the elements and entries that have not expired, and no others."""
    lists, maps = _EXPIRING[1], _EXPIRING[2]
    with Instances(subject) as instances:
        backend = _open(instances)
        for epoch in range(3):
            backend.begin(epoch)
            backend.table(stored_form(lists)).list_add("k", [(_START + 40 * epoch, epoch)])
            backend.table(stored_form(maps)).map_put("k", f"m{epoch}", (_START + 40 * epoch, epoch))
            sealed(backend, epoch)
            backend.finalize(epoch)
        for isolation in _isolations(subject):
            for after_ms, left in ((99, [0, 1, 2]), (100, [1, 2]), (140, [2])):
                check_same(_answer(backend, isolation, lists, after_ms), left, (isolation.value, after_ms))
                expected = {f"m{number}": number for number in left}
                check_same(_answer(backend, isolation, maps, after_ms), expected, (isolation.value, after_ms))
            assert _answer(backend, isolation, lists, 180) is None and _answer(backend, isolation, maps, 180) is None


@law("T14", "R5", "T9")
def test_a_null_expires_like_a_value(subject: BackendSubject) -> None:
    """A map's entry whose value is None is answered until its time-to-live has passed, also after a restore."""
    descriptor = _EXPIRING[2]
    with Instances(subject) as instances:
        backend = _open(instances)
        backend.begin(0)
        backend.table(stored_form(descriptor)).map_put("k", "null", (_START, None))
        changes = sealed(backend, 0)
        backend.finalize(0)
        for holder in (backend, _restored(instances, 0, changes)):
            check_same(holder.table(stored_form(descriptor)).get("k"), {"null": (_START, None)})
            for isolation in _isolations(subject):
                check_same(_answer(holder, isolation, descriptor, 99), {"null": None}, isolation.value)
                assert _answer(holder, isolation, descriptor, 100) is None, f"{isolation.value}: it has expired"


@law("T14", "B9")
@_of_each_kind
def test_a_new_time_alone_is_a_change(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """A value that was written again with another time is part of the epoch, though the value is the same."""
    stored = stored_form(descriptor)
    with Instances(subject) as instances:
        backend, changes = _open(instances), []
        for epoch, after_ms in enumerate((0, 60)):
            backend.begin(epoch)
            backend.table(stored).put("k", _timed(descriptor, 1, after_ms))
            changes += sealed(backend, epoch)
            backend.finalize(epoch)
        for isolation in _isolations(subject):
            check_same(_answer(backend, isolation, descriptor, 159), _result(descriptor, 1), isolation.value)
        found = _restored(instances, 1, changes).table(stored).get("k")
        check_same(found, _timed(descriptor, 1, 60), "restored")


@law("T14", "B4")
@_of_each_kind
def test_a_rollback_gives_the_times_back(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """A rollback undoes a new time as it undoes a new value, for tables and live readers."""
    stored = stored_form(descriptor)
    with Instances(subject) as instances:
        backend = _open(instances)
        backend.begin(0)
        backend.table(stored).put("k", _timed(descriptor, 1, 0))
        sealed(backend, 0)
        backend.begin(1)
        backend.table(stored).put("k", _timed(descriptor, 1, 60))
        backend.publish()
        backend.rollback()
        check_same(backend.table(stored).get("k"), _timed(descriptor, 1, 0))
        assert _answer(backend, Isolation.LIVE, descriptor, 100) is None, "the old time counts again"


@law("T14", "B5")
@_of_each_kind
def test_entries_have_the_times(subject: BackendSubject, descriptor: StateDescriptor) -> None:
    """`entries` and `walk` give each value with its time, also if it has expired: the caller decides."""
    with Instances(subject) as instances:
        backend = _open(instances)
        backend.begin(0)
        backend.table(stored_form(descriptor)).put("k", _timed(descriptor, 1, -1_000_000))
        sealed(backend, 0)
        for found in (backend.entries(ALL), backend.walk(dict.fromkeys(_NAMES, _every), ALL)):
            (change,) = found
            assert change is not None
            data = unpack_elements(change.data)[0] if descriptor.kind is StateKind.LIST else change.data
            assert time_of(data) == _START - 1_000_000


@law("B21")
@given(program=programs(epochs=2), data=st.data())
def test_a_walk_visits_the_entries_of_its_states_and_key_groups(
    subject: BackendSubject, program: list[list[Write]], data: st.DataObject
) -> None:
    """A walk gives each committed entry of the given states and key groups once, and no write of the running epoch."""
    wanted = data.draw(st.sets(st.sampled_from([kind.name for kind in KINDS])))
    with opened(subject) as backend:
        model = Model()
        apply(program[0], backend, model)
        sealed(backend, 0)
        backend.begin(1)
        apply(program[1], backend, model.copy())
        found: list[Change] = []
        for groups in data.draw(cuts(128)):
            walked = [change for change in backend.walk(dict.fromkeys(wanted, _every), groups) if change is not None]
            assert all(change.group in groups for change in walked)
            found += walked
        places = [(change.state, change.namespace, change.key, change.map_key) for change in found]
        assert len(set(places)) == len(places), "each entry once"
        replica = Replica()
        replica.load(found)
        expected = {place: contents for place, contents in model.entries.items() if place[0] in wanted}
        check_same(replica.model().entries, expected)


def _fill(backend: StateBackend, numbers: range) -> None:
    for number in numbers:
        backend.table(VALUE).put(number, number)
        backend.table(LIST).list_add(number, [number])
        backend.table(MAP).map_put(number % 5, number, number)


def _every(data: bytes) -> bool:
    return True


@law("B21")
def test_a_walk_visits_the_entries_of_one_map_one_after_another(subject: BackendSubject) -> None:
    """A walk gives the entries of one map one after another, also while the entries that it has given are removed."""
    with opened(subject) as backend:
        _fill(backend, range(200))
        sealed(backend, 0)
        backend.begin(1)
        visited = []
        for change in backend.walk({MAP.name: _every}, ALL):
            assert change is not None
            visited.append(change.key)
            backend.table(MAP).map_remove(decode_key(change.key), decode_key(change.map_key))  # type: ignore[arg-type]
        assert [len(list(entries)) for _, entries in groupby(visited)] == [40] * 5


_FILLED = dict.fromkeys([VALUE.name, LIST.name, MAP.name], _every)


def _walked(walk: Iterator[Change | None], most: int) -> list[tuple[str, bytes, bytes]]:
    return [(change.state, change.key, change.map_key) for change in islice(walk, most) if change is not None]


@law("B21")
def test_a_walk_gives_what_is_wanted_and_counts_the_rest(subject: BackendSubject) -> None:
    """An entry whose data is not wanted is visited, too, and its change is not given; data is that of the change."""
    with opened(subject) as backend:
        _fill(backend, range(20))
        sealed(backend, 0)
        for descriptor in (VALUE, LIST, MAP):
            (first, *others) = [change for change in backend.entries(ALL) if change.state == descriptor.name]
            found = list(backend.walk({descriptor.name: first.data.__eq__}, ALL))
            assert [change for change in found if change is not None] == [first]
            assert found.count(None) == len(others)


@law("B21")
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_a_walk_goes_on_over_epochs(subject: BackendSubject, ends: str) -> None:
    """What is committed all the time is visited once, though other entries come and go while the walk is read."""
    with opened(subject) as backend:
        _fill(backend, range(100))
        sealed(backend, 0)
        walk, found, epoch = backend.walk(_FILLED, ALL), [], 1
        while part := _walked(walk, 11):
            found += part
            backend.begin(epoch)
            _fill(backend, range(100 + epoch, 101 + epoch))  # new ones, fewer than are visited
            for number in range(epoch % 50, 50, 10):  # the even ones of the first half go
                backend.table(VALUE).delete(2 * (number // 2))
                backend.table(LIST).delete(2 * (number // 2))
                backend.table(MAP).map_remove(number % 5, number)
            if ends == "commit":
                sealed(backend, epoch)
            else:
                backend.rollback()
            epoch += 1
            assert epoch < 100, "the walk has no end"
        assert len(set(found)) == len(found), "each entry once"
        kept = {(VALUE.name, key) for key in range(50, 100)} | {(LIST.name, key) for key in range(1, 100, 2)}
        assert not kept - {(state, decode_key(key)) for state, key, _ in found}
        map_keys = {decode_key(map_key) for state, _, map_key in found if state == MAP.name}
        assert not set(range(50, 100)) - map_keys


@law("B21")
def test_an_unfinished_walk_disturbs_nothing(subject: BackendSubject) -> None:
    """Walks that are left unread neither keep an epoch from its end nor a backend from being closed."""
    with opened(subject) as backend:
        _fill(backend, range(50))
        sealed(backend, 0)
        walks = []
        for epoch in range(1, 20):
            walks.append(backend.walk(_FILLED, ALL))
            assert len(_walked(walks[-1], 3)) == 3
            backend.begin(epoch)
            _fill(backend, range(epoch, epoch + 3))
            sealed(backend, epoch)
        assert backend.table(VALUE).get(49) == 49
