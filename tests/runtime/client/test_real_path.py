"""The whole read path: both clients, a real proxy, two real state servers, a real backend."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import UnknownJob, UnknownState, UnsupportedOperation, WrongKeyType
from qstate.keys import key_group
from tests.runtime.client.real_job import KEYS, MAX_PARALLELISM, Asked, Job, Subtask


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.close()


@pytest.fixture(params=[f"{kind} {way}" for kind in ("sync", "asyncio") for way in ("reached", "proxy", "direct")])
def client(request: pytest.FixtureRequest, job: Job) -> Iterator[Any]:
    kind, way = request.param.split()
    direct = {"reached": None, "proxy": False, "direct": True}[way]
    address = job.proxy.address
    with QueryableStateClient(*address, direct=direct) if kind == "sync" else Asked(address, direct=direct) as client:
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


def test_a_stale_state_id_is_looked_up_again_without_the_caller_noticing(client: Any, job: Job) -> None:
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


@pytest.mark.parametrize("direct", [None, False, True], ids=["reached", "proxy", "direct"])
def test_64_threads_and_256_tasks_at_once_never_mix_up_answers(job: Job, direct: bool | None) -> None:
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
