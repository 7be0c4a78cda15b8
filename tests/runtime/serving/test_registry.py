"""Laws of the state registry."""

from __future__ import annotations

from typing import Any

import pytest

from qstate.backends.contract import Capability, Isolation
from qstate.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from qstate.errors import ConfigError
from qstate.keys import ColumnType, KeyGroupRange
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.serializers import MessagePackSerializer
from tests.runtime.serving.readers import DictReader, instance


def test_ids_are_random_and_a_late_unregister_removes_nothing_newer() -> None:
    registry, served = StateRegistry(), instance(DictReader({}))
    old, new = registry.register(served), registry.register(served)
    assert old != new and len(old) == len(new) == 16
    registry.unregister(old)
    registry.unregister(old)
    assert registry.lookup(old) is None and registry.lookup(new) is served
    assert registry.instances() == {new: served}


def test_listeners_are_called_for_their_job_only_until_unlisten(caplog: pytest.LogCaptureFixture) -> None:
    registry, heard = StateRegistry(), list[tuple[bytes, str, bool]]()

    def listener(state_id: bytes, instance: StateInstance, registered: bool) -> None:
        heard.append((state_id, instance.name, registered))

    def broken(state_id: bytes, instance: StateInstance, registered: bool) -> None:
        raise RuntimeError("a bug in a listener")

    registry.listen("job", broken)
    registry.listen("job", listener)
    state_id = registry.register(instance(DictReader({})))
    registry.register(instance(DictReader({}), job="other job"))
    registry.unregister(state_id)
    registry.unregister(state_id)
    assert heard == [(state_id, "lastTemperature", True), (state_id, "lastTemperature", False)]
    assert "a bug in a listener" in caplog.text
    registry.unlisten("job", listener)
    registry.unlisten("job", listener)
    registry.register(instance(DictReader({})))
    assert len(heard) == 2


class Version2(MessagePackSerializer):
    """The same bytes under another version."""

    version = 2


def test_description_has_what_a_client_needs() -> None:
    served = StateInstance(
        job="flights",
        descriptor=MapStateDescriptor("visits", int, map_key_type=str).queryable("visits of aircraft"),
        key_types=(ColumnType.STRING, ColumnType.BIGINT),
        key_groups=KeyGroupRange(0, 4),
        max_parallelism=8,
        capabilities=frozenset([Capability.SNAPSHOT_READS, Capability.COMMITTED_READS]),
        readers={Isolation.LIVE: DictReader({})},
    )
    assert served.describe() == {
        "name": "visits of aircraft",
        "kind": "map",
        "serializer": "msgpack",
        "serializer_version": 1,
        "key_types": ("string", "bigint"),
        "namespace_types": None,
        "value_type": "int",
        "map_key_type": "str",
        # The types as data, for readers that make tables.
        "value_schema": '"int"',
        "map_key_schema": '"str"',
        # By which the metrics of the job name it.
        "state": "visits",
        "capabilities": ("committed_reads", "snapshot_reads"),
        # The same in every process: task managers of one job must agree on it.
        "fingerprint": "f602df24897f5159",
    }


VALID: dict[str, Any] = {
    "job": "job",
    "descriptor": ValueStateDescriptor("temperature", float).queryable("t"),
    "key_types": (ColumnType.STRING,),
    "key_groups": KeyGroupRange(0, 4),
    "max_parallelism": 4,
    "capabilities": frozenset(),
    "readers": {Isolation.LIVE: DictReader({})},
}


@pytest.mark.parametrize(
    "change",
    [
        {"descriptor": ListStateDescriptor("temperature", float).queryable("t")},
        {"descriptor": ValueStateDescriptor("temperature", int).queryable("t")},
        {"descriptor": ValueStateDescriptor("temperature", float, serializer=Version2()).queryable("t")},
        {"key_types": (ColumnType.BIGINT,)},
        {"namespace_types": (ColumnType.STRING,)},
        {"capabilities": frozenset([Capability.SNAPSHOT_READS])},
    ],
)
def test_another_description_has_another_fingerprint(change: dict[str, Any]) -> None:
    before, same = StateInstance(**VALID), StateInstance(**{**VALID, "key_groups": KeyGroupRange(1, 2), "job": "other"})
    assert before.fingerprint == same.fingerprint
    assert StateInstance(**{**VALID, **change}).fingerprint != before.fingerprint


def test_instance_that_cannot_be_served_is_refused() -> None:
    valid, reader = VALID, DictReader({})
    assert StateInstance(**valid).owns_all
    wrong: dict[str, dict[str, Any]] = {
        "not queryable": {"descriptor": ValueStateDescriptor("temperature", float)},
        "a step in the path of a URL": {"job": ".."},
        "exceeds max_parallelism": {"key_groups": KeyGroupRange(2, 5)},
        "at least one key column": {"key_types": ()},
        "does not declare COMMITTED_READS": {"readers": {Isolation.COMMITTED: reader}},
    }
    for words, change in wrong.items():
        with pytest.raises(ConfigError, match=words):
            StateInstance(**{**valid, **change})
