"""Laws of a changed time-to-live: what becomes of stored values, by the plan and in the changes of a log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from qstate.backends.answers import pack_elements
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.conversion import converted, without_emptied
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, StateTtl, ValueStateDescriptor
from qstate.errors import CheckpointError
from qstate.evolution import Converted, StateSchema, Unchanged, plan_evolution
from qstate.keys import encode_key
from qstate.serializers import MessagePackSerializer
from qstate.values.ttl import timed

SHORT, LONG = StateTtl(timedelta(milliseconds=100)), StateTtl(timedelta(hours=1))
NOW = 1_700_000_000_000
packed = MessagePackSerializer().dumps
OLD, NEW = timed(NOW - 100, packed(1)), timed(NOW - 99, packed(2))


def plan(stored: StateDescriptor, wanted: StateDescriptor) -> Any:
    return plan_evolution(StateSchema.from_plain(StateSchema.of(stored).to_plain()), wanted, now_ms=NOW)


def value(kind: Any, ttl: StateTtl | None) -> ValueStateDescriptor:
    return ValueStateDescriptor("value", kind, ttl=ttl)


@pytest.mark.parametrize("wanted", [LONG, StateTtl(timedelta(milliseconds=100), refresh="on_read_and_write")])
def test_another_duration_or_refresh_needs_no_conversion(wanted: StateTtl) -> None:
    assert plan(value(int, SHORT), value(int, wanted)) == Unchanged()


def test_stored_values_count_as_written_when_a_ttl_is_added() -> None:
    found = plan(value(int, None), value(int, SHORT))
    assert isinstance(found, Converted)
    assert found.convert(packed(1)) == timed(NOW, packed(1))
    assert not found.expired(packed(1))


def test_values_lose_their_times_when_a_ttl_is_removed() -> None:
    found = plan(value(int, SHORT), value(int, None))
    assert isinstance(found, Converted)
    assert found.convert(NEW) == packed(2)
    assert (found.expired(OLD), found.expired(NEW)) == (True, False)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(None, SHORT, timed(NOW, packed(2.0))), (SHORT, None, packed(2.0)), (SHORT, LONG, timed(NOW - 99, packed(2.0)))],
)
def test_the_type_may_change_with_the_ttl(before: StateTtl | None, after: StateTtl | None, expected: bytes) -> None:
    found = plan(value(int, before), value(float, after))
    assert isinstance(found, Converted)
    assert found.convert(packed(2) if before is None else NEW) == expected


def test_a_schema_says_its_ttl_only_if_there_is_one() -> None:
    assert "ttl_ms" not in StateSchema.of(value(int, None)).to_plain()
    schema = StateSchema.of(value(int, SHORT))
    assert schema.to_plain()["ttl_ms"] == 100
    assert schema.to_plain()["serializer"] == "timed:msgpack", "what knows no times does not take it for MessagePack"
    assert StateSchema.from_plain(schema.to_plain()) == schema
    assert str(schema).endswith(", time-to-live 0:00:00.100000")


@pytest.mark.parametrize("ttl_ms", [0, -1, "1", 1.5, True])
def test_a_schema_with_another_ttl_is_refused(ttl_ms: Any) -> None:
    with pytest.raises(CheckpointError, match="ttl_ms"):
        StateSchema.from_plain({**StateSchema.of(value(int, SHORT)).to_plain(), "ttl_ms": ttl_ms})


@pytest.mark.parametrize("serializer", ["msgpack", "timed:", 1])
def test_a_schema_with_a_ttl_and_another_serializer_is_refused(serializer: Any) -> None:
    with pytest.raises(CheckpointError, match="serializer"):
        StateSchema.from_plain({**StateSchema.of(value(int, SHORT)).to_plain(), "serializer": serializer})


def change(op: ChangeOp, state: str, data: bytes, map_key: bytes = b"") -> Change:
    return Change(op, state, 3, encode_key(None), encode_key("k"), map_key, data)


def test_a_change_whose_values_have_expired_still_replaces_what_came_before() -> None:
    lists, maps = ListStateDescriptor("list", int, ttl=SHORT), MapStateDescriptor("map", int, ttl=SHORT)
    plans = {
        "value": plan(value(int, SHORT), value(int, None)),
        "list": plan(lists, ListStateDescriptor("list", int)),
        "map": plan(maps, MapStateDescriptor("map", int)),
    }
    changes = [
        change(ChangeOp.PUT, "value", OLD),
        change(ChangeOp.PUT, "value", NEW),
        change(ChangeOp.PUT, "list", pack_elements([OLD, NEW])),
        change(ChangeOp.PUT, "list", pack_elements([OLD])),
        change(ChangeOp.LIST_ADD, "list", pack_elements([OLD])),
        change(ChangeOp.LIST_ADD, "list", pack_elements([NEW])),
        change(ChangeOp.MAP_PUT, "map", OLD, encode_key("x")),
        change(ChangeOp.MAP_REMOVE, "map", b"", encode_key("y")),
    ]
    expected = [
        change(ChangeOp.DELETE, "value", b""),
        change(ChangeOp.PUT, "value", packed(2)),
        change(ChangeOp.PUT, "list", pack_elements([packed(2)])),
        change(ChangeOp.DELETE, "list", b""),
        change(ChangeOp.LIST_ADD, "list", pack_elements([packed(2)])),
        change(ChangeOp.MAP_REMOVE, "map", b"", encode_key("x")),
        change(ChangeOp.MAP_REMOVE, "map", b"", encode_key("y")),
    ]
    assert list(converted(changes, plans)) == expected
    with_values = [one for one in expected if one.op in (ChangeOp.PUT, ChangeOp.LIST_ADD)]
    assert list(without_emptied(converted(changes, plans))) == with_values
