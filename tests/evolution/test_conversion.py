"""Stored changes through the plans: every kind of state, from backend to backend, one change at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.answers import pack_elements, unpack_elements
from qstate.backends.contract import Change, ChangeOp, Isolation
from qstate.checkpoint.log.chain import Part
from qstate.checkpoint.log.conversion import converted
from qstate.checkpoint.sources.opening import DeclaredStates
from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import JobError
from qstate.evolution import Evolution, StateSchema, plan_evolution
from qstate.keys import ColumnType, encode_key
from qstate.serializers import MessagePackSerializer
from tests.backends.factories import ALL_GROUPS, open_named


@dataclass
class Visit:
    aircraft: str
    delay: int


@dataclass
class LongVisit:
    delay: float
    gate: str = "?"


class Sum(AggregateFunction[float, list[Any], float]):
    def create_accumulator(self) -> list[Any]:
        return [0]

    def add(self, value: float, accumulator: list[Any]) -> list[Any]:
        return [accumulator[0] + value]

    def get_result(self, accumulator: list[Any]) -> float:
        found: float = accumulator[0]
        return found

    def merge(self, one: list[Any], other: list[Any]) -> list[Any]:
        return [one[0] + other[0]]


#: By name: the state as it was stored, as it is wanted, what was stored and what is read.
STATES: dict[str, tuple[StateDescriptor, StateDescriptor, Any, Any]] = {
    "value": (ValueStateDescriptor("value", int), ValueStateDescriptor("value", float), 5, 5.0),
    "record": (
        ValueStateDescriptor("record", Visit),
        ValueStateDescriptor("record", LongVisit),
        Visit("N1", 5),
        LongVisit(5.0),
    ),
    "list": (ListStateDescriptor("list", int), ListStateDescriptor("list", float), [5, 6], [5.0, 6.0]),
    "map": (MapStateDescriptor("map", int), MapStateDescriptor("map", float), {"a": 5, "b": 6}, {"a": 5.0, "b": 6.0}),
    "nulls": (
        MapStateDescriptor("nulls", int | None),
        MapStateDescriptor("nulls", float | None),
        {"a": 5, "b": None},
        {"a": 5.0, "b": None},
    ),
    "nulls declared": (
        MapStateDescriptor("nulls declared", int),
        MapStateDescriptor("nulls declared", int | None),
        {"a": 5},
        {"a": 5},
    ),
    "nulls migrated": (
        MapStateDescriptor("nulls migrated", str),
        MapStateDescriptor(
            "nulls migrated", int | None, schema_version=2, migration=lambda old, _: int(old) if old else None
        ),
        {"a": "5", "b": ""},
        {"a": 5, "b": None},
    ),
    "reducing": (
        ReducingStateDescriptor("reducing", int, reduce_function=max),
        ReducingStateDescriptor("reducing", float, reduce_function=max),
        5,
        5.0,
    ),
    "aggregating": (
        AggregatingStateDescriptor("aggregating", list[int], aggregate_function=Sum()),
        AggregatingStateDescriptor("aggregating", list[float], aggregate_function=Sum()),
        [5],
        [5.0],
    ),
    "migrated": (
        ListStateDescriptor("migrated", str),
        ListStateDescriptor("migrated", int, schema_version=2, migration=lambda old, _: int(old)),
        ["5", "6"],
        [5, 6],
    ),
    "unchanged": (ListStateDescriptor("unchanged", str), ListStateDescriptor("unchanged"), ["5"], ["5"]),
}


def plans_of(states: dict[str, tuple[StateDescriptor, StateDescriptor, Any, Any]]) -> dict[str, Evolution]:
    return {name: plan_evolution(StateSchema.of(old), new) for name, (old, new, _, _) in states.items()}


@pytest.mark.parametrize("backend_name", ["heap", "rocksdb", "memory without cache"])
def test_state_moves_to_another_schema_and_another_backend(backend_name: str, tmp_path: Path) -> None:
    with open_named("heap", tmp_path / "old") as old_backend:
        tables = {name: old_backend.table(old) for name, (old, _, _, _) in STATES.items()}
        tables_in_window = {name: old_backend.table(old, "w") for name, (old, _, _, _) in STATES.items()}
        old_backend.begin(3)
        for name, (_, _, value, _) in STATES.items():
            tables[name].put("k", value)
            tables_in_window[name].put("k", value)
        changes = list(old_backend.commit(3))
        changes_of_all = list(old_backend.entries(ALL_GROUPS))
    for stored in (changes, changes_of_all):
        directory = tmp_path / f"new {stored is changes}"
        with open_named(backend_name, directory) as backend, open_named("heap", directory / "heap") as heap:
            for each in (backend, heap):
                for _, new, _, _ in STATES.values():
                    each.table(new)
                each.restore(3, converted(stored, plans_of(STATES)))
            for name, (_, new, _, expected) in STATES.items():
                for namespace in (None, "w"):
                    found = backend.table(new, namespace).get("k")
                    assert (found, repr(found)) == (expected, repr(expected)), name
                    answers = [
                        each.reader(Isolation.COMMITTED).get(new, namespace, ["k"]).values for each in (backend, heap)
                    ]
                    assert sorted(answers[0][0]) == sorted(answers[1][0]), name  # entries of a map are in any order


def change(op: ChangeOp, state: str, data: bytes = b"", map_key: bytes = b"") -> Change:
    return Change(op, state, 3, encode_key("w"), encode_key(("JFK", 7)), map_key, data)


def dumps(value: Any) -> bytes:
    return MessagePackSerializer().dumps(value)


def test_only_the_bytes_of_values_change() -> None:
    changes = [
        change(ChangeOp.PUT, "value", dumps(5)),
        change(ChangeOp.DELETE, "value"),
        change(ChangeOp.LIST_ADD, "list", pack_elements([dumps(5), dumps(6)])),
        change(ChangeOp.PUT, "list", pack_elements([])),
        change(ChangeOp.DELETE, "map"),
        change(ChangeOp.MAP_PUT, "map", dumps(5), encode_key("a")),
        change(ChangeOp.MAP_REMOVE, "map", b"", encode_key("a")),
        change(ChangeOp.PUT, "unchanged", b"whatever"),
        change(ChangeOp.PUT, "without a plan", b"whatever"),
    ]
    found = list(converted(changes, plans_of(STATES)))
    assert [one._replace(data=b"") for one in found] == [one._replace(data=b"") for one in changes]
    assert found[0].data == dumps(5.0)
    assert unpack_elements(found[2].data) == [dumps(5.0), dumps(6.0)]
    assert unpack_elements(found[3].data) == []
    assert found[5].data == dumps(5.0)
    for unconverted in (1, 4, 6, 7, 8):
        assert found[unconverted] == changes[unconverted]


def test_changes_are_converted_one_at_a_time() -> None:
    taken = []

    def changes() -> Iterator[Change]:
        for number in range(3):
            taken.append(number)
            yield change(ChangeOp.PUT, "value", dumps(number))

    found = converted(changes(), plans_of(STATES))
    assert taken == []
    assert next(found).data == dumps(0.0)
    assert taken == [0]


def fail(old: Any, version: int) -> Any:
    raise KeyError("gate")


BROKEN = ValueStateDescriptor("s", int, schema_version=2, migration=fail)
FAULTS: dict[str, tuple[StateDescriptor, StateDescriptor, Change, str]] = {
    "misfit": (
        ValueStateDescriptor("s", int),
        ValueStateDescriptor("s", float),
        change(ChangeOp.PUT, "s", dumps("x")),
        r"state 's', key \('JFK', 7\), namespace 'w': the stored value cannot be converted: SerializationError: the "
        "stored value 'x' does not fit: expected float, got 'x' of type str. No state was changed and no row was "
        "processed",
    ),
    "element": (
        ListStateDescriptor("s", int),
        ListStateDescriptor("s", float),
        change(ChangeOp.LIST_ADD, "s", pack_elements([dumps(1), dumps("x")])),
        "stored value 'x' does not fit",
    ),
    "map value": (
        MapStateDescriptor("s", int),
        MapStateDescriptor("s", float),
        change(ChangeOp.MAP_PUT, "s", dumps("x"), encode_key("a")),
        r"key \('JFK', 7\), map key 'a', namespace 'w'",
    ),
    "null": (
        MapStateDescriptor("s"),
        MapStateDescriptor("s", int),
        change(ChangeOp.MAP_PUT, "s", dumps(None), encode_key("a")),
        "stored value None does not fit: expected int",
    ),
    "migration": (ValueStateDescriptor("s", int), BROKEN, change(ChangeOp.PUT, "s", dumps(1)), "KeyError: 'gate'"),
    "damaged bytes": (
        ValueStateDescriptor("s", int),
        ValueStateDescriptor("s", float),
        change(ChangeOp.PUT, "s", b"\xc1"),
        "SerializationError: the bytes are not MessagePack",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_conversion_error_names_the_state_and_the_key(name: str) -> None:
    old, new, stored, message = FAULTS[name]
    good = change(ChangeOp.DELETE, "s")
    found = converted([good, stored], {"s": plan_evolution(StateSchema.of(old), new)})
    assert next(found) == good
    with pytest.raises(JobError, match=message):
        next(found)


def test_part_is_converted_by_its_own_plan_when_it_is_read_after_later_ones() -> None:
    """A merge reads snapshots when it has read the epochs over them, which may lack a state that these have."""
    dumps = MessagePackSerializer().dumps
    names = ("one", "other")
    stored = {
        descriptor.name: {**StateSchema.of(descriptor).to_plain(), "key_types": ["string"]}
        for descriptor in (ValueStateDescriptor(name, int) for name in names)
    }
    declared = DeclaredStates("it", [ValueStateDescriptor(name, float) for name in names], [ColumnType.STRING])
    parts = [
        Part(
            epoch,
            [stored[name] for name in held],
            [Change(ChangeOp.PUT, name, 0, encode_key(None), encode_key("k"), b"", dumps(epoch)) for name in held],
            ascending=epoch == 0,
        )
        for epoch, held in enumerate((names, names[:1]))
    ]
    first, last = declared.prepare(parts)
    assert [(one.state, one.data) for one in last.changes] == [("one", dumps(1.0))]
    assert [(one.state, one.data) for one in first.changes] == [("one", dumps(0.0)), ("other", dumps(0.0))]
