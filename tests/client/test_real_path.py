"""The whole read path: both clients, a real proxy, two real state servers, a real backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import BackendContext, Isolation
from qstate.backends.heap import HeapBackend
from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from qstate.errors import QueryError, UnknownJob, UnknownState, UnsupportedOperation, WrongKeyType
from qstate.keys import ColumnType, KeyGroupRange, key_group
from qstate.runtime.endpoint import EndpointOptions
from qstate.runtime.location import LocationTable, Owner
from qstate.runtime.proxy import ClientProxy
from qstate.runtime.registry import StateInstance, StateRegistry
from qstate.runtime.server import StateServer
from tests.client.record import Reading

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
    """One task manager's share: a backend with every kind of state, and the server that shows it."""

    def __init__(self, groups: KeyGroupRange, directory: Path) -> None:
        directory.mkdir()
        self.groups = groups
        self.registry = StateRegistry()
        self.backend = HeapBackend(BackendContext(groups, MAX_PARALLELISM, directory))
        self.server = StateServer(self.registry, EndpointOptions())
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
        self.server.shutdown(2.0)
        self.backend.close()


class Job:
    """Two subtasks behind a proxy; it is its own location oracle. Epoch 0 is committed, epoch 1 is running."""

    def __init__(self, directory: Path) -> None:
        ranges = (KeyGroupRange(0, 8), KeyGroupRange(8, 16))
        self.subtasks = [Subtask(groups, directory / str(groups.start)) for groups in ranges]
        for subtask in self.subtasks:
            subtask.write(0, offset=0)
            subtask.commit(0)
            subtask.write(1, offset=100)
        self.looked_up = 0
        self.proxy = ClientProxy(EndpointOptions())
        self.proxy.start()
        self.proxy.set_location_oracle("job", self)

    def locate(self, state: str, reply: Callable[[LocationTable | QueryError], None]) -> None:
        self.looked_up += 1
        if state not in self.subtasks[0].ids:
            reply(UnknownState(state=state))
            return
        owners = [Owner(sub.groups, *sub.server.address, sub.ids[state]) for sub in self.subtasks]
        description = self.subtasks[0].instances[state].describe()
        reply(LocationTable("job", description, MAX_PARALLELISM, tuple(owners)))

    def describe(self, reply: Callable[[Sequence[Mapping[str, Any]] | QueryError], None]) -> None:
        reply([instance.describe() for instance in self.subtasks[0].instances.values()])

    def close(self) -> None:
        self.proxy.shutdown(2.0)
        for subtask in self.subtasks:
            subtask.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


class Asked:
    """The asyncio client, asked one call at a time as if it were synchronous."""

    def __init__(self, address: tuple[str, int], direct: bool) -> None:
        self._runner = asyncio.new_event_loop()
        connecting = AsyncQueryableStateClient.connect(*address, direct=direct)
        self._client = self._runner.run_until_complete(connecting)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        return lambda *args, **options: self._runner.run_until_complete(method(*args, **options))

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._runner.run_until_complete(self._client.close())
        self._runner.close()


@pytest.fixture(params=["sync proxy", "sync direct", "asyncio proxy", "asyncio direct"])
def client(request: pytest.FixtureRequest, job: Job) -> Iterator[Any]:
    kind, way = request.param.split()
    direct = way == "direct"
    address = job.proxy.address
    with QueryableStateClient(*address, direct=direct) if kind == "sync" else Asked(address, direct) as client:
        yield client


def contents(view: Any) -> Any:
    read = {"value": "value", "map": "entries"}.get(view.kind.value, "get")
    return getattr(view, read)()


def test_all_five_kinds_are_read_and_refuse_to_be_written(client: Any) -> None:
    number = KEYS.index("key-7") + 100
    views = {name: client.get("job", name, "key-7") for name in ("value", "list", "map", "reducing", "aggregating")}
    assert contents(views["value"]) == {"airport": "JFK", "degrees": [number]}
    assert contents(views["list"]) == [[number], [number + 1]]
    assert dict(contents(views["map"])) == {"a": (number, "x"), ("b", 1): (number, "y")}
    assert contents(views["reducing"]) == number
    assert contents(views["aggregating"]) == number + 0.5
    for view in views.values():
        assert (view.epoch, view.isolation) == (1, "live")
        with pytest.raises(UnsupportedOperation):
            view.clear()


def test_committed_reads_show_the_committed_epoch(client: Any) -> None:
    view = client.get("job", "reducing", "key-7", isolation="committed")
    assert (view.get(), view.epoch, view.isolation) == (7, 0, "committed")


def test_namespaces_are_kept_apart(client: Any) -> None:
    assert client.get("job", "reducing", "key-7", "window").get() == 1107
    assert client.get("job", "reducing", "key-7", "another") is None


def test_many_keys_of_both_servers_come_back_in_order(client: Any) -> None:
    found = client.get_many("job", "reducing", [*KEYS, "nobody"])
    assert list(found) == [*KEYS, "nobody"]
    assert found.pop("nobody") is None
    assert [view.get() for view in found.values()] == [number + 100 for number in range(len(KEYS))]


def test_failures_have_their_types(client: Any) -> None:
    with pytest.raises(UnknownJob):
        client.get("nobody", "value", "key-7")
    with pytest.raises(UnknownState):
        client.get("job", "nothing", "key-7")
    with pytest.raises(WrongKeyType):
        client.get("job", "value", 7)
    with pytest.raises(WrongKeyType):
        client.get_many("job", "value", ["key-7", 7])
    assert client.get("job", "reducing", "key-7").get() == 107


def test_jobs_and_states_are_listed(client: Any) -> None:
    assert client.jobs() == ["job"]
    states = {state["name"]: state["kind"] for state in client.states("job")}
    assert states == {name: name for name in ("value", "list", "map", "reducing", "aggregating")}
    with pytest.raises(UnknownJob):
        client.states("nobody")


def test_a_stale_state_id_is_looked_up_anew_without_the_caller_noticing(client: Any, job: Job) -> None:
    assert client.get("job", "reducing", "key-7").get() == 107
    before = job.looked_up
    for subtask in job.subtasks:
        subtask.register()
    assert client.get("job", "reducing", "key-7").get() == 107
    assert job.looked_up > before


def test_a_server_that_is_replaced_is_found_without_the_caller_noticing(client: Any, job: Job, tmp_path: Path) -> None:
    assert len(client.get_many("job", "reducing", KEYS)) == len(KEYS)
    old = job.subtasks[0]
    new = job.subtasks[0] = Subtask(old.groups, tmp_path / "new")
    new.write(0, offset=500)
    old.close()
    found = client.get_many("job", "reducing", KEYS)
    moved = [key for key in KEYS if key_group(key, MAX_PARALLELISM) in new.groups]
    assert moved
    assert all(found[key].get() == KEYS.index(key) + 500 for key in moved)


@pytest.mark.parametrize("direct", [False, True], ids=["proxy", "direct"])
def test_64_threads_and_256_tasks_at_once_never_mix_up_answers(job: Job, direct: bool) -> None:
    def ask(client: QueryableStateClient, worker: int) -> bool:
        keys = [KEYS[(worker * 7 + number) % len(KEYS)] for number in range(20)]
        return all(client.get("job", "reducing", key).get() == KEYS.index(key) + 100 for key in keys)

    async def ask_asynchronously() -> bool:
        async def one(task: int) -> bool:
            keys = [KEYS[(task * 11 + number) % len(KEYS)] for number in range(20)]
            return all([(await client.get("job", "reducing", key)).get() == KEYS.index(key) + 100 for key in keys])

        async with await AsyncQueryableStateClient.connect(*job.proxy.address, direct=direct) as client:
            return all(await asyncio.gather(*(one(task) for task in range(256))))

    with QueryableStateClient(*job.proxy.address, direct=direct) as client, ThreadPoolExecutor(65) as threads:
        tasks = threads.submit(asyncio.run, ask_asynchronously())
        assert all(threads.map(lambda worker: ask(client, worker), range(64)))
        assert tasks.result(60)
