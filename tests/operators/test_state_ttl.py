"""Laws of states with a time-to-live: what a function and a query see of them, on the heap and on RocksDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgpack
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from qstate.backends import UNBOUNDED, Isolation, ReadResult, StateBackend, StateReader, open_backend
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
from qstate.errors import ConfigError, FailureCode, JobError, TooLarge
from qstate.keys import Key, Namespace
from qstate.operators.context import RuntimeContext
from qstate.operators.keyed_batch import KeyedBatch
from qstate.operators.sinks import QueryableReducingSink, QueryableValueSink
from qstate.values.ttl import timed
from tests.functions import Mean, add
from tests.operators.running import SUBTASK, batch

TTL = StateTtl(timedelta(milliseconds=100))
REFRESHED = replace(TTL, refresh="on_read_and_write")
SHOWN = replace(TTL, visibility="until_cleaned")
START = 1_700_000_000_000


def states(ttl: StateTtl) -> dict[StateKind, StateDescriptor]:
    found: list[StateDescriptor] = [
        ValueStateDescriptor("value", int, ttl=ttl),
        ListStateDescriptor("list", int, ttl=ttl),
        MapStateDescriptor("map", int, ttl=ttl),
        ReducingStateDescriptor("sum", int, reduce_function=add, ttl=ttl),
        AggregatingStateDescriptor("mean", list, aggregate_function=Mean(), ttl=ttl),
    ]
    return {descriptor.kind: descriptor for descriptor in found}


class Expiring:
    """A backend, a handle of each kind for key "a", and the time. The operator's part is played by hand."""

    def __init__(self, backend: StateBackend, ttl: StateTtl = TTL, *, swept: int = 3) -> None:
        self.backend = backend
        self.states = states(ttl)
        context = RuntimeContext("job", "operator", SUBTASK, backend)
        self.cursor = context.element_context
        self.value = context.get_state(self.states[StateKind.VALUE])  # type: ignore[arg-type]
        self.list = context.get_list_state(self.states[StateKind.LIST])  # type: ignore[arg-type]
        self.map = context.get_map_state(self.states[StateKind.MAP])  # type: ignore[arg-type]
        self.sum = context.get_reducing_state(self.states[StateKind.REDUCING])  # type: ignore[arg-type]
        self.mean = context.get_aggregating_state(self.states[StateKind.AGGREGATING])  # type: ignore[arg-type]
        self.sweep = context.expiry_sweep(swept)
        self.cursor.current_key = "a"
        self.cursor.processing_time = START
        self.epoch = 0
        backend.begin(0)

    def at(self, after_ms: int) -> None:
        """End the epoch, and begin the next one at a time after the start."""
        self.seal()
        self.epoch += 1
        self.backend.begin(self.epoch)
        self.cursor.processing_time = START + after_ms

    def seal(self) -> None:
        self.sweep.run(self.cursor.processing_time)
        list(self.backend.commit(self.epoch))

    def query(self, kind: StateKind, after_ms: int, isolation: Isolation = Isolation.LIVE) -> Any:
        """The answer that a client gets for key "a", decoded."""
        self.backend.publish()
        descriptor = self.states[kind]
        reader = current_reader(descriptor, self.backend.reader(isolation), clock=lambda: START + after_ms)
        (found,) = reader.get(descriptor, None, ["a"]).values
        return msgpack.unpackb(found) if isinstance(found, bytes) else found

    def stored(self, kind: StateKind) -> Any:
        return self.backend.table(stored_form(self.states[kind])).get("a")


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateBackend]:
    with opened(request.param, tmp_path) as found:
        yield found


def opened(name: str, directory: Path) -> StateBackend:
    return open_backend(
        name, key_groups=SUBTASK.key_groups, max_parallelism=SUBTASK.max_parallelism, directory=directory
    )


def fill(state: Expiring) -> None:
    state.value.update(1)
    state.list.add_all([1, 2])
    state.map.put_all({"x": 1, "y": 2})
    state.sum.add(1)
    state.mean.add(1.0)


def seen(state: Expiring) -> list[Any]:
    return [state.value.value(), state.list.get(), dict(state.map.entries()), state.sum.get(), state.mean.get()]


FILLED = [1, [1, 2], {"x": 1, "y": 2}, 1, 1.0]
EMPTY = [None, [], {}, None, None]


def test_a_value_is_seen_until_the_duration_has_passed(backend: StateBackend) -> None:
    state = Expiring(backend)
    fill(state)
    state.at(99)
    assert seen(state) == FILLED
    state.at(100)
    assert seen(state) == EMPTY
    assert state.map.is_empty() and not state.map.contains("x") and state.map.get("x") is None


def test_a_query_sees_a_value_until_the_duration_has_passed(backend: StateBackend) -> None:
    state = Expiring(backend)
    fill(state)
    state.at(1)
    for isolation in Isolation:
        for kind, expected in zip(StateKind, FILLED, strict=True):
            assert state.query(kind, 99, isolation) == expected, (kind, isolation)
            assert state.query(kind, 100, isolation) is None, (kind, isolation)


def test_what_is_written_while_a_map_is_read_stays_and_does_not_show(backend: StateBackend) -> None:
    """A read removes the expired entries that it finds, and not those that the function has written since."""
    state = Expiring(backend)
    state.at(0)
    state.map.put_all({"x": 1, "y": 2})
    state.at(1000)
    entries = state.map.entries()
    state.map.put_all({"x": 7, "y": 8})
    assert dict(entries) == {}
    assert dict(state.map.entries()) == {"x": 7, "y": 8}


def test_lists_expire_element_by_element_and_maps_entry_by_entry(backend: StateBackend) -> None:
    state = Expiring(backend)
    fill(state)
    state.at(60)
    state.list.add(3)
    state.map.put("x", 3)
    state.at(100)
    assert state.list.get() == state.query(StateKind.LIST, 100) == [3]
    assert dict(state.map.entries()) == state.query(StateKind.MAP, 100) == {"x": 3}
    assert (list(state.map.keys()), list(state.map.values())) == (["x"], [3])
    state.at(160)
    assert state.list.get() == [] and state.map.is_empty()


def test_a_fold_begins_again_when_its_value_has_expired(backend: StateBackend) -> None:
    state = Expiring(backend)
    fill(state)
    state.at(100)
    state.sum.add(7)
    state.mean.add(7.0)
    assert (state.sum.get(), state.mean.get()) == (7, 7.0)
    state.at(150)
    state.sum.add(1)
    assert state.sum.get() == 8
    state.at(249)
    assert state.sum.get() == 8, "the time is that of the last write"


def test_only_with_refresh_on_read_does_a_read_count_as_a_write(backend: StateBackend, tmp_path: Path) -> None:
    with opened("heap", tmp_path / "other") as other:
        for state, expected in ((Expiring(backend, REFRESHED), FILLED), (Expiring(other), EMPTY)):
            fill(state)
            state.at(60)
            assert seen(state) == FILLED
            state.at(120)
            assert [state.query(kind, 120) for kind in StateKind] == [one or None for one in expected]
            assert seen(state) == expected


def test_a_query_is_no_read_that_refreshes(backend: StateBackend) -> None:
    state = Expiring(backend, REFRESHED)
    fill(state)
    state.at(60)
    assert state.query(StateKind.VALUE, 60) == 1
    state.at(100)
    assert seen(state) == EMPTY


def test_a_read_removes_what_it_finds_expired(backend: StateBackend) -> None:
    state = Expiring(backend, swept=0)
    fill(state)
    state.at(100)
    assert seen(state) == EMPTY
    assert [state.stored(kind) for kind in StateKind] == [None] * 5
    state.at(101)
    assert list(backend.entries(SUBTASK.key_groups)) == []


def test_a_long_list_is_rewritten_when_half_of_it_has_expired(backend: StateBackend) -> None:
    state = Expiring(backend, swept=0)
    state.list.add(0)
    state.at(50)
    state.list.add_all([1, 2])
    state.at(100)
    assert state.list.get() == [1, 2] and len(state.stored(StateKind.LIST)) == 3
    state.at(101)
    state.list.add(3)
    state.at(150)
    assert state.list.get() == [3] and len(state.stored(StateKind.LIST)) == 1


def test_until_cleaned_shows_the_function_what_was_not_removed_yet(backend: StateBackend) -> None:
    state = Expiring(backend, SHOWN)
    fill(state)
    state.cursor.processing_time = START + 100
    assert seen(state) == FILLED and seen(state) == FILLED
    assert [state.query(kind, 100) for kind in StateKind] == [None] * 5, "queries never show it"
    for _ in range(3):  # six entries, three an epoch
        state.at(100)
    assert seen(state) == EMPTY


def test_a_default_is_read_in_place_of_an_expired_value(backend: StateBackend) -> None:
    context = RuntimeContext("job", "operator", SUBTASK, backend)
    state = context.get_state(ValueStateDescriptor("count", int, default=0, ttl=TTL))
    context.element_context.current_key = "a"
    context.element_context.processing_time = START
    backend.begin(0)
    state.update(5)
    context.element_context.processing_time = START + 100
    assert state.value() == 0


def test_a_rollback_restores_the_times(backend: StateBackend) -> None:
    state = Expiring(backend, REFRESHED)
    fill(state)
    state.at(60)
    assert seen(state) == FILLED  # refreshes
    backend.rollback()
    backend.begin(1)
    state.cursor.processing_time = START + 100
    assert seen(state) == EMPTY


def test_another_backend_has_the_times_of_the_changes(backend: StateBackend, tmp_path: Path) -> None:
    state = Expiring(backend)
    fill(state)
    state.sweep.run(START)
    changes = list(backend.commit(0))
    for name in ("heap", "rocksdb"):
        with opened(name, tmp_path / f"other-{name}") as other:
            for descriptor in state.states.values():
                other.table(stored_form(descriptor))
            other.restore(-1, changes)
            restored = Expiring(other)
            restored.at(99)
            assert seen(restored) == FILLED
            restored.at(100)
            assert seen(restored) == EMPTY


def test_an_aggregate_function_is_not_asked_for_the_result_of_an_expired_accumulator(backend: StateBackend) -> None:
    class Strict(Mean):
        def get_result(self, accumulator: list[float]) -> float:
            raise AssertionError("it has expired")

    descriptor = AggregatingStateDescriptor("strict", list, aggregate_function=Strict(), ttl=TTL)
    backend.begin(0)
    backend.table(stored_form(descriptor)).put("a", (START, [1.0, 1]))
    backend.publish()
    for after_ms, expected in ((100, None), (99, FailureCode.INTERNAL)):
        reader = current_reader(descriptor, backend.reader(Isolation.LIVE), clock=lambda: START + after_ms)  # noqa: B023
        (found,) = reader.get(descriptor, None, ["a"]).values
        assert found is expected or (expected and isinstance(found, FailureCode))


def test_a_clock_that_steps_back_during_a_read_shows_no_result_that_was_not_made(backend: StateBackend) -> None:
    state = Expiring(backend)
    fill(state)
    backend.publish()
    descriptor = state.states[StateKind.AGGREGATING]
    times = iter([START + 100, START + 99])
    reader = current_reader(descriptor, backend.reader(Isolation.LIVE), clock=lambda: next(times))
    assert reader.get(descriptor, None, ["a"]).values == [None]
    assert list(times) == [], "both clocks were read"


def test_an_answer_may_be_as_large_as_one_of_a_state_without_a_ttl(backend: StateBackend) -> None:
    state = Expiring(backend)
    state.list.update(range(100))
    backend.publish()
    descriptor = state.states[StateKind.LIST]
    reader = current_reader(descriptor, backend.reader(Isolation.LIVE), clock=lambda: START)
    size = len(msgpack.packb(list(range(100))))
    (found,) = reader.get(descriptor, None, ["a"], size).values
    assert found == msgpack.packb(list(range(100)))
    for limit in (size - 1, 1):
        with pytest.raises(TooLarge) as refused:
            reader.get(descriptor, None, ["a"], limit)
        assert refused.value.details["limit"] == limit


class Torn(StateReader):
    """A reader that met a value while it was changing: an array of two items that has one."""

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        return ReadResult(3, [timed(START, b"\x92\x01")])


def test_an_answer_that_may_be_torn_is_checked() -> None:
    descriptor = ValueStateDescriptor("value", ttl=TTL)
    for may_tear, expected in ((True, FailureCode.CONCURRENT_MODIFICATION), (False, b"\x92\x01")):
        reader = current_reader(descriptor, Torn(), may_tear=may_tear, clock=lambda: START)
        assert reader.get(descriptor, None, ["a"]) == (3, [expected])


def test_a_queryable_sink_may_have_a_ttl(backend: StateBackend) -> None:
    latest = ValueStateDescriptor("latest", float, ttl=TTL).queryable("latest")
    most = ReducingStateDescriptor("most", float, reduce_function=max, ttl=TTL).queryable("most")
    backend.begin(0)
    for sink, expected in ((QueryableValueSink(latest, ["temp"]), 3.0), (QueryableReducingSink(most, ["temp"]), 7.0)):
        context = RuntimeContext("job", "operator", SUBTASK, backend)
        sink.open(context)
        descriptor = context.seal()[0]
        reader = current_reader(descriptor, backend.reader(Isolation.LIVE), clock=lambda: START + 99)
        for after_ms, temperatures in ((0, [9.0]), (100, [7.0, 3.0])):
            cursor = context.element_context
            cursor.processing_time = START + after_ms
            rows = batch([("a", temperature, 0) for temperature in temperatures])
            assert sink.process_batch(KeyedBatch(rows, cursor, [rows.column("key")]), cursor) is None
        backend.publish()
        (found,) = reader.get(descriptor, None, ["a"]).values
        assert found == msgpack.packb(expected), "the first value had expired before the others came"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StateTtl(10), "is a timedelta, as in StateTtl"),  # type: ignore[arg-type]
        (lambda: StateTtl(timedelta(0)), "at least a millisecond"),
        (lambda: StateTtl(timedelta(seconds=-1)), "at least a millisecond"),
        (lambda: StateTtl(timedelta(microseconds=999)), "at least a millisecond"),
        (lambda: StateTtl(timedelta(1), refresh="on_read"), "'on_write' or 'on_read_and_write', got 'on_read'"),  # type: ignore[arg-type]
        (lambda: StateTtl(timedelta(1), visibility="never"), "'never_expired' or 'until_cleaned', got 'never'"),  # type: ignore[arg-type]
        (lambda: ValueStateDescriptor("v", ttl=timedelta(1)), "state 'v': ttl must be a StateTtl"),  # type: ignore[arg-type]
    ],
)
def test_a_ttl_that_cannot_work_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_operator_state_has_no_ttl(backend: StateBackend) -> None:
    context = RuntimeContext("job", "operator", SUBTASK, backend)
    with pytest.raises(JobError, match="which only keyed state can have"):
        context.get_operator_list_state(ListStateDescriptor("positions", int, ttl=TTL))


def test_a_backend_is_not_given_a_ttl(backend: StateBackend) -> None:
    with pytest.raises(JobError, match="stored_form"):
        backend.table(ValueStateDescriptor("v", int, ttl=TTL))


# -- the model ------------------------------------------------------------------------------------------------------

Times = dict[Any, tuple[int, Any]]


class Model(RuleBasedStateMachine):
    """A function with all kinds of state, and what it would see if expired values vanished by themselves."""

    name = "heap"
    ttl = TTL

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.backend = opened(self.name, Path(self.directory.name))
        self.state = Expiring(self.backend, self.ttl)
        self.now = 0
        self.kept: dict[StateKind, list[tuple[int, Any, Any]]] = {kind: [] for kind in StateKind}
        self.sealed = {kind: list(kept) for kind, kept in self.kept.items()}

    def teardown(self) -> None:
        self.backend.close()
        self.directory.cleanup()

    def current(self, kind: StateKind, *, read: bool = False) -> list[Any]:
        """The current (map key, value) pairs of a kind; `read`: the function reads them."""
        limit = self.now - self.ttl.duration_ms
        kept = [one for one in self.kept[kind] if one[0] > limit]
        if read and self.ttl.refresh == "on_read_and_write":
            kept = [(self.now, map_key, value) for _, map_key, value in kept]
        self.kept[kind] = kept
        return [(map_key, value) for _, map_key, value in kept]

    @initialize()
    def begin(self) -> None:
        self.state.cursor.processing_time = START

    @rule(value=st.integers(0, 9))
    def write_value(self, value: int) -> None:
        self.state.value.update(value)
        self.kept[StateKind.VALUE] = [(self.now, None, value)]

    @rule(values=st.lists(st.integers(0, 9), max_size=3))
    def add_elements(self, values: list[int]) -> None:
        self.state.list.add_all(values)
        self.kept[StateKind.LIST] += [(self.now, None, value) for value in values]

    @rule(map_key=st.sampled_from("xyz"), value=st.integers(0, 9))
    def put_entry(self, map_key: str, value: int) -> None:
        self.state.map.put(map_key, value)
        self.remove_from_model(map_key)
        self.kept[StateKind.MAP].append((self.now, map_key, value))

    @rule(map_key=st.sampled_from("xyz"))
    def remove_entry(self, map_key: str) -> None:
        self.state.map.remove(map_key)
        self.remove_from_model(map_key)

    def remove_from_model(self, map_key: str) -> None:
        self.kept[StateKind.MAP] = [one for one in self.kept[StateKind.MAP] if one[1] != map_key]

    @rule(value=st.integers(1, 9))
    def add_to_folds(self, value: int) -> None:
        self.state.sum.add(value)
        self.state.mean.add(float(value))
        total = sum(old for _, old in self.current(StateKind.REDUCING)) + value
        self.kept[StateKind.REDUCING] = [(self.now, None, total)]
        (_, (old, count)), *_ = self.current(StateKind.AGGREGATING) or [(None, (0.0, 0))]
        self.kept[StateKind.AGGREGATING] = [(self.now, None, (old + value, count + 1))]

    @rule()
    def read_all(self) -> None:
        assert seen(self.state) == self.expected(read=True)

    def expected(self, *, read: bool) -> list[Any]:
        value, elements, entries, total, mean = (self.current(kind, read=read) for kind in StateKind)
        return [
            value[0][1] if value else None,
            [element for _, element in elements],
            dict(entries),
            total[0][1] if total else None,
            mean[0][1][0] / mean[0][1][1] if mean else None,
        ]

    @rule(passed=st.sampled_from([1, 30, 60, 99, 100]))
    def next_epoch(self, passed: int) -> None:
        self.state.seal()
        self.sealed = {kind: list(kept) for kind, kept in self.kept.items()}
        self.state.epoch += 1
        self.backend.begin(self.state.epoch)
        self.now += passed
        self.state.cursor.processing_time = START + self.now

    @rule(swept=st.booleans())
    def epoch_fails(self, swept: bool) -> None:
        if swept:
            self.state.sweep.run(START + self.now)
        self.backend.rollback()
        self.state.sweep.discard()
        self.backend.begin(self.state.epoch)
        self.kept = {kind: list(kept) for kind, kept in self.sealed.items()}

    @invariant()
    def queries_see_what_is_current(self) -> None:
        expected = self.expected(read=False)
        found = [self.state.query(kind, self.now) for kind in StateKind]
        assert found == [one or (one if one == 0 else None) for one in expected]


@pytest.mark.parametrize("ttl", [TTL, REFRESHED], ids=["on_write", "on_read_and_write"])
@pytest.mark.parametrize("name", ["heap", "rocksdb"])
def test_a_function_and_its_queries_see_what_a_model_with_times_has(name: str, ttl: StateTtl) -> None:
    run_state_machine_as_test(type("OfBackend", (Model,), {"name": name, "ttl": ttl}))  # type: ignore[no-untyped-call]
