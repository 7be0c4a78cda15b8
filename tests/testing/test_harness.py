"""The harness for tests of functions: what a job would do, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from qstate.backends.contract import Timer
from qstate.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtl,
    ValueStateDescriptor,
)
from qstate.errors import ConfigError, JobError, WrongKeyType
from qstate.operators.functions import KeyedBatchFunction, KeyedCoProcessFunction, KeyedProcessFunction
from qstate.operators.time.timers import TimeDomain
from qstate.testing import FunctionHarness, Input
from tests.functions import add

READING = {"sensor": str, "time": datetime, "temperature": float}
ALERT = {"sensor": str, "before": float, "now": float}
START = datetime(2020, 1, 1, tzinfo=timezone.utc)


class TemperatureAlert(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", float))

    def process_element(self, row: Any, context: Any) -> Iterator[Any]:
        before = self.last.value()
        self.last.update(row.temperature)
        if before is not None and row.temperature > 1.5 * before:
            yield row.sensor, before, row.temperature


class Kinds(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        ttl = StateTtl(timedelta(seconds=10))
        self.value = context.get_state(ValueStateDescriptor("value", float, ttl=ttl))
        self.list = context.get_list_state(ListStateDescriptor("list", float, ttl=ttl))
        self.map = context.get_map_state(MapStateDescriptor("map", float, ttl=ttl))

    def process_element(self, row: Any, context: Any) -> None:
        self.value.update(row.temperature)
        self.list.add(row.temperature)
        self.map.put(str(row.temperature), row.temperature)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_state_is_what_has_not_expired(backend: str) -> None:
    with FunctionHarness(Kinds(), input=READING, output=ALERT, key_by="sensor", backend=backend) as harness:
        harness.process(("JFK", START, 1.0))
        harness.advance_processing_time(6_000)
        harness.process(("JFK", START, 2.0))
        states = ("value", "list", "map")
        assert [harness.state(name, "JFK") for name in states] == [2.0, [1.0, 2.0], {"1.0": 1.0, "2.0": 2.0}]
        harness.advance_processing_time(10_000)
        assert [harness.state(name, "JFK") for name in states] == [2.0, [2.0], {"2.0": 2.0}]
        harness.advance_processing_time(16_000)
        assert [harness.state(name, "JFK") for name in states] == [None] * 3
        assert [harness.state(name, "LGA") for name in states] == [None] * 3


class Seen(KeyedProcessFunction):
    def open(self, context: Any) -> None:
        ttl = StateTtl(timedelta(seconds=10))
        self.map = context.get_map_state(MapStateDescriptor("map", float | None))
        self.expiring = context.get_map_state(MapStateDescriptor("expiring", float | None, ttl=ttl))

    def process_element(self, row: Any, context: Any) -> None:
        for state in (self.map, self.expiring):
            state.put("seen", None)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_state_of_a_map_has_its_nulls(backend: str) -> None:
    with FunctionHarness(Seen(), input=READING, output=ALERT, key_by="sensor", backend=backend) as harness:
        harness.process(("JFK", START, 1.0))
        assert (harness.state("map", "JFK"), harness.state("expiring", "JFK")) == ({"seen": None}, {"seen": None})
        harness.advance_processing_time(10_000)
        assert (harness.state("map", "JFK"), harness.state("expiring", "JFK")) == ({"seen": None}, None)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def ms(seconds: int) -> int:
    return int(at(seconds).timestamp() * 1000)


def alerts(**changed: Any) -> FunctionHarness:
    return FunctionHarness(TemperatureAlert(), **{"input": READING, "output": ALERT, "key_by": "sensor", **changed})


def test_function_gets_rows_and_its_results_and_state_are_seen() -> None:
    with alerts() as harness:
        assert harness.process(("JFK", at(0), 10.0), {"sensor": "LGA", "time": at(0), "temperature": 4.0}) == []
        assert harness.process(("JFK", at(1), 16.0), ("JFK", at(2), 17.0)) == [("JFK", 10.0, 16.0)]
        assert (harness.state("last", "JFK"), harness.state("last", "LGA"), harness.state("last", "EWR")) == (
            17.0,
            4.0,
            None,
        )


def test_rows_of_an_epoch_are_sorted() -> None:
    with alerts(order_by="time") as harness:
        assert harness.process(("JFK", at(2), 16.0), ("JFK", at(1), 10.0)) == [("JFK", 10.0, 16.0)]


def test_failed_epoch_is_rolled_back() -> None:
    with alerts(parallelism=2) as harness:
        harness.process(*((key, at(0), 10.0) for key in "abcdef"))
        harness.fail(*((key, at(0), 90.0) for key in "abcdef"))
        assert [harness.state("last", key) for key in "abcdef"] == [10.0] * 6
        assert harness.process(("a", at(1), 16.0)) == [("a", 10.0, 16.0)]


def test_error_of_the_function_names_it_and_leaves_the_state() -> None:
    class Fails(TemperatureAlert):
        def process_element(self, row: Any, context: Any) -> Any:
            self.last.update(row.temperature)
            if row.temperature < 0:
                raise ValueError("below zero")

    with FunctionHarness(Fails(), input=READING, output=ALERT, key_by="sensor") as harness:
        harness.process(("JFK", at(0), 10.0))
        with pytest.raises(JobError, match=r"Fails, key 'JFK': ValueError: below zero"):
            harness.process(("JFK", at(1), -1.0))
        assert harness.state("last", "JFK") == 10.0
        harness.process(("JFK", at(1), 11.0))
        assert harness.state("last", "JFK") == 11.0


def test_value_that_cannot_be_stored_fails_the_epoch_and_the_next_one_goes_on() -> None:
    class Wrong(TemperatureAlert):
        def process_element(self, row: Any, context: Any) -> None:
            self.last.update("warm" if row.temperature > 100 else row.temperature)

    with FunctionHarness(Wrong(), input=READING, output=ALERT, key_by="sensor") as harness:
        harness.process(("JFK", at(0), 10.0))
        with pytest.raises(Exception, match="last"):
            harness.process(("JFK", at(1), 101.0))
        harness.process(("LGA", at(1), 11.0))
        assert (harness.state("last", "JFK"), harness.state("last", "LGA")) == (10.0, 11.0)


class Silence(KeyedProcessFunction):
    """Counts the rows of a key, and emits the count when 10 s of event time, or 5 s of the clock, have passed."""

    def open(self, context: Any) -> None:
        self.rows = context.get_reducing_state(ReducingStateDescriptor("rows", int, reduce_function=add))

    def process_element(self, row: Any, context: Any) -> None:
        self.rows.add(1)
        context.timers.register_event_time(row.time + timedelta(seconds=10))
        context.timers.in_namespace("clock").register_processing_time(context.processing_time + 5000)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield context.current_key, context.time_domain.value, context.namespace or "", self.rows.get()


def silence(**changed: Any) -> FunctionHarness:
    output = {"sensor": str, "domain": str, "namespace": str, "rows": int}
    return FunctionHarness(
        Silence(),
        **{"input": READING, "output": output, "key_by": "sensor", "event_time": "time", **changed},
    )


def test_time_moves_as_the_test_says_and_timers_fire() -> None:
    with silence(processing_time=at(0)) as harness:
        assert harness.process(("JFK", at(0), 1.0)) == []
        assert harness.timers() == [Timer(ms(10), None, "JFK")]
        assert harness.timers(TimeDomain.PROCESSING_TIME) == [Timer(ms(5), "clock", "JFK")]
        assert harness.advance_watermark(at(9)) == []
        assert harness.advance_watermark(at(10)) == [("JFK", "event_time", "", 1)]
        assert harness.advance_processing_time(at(5)) == [("JFK", "processing_time", "clock", 1)]
        assert harness.timers() == harness.timers(TimeDomain.PROCESSING_TIME) == []
        assert (harness.watermark, harness.processing_time) == (ms(10), ms(5))


def test_rows_move_the_watermark_less_the_delay() -> None:
    with silence(delay=timedelta(seconds=3)) as harness:
        harness.process(("JFK", at(0), 1.0), ("LGA", at(13), 1.0))
        assert harness.process() == [("JFK", "event_time", "", 1)]
        assert harness.watermark == ms(10)


def test_failed_epoch_leaves_its_timers_to_the_next_one() -> None:
    with silence() as harness:
        harness.process(("JFK", at(0), 1.0), ("LGA", at(10), 1.0))
        harness.fail(("EWR", at(99), 1.0))
        assert harness.process() == [("JFK", "event_time", "", 1)]
        assert harness.process() == []


@pytest.mark.parametrize(("parallelism", "backend"), [(1, "rocksdb"), (2, "heap"), (5, "rocksdb")])
def test_another_harness_continues_with_the_state(tmp_path: Path, parallelism: int, backend: str) -> None:
    with silence(checkpoint=tmp_path / "state", parallelism=2) as harness:
        harness.process(*((key, at(0), 1.0) for key in "abcdef"), ("late", at(7), 1.0))
    with silence(checkpoint=tmp_path / "state", parallelism=parallelism, backend=backend) as harness:
        assert sorted(harness.advance_watermark(at(10))) == [(key, "event_time", "", 1) for key in "abcdef"]
        assert harness.state("rows", "late") == 1


def test_containers_are_seen_as_containers() -> None:
    class Containers(KeyedProcessFunction):
        def open(self, context: Any) -> None:
            self.all = context.get_list_state(ListStateDescriptor("all", float))
            self.by_day = context.get_map_state(MapStateDescriptor("byDay", float))

        def process_element(self, row: Any, context: Any) -> None:
            self.all.add(row.temperature)
            self.by_day.put(str(row.time.date()), row.temperature)

    with FunctionHarness(Containers(), input=READING, output=ALERT, key_by="sensor", backend="rocksdb") as harness:
        harness.process(("JFK", at(0), 1.0), ("JFK", at(1), 2.0))
        assert harness.state("all", "JFK") == [1.0, 2.0]
        assert harness.state("byDay", "JFK") == {"2020-01-01": 2.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda harness: harness.process(("JFK", at(0))), "a tuple of 3 values"),
        (lambda harness: harness.process({"sensor": "JFK", "where": 1}), "unknown columns"),
        (lambda harness: harness.process(("JFK", "noon", 1.0)), "do not have the columns"),
        (lambda harness: harness.state("first", "JFK"), "no state 'first'; it has 'last'"),
        (lambda harness: harness.state("last", None), "NoneType"),
        (lambda harness: harness.state("last", ["JFK"]), "list"),
        (lambda harness: harness.advance_watermark(datetime(2020, 1, 1)), "with a time zone"),
        (lambda harness: harness.advance_watermark("noon"), "a time is milliseconds, .* got 'noon'"),
        (lambda harness: harness.advance_processing_time(1.5), "a time is milliseconds, .* got 1.5"),
    ],
)
def test_wrong_calls_say_what_is_wrong(call: Any, message: str) -> None:
    with alerts() as harness, pytest.raises((ConfigError, JobError, WrongKeyType), match=message):
        call(harness)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input": {"sensor": list}}, "column 'sensor' has the type"),
        ({"input": {}}, "types of the columns by name"),
        ({"key_by": "airport"}, "key_columns names 'airport'"),
        ({"backend": "redis"}, "redis"),
        ({"paralelism": 2}, "did you mean 'parallelism'"),
        ({"restore_from": "/savepoint"}, "restore_from is for jobs: name the directory of a closed harness"),
        ({"event_time": "temperature"}, "event time 'temperature' is a column of type double, not a timestamp"),
        ({"input": {**READING, "time": pa.timestamp("ms", "UTC")}}, "timestamps of Spark have microseconds"),
        ({"input": pa.schema([("sensor", pa.string()), ("t", pa.timestamp("ns"))])}, "column 't' is timestamp.ns"),
        ({"event_time": "when"}, "event time 'when' is not among the columns sensor, time, temperature"),
        ({"event_time": "time", "delay": 5}, "delay is a timedelta, got 5"),
    ],
)
def test_what_a_job_refuses_is_refused_and_leaves_nothing(changed: Any, message: str) -> None:
    with pytest.raises((ConfigError, JobError), match=message):
        alerts(**changed)


def test_a_closed_harness_says_so() -> None:
    harness = alerts()
    harness.close()
    for call in (
        harness.process,
        harness.fail,
        harness.timers,
        lambda: harness.advance_watermark(1),
        lambda: harness.state("last", "JFK"),
    ):
        with pytest.raises(JobError, match="this harness is closed"):
            call()
    harness.close()


def test_columns_may_be_a_schema_of_arrow() -> None:
    schema = pa.schema([("sensor", pa.string()), ("time", pa.timestamp("us", "UTC")), ("temperature", pa.float64())])
    with alerts(input=schema) as harness:
        assert harness.process(("JFK", at(0), 1.0)) == []


class LateReadings(KeyedProcessFunction):
    """Sends late readings to a side output, and when its timer fires, the key."""

    def process_element(self, row: Any, context: Any) -> Iterator[Any]:
        if context.watermark is not None and context.timestamp <= context.watermark:
            context.output("late", (row.sensor, row.temperature))
        else:
            context.timers.register_event_time(row.time + timedelta(seconds=5))
            yield row.sensor, row.temperature

    def on_timer(self, timestamp: int, context: Any) -> None:
        context.output("silent", {"sensor": context.current_key})


@pytest.mark.parametrize("parallelism", [1, 3])
def test_side_outputs_have_the_rows_of_the_last_epoch(parallelism: int) -> None:
    with FunctionHarness(
        LateReadings(),
        input=READING,
        output={"sensor": str, "temperature": float},
        side_outputs={"late": {"sensor": str, "temperature": float}, "silent": {"sensor": str}},
        key_by="sensor",
        event_time="time",
        parallelism=parallelism,
    ) as harness:
        assert harness.side_output("late") == []
        assert harness.process(("JFK", at(10), 1.0)) == [("JFK", 1.0)]
        assert harness.process(("JFK", at(9), 2.0), ("JFK", at(8), 3.0)) == []
        assert harness.side_output("late") == [("JFK", 2.0), ("JFK", 3.0)]
        assert harness.advance_watermark(at(15)) == []
        assert (harness.side_output("late"), harness.side_output("silent")) == ([], [("JFK",)])
        harness.process(("JFK", at(1), 4.0))
        harness.fail(("JFK", at(1), 5.0))
        assert harness.side_output("late") == []
        for unknown in ("main", "later"):
            with pytest.raises(JobError, match=r"there are \['late', 'silent'\]"):
                harness.side_output(unknown)


class Answered(KeyedCoProcessFunction):
    """Pairs questions with answers, and emits those that have none after ten seconds of event time."""

    def open(self, context: Any) -> None:
        self.text = context.get_state(ValueStateDescriptor("text", str))

    def process_element1(self, row: Any, context: Any) -> None:
        self.text.update(row.text)
        context.timers.register_event_time(row.asked + timedelta(seconds=10))

    def process_element2(self, row: Any, context: Any) -> Iterator[Any]:
        if self.text.value() is not None:
            yield row.to, self.text.value(), row.text
        self.text.clear()

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        if self.text.value() is not None:
            yield context.current_key, self.text.value(), None


def answered(**changed: Any) -> FunctionHarness:
    return FunctionHarness(
        Answered(),
        **{
            "input": {"id": str, "asked": datetime, "text": str},
            "key_by": "id",
            "event_time": "asked",
            "second": Input(columns={"to": str, "text": str, "at": datetime}, key_by="to", event_time="at"),
            "output": {"id": str, "question": str, "answer": str},
            **changed,
        },
    )


@pytest.mark.parametrize("parallelism", [1, 3])
def test_two_streams_share_the_state_of_their_keys(parallelism: int) -> None:
    with answered(parallelism=parallelism) as harness:
        assert harness.process(("a", at(0), "why?"), ("b", at(1), "how?")) == []
        harness.fail(second=[("a", "lost", at(2))])
        assert harness.process(second=[("a", "so", at(2))]) == [("a", "why?", "so")]
        assert harness.state("text", "a") is None and harness.state("text", "b") == "how?"


def test_watermark_of_two_streams_waits_for_both() -> None:
    with answered() as harness:
        harness.process(("a", at(0), "why?"), ("b", at(30), "how?"))
        harness.process()
        assert harness.watermark is None
        harness.process(second=[("x", "", at(9))])
        assert harness.process() == [] and harness.watermark == ms(9)
        harness.process(second=[("x", "", at(10))])
        assert harness.process() == [("a", "why?", None)]


def test_two_streams_of_which_one_has_no_event_time_have_none() -> None:
    second = Input(columns={"to": str, "text": str}, key_by="to")
    with answered(second=second) as harness, pytest.raises(JobError, match="of two streams, on both"):
        harness.process(("a", at(0), "why?"))


def test_rows_of_a_second_stream_need_one() -> None:
    with alerts() as harness, pytest.raises(ConfigError, match="no second input"):
        harness.process(second=[("JFK", at(0), 1.0)])


class Held(KeyedProcessFunction):
    """A value and a map with a time-to-live of `ttl_ms`, or without one. A row with a value is stored."""

    def __init__(self, ttl_ms: int | None) -> None:
        self._ttl = None if ttl_ms is None else StateTtl(timedelta(milliseconds=ttl_ms))

    def open(self, context: Any) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", int, ttl=self._ttl))
        self.map = context.get_map_state(MapStateDescriptor("map", int, ttl=self._ttl))

    def process_element(self, row: Any, context: Any) -> None:
        self.value.update(row.value)
        self.map.put("a", row.value)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize(
    ("before", "after", "reopened_at"),
    [(100, None, 1_050), (None, 100, 1_050), (100, None, 0)],
    ids=["removed", "added", "removed at the time of the last epoch"],
)
def test_a_time_to_live_comes_and_goes_at_the_processing_time(
    tmp_path: Path, backend: str, before: int | None, after: int | None, reopened_at: int
) -> None:
    def held(ttl_ms: int | None, time: int) -> FunctionHarness:
        return FunctionHarness(
            Held(ttl_ms),
            input={"key": str, "value": int},
            output={"none": int},
            key_by="key",
            processing_time=time,
            checkpoint=tmp_path,
            backend=backend,
        )

    with held(before, 1_000) as harness:
        harness.process(("a", 7))
        harness.advance_processing_time(1_050)
    with held(after, reopened_at) as harness:
        for time in (1_050, 1_149):
            harness.advance_processing_time(time)
            assert (harness.state("value", "a"), harness.state("map", "a")) == (7, {"a": 7})
        harness.advance_processing_time(1_150)
        stays = after is None
        assert harness.state("value", "a") == (7 if stays else None)
        assert harness.state("map", "a") == ({"a": 7} if stays else None)


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_a_decimal_of_another_scale_is_no_key(backend: str) -> None:
    class Counts(KeyedBatchFunction):
        def open(self, context: Any) -> None:
            self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

        def process_batch(self, batch: Any, context: Any) -> None:
            keys = [key.normalize() for key in batch.keys] if batch.rows.column("other")[0].as_py() else batch.keys
            self.count.put_many(keys, [count + 1 for count in self.count.get_many(keys)])

    with FunctionHarness(
        Counts(),
        input=pa.schema([("price", pa.decimal128(10, 2)), ("other", pa.bool_())]),
        output={"none": int},
        key_by="price",
        backend=backend,
    ) as harness:
        harness.process((Decimal("1.10"), False))
        with pytest.raises(JobError, match=r"WrongKeyType: .*expected='decimal\(38,2\)', got='decimal\(38,1\)'"):
            harness.process((Decimal("1.10"), True))
        with pytest.raises(WrongKeyType):
            harness.state("count", Decimal("1.1"))
        harness.process((Decimal("1.10"), False))
        assert harness.state("count", Decimal("1.10")) == 2
