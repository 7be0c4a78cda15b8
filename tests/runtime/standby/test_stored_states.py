"""Descriptors made of stored schemas, and readers that may be replaced under those who read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from qstate.backends.contract import UNBOUNDED, ReadResult, StateReader
from qstate.descriptors import StateDescriptor
from qstate.errors import CheckpointError, ClosedError, UnknownStateId
from qstate.evolution import StateSchema
from qstate.keys import ColumnType, Key, Namespace
from qstate.runtime.standby.stored_states import RetiringReader, stored_states
from tests.runtime.standby.functions import AGGREGATING, JSON_LIST, JSON_MAP, JSON_VALUE, LIST, MAP, REDUCING, VALUE

DESCRIPTORS = (VALUE, LIST, MAP, REDUCING, AGGREGATING, JSON_VALUE, JSON_LIST, JSON_MAP)


def plain(descriptor: StateDescriptor) -> dict[str, object]:
    return {**StateSchema.of(descriptor).to_plain(), "key_types": ["string", "bigint"]}


@pytest.mark.parametrize("descriptor", DESCRIPTORS, ids=lambda descriptor: descriptor.name)
def test_stored_bytes_pass_through_under_the_jobs_serializers_name(descriptor: StateDescriptor) -> None:
    (state,) = stored_states([plain(descriptor)])
    made = state.descriptor
    assert (made.name, made.kind, made.queryable_name) == (descriptor.name, descriptor.kind, descriptor.queryable_name)
    assert made.serializer.name == descriptor.serializer.name
    assert made.query_serializer_name == descriptor.query_serializer_name
    data = b"\x81 not even what the name says"
    assert made.serializer.loads(data) == made.serializer.dumps(data) == data
    assert made.serializer.dump_all([data, b""]) == [data, b""]
    assert state.key_types == (ColumnType.STRING, ColumnType.BIGINT)


def test_states_without_a_queryable_name_are_left_out() -> None:
    assert stored_states([plain(replace(VALUE, queryable_name=None))]) == []


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (AGGREGATING, True),
        (replace(AGGREGATING, queryable_name=None), True),
        (replace(AGGREGATING, queryable_name="another"), False),
        (replace(AGGREGATING, name="another"), False),
        (VALUE, False),
    ],
    ids=["the same", "without a queryable name", "another queryable name", "another name", "another state"],
)
def test_given_descriptor_is_used_for_the_state_that_has_its_names(given: StateDescriptor, used: bool) -> None:
    (state,) = stored_states([plain(AGGREGATING)], [given])
    assert (state.refusal is None) == used
    assert state.descriptor.queryable_name == "mean"


@pytest.mark.parametrize("damage", [{"key_types": None}, {"key_types": ["float"]}, {"kind": "graph"}])
def test_schema_that_cannot_be_read_is_an_error_of_the_checkpoint(damage: dict[str, object]) -> None:
    with pytest.raises(CheckpointError):
        stored_states([{**plain(VALUE), **damage}])


class Read(StateReader):
    """Does something in the middle of a read."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile

    def get(
        self, descriptor: StateDescriptor, namespace: Namespace, keys: Sequence[Key], most_bytes: int = UNBOUNDED
    ) -> ReadResult:
        self.meanwhile()
        return ReadResult(3, [b"x"] * len(keys))


def test_reader_answers_until_it_is_retired() -> None:
    reader = RetiringReader(Read(lambda: None))
    assert reader.get(VALUE, None, ["a"]) == (3, [b"x"])
    reader.retire()
    with pytest.raises(UnknownStateId):
        reader.get(VALUE, None, ["a"])


def test_read_that_runs_when_the_reader_retires_is_not_answered() -> None:
    """The backend may have been emptied under it."""
    reader = RetiringReader(Read(lambda: reader.retire()))
    with pytest.raises(UnknownStateId):
        reader.get(VALUE, None, ["a"])


def test_closed_backend_is_an_error_unless_it_was_retired() -> None:
    def closed() -> None:
        raise ClosedError("the backend was closed")

    reader = RetiringReader(Read(closed))
    with pytest.raises(ClosedError):
        reader.get(VALUE, None, ["a"])
    reader.retire()
    with pytest.raises(UnknownStateId):
        reader.get(VALUE, None, ["a"])
