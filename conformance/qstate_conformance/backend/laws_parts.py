"""Laws of parts: what a reader gives of a value piece by piece is what a get gives whole."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
from hypothesis import given

from qstate.backends import Capability, Isolation, StateBackend, ValueParts
from qstate.backends.value_parts import LARGEST_WHOLE
from qstate.descriptors import StateDescriptor, StateKind, TimerDescriptor
from qstate.errors import ClosedError, QueryError, TooLarge
from qstate.keys import DEFAULT_MAX_PARALLELISM, Key, KeyGroupRange, Namespace, decode_key, encode_key
from qstate_conformance.backend.contents import answered, read_answer
from qstate_conformance.backend.instances import Instances, opened, sealed
from qstate_conformance.backend.model import Model, check_same
from qstate_conformance.backend.states import AGGREGATING, FRAMED_LIST, FRAMED_MAP, KINDS, LIST, MAP, STATES, numbered
from qstate_conformance.backend.strategies import programs
from qstate_conformance.backend.writes import Write, apply
from qstate_conformance.laws import law
from qstate_conformance.subjects import BackendSubject

_LIVE, _COMMITTED = Isolation.LIVE, Isolation.COMMITTED
_MOST = [Capability.PARTS]
_READS = [Capability.COMMITTED_READS]
#: A map key that no law writes.
_NO_ENTRY = encode_key("never an entry")


def contents_of(parts: ValueParts, state: StateDescriptor) -> Any:
    """The contents of a value, read part by part in every way that there is."""
    loads = state.serializer.loads
    if state.kind is StateKind.LIST:
        elements = list(parts.elements())
        assert elements == list(parts.elements()), f"two readings of {state.name}"
        return [loads(data) for data in elements] or None
    if state.kind is not StateKind.MAP:
        answer = parts.value()
        return None if answer is None else read_answer(state, answer)
    entries = list(parts.entries())
    map_keys = [map_key for map_key, _ in entries]
    assert map_keys == sorted(set(map_keys)), f"the order of the entries of {state.name}"
    for index, (map_key, data) in enumerate(entries):
        assert parts.entry(map_key) == data, f"the entry {map_key!r} of {state.name}"
        assert list(parts.entries(map_key)) == entries[index + 1 :], f"the entries after {map_key!r} of {state.name}"
    assert parts.entry(_NO_ENTRY) is None
    return {decode_key(map_key): loads(data) for map_key, data in entries} or None


def _check(backend: StateBackend, isolation: Isolation, model: Model) -> None:
    reader = backend.reader(isolation)
    for (name, namespace, key), contents in list(model.entries.items()):
        state = STATES[name]
        if isinstance(state, TimerDescriptor):
            continue
        parts = _opened_parts(reader, state, namespace, key)
        if parts is not None:
            assert parts.epoch == reader.get(state, namespace, [key]).epoch
            check_same(contents_of(parts, state), answered(contents, state), f"the parts of {(name, namespace, key)}")
            parts.close()
            parts.close()


def _opened_parts(reader: Any, state: StateDescriptor, namespace: Namespace, key: Key) -> ValueParts | None:
    """The parts of a value, None if its answer is a failure."""
    try:
        found: ValueParts = reader.parts(state, namespace, key)
        if state.kind not in (StateKind.LIST, StateKind.MAP):
            found.value()
    except QueryError:
        return None
    return found


@law("V1", "V2", "V3")
@given(program=programs(epochs=2))
def test_live_parts_make_what_a_get_gives(subject: BackendSubject, program: list[list[Write]]) -> None:
    """After a publish, the parts of each value are those of its answer, in order, whatever was asked for before."""
    model = Model()
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, model)
            backend.publish()
            _check(backend, _LIVE, model)
            sealed(backend, epoch)


@law("V1", "V2", "V3", needs=_READS)
@given(program=programs(epochs=2), rest=programs(epochs=1))
def test_committed_parts_stay_of_one_epoch(
    subject: BackendSubject, program: list[list[Write]], rest: list[list[Write]]
) -> None:
    """The parts show the epoch that was final when they were opened, while later ones are written and committed."""
    final = Model()
    with opened(subject, begin=False) as backend:
        for epoch, writes in enumerate(program):
            backend.begin(epoch)
            apply(writes, backend, final)
            sealed(backend, epoch)
        last = len(program) - 1
        backend.finalize(last)
        later, reader = final.copy(), backend.reader(_COMMITTED)
        held = {
            place: _opened_parts(reader, STATES[place[0]], *place[1:])
            for place in final.entries
            if not isinstance(STATES[place[0]], TimerDescriptor)
        }
        backend.begin(last + 1)
        for writes in rest:
            apply(writes, backend, later)
        sealed(backend, last + 1)
        backend.finalize(last + 1)
        for place, parts in held.items():
            if parts is not None:
                state = STATES[place[0]]
                assert parts.epoch == last
                check_same(contents_of(parts, state), answered(final.get(place), state), place)
                parts.close()
        _check(backend, _COMMITTED, later)


@law("V1", needs=_READS)
def test_open_parts_show_no_later_epoch(subject: BackendSubject) -> None:
    """Committed parts of a list and map are as they were when later epochs have changed, emptied and refilled them."""
    with opened(subject) as backend:
        for state in (LIST, MAP):
            backend.table(state).put("k", numbered(state, 1))
        sealed(backend, 0)
        backend.finalize(0)
        held = [(state, backend.reader(_COMMITTED).parts(state, None, "k")) for state in (LIST, MAP)]
        for epoch, number in ((1, 2), (2, None), (3, 3)):
            backend.begin(epoch)
            for state, _ in held:
                table = backend.table(state)
                table.delete("k") if number is None else table.put("k", numbered(state, number))
            sealed(backend, epoch)
            backend.finalize(epoch)
            for state, parts in held:
                check_same(contents_of(parts, state), numbered(state, 1), f"{state.name} after epoch {epoch}")
        for _, parts in held:
            parts.close()


@law("V1", "V2")
def test_a_key_without_a_value_has_no_parts(subject: BackendSubject) -> None:
    """Of a key, namespace or state without values there is no element, entry or value, before and after it had some."""
    with opened(subject) as backend:
        reader = backend.reader(_LIVE)
        for namespace in (None, "other"):
            for state in KINDS:
                assert contents_of(reader.parts(state, namespace, "k"), state) is None
                backend.table(state, namespace).put("k", numbered(state, 1))
                backend.table(state, namespace).delete("k")
        backend.publish()
        for state in KINDS:
            assert contents_of(reader.parts(state, None, "k"), state) is None


@law("V3")
def test_entries_go_on_after_any_map_key(subject: BackendSubject) -> None:
    """What comes after a map key does not depend on whether there is an entry of it."""
    map_keys: list[Key] = ["", "a", "ab", "b", "x" * 40, 0, -1, 127, 128, 2**40, -(2**40), ("a", 1), ("a", 2), b"a"]
    with opened(subject) as backend:
        for state in (MAP, FRAMED_MAP):
            backend.table(state).put("k", {map_key: number for number, map_key in enumerate(map_keys)})
        sealed(backend, 0)
        backend.finalize(0)
        isolations = [_LIVE, _COMMITTED] if Capability.COMMITTED_READS in subject.capabilities else [_LIVE]
        for isolation in isolations:
            for state in (MAP, FRAMED_MAP):
                parts = backend.reader(isolation).parts(state, None, "k")
                ordered = sorted(map(encode_key, map_keys))
                for after in (*ordered, encode_key("aa"), encode_key(1), encode_key(("a", 0)), encode_key("~")):
                    found = [map_key for map_key, _ in parts.entries(after)]
                    assert found == [map_key for map_key in ordered if map_key > after], (state.name, after)
                parts.close()


@law("V2")
def test_an_entry_whose_value_is_none_is_an_entry(subject: BackendSubject) -> None:
    """A null in a map has bytes like any value; a missing entry has none."""
    with opened(subject) as backend:
        backend.table(MAP).put("k", {"null": None, "one": 1})
        backend.publish()
        parts = backend.reader(_LIVE).parts(MAP, None, "k")
        assert parts.entry(encode_key("null")) == msgpack.packb(None)
        assert parts.entry(encode_key("one")) == b"\x01"
        assert parts.entry(_NO_ENTRY) is None
        parts.close()


@law("V2")
def test_a_result_that_cannot_be_computed_is_a_failure(subject: BackendSubject) -> None:
    """The value of an aggregate that raises is the failure that a get answers."""
    with opened(subject) as backend:
        backend.table(AGGREGATING).put("k", [1.0, 0])  # the mean of none divides by zero
        backend.publish()
        ((code,),) = [backend.reader(_LIVE).get(AGGREGATING, None, ["k"]).values]
        try:
            found: Any = backend.reader(_LIVE).parts(AGGREGATING, None, "k").value()
        except QueryError as exc:
            found = exc.code
        assert found is code


@law("V1", needs=_READS)
def test_parts_of_restored_state(subject: BackendSubject) -> None:
    """A restored backend has the parts that the first one had, as of the epoch that it was restored to."""
    groups = KeyGroupRange(0, DEFAULT_MAX_PARALLELISM)
    with Instances(subject) as instances:
        whole = instances.open()
        whole.begin(0)
        for state in (LIST, MAP, FRAMED_LIST, FRAMED_MAP):
            whole.table(state).put("k", numbered(state, 7))
        sealed(whole, 0)
        backend = instances.restored(4, list(whole.entries(groups)), groups)
        for state in (LIST, MAP, FRAMED_LIST, FRAMED_MAP):
            parts = backend.reader(_COMMITTED).parts(state, None, "k")
            assert parts.epoch == 4
            check_same(contents_of(parts, state), numbered(state, 7), state.name)
            parts.close()


@law("V4", needs=[Capability.SNAPSHOT_READS])
def test_one_reading_is_of_one_moment(subject: BackendSubject) -> None:
    """Elements and entries that are written after the first one was read do not come in the same reading."""
    with opened(subject) as backend:
        lists, maps = backend.table(LIST), backend.table(MAP)
        lists.put("k", ["before"] * 50)
        maps.put("k", dict.fromkeys(range(50), "before"))
        backend.publish()
        of_list, of_map = (backend.reader(_LIVE).parts(state, None, "k") for state in (LIST, MAP))
        elements, entries = of_list.elements(), of_map.entries()
        found = [next(elements)]
        pairs = [next(entries)]
        lists.put("k", ["after"] * 70)
        maps.put("k", dict.fromkeys(range(20, 90), "after"))
        backend.publish()
        found += elements
        pairs += entries
        assert found == [msgpack.packb("before")] * 50
        assert pairs == [(encode_key(number), msgpack.packb("before")) for number in range(50)]
        assert list(of_list.elements()) == [msgpack.packb("after")] * 70
        of_list.close()
        of_map.close()


@law("V5", proves=_MOST)
def test_a_part_of_a_large_value_is_read(subject: BackendSubject) -> None:
    """One element or entry of a list or map that is larger than a reader reads whole."""
    element = "x" * (1 << 20)
    count = LARGEST_WHOLE // len(element) + 1
    with opened(subject) as backend:
        backend.table(LIST).put("k", [element] * count)
        backend.table(MAP).put("k", dict.fromkeys(range(count), element))
        backend.publish()
        reader = backend.reader(_LIVE)
        try:
            of_list, of_map = reader.parts(LIST, None, "k"), reader.parts(MAP, None, "k")
        except TooLarge as exc:
            raise AssertionError("V5: a value that is too large to be read in parts") from exc
        packed = msgpack.packb(element)
        assert next(iter(of_list.elements())) == packed
        assert of_map.entry(encode_key(count - 1)) == packed
        assert next(iter(of_map.entries(encode_key(3)))) == (encode_key(4), packed)
        of_list.close()
        of_map.close()


@law("V6")
def test_parts_of_a_closed_backend_crash_nothing(subject: BackendSubject) -> None:
    """After `close` of the backend, open parts raise `ClosedError` or answer as before."""
    with opened(subject) as backend:
        for state in (LIST, MAP):
            backend.table(state).put("k", numbered(state, 1))
        sealed(backend, 0)
        backend.finalize(0)
        isolations = [_LIVE, _COMMITTED] if Capability.COMMITTED_READS in subject.capabilities else [_LIVE]
        held = [(state, backend.reader(one).parts(state, None, "k")) for one in isolations for state in (LIST, MAP)]
        backend.close()
        for state, parts in held:
            with contextlib.suppress(ClosedError):
                assert contents_of(parts, state) in (None, numbered(state, 1))
            parts.close()
