"""A real served job, without Spark: two state servers with a backend each, behind a proxy.

Run as a program (`python -m tests.runtime.client.real_job DIRECTORY PORT EPOCH`) it serves until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from qstate.backends.catalog import backend_class
from qstate.backends.contract import BackendContext, Isolation
from qstate.client import AsyncQueryableStateClient, AsyncSubscription
from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import QueryError, UnknownState
from qstate.keys import ColumnType, KeyGroupRange, key_group
from qstate.runtime.client.results.async_results import AsyncScanResults
from qstate.runtime.client.scanning import ScannedEntry
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.client_proxy import ClientProxy
from qstate.runtime.serving.endpoint import EndpointOptions
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.serving.state_server import StateServer
from tests.runtime.client.record import Reading

MAX_PARALLELISM = 16
KEYS = [f"key-{number}" for number in range(200)]


class Mean(AggregateFunction[float, list[float], float]):
    def create_accumulator(self) -> list[float]:
        return []

    def add(self, value: float, accumulator: list[float]) -> list[float]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[float]) -> float:
        return sum(accumulator) / len(accumulator)

    def merge(self, one: list[float], other: list[float]) -> list[float]:
        return one + other


DESCRIPTORS: list[StateDescriptor] = [
    ValueStateDescriptor("v", Reading).queryable("value"),
    ListStateDescriptor("l", list).queryable("list"),
    MapStateDescriptor("m", tuple).queryable("map"),
    ReducingStateDescriptor("r", int, reduce_function=max).queryable("reducing"),
    AggregatingStateDescriptor("a", list, aggregate_function=Mean()).queryable("aggregating"),
]


def stored(descriptor: StateDescriptor, number: int) -> Any:
    return {
        "v": Reading("JFK", [number]),
        "l": [[number], [number + 1]],
        "m": {"a": (number, "x"), ("b", 1): (number, "y")},
        "r": number,
        "a": [number, number + 1],
    }[descriptor.name]


class Subtask:
    """One task manager's share: a backend with every kind of state, and its state server."""

    def __init__(
        self,
        groups: KeyGroupRange,
        directory: Path,
        options: EndpointOptions | None = None,
        backend: str = "heap",
    ) -> None:
        directory.mkdir(parents=True)
        self.groups = groups
        self.closed = False
        self.registry = StateRegistry()
        self.backend = backend_class(backend)(BackendContext(groups, MAX_PARALLELISM, directory))
        self.server = StateServer(self.registry, options)
        self.server.start()
        self.ids: dict[str, bytes] = {}
        self.instances = {descriptor.queryable_name: self._instance(descriptor) for descriptor in DESCRIPTORS}
        self.register()

    def _instance(self, descriptor: StateDescriptor) -> StateInstance:
        backend = self.backend
        return StateInstance(
            job="job",
            descriptor=descriptor,
            key_types=(ColumnType.STRING,),
            key_groups=self.groups,
            max_parallelism=MAX_PARALLELISM,
            capabilities=backend.capabilities,
            readers={isolation: backend.reader(isolation) for isolation in Isolation},
        )

    def register(self) -> None:
        """Give every state a new id, as a restart does."""
        for state_id in self.ids.values():
            self.registry.unregister(state_id)
        self.ids = {str(name): self.registry.register(instance) for name, instance in self.instances.items()}

    def write(self, epoch: int, offset: int) -> None:
        """Begin an epoch and write every key of this share."""
        self.backend.begin(epoch)
        for descriptor in DESCRIPTORS:
            for namespace in (None, "window"):
                table = self.backend.table(descriptor, namespace)
                for number, key in enumerate(KEYS):
                    if key_group(key, MAX_PARALLELISM) in self.groups:
                        table.put(key, stored(descriptor, number + offset + (1000 if namespace else 0)))

    def commit(self, epoch: int) -> None:
        list(self.backend.commit(epoch))
        self.backend.finalize(epoch)

    def close(self) -> None:
        self.closed = True
        self.server.shutdown(2.0)
        self.backend.close()


class Job:
    """Two subtasks behind a proxy; it is its own location oracle. `epoch` is committed, the next one is running."""

    def __init__(
        self, directory: Path, *, epoch: int = 0, ports: str = "0", tracing: bool = False, backend: str = "heap"
    ) -> None:
        ranges = (KeyGroupRange(0, 8), KeyGroupRange(8, 16))
        options = EndpointOptions(tracing=tracing)
        self.subtasks = [Subtask(groups, directory / str(groups.start), options, backend) for groups in ranges]
        for subtask in self.subtasks:
            subtask.write(epoch, offset=0)
            subtask.commit(epoch)
            subtask.write(epoch + 1, offset=100)
        self.looked_up = 0
        self.proxy = ClientProxy(EndpointOptions(ports=ports, tracing=tracing))
        self.proxy.start()
        self.proxy.set_location_oracle("job", self)

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        self.looked_up += 1
        if state not in self.subtasks[0].ids:
            reply(UnknownState(state=state))
            return
        owners = [Owner(sub.groups, *sub.server.address, sub.ids[state]) for sub in self.subtasks if not sub.closed]
        description = self.subtasks[0].instances[state].describe()
        reply(LocationTable("job", description, MAX_PARALLELISM, tuple(owners)))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([instance.describe() for instance in self.subtasks[0].instances.values()])

    def close(self) -> None:
        self.proxy.shutdown(2.0)
        for subtask in self.subtasks:
            subtask.close()


#: Makes the synchronous client or `Asked`, of an address and options.
MakeClient = Callable[..., Any]


class Asked:
    """The asyncio client, asked one call at a time as if it were synchronous."""

    def __init__(self, address: tuple[str, int], **options: Any) -> None:
        self._runner = asyncio.new_event_loop()
        connecting = AsyncQueryableStateClient.connect(*address, **options)
        try:
            self._client = self._runner.run_until_complete(connecting)
        except BaseException:
            self._runner.close()
            raise

    @property
    def client(self) -> AsyncQueryableStateClient:
        """The asyncio client."""
        return self._client

    def run(self, work: Any) -> Any:
        """Run a coroutine on the client's loop, and return its result."""
        return self._runner.run_until_complete(work)

    def scan(self, *args: Any, **options: Any) -> AskedScan:
        """A scan of the asyncio client, whose entries are asked for one at a time."""
        return AskedScan(self, self._client.scan(*args, **options))

    def subscribe(self, *args: Any, **options: Any) -> AskedSubscription:
        """A subscription of the asyncio client, whose batches are asked for one at a time."""

        async def begin() -> AsyncSubscription:
            return self._client.subscribe(*args, **options)

        return AskedSubscription(self, self.run(begin()))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *args, **options: self._runner.run_until_complete(method(*args, **options))

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._runner.run_until_complete(self._client.close())
        self._runner.close()


class AskedScan:
    """An asynchronous scan as a synchronous iterator."""

    def __init__(self, asked: Asked, scan: AsyncScanResults) -> None:
        self._asked = asked
        self._scan = scan

    @property
    def cursor(self) -> bytes:
        return self._scan.cursor

    def __iter__(self) -> AskedScan:
        return self

    def __next__(self) -> ScannedEntry:
        try:
            found: ScannedEntry = self._asked.run(self._scan.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
        return found

    def close(self) -> None:
        self._asked.run(self._scan.aclose())

    def __enter__(self) -> AskedScan:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class AskedSubscription:
    """An asynchronous subscription as a synchronous one."""

    def __init__(self, asked: Asked, subscription: AsyncSubscription) -> None:
        self._asked = asked
        self._subscription = subscription

    def next_batch(self, timeout_s: float | None = None) -> Any:
        return self._asked.run(self._subscription.next_batch(timeout_s))

    def __enter__(self) -> AskedSubscription:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._asked.run(self._subscription.aclose())


def main(directory: str, port: str, epoch: str) -> None:
    """Serve a job; prints its address when it is ready."""
    job = Job(Path(directory), epoch=int(epoch), ports=port)
    print(*job.proxy.address, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
