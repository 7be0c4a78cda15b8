"""Jobs as the page sees them, served without Spark: heap backend, epoch log, state server, client proxy, metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from qstate.backends.contract import BackendContext, Isolation
from qstate.backends.expiry import change_converter
from qstate.backends.heap.backend import HeapBackend
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.log_identity import LogIdentity
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.manifest import JobManifest, subtask_directory
from qstate.checkpoint.sources.change_feed import ChangeFeed, FedState, StateFeed
from qstate.checkpoint.storage.locations import directory_of
from qstate.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from qstate.errors import QueryError, UnknownState
from qstate.evolution import StateSchema
from qstate.keys import ColumnType, KeyGroupRange, Namespace
from qstate.runtime.control.job_statistics import ProcessStatistics, SubtaskStatistics
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.metrics import MetricsServer
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.gateway.running_gateway import RunningGateway, running_gateway

GROUPS = KeyGroupRange(0, 128)
UID = "operator"
STRING = (ColumnType.STRING,)
TEMPERATURE = ValueStateDescriptor("value", float).queryable("lastTemperature")
VISITS = MapStateDescriptor("map", int, map_key_type=object).queryable("visits")
DELAYS = ListStateDescriptor("list", int).queryable("lastDelays")


class ServedJob:
    """A job of one subtask. `put` commits an epoch; subscribers are told of it when `fed`."""

    def __init__(
        self,
        name: str,
        states: Sequence[StateDescriptor],
        directory: Path,
        *,
        fed: bool = True,
        key_types: tuple[ColumnType, ...] = STRING,
        namespace_types: tuple[ColumnType, ...] | None = None,
    ) -> None:
        self.name = name
        self._key_types, self._namespace_types = key_types, namespace_types
        self._states = {str(state.queryable_name): state for state in states}
        self._backend = HeapBackend(BackendContext(GROUPS, 128, directory / "backend"))
        self._epoch = -1
        self.rows = 0
        self._fed = fed
        if fed:
            self._open_log(directory / "checkpoint")
        self._places: dict[str, tuple[StateInstance, bytes, tuple[str, int]]] = {}

    def _open_log(self, root: Path) -> None:
        directory_of(root).make()
        JobManifest(self.name, 128, (1,), {UID: "query"}).write(root)
        key_types = [kind.value for kind in self._key_types]
        schemas = [self._schema(state).to_plain() | {"key_types": key_types} for state in self._states.values()]
        self._directory = subtask_directory(root, UID, 0, 0)
        self._log = EpochLog.open(self._directory, LogIdentity(self.name, UID, 0, 1, 128), lambda _: tuple(schemas))
        self._feed = ChangeFeed(directory_of(root), UID, GROUPS, "query")

    def _schema(self, state: StateDescriptor) -> StateSchema:
        return StateSchema.of(state)

    def register(self, registry: StateRegistry, address: tuple[str, int]) -> None:
        for name, state in self._states.items():
            changes = (
                StateFeed(self._feed, FedState(self._schema(state), change_converter(state))) if self._fed else None
            )
            instance = StateInstance(
                job=self.name,
                descriptor=state,
                key_types=self._key_types,
                key_groups=GROUPS,
                max_parallelism=128,
                namespace_types=self._namespace_types,
                capabilities=self._backend.capabilities,
                readers={isolation: self._backend.reader(isolation) for isolation in Isolation},
                changes=changes,
            )
            self._places[name] = (instance, registry.register(instance), address)

    def put(self, **contents: Mapping[Any, Any]) -> None:
        """Commit an epoch with these values: state -> key -> value, None to delete. A map's value is its entries."""
        self.put_in(None, **contents)

    def put_in(self, namespace: Namespace, **contents: Mapping[Any, Any]) -> None:
        """The same in a namespace."""
        self._epoch += 1
        self._backend.begin(self._epoch)
        for name, values in contents.items():
            state = self._states[name]
            table = self._backend.table(state, namespace)
            for key, value in values.items():
                self.rows += 1
                if value is None:
                    table.delete(key)
                elif state.kind is StateKind.MAP:
                    for entry, one in value.items():
                        table.map_put(key, entry, one)
                else:
                    table.put(key, value)
        changes = list(self._backend.commit(self._epoch))
        if self._fed:
            self._log.seal(self._epoch, changes)
        self._backend.finalize(self._epoch)
        if self._fed:
            self._feed.finalize(self._epoch)

    def compact(self) -> None:
        """Replace the epochs by a snapshot: a subscriber that is behind cannot resume."""
        take_snapshot(directory_of(self._directory), retained=1)

    def statistics(self) -> ProcessStatistics:
        subtask = SubtaskStatistics(
            UID, 0, epoch=self._epoch, epochs=self._epoch + 1, rows_in=self.rows, state=self._backend.sizes()
        )
        return ProcessStatistics("0", None, None, subtasks=(subtask,))

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        if state not in self._places:
            reply(UnknownState(state=state))
            return
        instance, state_id, address = self._places[state]
        reply(LocationTable(self.name, instance.describe(), 128, (Owner(GROUPS, *address, state_id),)))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([instance.describe() for instance, _, _ in self._places.values()])

    def close(self) -> None:
        self._backend.close()


class Served:
    """A proxy and a state server with these jobs. `stop(job)` ends one as its driver does."""

    def __init__(self, jobs: Sequence[ServedJob], token: bytes | None = None, ports: str = "0") -> None:
        registry = StateRegistry()
        self._server = StateServer(registry, EndpointOptions(token=token))
        self._server.start()
        self.proxy = ClientProxy(EndpointOptions(token=token, ports=ports))
        self.proxy.start()
        for job in jobs:
            job.register(registry, self._server.address)
            self.proxy.set_location_oracle(job.name, job)

    def stop(self, job: str) -> None:
        self.proxy.set_location_oracle(job, None)

    def close(self) -> None:
        self.proxy.shutdown(2.0)
        self._server.shutdown(2.0)


@contextmanager
def serving(*jobs: ServedJob, token: bytes | None = None) -> Iterator[Served]:
    """Serve these jobs, and close them at the end."""
    with ExitStack() as cleanup:
        for job in jobs:
            cleanup.callback(job.close)
        served = Served(jobs, token)
        cleanup.callback(served.close)
        yield served


@contextmanager
def metrics_of(job: ServedJob) -> Iterator[str]:
    """The address of the job's metrics, HOST:PORT."""
    server = MetricsServer(lambda: job.name, lambda: [job.statistics()], bind="127.0.0.1", ports="0")
    try:
        host, port = server.address
        yield f"{host}:{port}"
    finally:
        server.close()


@contextmanager
def shown(*jobs: ServedJob, token: bytes | None = None) -> Iterator[tuple[str, Served]]:
    """The URL of a gateway in front of these jobs, and what it asks."""
    with ExitStack() as opened:
        served = opened.enter_context(serving(*jobs, token=token))
        figures = [opened.enter_context(metrics_of(jobs[0]))] if token is None else []
        gateway: RunningGateway = opened.enter_context(running_gateway(served.proxy.address, job_metrics=figures))
        yield f"{gateway.url}/", served
