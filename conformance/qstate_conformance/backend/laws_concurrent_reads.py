"""Laws of concurrent reads: readers in other threads while the one writer works, on schedules that provoke races."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest

from qstate.backends import Capability, Change, Isolation, StateBackend
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import FailureCode
from qstate.keys import Key
from qstate_conformance.backend.contents import query, read_answer
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import check_same, same
from qstate_conformance.backend.schedules import (
    PausingMean,
    PausingSerializer,
    Readers,
    read_while,
    tiny_switch_interval,
)
from qstate_conformance.backend.states import LIST, MAP, VALUE
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

_PAUSING = ValueStateDescriptor("pausing", serializer=PausingSerializer())
_PAUSING_LIST = ListStateDescriptor("pausing list", serializer=PausingSerializer())
_PAUSING_MAP = MapStateDescriptor("pausing map", serializer=PausingSerializer())
_PAUSING_MEAN = AggregatingStateDescriptor("pausing mean", list, aggregate_function=PausingMean())

_KEYS: list[Key] = ["a", b"a", 3, ("c", 4)]
_WIDE = 24


def _assign(found: Any, new: Any) -> None:
    """Make a list or dict equal to another, in place."""
    found.clear()
    found.extend(new) if isinstance(found, list) else found.update(new)


#: state, contents before and after a change that user code makes in place
_CHANGES: list[tuple[StateDescriptor, Any, Any]] = [
    (_PAUSING, [1, 1], [2, 2]),
    (_PAUSING, [1, 1, 1], [2]),
    (_PAUSING, {"a": 1}, {"a": 1, "b": 2, "c": 3}),
    (_PAUSING_LIST, [[1, 1], [1, 1]], [[2, 2], [2, 2]]),
    (_PAUSING_MAP, {"a": [1, 1], "b": [1, 1]}, {"a": [2, 2], "b": [2, 2]}),
    (_PAUSING_MEAN, [1.0, 1], [6.0, 2]),
]
_IDS = ["same length", "shorter", "grown dict", "elements", "map values", "accumulator"]


def _change_during_read(backend: StateBackend, change: tuple[StateDescriptor, Any, Any]) -> bytes | FailureCode | None:
    """Put the contents, change them in place in the middle of a live read and put them again; the read's answer."""
    descriptor, before, after = change
    table = backend.table(descriptor)
    table.put("k", deepcopy(before))
    backend.publish()

    def in_place() -> None:
        found = table.get("k")
        if descriptor in (_PAUSING_LIST, _PAUSING_MAP):
            of_maps = isinstance(found, dict)
            parts = zip(found.values(), after.values(), strict=True) if of_maps else zip(found, after, strict=True)
            for one, other in parts:
                _assign(one, other)
        else:
            _assign(found, after)
        table.put("k", found)

    return read_while(backend.reader(Isolation.LIVE), descriptor, ["k"], in_place).values[0]


def _decoded(descriptor: StateDescriptor, answer: bytes | FailureCode | None) -> Any:
    return read_answer(descriptor, answer) if isinstance(answer, bytes) else answer


@law("R2")
@pytest.mark.parametrize("change", _CHANGES, ids=_IDS)
def test_a_read_during_a_change_in_place_does_no_harm(
    subject: BackendSubject, change: tuple[StateDescriptor, Any, Any]
) -> None:
    """Whatever a read met is answered as read or as CONCURRENT_MODIFICATION; the state is what the job made of it."""
    descriptor, _, after = change
    with Instances(subject) as instances:
        backend, other = instances.open(), instances.open()
        backend.begin(0)
        answer = _change_during_read(backend, change)
        assert isinstance(answer, bytes) or answer is FailureCode.CONCURRENT_MODIFICATION, answer
        table = backend.table(descriptor)
        check_same(table.get("k"), after)
        changes = sealed(backend, 0)
        backend.begin(1)
        table.delete("k")
        backend.rollback()
        check_same(table.get("k"), after)
        other.table(descriptor)
        other.restore(0, changes)
        check_same(other.table(descriptor).get("k"), after)


@law("R2", proves=[Capability.SNAPSHOT_READS])
@pytest.mark.parametrize("change", _CHANGES, ids=_IDS)
def test_a_live_value_is_never_torn(subject: BackendSubject, change: tuple[StateDescriptor, Any, Any]) -> None:
    """A read that the operator interrupts with a change in place gives the value of before or of after, whole."""
    descriptor, *whole = change
    with opened(subject) as backend:
        found = _decoded(descriptor, _change_during_read(backend, change))
        if descriptor is _PAUSING_MEAN:
            whole = [PausingMean().get_result(accumulator) for accumulator in whole]
        elif descriptor is _PAUSING:
            whole = [PausingSerializer().loads(PausingSerializer().dumps(value)) for value in whole]
            found = PausingSerializer().loads(_raw(descriptor, found))
        assert any(same(found, value) for value in whole), f"torn: {found!r}"


def _raw(descriptor: StateDescriptor, found: Any) -> bytes:
    assert not isinstance(found, FailureCode), f"{found} although reads are snapshots"
    return descriptor.serializer.dumps(found)


def _wide(number: int) -> dict[Key, Any]:
    """A map that says one number everywhere, under keys that change with it."""
    return {f"{number % 7} {entry}": number for entry in range(_WIDE)}


@law("R2", proves=[Capability.SNAPSHOT_READS])
def test_a_live_answer_is_never_mixed_from_two_moments(subject: BackendSubject) -> None:
    """Maps, lists and values that are rewritten and undone all the time are answered as they were at one moment."""
    with opened(subject) as backend:
        tables = [backend.table(descriptor) for descriptor in (MAP, LIST, VALUE)]

        def write(number: int) -> None:
            for table, contents in zip(tables, (_wide(number), [number] * _WIDE, [number] * _WIDE), strict=True):
                table.put("k", contents)
            backend.publish()

        def read(descriptor: StateDescriptor) -> Callable[[], None]:
            reader = backend.reader(Isolation.LIVE)

            def check() -> None:
                found = _decoded(descriptor, reader.get(descriptor, None, ["k"]).values[0])
                assert isinstance(found, list | dict), f"what was always there vanished: {found}"
                numbers = set(found.values() if isinstance(found, dict) else found)
                assert len(found) == _WIDE and len(numbers) == 1, f"mixed from two moments: {found}"

            return check

        write(0)
        sealed(backend, 0)
        with tiny_switch_interval(), Readers(*map(read, (MAP, LIST, VALUE))) as readers:
            for epoch in range(1, 41):
                backend.begin(epoch)
                for number in range(4):
                    write(epoch * 4 + number)
                if epoch % 3 == 2:
                    backend.rollback()
                else:
                    sealed(backend, epoch)
                readers.one_more()


@law("R2", needs=[Capability.SNAPSHOT_READS])
def test_a_growing_list_is_read_up_to_one_moment(subject: BackendSubject) -> None:
    """A list that only grows is answered as it was at one moment: without gaps, and never shorter than before."""
    with opened(subject, begin=False) as backend:
        table, reader, longest = backend.table(LIST), backend.reader(Isolation.LIVE), [0]

        def read() -> None:
            found = _decoded(LIST, reader.get(LIST, None, ["k"]).values[0]) or []
            assert found == list(range(len(found))), f"not as it was at any moment: {found}"
            assert len(found) >= longest[0], "the list became shorter"
            longest[0] = len(found)

        with tiny_switch_interval(), Readers(read) as readers:
            for epoch in range(30):
                backend.begin(epoch)
                for part in range(5):
                    start = epoch * 15 + part * 3
                    table.list_add("k", [start, start + 1, start + 2])
                    backend.publish()
                sealed(backend, epoch)
                readers.one_more()


@law("R1", "R2", "R5")
def test_live_reads_never_fail_while_the_job_writes(subject: BackendSubject) -> None:
    """While epochs are written, sealed and undone, live reads of every kind answer in their form; nothing is harmed."""
    with Instances(subject) as instances:
        backend, changes = instances.open(), list[Change]()

        def read(descriptor: StateDescriptor) -> Callable[[], None]:
            reader = backend.reader(Isolation.LIVE)

            def check() -> None:
                values = reader.get(descriptor, None, _KEYS).values
                assert len(values) == len(_KEYS)
                for answer in values:
                    found = _decoded(descriptor, answer)
                    assert not isinstance(found, FailureCode) or found is FailureCode.CONCURRENT_MODIFICATION, found

            return check

        kinds = (VALUE, LIST, MAP)
        with tiny_switch_interval(), Readers(*map(read, kinds)) as readers:
            for epoch in range(90):
                backend.begin(epoch)
                _come_and_go(backend, epoch)
                _write_epoch(backend, epoch)
                if epoch % 3 == 2:
                    backend.rollback()
                else:
                    changes += sealed(backend, epoch)
                if epoch % 3 == 0:
                    readers.one_more()
        restored = instances.restored(89, changes)
        for descriptor in kinds:
            for key in _KEYS:
                check_same(restored.table(descriptor).get(key), backend.table(descriptor).get(key))
        assert backend.table(LIST).get("a") == [88, 88]


def _come_and_go(backend: StateBackend, epoch: int) -> None:
    """Keys and a namespace that live for an epoch, so that whatever holds them grows and shrinks all the time."""
    for number in range(20):
        backend.table(VALUE).put(("new", number), epoch)
        backend.table(VALUE, epoch).put(number, epoch)
    backend.publish()
    for number in range(20):
        backend.table(VALUE).delete(("new", number))
        backend.table(VALUE, epoch).delete(number)


def _write_epoch(backend: StateBackend, epoch: int) -> None:
    """Everything says the epoch's number in the end, with doubtful moments in between."""
    values, lists, maps = backend.table(VALUE), backend.table(LIST), backend.table(MAP)
    for key in _KEYS:
        values.put(key, -1)
        lists.list_add(key, [-1])
        maps.map_put(key, "doubtful", -1)
    backend.publish()
    values.put_many(_KEYS, [epoch if epoch % 2 else [epoch] for _ in _KEYS])
    for key in _KEYS:
        lists.put(key, [epoch, epoch])
        maps.put(key, {"one": epoch, f"other {epoch % 3}": epoch})
        maps.map_put(key, "third", epoch)


def _numbers(contents: Any) -> set[Any]:
    if isinstance(contents, list | dict):
        return set(contents.values() if isinstance(contents, dict) else contents)
    return {-1 if contents is None else contents}


@law("R3", needs=[Capability.COMMITTED_READS])
def test_committed_answers_are_of_one_final_epoch_however_threads_interleave(subject: BackendSubject) -> None:
    """All keys of a committed answer are of the epoch that it names; that never goes back, whatever fails meanwhile."""
    with opened(subject, begin=False) as backend:

        def read(descriptor: StateDescriptor) -> Callable[[], None]:
            reader, last = backend.reader(Isolation.COMMITTED), [-1]

            def check() -> None:
                epoch, answers = reader.get(descriptor, None, _KEYS)
                assert epoch >= last[0], f"the committed epoch went back from {last[0]} to {epoch}"
                last[0] = epoch
                found = [_decoded(descriptor, answer) for answer in answers]
                assert set().union(*map(_numbers, found)) == {epoch}, f"as of epoch {epoch}: {found}"

            return check

        with tiny_switch_interval(), Readers(*map(read, (VALUE, LIST, MAP))) as readers:
            for epoch in range(120):
                backend.begin(epoch)
                if epoch % 3 == 2:
                    _write_epoch(backend, 10_000)
                    backend.rollback()
                    backend.begin(epoch)
                _write_epoch(backend, epoch)
                sealed(backend, epoch)
                if epoch % 2:
                    backend.finalize(epoch)
                if epoch % 3 == 0:
                    readers.one_more()
        backend.finalize(119)
        assert query(backend, Isolation.COMMITTED, VALUE, ["a"]) == (119, [119])


@law("R3", needs=[Capability.COMMITTED_READS])
def test_a_committed_answer_of_a_thousand_keys_is_of_one_epoch(subject: BackendSubject) -> None:
    """However many keys a committed query has, and however long it takes, they are all of the epoch that it names."""
    keys = list(range(1_000))
    with opened(subject) as backend:
        table = backend.table(VALUE)

        def run_epoch(epoch: int) -> None:
            table.put_many(keys, [epoch] * len(keys))
            sealed(backend, epoch)
            backend.finalize(epoch)

        def read() -> None:
            epoch, answers = reader.get(VALUE, None, keys)
            found = set(answers)
            assert found == {VALUE.serializer.dumps(epoch)}, f"as of epoch {epoch}, of {len(found)} epochs"

        run_epoch(0)
        reader = backend.reader(Isolation.COMMITTED)
        with tiny_switch_interval(), Readers(read, read) as readers:
            for epoch in range(1, 31):
                backend.begin(epoch)
                run_epoch(epoch)
                if epoch % 5 == 0:
                    readers.one_more()


@law("R3", needs=[Capability.COMMITTED_READS])
@pytest.mark.parametrize("move", ["write", "commit", "finalize", "rollback"])
def test_a_committed_answer_does_not_move_while_it_is_made(subject: BackendSubject, move: str) -> None:
    """An answer whose first key takes its time gives the others as of the same epoch, whatever the operator does."""
    with opened(subject) as backend:
        table, keys = backend.table(_PAUSING_MEAN), ["j", "k", "l"]

        def write(number: float) -> None:
            for key in keys:
                accumulator = table.get(key) or [0.0, 1]
                accumulator[0] = number
                table.put(key, accumulator)
            backend.publish()

        write(1.0)
        sealed(backend, 0)
        backend.begin(1)
        if move == "finalize":
            write(2.0)
            sealed(backend, 1)

        def commit() -> None:
            write(2.0)
            sealed(backend, 1)
            backend.finalize(1)

        def finalize() -> None:
            backend.finalize(1)
            backend.begin(2)
            write(3.0)

        def rollback() -> None:
            write(2.0)
            backend.rollback()
            backend.begin(1)
            write(3.0)

        moves: dict[str, Callable[[], None]] = {
            "write": partial(write, 2.0),
            "commit": commit,
            "finalize": finalize,
            "rollback": rollback,
        }
        epoch, values = read_while(backend.reader(Isolation.COMMITTED), _PAUSING_MEAN, keys, moves[move])
        assert (epoch, [_decoded(_PAUSING_MEAN, value) for value in values]) == (0, [1.0] * 3)
