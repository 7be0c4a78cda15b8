"""Nulls, the entries of a map state whose value is None: from the handle to a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from qstate.backends import Isolation, StateBackend, open_backend
from qstate.backends.contract import Change
from qstate.backends.expiry import current_reader, stored_form
from qstate.backends.replay import replay_epoch
from qstate.descriptors import MapStateDescriptor, StateTtl
from qstate.errors import JobError, SerializationError
from qstate.evolution.write_checks import checked
from qstate.operators.context import RuntimeContext
from qstate.operators.handles import NO_KEY, MapState
from qstate.serializers import Serializer
from qstate.views import ReadOnlyMapState, ViewMaker
from tests.operators.running import SUBTASK

DESCRIPTOR = MapStateDescriptor("m", int | None)
START = 1_700_000_000_000


@dataclass(frozen=True)
class Delay:
    minutes: int


class NumberOrDash(Serializer):
    """A serializer of the user's own that writes None."""

    name = "number or dash"

    def dumps(self, value: Any) -> bytes:
        return b"-" if value is None else b"%d" % value

    def loads(self, data: bytes) -> Any:
        return None if data == b"-" else int(data)


class Number(Serializer):
    """A serializer of the user's own that cannot write None."""

    name = "number"

    def dumps(self, value: Any) -> bytes:
        return b"%d" % value

    def loads(self, data: bytes) -> Any:
        return int(data)


class Text(Serializer):
    """A serializer that writes None, and reads something else."""

    name = "text"

    def dumps(self, value: Any) -> bytes:
        return str(value).encode()

    def loads(self, data: bytes) -> Any:
        return data.decode()


def opened(name: str, directory: Path) -> StateBackend:
    directory.mkdir(exist_ok=True)
    return open_backend(
        name, key_groups=SUBTASK.key_groups, max_parallelism=SUBTASK.max_parallelism, directory=directory
    )


@pytest.fixture(params=["heap", "rocksdb"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateBackend]:
    with opened(request.param, tmp_path / "backend") as found:
        found.begin(0)
        yield found


def handle_on(backend: StateBackend, descriptor: MapStateDescriptor = DESCRIPTOR) -> tuple[MapState, Any]:
    context = RuntimeContext("job", "operator", SUBTASK, backend)
    handle = context.get_map_state(descriptor)
    context.element_context.current_key = "a"
    context.element_context.processing_time = START
    return handle, context.element_context


def query(
    backend: StateBackend, isolation: Isolation, descriptor: MapStateDescriptor = DESCRIPTOR, after_ms: int = 0
) -> ReadOnlyMapState | None:
    reader = current_reader(descriptor, backend.reader(isolation), clock=lambda: START + after_ms)
    (found,) = reader.get(descriptor, None, ["a"]).values
    if found is None:
        return None
    assert isinstance(found, bytes)
    own = descriptor.serializer
    serializers = {} if own.name == "msgpack" else {own.name: own}
    maker = ViewMaker({"name": "m", "kind": "map", "serializer": own.name}, serializers)
    view = maker.view(found, 0, isolation.value)
    assert isinstance(view, ReadOnlyMapState)
    return view


def check_has_null(state: MapState) -> None:
    assert state.contains("x") and state.get("x") is None
    assert (list(state.entries()), list(state.keys()), list(state.values())) == ([("x", None)], ["x"], [None])
    assert not state.is_empty()
    assert not state.contains("y") and state.get("y") is None


def test_a_null_is_an_entry_for_the_function_until_it_is_removed(backend: StateBackend) -> None:
    state, _ = handle_on(backend)
    state.put("x", None)
    check_has_null(state)
    list(backend.commit(0))
    check_has_null(state)
    backend.begin(1)
    state.put("x", 1)
    state.put("x", None)
    check_has_null(state)
    state.remove("x")
    assert state.is_empty() and not state.contains("x")
    backend.rollback()
    check_has_null(state)
    backend.begin(1)
    state.remove("x")
    changes = list(backend.commit(1))
    assert len(changes) == 1 and state.is_empty()


def test_a_null_replaces_a_value_and_a_value_replaces_a_null(backend: StateBackend) -> None:
    state, _ = handle_on(backend)
    state.put_all({"x": 1, "y": None})
    list(backend.commit(0))
    backend.begin(1)
    state.put_all({"x": None, "y": 2})
    list(backend.commit(1))
    assert dict(state.entries()) == {"x": None, "y": 2}


def test_a_null_is_in_the_changes_the_entries_and_what_is_restored_from_them(
    backend: StateBackend, tmp_path: Path
) -> None:
    state, _ = handle_on(backend)
    state.put("x", None)
    changes: list[Change] = list(backend.commit(0))
    assert [change.data for change in changes] == [b"\xc0"]
    for number, found in enumerate((changes, list(backend.entries(SUBTASK.key_groups)))):
        for name in ("heap", "rocksdb"):
            with opened(name, tmp_path / f"{name} {number}") as other:
                other.table(DESCRIPTOR)
                other.restore(0, found)
                check_has_null(handle_on(other)[0])
            with opened(name, tmp_path / f"replayed {name} {number}") as other:
                replay_epoch(other, {DESCRIPTOR.name: DESCRIPTOR}, 0, found)
                check_has_null(handle_on(other)[0])


@pytest.mark.parametrize("serializer", [None, NumberOrDash()], ids=["msgpack", "own"])
def test_a_query_shows_a_null(backend: StateBackend, serializer: Any) -> None:
    descriptor = MapStateDescriptor("m", int | None, serializer=serializer)
    state, _ = handle_on(backend, descriptor)
    state.put_all({"x": None, "y": 1})
    list(backend.commit(0))
    backend.begin(1)
    for isolation in Isolation:
        view = query(backend, isolation, descriptor)
        assert view is not None
        assert view.contains("x") and view.get("x") is None and not view.is_empty()
        assert view.contents() == {"x": None, "y": 1} and "x" in view.contents()
        assert not view.contains("z")


def test_a_null_expires_like_any_value(backend: StateBackend) -> None:
    descriptor = replace(DESCRIPTOR, ttl=StateTtl(timedelta(milliseconds=100)))
    state, context = handle_on(backend, descriptor)
    state.put("x", None)
    list(backend.commit(0))
    backend.begin(1)
    for isolation in Isolation:
        view = query(backend, isolation, descriptor, after_ms=99)
        assert view is not None and view.contents() == {"x": None}
        assert query(backend, isolation, descriptor, after_ms=100) is None
    context.processing_time = START + 99
    check_has_null(state)
    context.processing_time = START + 100
    assert not state.contains("x") and state.is_empty()
    assert backend.table(stored_form(descriptor)).get("a") is None


def test_a_question_for_a_null_refreshes_its_time_to_live(backend: StateBackend) -> None:
    descriptor = replace(DESCRIPTOR, ttl=StateTtl(timedelta(milliseconds=100), refresh="on_read_and_write"))
    state, context = handle_on(backend, descriptor)
    state.put("x", None)
    context.processing_time = START + 50
    assert state.contains("x")
    assert backend.table(stored_form(descriptor)).get("a") == {"x": (START + 50, None)}


@pytest.mark.parametrize("declared", [object, int | None, Delay | None, list[int] | None, None], ids=str)
def test_types_that_take_none_take_a_null(backend: StateBackend, declared: Any) -> None:
    state, _ = handle_on(backend, MapStateDescriptor("m", declared))
    state.put("x", None)
    list(backend.commit(0))
    check_has_null(state)


@pytest.mark.parametrize(
    ("declared", "advice"),
    [(int, r"int \| None"), (list[int], r"list\[int\] \| None"), (Delay, r"Delay \| None")],
)
def test_other_types_refuse_a_null_and_the_error_has_the_declaration(
    backend: StateBackend, declared: Any, advice: str
) -> None:
    state, context = handle_on(backend, MapStateDescriptor("m", declared))
    with pytest.raises(JobError, match=rf"state 'm': put\(\) got None.*declare {advice}"):
        state.put("x", None)
    with pytest.raises(JobError, match=rf"put_all\(\) got None.*declare {advice}"):
        state.put_all({"x": None})
    assert state.is_empty()
    context.current_key = NO_KEY
    with pytest.raises(JobError, match=rf"state 'm', key 'a': put_many\(\) got None.*declare {advice}"):
        state.put_many(["a"], ["x"], [None])


@pytest.mark.parametrize("serializer", [Number(), Text()], ids=lambda one: one.name)
def test_a_serializer_that_cannot_return_none_refuses_a_null(backend: StateBackend, serializer: Serializer) -> None:
    state, _ = handle_on(backend, MapStateDescriptor("m", int | None, serializer=serializer))
    with pytest.raises(JobError, match=rf"put\(\) got None.*serializer '{serializer.name}'"):
        state.put("x", None)
    assert state.is_empty()


def test_put_many_and_get_many_take_nulls(backend: StateBackend) -> None:
    state, context = handle_on(backend)
    context.current_key = NO_KEY
    state.put_many(["a", "b"], ["x", "x"], [None, 2])
    assert state.get_many(["a", "b"], ["x", "x"]) == [None, 2]
    context.current_key = "a"
    check_has_null(state)


def test_a_table_refuses_a_null_that_its_type_does_not_take(backend: StateBackend) -> None:
    """A direct write into a table, past the handles."""
    descriptor = MapStateDescriptor("m", int)
    backend.table(checked(descriptor)).map_put("a", "x", None)
    with pytest.raises(SerializationError, match="declared as int"):
        list(backend.commit(0))
