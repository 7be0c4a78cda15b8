"""Broadcast rows and broadcast state: every subtask has the same, and keeps it as exactly as keyed state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from qstate.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtl,
    ValueStateDescriptor,
)
from qstate.errors import JobError
from qstate.operators.functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction, ProcessFunction
from qstate.testing import Broadcast, FunctionHarness
from tests.functions import add

RULES = MapStateDescriptor("rules", float).queryable("thresholds")
LAST = ValueStateDescriptor("last", float)
SEEN = ListStateDescriptor("seen", float)
BY_TYPE = MapStateDescriptor("by type", int)
STATES = {one.name: one for one in (LAST, SEEN, BY_TYPE)}


class Thresholds(KeyedBroadcastProcessFunction):
    """A broadcast row sets a type's threshold, or removes it; a reading above it is emitted. `extra` is called then."""

    def __init__(self, extra: Any = None, of_reading: Any = None) -> None:
        self._extra = extra
        self._of_reading = of_reading

    def open(self, context: Any) -> None:
        self.rules = context.get_broadcast_state(RULES)
        self.last = context.get_state(LAST)
        self.seen = context.get_list_state(SEEN)
        self.by_type = context.get_map_state(BY_TYPE)
        self.subtask = context.subtask

    def process_broadcast_element(self, row: Any, context: Any) -> Iterator[tuple[str, float]] | None:
        if row.limit is None:
            self.rules.remove(row.type)
        else:
            self.rules.put(row.type, row.limit)
        return self._extra(self, row, context) if self._extra else None

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, float]]:
        if self._of_reading is not None:
            self._of_reading(self, row, context)
        self.last.update(row.temp)
        self.seen.add(row.temp)
        self.by_type.put(row.type, 1 + (self.by_type.get(row.type) or 0))
        limit = self.rules.get(row.type)
        if limit is not None and row.temp > limit:
            yield row.sensor, row.temp


@contextmanager
def harness(function: Any = None, **settings: Any) -> Iterator[FunctionHarness]:
    with FunctionHarness(
        function or Thresholds(),
        **{
            "input": {"sensor": str, "type": str, "temp": float},
            "output": {"sensor": str, "temp": float},
            "key_by": "sensor",
            "broadcast": Broadcast(columns={"type": str, "limit": float}, states=[RULES]),
            **settings,
        },
    ) as opened:
        yield opened


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


READINGS = [(f"s{number}", "oven", float(number)) for number in range(20)]
ALERTS = [(f"s{number}", float(number)) for number in range(16, 20)]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_subtask_has_the_rules_before_the_rows_of_their_epoch(backend: str, parallelism: int) -> None:
    with harness(backend=backend, parallelism=parallelism) as opened:
        assert opened.process(*READINGS) == []
        assert sorted(opened.process(*READINGS, broadcast=[("oven", 3.0), ("oven", 15.0)])) == ALERTS
        assert opened.process(*READINGS, broadcast=[("oven", None)]) == []
        assert opened.broadcast_state("rules") == {}


def test_rules_are_restored_at_any_parallelism_and_by_another_backend(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint": tmp_path}
    with harness(backend="heap", parallelism=2, **settings) as opened:
        opened.process(broadcast=[("oven", 15.0), ("ice", -3.0), ("gone", 1.0)])
        opened.process(broadcast=[("gone", None)])
    for parallelism, backend in ((5, "rocksdb"), (1, "heap")):
        with harness(backend=backend, parallelism=parallelism, **settings) as opened:
            assert opened.broadcast_state("rules") == {"oven": 15.0, "ice": -3.0}
            assert sorted(opened.process(*READINGS)) == ALERTS
            assert [opened.state("rules", key) for key in ("oven", "ice", "gone")] == [15.0, -3.0, None]


def test_failed_epoch_leaves_no_rule_behind(backend: str) -> None:
    with harness(backend=backend, parallelism=2) as opened:
        opened.process(broadcast=[("oven", 15.0), ("ice", 0.0)])
        opened.fail(*READINGS, broadcast=[("oven", 1.0), ("new", 2.0), ("ice", None)])
        assert sorted(opened.process(*READINGS)) == ALERTS
        assert opened.broadcast_state("rules") == {"oven": 15.0, "ice": 0.0}
        assert [opened.state("rules", key) for key in ("oven", "ice", "new")] == [15.0, 0.0, None]


def test_each_rule_is_a_value_of_the_subtask_that_owns_its_key(backend: str) -> None:
    with harness(backend=backend, parallelism=3) as opened:
        opened.process(broadcast=[(f"t{number}", float(number)) for number in range(30)])
        stored = list(opened._subtasks.entries("rules"))
        assert len(stored) == 30, "each entry once, and not once for each subtask"
        assert opened.state("rules", "t7") == 7.0


def writes(how: str) -> Any:
    def attempt(function: Thresholds, row: Any, context: Any) -> None:
        {
            "put": lambda: function.rules.put("a", 1.0),
            "put_all": lambda: function.rules.put_all({"a": 1.0}),
            "remove": lambda: function.rules.remove("a"),
            "clear": lambda: function.rules.clear(),
        }[how]()

    return attempt


@pytest.mark.parametrize("how", ["put", "put_all", "remove", "clear"])
def test_rules_can_only_be_read_where_other_rows_are_processed(how: str) -> None:
    with harness(Thresholds(of_reading=writes(how))) as opened:
        with pytest.raises(JobError, match=r"'rules': .*\(\) is for process_broadcast_element only.*only be read"):
            opened.process(*READINGS[:1])
        assert opened.broadcast_state("rules") == {}


@pytest.mark.parametrize(
    "use",
    [
        lambda function, row, context: function.last.value(),
        lambda function, row, context: function.last.update(1.0),
        lambda function, row, context: function.seen.add(1.0),
        lambda function, row, context: list(function.by_type.entries()),
        lambda function, row, context: function.last.get_many(["a"]),
        lambda function, row, context: context.timers.register_event_time(1),
    ],
)
def test_keyed_state_and_timers_are_out_of_reach_of_a_broadcast_row(backend: str, use: Any) -> None:
    class WithTimers(Thresholds):
        def on_timer(self, timestamp: int, context: Any) -> None:
            return None

    row = {"event_time": "at", "input": {"sensor": str, "type": str, "temp": float, "at": datetime}}
    told = r"a broadcast row.*there is no current key.*apply_to_keyed_state"
    with harness(WithTimers(use), backend=backend, **row) as opened, pytest.raises(JobError, match=told):
        opened.process(broadcast=[("oven", 1.0)])


def test_a_generator_of_a_broadcast_row_may_write_as_it_runs() -> None:
    def extra(function: Thresholds, row: Any, context: Any) -> Iterator[tuple[str, float]]:
        yield f"before {row.type}", row.limit
        function.rules.put(f"{row.type}, too", row.limit)
        yield f"after {row.type}", row.limit

    with harness(Thresholds(extra), parallelism=2) as opened:
        found = opened.process(broadcast=[("oven", 1.0)])
        assert found == [("before oven", 1.0), ("after oven", 1.0)] * 2, "each subtask emits the rows"
        assert opened.broadcast_state("rules") == {"oven": 1.0, "oven, too": 1.0}


# -- visits of keyed state


def visits(name: str, change: Any) -> Thresholds:
    """A function whose broadcast rows visit one state; `change(key, state)`."""
    return Thresholds(lambda function, row, context: context.apply_to_keyed_state(STATES[name], change))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_key_is_visited_once_and_can_be_changed(backend: str, parallelism: int) -> None:
    def double(key: str, state: Any) -> None:
        if key == "s3":
            state.clear()
        else:
            state.update(2 * state.value() + 1)

    with harness(visits("last", double), backend=backend, parallelism=parallelism) as opened:
        opened.process(*READINGS)
        opened.process(broadcast=[("oven", 50.0), ("ice", 0.0)])
        expected = {f"s{number}": 4.0 * number + 3 for number in range(20) if number != 3}
        assert {key: opened.state("last", key) for key, _, _ in READINGS} == {**expected, "s3": None}
        opened.fail(broadcast=[("oven", 50.0)])
        assert opened.state("last", "s5") == 23.0
        opened.process(("s3", "oven", 7.0), ("new", "oven", 1.0), broadcast=[("oven", 50.0)])
        assert opened.state("last", "s3") == 7.0
        assert opened.state("last", "new") == 1.0, "the rows of an epoch come after its broadcast rows"


def test_each_key_of_a_map_or_list_is_visited_once(backend: str) -> None:
    def shorten(key: str, state: Any) -> None:
        state.update(state.get()[1:])

    def count_up(key: str, state: Any) -> None:
        for map_key, value in list(state.entries()):
            state.put(map_key, value + 10)

    for name, change, expected in (("seen", shorten, [2.0]), ("by type", count_up, {"oven": 11, "ice": 11})):
        with harness(visits(name, change), backend=backend) as opened:
            opened.process(("a", "oven", 1.0), ("a", "ice", 2.0))
            opened.process(broadcast=[("x", 1.0)])
            assert opened.state(name, "a") == expected


def test_what_a_visitor_cannot_do(backend: str) -> None:
    def fails(key: str, state: Any) -> None:
        raise ValueError("no good")

    with harness(visits("last", fails), backend=backend) as opened:
        opened.process(*READINGS[:1])
        with pytest.raises(JobError, match=r"apply_to_keyed_state\('last'\), key 's0': ValueError: no good"):
            opened.process(broadcast=[("oven", 1.0)])
    other = ValueStateDescriptor("other", float)
    unknown = Thresholds(lambda function, row, context: context.apply_to_keyed_state(other, fails))
    with harness(unknown) as opened, pytest.raises(JobError, match="no keyed state 'other' of this descriptor"):
        opened.process(broadcast=[("oven", 1.0)])
    elsewhere = Thresholds(of_reading=lambda function, row, context: context.apply_to_keyed_state(LAST, fails))
    with harness(elsewhere) as opened, pytest.raises(JobError, match="is for process_broadcast_element"):
        opened.process(*READINGS[:1])


def test_the_state_of_other_keys_and_other_states_is_out_of_reach_of_a_visitor() -> None:
    def outside(function: Thresholds, row: Any, context: Any) -> None:
        context.apply_to_keyed_state(LAST, lambda key, state: function.seen.clear())

    with harness(Thresholds(outside)) as opened:
        opened.process(*READINGS[:1])
        with pytest.raises(JobError, match="there is no current key"):
            opened.process(broadcast=[("oven", 1.0)])


def test_expired_values_are_not_visited(backend: str) -> None:
    short = ReducingStateDescriptor("short", float, reduce_function=add, ttl=StateTtl(timedelta(milliseconds=10)))

    class Short(Thresholds):
        def open(self, context: Any) -> None:
            super().open(context)
            self.short = context.get_reducing_state(short)

        def process_broadcast_element(self, row: Any, context: Any) -> Iterator[tuple[str, float]]:
            found: list[tuple[str, float]] = []
            context.apply_to_keyed_state(short, lambda key, state: found.append((key, state.get())))
            return iter(found)

        def process_element(self, row: Any, context: Any) -> None:
            self.short.add(row.temp)

    with harness(Short(), backend=backend, ttl_sweep_entries=0) as opened:
        opened.process(("old", "oven", 1.0))
        opened.advance_processing_time(8)
        opened.process(("young", "oven", 2.0))
        opened.advance_processing_time(11)
        assert opened.process(broadcast=[("x", 1.0)]) == [("young", 2.0)]


# -- timers


class Reminders(KeyedBroadcastProcessFunction):
    """A reading sets a timer, which emits the limit of that time."""

    def open(self, context: Any) -> None:
        self.rules = context.get_broadcast_state(RULES)

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        self.rules.put(row.type, row.limit)

    def process_element(self, row: Any, context: Any) -> None:
        context.timers.register_event_time(context.timestamp + 5)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[tuple[str, float]]:
        yield context.current_key, self.rules.get("oven") or -1.0


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def test_timers_see_the_broadcast_rows_of_their_epoch_and_the_rows_alone_move_the_watermark(backend: str) -> None:
    timed = {"sensor": str, "type": str, "temp": float, "at": datetime}
    with harness(Reminders(), backend=backend, input=timed, event_time="at") as opened:
        opened.process(("a", "oven", 1.0, at(100)), ("b", "oven", 1.0, at(200)))
        assert opened.watermark is None
        assert opened.process(broadcast=[("oven", 7.0)]) == [("a", 7.0)]
        assert opened.watermark == 200
        assert opened.process(("a", "oven", 1.0, at(300)), broadcast=[("oven", 8.0)]) == []
        assert opened.process() == [("b", 8.0)]


# -- without a key


class Counts(BroadcastProcessFunction):
    """Counts the readings above the limit in operator state."""

    def open(self, context: Any) -> None:
        self.rules = context.get_broadcast_state(RULES)
        self.counts = context.get_operator_list_state(ListStateDescriptor("counts", int))

    def process_broadcast_element(self, row: Any, context: Any) -> None:
        self.rules.put(row.type, row.limit)

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, float]]:
        if row.temp > (self.rules.get(row.type) or 0.0):
            self.counts.update([sum(self.counts.get()) + 1])
            yield row.sensor, float(sum(self.counts.get()))


def test_stream_without_a_key_has_broadcast_and_operator_state(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"key_by": (), "checkpoint": tmp_path}
    with harness(Counts(), parallelism=2, **settings) as opened:
        found = opened.process(*READINGS, broadcast=[("oven", 15.0)])
        assert sorted(found) == [("s16", 1.0), ("s17", 1.0), ("s18", 2.0), ("s19", 2.0)]
    with harness(Counts(), parallelism=1, **settings) as opened:
        assert opened.process(("x", "oven", 16.0)) == [("x", 5.0)]


class Plain(ProcessFunction):
    def __init__(self, use: Any = None) -> None:
        self._use = use

    def open(self, context: Any) -> None:
        if self._use == "state":
            context.get_state(LAST)

    def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, float]]:
        if self._use == "timers":
            context.timers.register_processing_time(1)
        yield row.sensor, row.temp


def test_stream_without_a_key_refuses_keyed_state_and_timers() -> None:
    plain: dict[str, Any] = {"broadcast": None, "key_by": ()}
    with harness(Plain(), parallelism=2, **plain) as opened:
        assert sorted(opened.process(*READINGS)) == sorted((sensor, temp) for sensor, _, temp in READINGS)
    with pytest.raises(JobError, match="'last' is keyed state, and the stream has no key: use key_by"):
        harness(Plain("state"), **plain).__enter__()
    with harness(Plain("timers"), **plain) as opened, pytest.raises(JobError, match="timers belong to keys"):
        opened.process(*READINGS[:1])
    with pytest.raises(JobError, match="Plain is for a stream without a key"):
        harness(Plain(), broadcast=None).__enter__()
    with pytest.raises(JobError, match="a keyed stream needs at least one key column"):
        harness(key_by=()).__enter__()

    class Timed(Plain):
        def on_timer(self, timestamp: int, context: Any) -> None:
            return None

    with pytest.raises(JobError, match="timers belong to keys"):
        harness(Timed(), **plain).__enter__()


# -- declarations


@pytest.mark.parametrize(
    ("states", "told"),
    [
        ([LAST], "needs a MapStateDescriptor"),
        ([RULES, RULES], "two broadcast states are named 'rules'"),
        ([MapStateDescriptor("m", int, map_key_type=object).queryable("m")], "map_key_type is str, bytes, int"),
        ([MapStateDescriptor("rules", int).queryable("thresholds")], "with another descriptor"),
        ([MapStateDescriptor("last", int), RULES], "two states named 'last'"),
        ([], "there is no broadcast state 'rules'; broadcast.. declares none"),
    ],
)
def test_broadcast_states_that_cannot_be(states: list[Any], told: str) -> None:
    with pytest.raises(JobError, match=told):
        harness(broadcast=Broadcast(columns={"type": str, "limit": float}, states=states)).__enter__()


def test_value_of_another_type_is_refused_when_it_is_put(backend: str) -> None:
    def wrong(function: Thresholds, row: Any, context: Any) -> None:
        function.rules.put("x", "text")

    with harness(Thresholds(wrong), backend=backend) as opened, pytest.raises(JobError, match="declared as float"):
        opened.process(broadcast=[("oven", 1.0)])


def test_stored_rules_that_no_function_declares_are_not_dropped_silently(tmp_path: Path) -> None:
    with harness(checkpoint=tmp_path) as opened:
        opened.process(broadcast=[("oven", 1.0)])

    class Forgetful(Thresholds):
        def open(self, context: Any) -> None:
            pass

    other = MapStateDescriptor("others", float)
    broadcast = Broadcast(columns={"type": str, "limit": float}, states=[other])
    with pytest.raises(JobError, match=r"'rules'.*belongs to no"):
        harness(Forgetful(), broadcast=broadcast, checkpoint=tmp_path).__enter__()


def test_reducing_state_is_visited_as_it_is(backend: str) -> None:
    total = ReducingStateDescriptor("total", float, reduce_function=add)

    class Totals(Thresholds):
        def open(self, context: Any) -> None:
            super().open(context)
            self.total = context.get_reducing_state(total)

        def process_broadcast_element(self, row: Any, context: Any) -> None:
            context.apply_to_keyed_state(total, lambda key, state: state.add(row.limit))

        def process_element(self, row: Any, context: Any) -> None:
            self.total.add(row.temp)

    with harness(Totals(), backend=backend) as opened:
        opened.process(("a", "oven", 1.0), ("b", "oven", 2.0))
        opened.process(broadcast=[("x", 10.0), ("y", 100.0)])
        assert (opened.state("total", "a"), opened.state("total", "b")) == (111.0, 112.0)


def test_map_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    def broadcasting(kind: Any) -> Broadcast:
        state = MapStateDescriptor("by number", float, map_key_type=kind)
        return Broadcast(columns={"type": str, "limit": float}, states=[RULES, state])

    with harness(checkpoint=tmp_path, broadcast=broadcasting(int)) as opened:
        opened.process(broadcast=[("oven", 1.0)])
    with pytest.raises(
        JobError, match=r"broadcast state 'by number' was stored with map keys of the types \['bigint'\]"
    ):
        harness(checkpoint=tmp_path, broadcast=broadcasting(object)).__enter__()


def test_one_name_is_not_keyed_and_broadcast_state_in_turn(tmp_path: Path) -> None:
    name = "limits"
    rules = MapStateDescriptor(name, float)

    class AsRules(Thresholds):
        def open(self, context: Any) -> None:
            self.rules = context.get_broadcast_state(rules)

        def process_element(self, row: Any, context: Any) -> None:
            return None

    class AsKeyed(AsRules):
        def open(self, context: Any) -> None:
            self.rules = context.get_broadcast_state(RULES)
            self.limit = context.get_state(ValueStateDescriptor(name, float))

        def process_element(self, row: Any, context: Any) -> None:
            self.limit.update(row.temp)

    def places(which: str, state: MapStateDescriptor) -> dict[str, Any]:
        broadcast = Broadcast(columns={"type": str, "limit": float}, states=[state])
        return {"broadcast": broadcast, "checkpoint": tmp_path / which, "allow_non_restored_state": True}

    with harness(AsKeyed(), **places("keyed", RULES)) as opened:
        opened.process(*READINGS)
    with pytest.raises(JobError, match="'limits' was stored as keyed state and is declared as broadcast state"):
        harness(AsRules(), **places("keyed", rules)).__enter__()
    with harness(AsRules(), **places("broadcast", rules)) as opened:
        opened.process(broadcast=[("oven", 1.0)])
    with pytest.raises(JobError, match="'limits' was stored as broadcast state and is declared as keyed state"):
        harness(AsKeyed(), **places("broadcast", RULES)).__enter__()


@pytest.mark.parametrize(
    ("map_key", "told"), [(True, "got True of bool"), (2**63, "64 bits"), (("a", True), "of tuple")]
)
def test_map_keys_that_python_mixes_up_are_refused(backend: str, map_key: Any, told: str) -> None:
    anything = MapStateDescriptor("anything", int, map_key_type=object)

    class Any_(Thresholds):
        def open(self, context: Any) -> None:
            self.anything = context.get_broadcast_state(anything)

        def process_broadcast_element(self, row: Any, context: Any) -> None:
            self.anything.put(1, 10)
            self.anything.put_all({2: 20, map_key: 30})

    broadcast = Broadcast(columns={"type": str, "limit": float}, states=[anything])
    with harness(Any_(), broadcast=broadcast, backend=backend) as opened:
        with pytest.raises(JobError, match=rf"broadcast state 'anything', map key .*: .*{told}"):
            opened.process(broadcast=[("x", 1.0)])
        assert opened.broadcast_state("anything") == {}


def test_what_is_done_to_a_value_after_it_was_put_is_no_change(backend: str, tmp_path: Path) -> None:
    lists = MapStateDescriptor("lists", list[int])

    class Lists(Thresholds):
        def open(self, context: Any) -> None:
            self.lists = context.get_broadcast_state(lists)

        def process_broadcast_element(self, row: Any, context: Any) -> None:
            given = [1]
            self.lists.put("a", given)
            given.append(2)

        def process_element(self, row: Any, context: Any) -> Iterator[tuple[str, float]]:
            yield row.sensor, float(len(self.lists.get("a")))

    broadcast = Broadcast(columns={"type": str, "limit": float}, states=[lists])
    settings: dict[str, Any] = {"broadcast": broadcast, "backend": backend, "checkpoint": tmp_path}
    with harness(Lists(), **settings) as opened:
        assert opened.process(READINGS[0], broadcast=[("x", 1.0)]) == [("s0", 1.0)]
        assert opened.broadcast_state("lists") == {"a": [1]}
    with harness(Lists(), **settings) as opened:
        assert opened.process(READINGS[0]) == [("s0", 1.0)]


def test_a_visit_prolongs_no_time_to_live(backend: str) -> None:
    ttl = StateTtl(timedelta(milliseconds=10), refresh="on_read_and_write")
    value, entries = ValueStateDescriptor("v", int, ttl=ttl), MapStateDescriptor("m", int, ttl=ttl)

    class Kept(Thresholds):
        def open(self, context: Any) -> None:
            super().open(context)
            self.value, self.entries = context.get_state(value), context.get_map_state(entries)

        def process_broadcast_element(self, row: Any, context: Any) -> Iterator[tuple[str, float]]:
            found: list[tuple[str, float]] = []
            for one in (value, entries):
                context.apply_to_keyed_state(one, lambda key, state, name=one.name: found.append((name, 1.0)))
            return iter(found)

        def process_element(self, row: Any, context: Any) -> None:
            self.value.update(1)
            self.entries.put_all({"a": 1, "b": 2})

    with harness(Kept(), backend=backend) as opened:
        opened.process(READINGS[0])
        opened.advance_processing_time(8)
        assert opened.process(broadcast=[("x", 1.0)]) == [("v", 1.0), ("m", 1.0)]
        opened.advance_processing_time(12)
        assert opened.process(broadcast=[("x", 1.0)]) == []
        assert (opened.state("v", "s0"), opened.state("m", "s0")) == (None, None)


def test_a_visitor_that_is_a_generator_is_refused() -> None:
    def generator(key: str, state: Any) -> Iterator[int]:
        state.clear()
        yield 1

    with harness(visits("last", generator)) as opened:
        opened.process(*READINGS[:1])
        with pytest.raises(JobError, match="expected None from the function, got <generator"):
            opened.process(broadcast=[("oven", 1.0)])


@pytest.mark.parametrize("name", ["__qstate_input", "__qstate_subtask_of_row"])
def test_columns_with_reserved_names_are_refused(name: str) -> None:
    told = f"a column of the stream is called '{name}', which qstate uses itself"
    with pytest.raises(JobError, match=told):
        harness(input={"sensor": str, "type": str, "temp": float, name: int}).__enter__()
    with pytest.raises(JobError, match=told):
        harness(broadcast=Broadcast(columns={"type": str, "limit": float, name: int}, states=[RULES])).__enter__()


def test_null_key_is_named_as_the_user_names_it() -> None:
    with harness() as opened, pytest.raises(JobError, match="column 'sensor' is null in 1 of 1 rows"):
        opened.process((None, "oven", 1.0), broadcast=[("oven", 1.0)])


def test_epoch_that_comes_again_with_other_broadcast_rows_is_refused() -> None:
    class FailsInOne(Thresholds):
        def process_element(self, row: Any, context: Any) -> Any:
            if self.subtask == 1:
                raise ValueError("as the test wants")
            return super().process_element(row, context)

    with harness(FailsInOne(), parallelism=2) as opened:
        with pytest.raises(JobError, match="as the test wants"):
            opened.process(*READINGS, broadcast=[("oven", 1.0)])
        with pytest.raises(JobError, match="was sealed with"):
            opened.process(*READINGS, broadcast=[("oven", 2.0)])
