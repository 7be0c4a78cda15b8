"""The snapshot with which a subscription to some keys begins, when their owners are at different epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qstate.backends.contract import Capability, Isolation
from qstate.client import QueryableStateClient
from qstate.keys import key_group
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.oracles import TableOracle, owner, table
from tests.runtime.serving.readers import MAX_PARALLELISM, DictReader


def key_of_half(half: int) -> str:
    names = (f"key-{number}" for number in range(1000))
    return next(name for name in names if key_group(name, MAX_PARALLELISM) * 2 // MAX_PARALLELISM == half)


def test_a_snapshot_of_several_owners_can_be_resumed_only_when_it_is_complete(tmp_path: Path) -> None:
    history = History(tmp_path, parallelism=2)
    keys = [key_of_half(0), key_of_half(1)]
    for epoch in range(2):
        history.commit(epoch, *(put(key, float(epoch)) for key in keys))
    registry, owners = StateRegistry(), []
    with StateServer(registry) as server:
        for half, found in enumerate(history.instances((0, 1))):
            reader = DictReader({keys[half]: float(half)}, epoch=half)
            readers = {Isolation.LIVE: reader, Isolation.COMMITTED: reader}
            instance = replace(found, readers=readers, capabilities=frozenset({Capability.COMMITTED_READS}))
            owners.append(owner(instance, server.address, registry.register(instance)))
        proxy = ClientProxy()
        proxy.start()
        try:
            proxy.set_location_oracle(instance.job, TableOracle(lastTemp=table(instance, *owners)))
            with QueryableStateClient(*proxy.address) as client:
                batches = iter(client.subscribe(instance.job, "lastTemp", keys=keys))
                first, second = next(batches), next(batches)
                assert (first.epoch, first.snapshot, first.complete, first.token) == (0, True, -1, None)
                assert (second.epoch, second.snapshot, second.complete) == (1, True, 0)
                rest = next(iter(client.subscribe(instance.job, "lastTemp", keys=keys, token=second.token)))
                assert [(change.key, change.epoch) for change in rest] == [(keys[0], 1)]
        finally:
            proxy.shutdown(2.0)
