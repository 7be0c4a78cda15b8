"""Functions can only write values of the declared type: for every kind of state, on every backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.catalog import open_backend
from qstate.backends.contract import Change, StateBackend
from qstate.backends.replay import replay_epoch
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import JobError, SerializationError
from qstate.evolution.write_checks import WriteChecks
from qstate.operators.operator import FunctionOperator
from tests.operators.running import SUBTASK, Calls, batch, operator_of

Use = Callable[[Any, Any], Any]


class Sum(AggregateFunction[Any, Any, Any]):
    def create_accumulator(self) -> Any:
        return 0.0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value if type(value) is float else value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator

    def merge(self, one: Any, other: Any) -> Any:
        return one + other


def newest(old: Any, new: Any) -> Any:
    return new


#: By kind: the descriptor, how a function writes and how it reads.
KINDS: dict[str, tuple[StateDescriptor, str, Use, Use]] = {
    "value": (
        ValueStateDescriptor("s", float),
        "get_state",
        lambda state, value: state.update(value),
        lambda state, _: state.value(),
    ),
    "list": (
        ListStateDescriptor("s", float),
        "get_list_state",
        lambda state, value: state.add(value),
        lambda state, _: state.get(),
    ),
    "list update": (
        ListStateDescriptor("s", float),
        "get_list_state",
        lambda state, value: state.update([value]),
        lambda state, _: state.get(),
    ),
    "map": (
        MapStateDescriptor("s", float),
        "get_map_state",
        lambda state, value: state.put("field", value),
        lambda state, _: dict(state.entries()),
    ),
    "reducing": (
        ReducingStateDescriptor("s", float, reduce_function=newest),
        "get_reducing_state",
        lambda state, value: state.add(value),
        lambda state, _: state.get(),
    ),
    "aggregating": (
        AggregatingStateDescriptor("s", float, aggregate_function=Sum()),
        "get_aggregating_state",
        lambda state, value: state.add(value),
        lambda state, _: state.get(),
    ),
}


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateBackend]:
    with backend_in(request.param, tmp_path) as opened:
        yield opened


def backend_in(name: str, directory: Path) -> StateBackend:
    return open_backend(
        name,
        key_groups=SUBTASK.key_groups,
        max_parallelism=SUBTASK.max_parallelism,
        directory=directory,
        options={},
    )


class Job:
    """An operator whose function does to its one state what the test wants at the next row."""

    def __init__(self, backend: StateBackend, kind: str) -> None:
        self.backend = backend
        self.descriptor, self._get, self._write, self._read = KINDS[kind]
        self.begun = -1
        self._state: Any = None
        self._next: Callable[[Any], Any] = lambda state: None
        self.operator = operator_of(Calls(self._each, self._open), backend)
        self.operator.open()

    def _open(self, function: Any, context: Any) -> None:
        self._state = getattr(context, self._get)(self.descriptor)

    def _each(self, function: Any, row: Any, context: Any) -> None:
        self._next(self._state)

    def at_row(self, key: str, call: Callable[[Any], Any]) -> None:
        self._next = call
        self.operator.process(batch([(key, 1.0, 1)]))

    def begin(self) -> None:
        self.begun += 1
        self.backend.begin(self.begun)

    def write(self, key: str, value: Any, namespace: Any = None) -> None:
        self.at_row(key, lambda state: self._write(state.in_namespace(namespace), value))

    def read(self, key: str) -> Any:
        found: list[Any] = []
        self.at_row(key, lambda state: found.append(deepcopy(self._read(state, None))))
        return found[0]

    def commit(self) -> list[Change]:
        return list(self.backend.commit(self.begun))


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_another_type_fails_the_epoch_and_harms_nothing(kind: str, backend: StateBackend) -> None:
    job = Job(backend, kind)
    job.begin()
    job.write("a", 1.5)
    job.commit()
    before = job.read("a")
    job.begin()
    job.write("a", 2.5)
    job.write("b", "hot", namespace="w")
    field = ", map key 'field'" if kind == "map" else ""
    with pytest.raises(
        SerializationError,
        match=f"state 's', key 'b', namespace 'w'{field}: it is declared as float: "
        "expected float, got 'hot' of type str; write what is declared",
    ):
        job.commit()
    backend.rollback()
    assert job.read("a") == before
    job.write("a", 2.5)
    assert [change.key for change in job.commit()] == [b"\xa1a"]


def test_a_map_key_of_another_type_is_refused_where_it_is_written(backend: StateBackend) -> None:
    job = Job(backend, "map")
    job.begin()
    for call in (lambda state: state.put(7, 1.5), lambda state: state.put_all({"a": 1.5, 7: 1.5})):
        with pytest.raises(JobError, match="state 's', map_key_type: expected str, got 7 of type int"):
            job.at_row("a", call)
    assert job.commit() == []


@pytest.mark.parametrize(
    ("map_key_type", "good", "bad"),
    [
        (str, "x", b"x"),
        (int, 7, True),
        (bytes, b"x", "x"),
        (tuple[str, int], ("x", 7), ("x", "y")),
        (str | int, 7, b"x"),
        (object, ("x", b"y"), 1.5),
    ],
)
def test_map_keys_are_those_of_the_declared_type(map_key_type: Any, good: Any, bad: Any, backend: StateBackend) -> None:
    descriptor = MapStateDescriptor("m", int, map_key_type=map_key_type)
    key = {"next": good}

    def opening(function: Any, context: Any) -> None:
        function.map = context.get_map_state(descriptor)

    operator = operator_of(Calls(lambda function, row, context: function.map.put(key["next"], 1), opening), backend)
    operator.open()
    backend.begin(0)
    operator.process(batch([("a", 1.0, 1)]))
    key["next"] = bad
    with pytest.raises(JobError, match="SerializationError"):
        operator.process(batch([("a", 1.0, 1)]))


def test_what_is_written_reads_the_same_in_a_later_epoch_or_is_refused(backend: StateBackend) -> None:
    """An ordinary function on one backend is one on any: what the heap keeps as an object, a store has as bytes."""
    descriptor = ValueStateDescriptor("s")
    state: Any = None

    def opening(function: Any, context: Any) -> None:
        nonlocal state
        state = context.get_state(descriptor)

    written: list[Any] = []
    operator = operator_of(Calls(lambda function, row, context: written.append(state.value()), opening), backend)
    operator.open()
    checks = backend.table(descriptor)
    moment = datetime(2013, 1, 1, tzinfo=timezone.utc)
    operator.process(batch([("a", 1.0, 1)]))  # from here on it is checked
    for epoch, value in enumerate([(1, [2, (3,)]), {"a": moment, 7: b"x"}, -0.0, True]):
        backend.begin(epoch)
        checks.put("a", value)
        list(backend.commit(epoch))
        operator.process(batch([("a", 1.0, 1)]))
        assert repr(written[-1]) == repr(value)
    for value in (bytearray(b"x"), [bytearray(b"x")], moment.astimezone(timezone(timedelta(hours=1)))):
        backend.begin(9)
        checks.put("a", value)
        with pytest.raises(SerializationError, match=r"state 's', key 'a': (at .*: )?expected a"):
            list(backend.commit(9))
        backend.rollback()


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_stored_before_types_were_enforced_is_restored_and_read(
    kind: str, backend: StateBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(WriteChecks, "of", lambda self, descriptor: descriptor)
        with backend_in("heap", tmp_path) as old:
            job = Job(old, kind)
            job.begin()
            job.write("a", "hot")
            final = job.commit()
            job.begin()
            job.write("b", "warm")
            sealed = job.commit()
    job = Job(backend, kind)
    backend.restore(0, final)
    replay_epoch(backend, {"s": job.descriptor}, 1, sealed)
    found = [job.read(key) for key in "ab"]
    assert ["hot" in str(found[0]), "warm" in str(found[1])] == [True, True]
    job.begun = 1
    job.begin()
    job.write("c", 1.5)
    assert len(job.commit()) == 1
    job.begin()
    job.write("a", "hotter")
    with pytest.raises(SerializationError, match="declared as float"):
        job.commit()


def listed(backend: StateBackend, *, state: OperatorState | None = None) -> tuple[FunctionOperator, dict[str, Any]]:
    held: dict[str, Any] = {}

    def opening(function: Any, context: Any) -> None:
        held["list"] = context.get_operator_list_state(ListStateDescriptor("names", str))

    operator = operator_of(Calls(lambda function, row, context: held["next"](), opening), backend, stored=state)
    operator.open()
    return operator, held


def test_operator_lists_hold_what_was_declared(backend: StateBackend) -> None:
    operator, held = listed(backend)
    held["next"] = lambda: held["list"].add_all(["a", 7])
    backend.begin(0)
    operator.process(batch([("a", 1.0, 1)]))
    with pytest.raises(JobError, match=r"element of operator state 'names' cannot be stored: .*expected str, got 7"):
        operator.lists.packed()


def test_an_element_of_an_operator_list_that_was_stored_otherwise_may_stay(
    backend: StateBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(WriteChecks, "of", lambda self, descriptor: descriptor)
        operator, held = listed(backend)
        held["list"].add_all(["a", 7])
        state = operator.lists.packed()
    operator, held = listed(backend, state=state)
    held["next"] = lambda: held["list"].add("b")
    operator.process(batch([("a", 1.0, 1)]))
    operator.sealed(operator.snapshot(0))
    assert held["list"].get() == ["a", 7, "b"]
    held["next"] = lambda: held["list"].add(8)
    operator.process(batch([("a", 1.0, 1)]))
    with pytest.raises(JobError, match="expected str, got 8"):
        operator.lists.packed()
