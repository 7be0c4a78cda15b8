"""A job's states, served for real and in this process: heap backend, state server, proxy, TCP; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import add
from pathlib import Path
from typing import Any

from qstate.backends.contract import BackendContext, Capability, Isolation
from qstate.backends.heap.backend import HeapBackend
from qstate.demo.functions import Mean
from qstate.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import QueryError, UnknownState
from qstate.keys import ColumnType, KeyGroupRange
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.serving.feeds import History, put
from tests.runtime.serving.readers import DictReader

JOB = "nyc"
GROUPS = KeyGroupRange(0, 128)
BY_TEXT, BY_PLACE = (ColumnType.STRING,), (ColumnType.STRING, ColumnType.BIGINT, ColumnType.BINARY)
VALUE = ValueStateDescriptor("value", float).queryable("lastTemperature")
MAP = MapStateDescriptor("map", int).queryable("visits")
LIST = ListStateDescriptor("list", int).queryable("lastDelays")
REDUCING = ReducingStateDescriptor("reducing", int, reduce_function=add).queryable("totalDistance")
AGGREGATING = AggregatingStateDescriptor("aggregating", tuple, aggregate_function=Mean()).queryable("meanDelay")
PLACE = ValueStateDescriptor("place", bytes).queryable("byPlace")
#: What `serve` holds, as a client sees it: state -> namespace -> key -> contents.
CONTENTS: Mapping[str, Mapping[Any, Mapping[Any, Any]]] = {
    "lastTemperature": {None: {"JFK": 71.06}, "2013-07-18": {"JFK": 100.04}},
    "visits": {None: {"JFK": {"LAX": 2, "SFO": 1}}},
    "lastDelays": {None: {"JFK": [3, -1, 0]}},
    "totalDistance": {None: {"JFK": 12_345}},
    "meanDelay": {None: {"JFK": 2.5}},
    "byPlace": {None: {("JFK", 7, b"\xff"): b"\x00\x01"}},
}


class _Oracle:
    """Says that one server owns everything."""

    def __init__(self, address: tuple[str, int], instances: Mapping[str, tuple[StateInstance, bytes]]) -> None:
        self._address = address
        self._instances = instances

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        if state not in self._instances:
            reply(UnknownState(state=state))
            return
        instance, state_id = self._instances[state]
        reply(LocationTable(JOB, instance.describe(), 128, (Owner(GROUPS, *self._address, state_id),)))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([instance.describe() for instance, _ in self._instances.values()])


@contextmanager
def serve(
    directory: Path,
    token: bytes | None = None,
    job: str = JOB,
    *,
    committed: bool = False,
    contents: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Iterator[tuple[str, int]]:
    """Serve `CONTENTS` as this job's, live only or also as committed; gives the proxy's address.

    With `contents` serve these values by state and key instead.
    """
    endpoint = EndpointOptions(token=token, **options)
    registry = StateRegistry()
    with HeapBackend(BackendContext(GROUPS, 128, directory)) as backend:
        descriptors = _fill(backend) if contents is None else _put(backend, contents)
        server, proxy = StateServer(registry, endpoint), ClientProxy(endpoint)
        server.start()
        try:
            isolations = list(Isolation) if committed else [Isolation.LIVE]
            instances = {str(kind.queryable_name): _instance(backend, kind, isolations) for kind in descriptors}
            served = {name: (instance, registry.register(instance)) for name, instance in instances.items()}
            proxy.start()
            proxy.set_location_oracle(job, _Oracle(server.address, served))
            yield proxy.address
        finally:
            proxy.shutdown(2.0)
            server.shutdown(2.0)


@contextmanager
def serve_history(directory: Path, job: str) -> Iterator[tuple[tuple[str, int], History]]:
    """Serve the changes of `lastTemperature` in three epochs, and the first as its committed state."""
    history = History(directory / "checkpoint", descriptor=VALUE)
    history.commit(0, put("JFK", 71.06, state="value"))
    history.commit(1, put("JFK", 72.0, state="value"))
    history.commit(2, put("JFK", 73.0, state="value"), put("LGA", 80.0, state="value"))
    (served,) = history.instances()
    committed = DictReader({"JFK": 71.06}, epoch=0)
    readers = {Isolation.LIVE: committed, Isolation.COMMITTED: committed}
    capabilities = frozenset({Capability.COMMITTED_READS})
    instance = replace(served, job=job, readers=readers, capabilities=capabilities)
    registry = StateRegistry()
    server, proxy = StateServer(registry), ClientProxy()
    with server:
        oracle = _Oracle(server.address, {str(VALUE.queryable_name): (instance, registry.register(instance))})
        proxy.start()
        try:
            proxy.set_location_oracle(job, oracle)
            yield proxy.address, history
        finally:
            proxy.shutdown(2.0)


_DESCRIPTORS: Sequence[StateDescriptor] = (VALUE, MAP, LIST, REDUCING, AGGREGATING, PLACE)


def _put(backend: HeapBackend, contents: Mapping[str, Mapping[str, Any]]) -> Sequence[StateDescriptor]:
    descriptors = [ValueStateDescriptor(f"state{at}", str).queryable(name) for at, name in enumerate(contents)]
    tables = [backend.table(descriptor) for descriptor in descriptors]
    backend.begin(0)
    for table, entries in zip(tables, contents.values(), strict=True):
        for key, value in entries.items():
            table.put(key, value)
    list(backend.commit(0))
    backend.finalize(0)
    return descriptors


def _fill(backend: HeapBackend) -> Sequence[StateDescriptor]:
    tables = {descriptor.name: backend.table(descriptor) for descriptor in _DESCRIPTORS}
    july = backend.table(VALUE, "2013-07-18")
    backend.begin(0)
    tables["value"].put("JFK", 71.06)
    july.put("JFK", 100.04)
    tables["map"].map_put("JFK", "LAX", 2)
    tables["map"].map_put("JFK", "SFO", 1)
    tables["list"].list_add("JFK", [3, -1, 0])
    tables["reducing"].put("JFK", 12_345)
    tables["aggregating"].put("JFK", (10, 4))
    tables["place"].put(("JFK", 7, b"\xff"), b"\x00\x01")
    list(backend.commit(0))
    backend.finalize(0)
    return _DESCRIPTORS


def _instance(backend: HeapBackend, descriptor: StateDescriptor, isolations: Sequence[Isolation]) -> StateInstance:
    return StateInstance(
        job=JOB,
        descriptor=descriptor,
        key_types=BY_PLACE if descriptor is PLACE else BY_TEXT,
        key_groups=GROUPS,
        max_parallelism=128,
        capabilities=backend.capabilities,
        readers={isolation: backend.reader(isolation) for isolation in isolations},
    )
