"""Timers of functions over whole batches: they are registered, deleted and fired as those of a function over rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from qstate.backends.contract import Timer
from qstate.errors import JobError
from qstate.operators.functions import KeyedBatchFunction
from qstate.operators.handles import ElementContext
from qstate.operators.operator import FunctionOperator
from qstate.operators.time import timers as module
from qstate.operators.time.due_timers import DueTimers
from qstate.operators.time.epoch_time import EpochTime, EventTime
from qstate.operators.time.timers import EVENT_TIME_TIMERS, PROCESSING_TIME_TIMERS, TimeDomain
from tests.operators.running import Batches, Calls, batch, heap, opened, operator_of, rows_of, spec

AT = datetime(2024, 2, 3, 4, 5, 6, 789_000, tzinfo=timezone.utc)
AT_MS = 1_706_933_106_789
SCHEMA = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC"))])
FIRED = pa.schema([("fired", pa.string())])
EVENT_TIME = (EventTime("at", 0),)


class Timed(Batches):
    """Calls the given functions: `each(self, batch, context)`, `due(self, timers, context)`."""

    def __init__(self, each: Callable[..., Any], due: Callable[..., Any] = lambda self, timers, context: None) -> None:
        super().__init__(each)
        self._due = due

    def on_timers(self, timers: DueTimers, context: ElementContext) -> Iterable[pa.RecordBatch] | None:
        found: Iterable[pa.RecordBatch] | None = self._due(self, timers, context)
        return found


def fired(timers: DueTimers) -> pa.RecordBatch:
    """The timers as output: time, namespace and key of each."""
    texts = map("{} {} {}".format, timers.times.tolist(), timers.namespaces, timers.keys)
    return pa.RecordBatch.from_arrays([pa.array(texts, pa.string())], schema=FIRED)


class Epochs:
    """An operator whose epochs have one row, of key "a", and a watermark and a processing time of choice."""

    def __init__(self, operator: FunctionOperator, backend: Any) -> None:
        self._operator, self._backend, self._epoch = operator, backend, 0

    def run(self, time: int, processing_time: int = 0) -> list[list[str]]:
        """The output batches of the timers of the next epoch."""
        operator = self._operator
        if self._epoch:
            self._backend.begin(self._epoch)
        found = [one.column(0).to_pylist() for one in operator.begin(self._epoch, EpochTime(time, processing_time))]
        operator.process(batch([("a", None)], SCHEMA))
        list(operator.finish())
        operator.sealed(operator.snapshot(self._epoch))
        list(self._backend.commit(self._epoch))
        self._epoch += 1
        return found


@contextmanager
def timed(function: Timed) -> Iterator[Epochs]:
    with heap() as backend:
        operator = operator_of(function, backend, input_schema=SCHEMA, output_schema=FIRED, event_times=EVENT_TIME)
        operator.open()
        yield Epochs(operator, backend)
        operator.close()


def registered(register: Callable[[Any], object], domain: Any = EVENT_TIME_TIMERS, **changed: Any) -> list[Timer]:
    """The timers of a domain after a batch in which `register(context.timers)` is called."""
    with heap() as backend:
        operator = operator_of(
            Timed(lambda self, rows, context: register(context.timers) and None),
            backend,
            **{"input_schema": SCHEMA, "event_times": EVENT_TIME, **changed},
        )
        operator.open()
        operator.process(batch([("a", None)], SCHEMA))
        return backend.timers(domain).take(2**62, 100)


@pytest.mark.parametrize(
    "times",
    [
        [AT_MS, AT_MS + 1000],
        (AT, AT_MS + 1000),
        [AT, AT + timedelta(seconds=1)],
        [AT + timedelta(microseconds=999), (AT + timedelta(seconds=1)).astimezone(timezone(timedelta(hours=5)))],
        np.array([AT_MS, AT_MS + 1000]),
        np.array([AT, AT_MS + 1000], object),
        pa.array([AT_MS, AT_MS + 1000]),
        pa.chunked_array([[AT_MS], [AT_MS + 1000]]),
        pa.array([AT, AT + timedelta(seconds=1)], pa.timestamp("ms", "UTC")),
        pa.array([AT, AT + timedelta(seconds=1)], pa.timestamp("us", "Asia/Tokyo")),
        pa.array([AT_MS * 1_000_000 + 999_999, (AT_MS + 1000) * 1_000_000], pa.timestamp("ns", "UTC")),
        pa.chunked_array([pa.array([moment], pa.timestamp("us", "UTC")) for moment in (AT, AT + timedelta(seconds=1))]),
    ],
)
def test_times_of_many_timers_come_in_any_form(times: Any) -> None:
    found = registered(lambda timers: timers.register_event_time_many(["b", "a"], times))
    assert found == [Timer(AT_MS, None, "b"), Timer(AT_MS + 1000, None, "a")]


def test_times_are_rounded_down_to_milliseconds() -> None:
    before_1970 = pa.array([-1, -1_001], pa.timestamp("us", "UTC"))
    seconds = pa.array([-1, 2], pa.timestamp("s", "UTC"))
    assert registered(
        lambda timers: (
            timers.register_event_time_many(["a", "b"], before_1970)
            or timers.register_event_time_many(["c", "d"], seconds)
        )
    ) == [Timer(-1000, None, "c"), Timer(-2, None, "b"), Timer(-1, None, "a"), Timer(2000, None, "d")]


def test_many_timers_are_of_the_namespaces_given_or_of_the_service() -> None:
    def register(timers: Any) -> None:
        there = timers.in_namespace("w")
        there.register_processing_time_many(["a", "b"], [1, 2])
        there.register_processing_time_many(["a", "b"], [3, 4], [None, 7])
        there.register_processing_time_many([], [])

    assert registered(register, PROCESSING_TIME_TIMERS) == [
        Timer(1, "w", "a"),
        Timer(2, "w", "b"),
        Timer(3, None, "a"),
        Timer(4, 7, "b"),
    ]


def test_many_timers_are_deleted_in_their_namespaces() -> None:
    def register(timers: Any) -> None:
        timers.register_event_time_many(["a", "a", "b"], [1, 1, 2], [None, "w", "w"])
        timers.register_processing_time_many(["a", "b"], [1, 2])
        timers.delete_event_time_many(["a", "b", "c"], np.array([1, 2, 3]), ["w", None, "w"])
        timers.delete_processing_time_many(["b", "a"], [2, 2])

    assert registered(register) == [Timer(1, None, "a"), Timer(2, "w", "b")]
    assert registered(register, PROCESSING_TIME_TIMERS) == [Timer(1, None, "a")]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda timers: timers.register_event_time(1), "there is no current key"),
        (
            lambda timers: timers.register_event_time_many(["a"], [1, 2]),
            r"register_event_time_many\(\) got 1 keys, a",
        ),
        (
            lambda timers: timers.delete_event_time_many(["a"], [1], [1, 2]),
            r"delete_event_time_many\(\) got 1 keys, a",
        ),
        (lambda timers: timers.register_event_time_many(["a"], 5000), "one time for each key, got 5000"),
        (lambda timers: timers.register_event_time_many([5], [1]), "state.s keys .*expected=.string., got=.bigint"),
        (lambda timers: timers.register_event_time_many(["a"], ["noon"]), "milliseconds as an int, or .*'noon'"),
        (lambda timers: timers.register_event_time_many(["a"], np.array([1.5])), "milliseconds as an int, or .* 1.5"),
        (lambda timers: timers.register_event_time_many(["a"], np.array([True])), "milliseconds as an int, or .*True"),
        (lambda timers: timers.register_event_time_many(["a"], pa.array([None], pa.int64())), "an int, or .* None"),
        (lambda timers: timers.register_event_time_many(["a"], pa.nulls(1, pa.timestamp("us", "UTC"))), "or .* None"),
        (lambda timers: timers.register_event_time_many(["a"], [datetime(2020, 1, 1)]), "needs a time zone"),
        (lambda timers: timers.register_event_time_many(["a"], pa.array([datetime(2020, 1, 1)])), "needs a time zone"),
        (
            lambda timers: timers.register_event_time_many(["a"], np.array(["2020-01-01"], "datetime64[ns]")),
            "milliseconds as an int, or .*datetime64",
        ),
        (lambda timers: timers.register_event_time_many(["a"], [2**63]), "64 bits"),
        (lambda timers: timers.register_event_time_many([None], [1]), "None"),
        (lambda timers: timers.register_event_time_many(["a"], [1], [1.5]), "float"),
    ],
)
def test_what_cannot_be_a_timer_is_refused(call: Callable[[Any], object], message: str) -> None:
    with pytest.raises(JobError, match=rf"function Timed, a batch of 1 rows: \w+: .*{message}"):
        registered(call)


def test_many_timers_are_refused_where_there_is_a_current_key() -> None:
    def each(function: Any, rows: Any, context: Any) -> None:
        for one in rows.by_key():
            context.timers.register_event_time(7)
            with pytest.raises(JobError, match=f"there is a current key, '{one.key}'"):
                context.timers.register_event_time_many(["a"], [8])
        context.timers.register_event_time_many(["b"], [9])

    with timed(Timed(each, lambda self, timers, context: [fired(timers)])) as epochs:
        assert [epochs.run(0), epochs.run(10)] == [[], [["7 None a", "9 None b"]]]


def test_event_time_timers_of_a_stream_without_event_time_are_refused() -> None:
    with pytest.raises(JobError, match="the stream has no event time"):
        registered(lambda timers: timers.register_event_time_many(["a"], [1]), event_times=())


@pytest.mark.parametrize(
    "call",
    [
        lambda timers: timers.register_event_time_many(["a"], [1]),
        lambda timers: timers.in_namespace("w").delete_processing_time_many(["a"], [1]),
        lambda timers: timers.register_event_time(1),
    ],
)
def test_a_function_that_uses_timers_must_define_on_timers(call: Callable[[Any], object]) -> None:
    function = Batches(lambda self, rows, context: call(context.timers) and None)
    with (
        opened(function, input_schema=SCHEMA) as operator,
        pytest.raises(JobError, match=r"KeyedBatchFunction must define on_timers\(self, timers, context\)"),
    ):
        operator.process(batch([("a", None)], SCHEMA))


def test_only_a_function_with_on_timers_uses_timers() -> None:
    def nothing(*_: Any) -> None:
        return None

    assert spec(Timed(nothing)).uses_timers and spec(Timed(nothing)).keeps_time
    assert not spec(Batches(nothing)).uses_timers and not spec(Batches(nothing)).keeps_time
    assert not spec(Calls(nothing)).uses_timers


def test_due_timers_have_their_times_namespaces_and_domain() -> None:
    seen: list[Any] = []

    def each(function: Any, rows: Any, context: Any) -> None:
        context.timers.register_processing_time_many(["a", "b"], [7, 6])
        context.timers.register_event_time_many(["b", "a", "a"], [5, 5, 4], ["w", None, (1, "x")])

    def due(function: Any, timers: DueTimers, context: Any) -> None:
        assert len(timers) == len(timers.keys) and timers.times.dtype == np.int64
        seen.append((timers.time_domain, timers.keys, timers.times.tolist(), timers.namespaces))

    with timed(Timed(each, due)) as epochs:
        epochs.run(0)
        epochs.run(5, 6)
        epochs.run(5, 7)
    assert seen == [
        (TimeDomain.EVENT_TIME, ["a", "b", "a"], [4, 5, 5], [(1, "x"), "w", None]),
        (TimeDomain.PROCESSING_TIME, ["b"], [6], [None]),
        (TimeDomain.EVENT_TIME, ["a", "b", "a"], [4, 5, 5], [(1, "x"), "w", None]),
        (TimeDomain.PROCESSING_TIME, ["b", "a"], [6, 7], [None, None]),
    ]


def test_a_loop_over_timers_sets_the_current_key() -> None:
    seen: list[Any] = []

    def each(function: Any, rows: Any, context: Any) -> None:
        context.timers.register_event_time_many(["b", "a"], [1, 2], [None, "w"])

    def due(function: Any, timers: DueTimers, context: Any) -> None:
        for timer in timers:
            seen.append((timer, context.current_key))
            context.timers.in_namespace("later").register_event_time(timer.time + 10)
        context.timers.delete_event_time_many(["a"], [12], ["later"])
        with pytest.raises(JobError, match="there is no current key"):
            context.timers.register_event_time(1)

    with timed(Timed(each, due)) as epochs:
        epochs.run(0)
        epochs.run(5)
        epochs.run(20)
    assert seen[:2] == [(Timer(1, None, "b"), "b"), (Timer(2, "w", "a"), "a")]
    assert Timer(11, "later", "b") in [timer for timer, _ in seen] and all(one.key == key for one, key in seen)
    assert Timer(12, "later", "a") not in [timer for timer, _ in seen]


def once(*timers: tuple[str, int]) -> Callable[..., None]:
    """Registers these timers with the first row."""

    def each(function: Any, rows: Any, context: Any) -> None:
        if not hasattr(function, "registered"):
            function.registered = True
            context.timers.register_event_time_many([key for key, _ in timers], [time for _, time in timers])

    return each


def test_a_timer_registered_for_a_due_time_fires_in_the_same_epoch_after_the_batch() -> None:
    def due(function: Any, timers: DueTimers, context: Any) -> Iterator[pa.RecordBatch]:
        again = [key for key, time in zip(timers.keys, timers.times, strict=True) if key == "a" and time == 1]
        context.timers.register_event_time_many(again, [3] * len(again))
        context.timers.register_event_time_many(again, [2] * len(again))
        yield fired(timers)

    with patch.object(module, "TAKEN_AT_ONCE", 2), timed(Timed(once(("a", 1), ("b", 2), ("c", 9)), due)) as epochs:
        assert epochs.run(0) == []
        assert epochs.run(8) == [["1 None a", "2 None b"], ["2 None a", "3 None a"]]
        assert epochs.run(9) == [["9 None c"]]


def test_a_deleted_timer_fires_only_if_it_was_handed_out_before() -> None:
    def due(function: Any, timers: DueTimers, context: Any) -> Iterator[pa.RecordBatch]:
        context.timers.delete_event_time_many(["a", "b", "c", "d"], [1, 2, 3, 9])
        yield fired(timers)

    everything = (("a", 1), ("b", 2), ("c", 3), ("d", 9), ("e", 4))
    with patch.object(module, "TAKEN_AT_ONCE", 2), timed(Timed(once(*everything), due)) as epochs:
        epochs.run(0)
        assert epochs.run(8) == [["1 None a", "2 None b"], ["4 None e"]]
        assert epochs.run(9) == []


def test_a_timer_that_is_registered_again_while_its_batch_is_out_fires_again() -> None:
    def due(function: Any, timers: DueTimers, context: Any) -> Iterator[pa.RecordBatch]:
        yield fired(timers)
        if not hasattr(function, "again"):
            function.again = True
            context.timers.register_event_time_many(timers.keys, timers.times, timers.namespaces)

    with timed(Timed(once(("a", 1), ("b", 2)), due)) as epochs:
        epochs.run(0)
        assert epochs.run(8) == [["1 None a", "2 None b"]] * 2


def test_errors_name_the_timers_and_the_key_of_the_loop() -> None:
    def due(function: Any, timers: DueTimers, context: Any) -> None:
        for timer in timers:
            if timer.key == "b":
                raise ValueError("no good")

    with (
        timed(Timed(once(("a", 1), ("b", 2)), due)) as epochs,
        pytest.raises(JobError, match="operator 'alerts', function Timed, 2 due timers, key 'b': ValueError: no good"),
    ):
        epochs.run(0)
        epochs.run(5)


def test_outputs_of_timers_have_the_output_schema() -> None:
    function = Timed(once(("a", 1)), lambda self, timers, context: [batch([("a", None)], SCHEMA)])
    with timed(function) as epochs, pytest.raises(JobError, match="output batches have the columns fired string"):
        epochs.run(0)
        epochs.run(5)


def test_rows_come_after_the_timers_of_their_epoch() -> None:
    """A row that deletes a due timer comes too late, and one that registers a due timer waits for the next epoch."""

    def each(function: Any, rows: Any, context: Any) -> None:
        context.timers.delete_event_time_many(rows.keys, [5])
        context.timers.register_event_time_many(rows.keys, [context.watermark])

    with timed(Timed(each, lambda self, timers, context: [fired(timers)])) as epochs:
        assert [epochs.run(5), epochs.run(6), epochs.run(7)] == [[], [["5 None a"]], [["6 None a"]]]


def test_output_of_a_batch_is_given_before_the_next_batch_is_taken() -> None:
    calls: list[int] = []

    def due(function: Any, timers: DueTimers, context: Any) -> list[pa.RecordBatch]:
        calls.append(len(timers))
        return [fired(timers)]

    with patch.object(module, "TAKEN_AT_ONCE", 1), heap() as backend:
        operator = operator_of(
            Timed(once(("a", 1), ("b", 2)), due),
            backend,
            input_schema=SCHEMA,
            output_schema=FIRED,
            event_times=EVENT_TIME,
        )
        operator.open()
        list(operator.begin(0, EpochTime(None, 0)))
        operator.process(batch([("a", None)], SCHEMA))
        list(operator.finish())
        operator.sealed(operator.snapshot(0))
        list(backend.commit(0))
        backend.begin(1)
        outputs = operator.begin(1, EpochTime(9, 0))
        assert rows_of([next(outputs)]) == [("1 None a",)] and calls == [1]
        assert rows_of(outputs) == [("2 None b",)] and calls == [1, 1]


def test_the_timer_method_of_the_other_kind_of_function_is_refused() -> None:
    class OfRows(Calls):
        def on_timers(self, timers: Any, context: Any) -> None:
            return None

    class OfBatches(KeyedBatchFunction):
        def process_batch(self, batch: Any, context: Any) -> None:
            return None

        def on_timer(self, timestamp: int, context: Any) -> None:
            return None

    for function, name in ((OfRows(lambda *_: None), "on_timers"), (OfBatches(), "on_timer")):
        with pytest.raises(JobError, match=rf"{name}\(\) of .* would never be called"):
            spec(function)
