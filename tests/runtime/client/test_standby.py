"""Committed queries while the job is stopped: both clients, a real job and a real standby with a backend of its own.

The job has committed epoch 3, the standby has only epoch 2 yet: the epoch of an answer tells where it is from.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qstate.client import AsyncQueryableStateClient, QueryableStateClient
from qstate.errors import (
    ClosedError,
    ConfigError,
    DeadlineExceeded,
    QueryError,
    SerializationError,
    Unavailable,
    UnknownJob,
    WrongKeyType,
)
from qstate.keys import key_group
from qstate.protocol.messages import Get, Locate
from qstate.runtime.client import failover_plan, operations
from qstate.runtime.client.failover_plan import ATTEMPT_TIMEOUT_S
from tests.runtime.client.peer import Peer
from tests.runtime.client.real_job import KEYS, MAX_PARALLELISM, Asked, Job

COMMITTED = "committed"
JOBS, STANDBYS = 3, 2
PATIENCE_S = 30.0
ROOT = Path(__file__).parents[3]


@pytest.fixture
def standby(tmp_path: Path) -> Iterator[Job]:
    standby = Job(tmp_path / "standby", epoch=STANDBYS)
    yield standby
    standby.close()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "job", epoch=JOBS)
    yield job
    job.close()


@pytest.fixture(params=["sync proxy", "sync direct", "asyncio proxy", "asyncio direct"])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes a client of a job with fallbacks."""
    kind, way = request.param.split()

    def client(address: tuple[str, int], *fallback: tuple[str, int], **options: Any) -> Any:
        options = {"direct": way == "direct", "fallback": fallback, **options}
        return QueryableStateClient(*address, **options) if kind == "sync" else Asked(address, **options)

    return client


def epoch_of(client: Any, key: str = "key-7", **options: Any) -> int:
    view = client.get("job", "reducing", key, isolation=COMMITTED, **options)
    assert view.get() == KEYS.index(key)
    assert view.isolation == COMMITTED
    return int(view.epoch)


def test_while_the_job_answers_no_fallback_is_asked(make: Callable[..., Any], job: Job, standby: Job) -> None:
    with make(job.proxy.address, standby.proxy.address) as client:
        assert {epoch_of(client, key) for key in KEYS[:20]} == {JOBS}
        found = client.get_many("job", "reducing", [*KEYS, "nobody"], isolation=COMMITTED)
        assert found.pop("nobody") is None
        assert {view.epoch for view in found.values()} == {JOBS}
        assert client.get_many("job", "reducing", [], isolation=COMMITTED) == {}
        assert client.get("job", "reducing", "key-7").epoch == JOBS + 1
    assert standby.looked_up == 0


def test_the_standby_answers_committed_queries_when_the_job_stops(
    make: Callable[..., Any], job: Job, standby: Job
) -> None:
    with make(job.proxy.address, standby.proxy.address) as client:
        assert epoch_of(client) == JOBS
        job.close()
        assert {epoch_of(client, key) for key in KEYS[:20]} == {STANDBYS}
        found = client.get_many("job", "reducing", KEYS, isolation=COMMITTED)
        assert [view.get() for view in found.values()] == list(range(len(KEYS)))


def test_live_queries_never_go_to_a_standby(make: Callable[..., Any], job: Job, standby: Job) -> None:
    with make(job.proxy.address, standby.proxy.address) as client:
        assert client.get("job", "reducing", "key-7").get() == 107
        job.close()
        assert epoch_of(client) == STANDBYS
        asked = standby.looked_up
        with pytest.raises((Unavailable, DeadlineExceeded)):
            client.get("job", "reducing", "key-7", timeout_s=0.2)
        with pytest.raises(Unavailable):
            client.get_many("job", "reducing", KEYS, timeout_s=0.2)
    assert standby.looked_up == asked


def test_a_client_that_is_made_while_the_job_is_stopped_reads_from_the_standby(
    make: Callable[..., Any], job: Job, standby: Job
) -> None:
    job.close()
    with make(job.proxy.address, standby.proxy.address) as client:
        assert epoch_of(client) == STANDBYS
        assert {state["name"] for state in client.states("job")} >= {"value", "reducing"}
        assert client.get("job", "map", "key-7", isolation=COMMITTED).get("a") == (7, "x")
        with pytest.raises(Unavailable):
            client.jobs(timeout_s=1.0)


def test_the_job_is_asked_again_when_it_is_back(
    make: Callable[..., Any], job: Job, standby: Job, tmp_path: Path
) -> None:
    host, port = job.proxy.address
    with make((host, port), standby.proxy.address) as client:
        assert epoch_of(client) == JOBS
        job.close()
        assert epoch_of(client) == STANDBYS
        again = Job(tmp_path / "again", epoch=JOBS + 1, ports=str(port))
        try:
            until = time.monotonic() + PATIENCE_S
            while (epoch := epoch_of(client)) != JOBS + 1:
                assert epoch == STANDBYS
                assert time.monotonic() < until
            assert client.get("job", "reducing", "key-7").epoch == JOBS + 2
        finally:
            again.close()


def test_only_the_keys_of_a_lost_owner_come_from_the_standby(
    make: Callable[..., Any], job: Job, standby: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has a long timeout and a wide margin, because late answers would come from the standby, too."""
    monkeypatch.setattr(failover_plan, "ATTEMPT_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(failover_plan, "SHORT_ATTEMPT_TIMEOUT_S", PATIENCE_S)
    monkeypatch.setattr(operations, "LONGEST_MARGIN_S", 3.0)
    with make(job.proxy.address, standby.proxy.address) as client:
        assert epoch_of(client) == JOBS
        job.subtasks[0].close()
        for _ in range(2):
            found = client.get_many("job", "reducing", KEYS, isolation=COMMITTED)
            assert [view.get() for view in found.values()] == list(range(len(KEYS)))
            lost = {key for key in KEYS if key_group(key, MAX_PARALLELISM) in job.subtasks[0].groups}
            assert {key for key, view in found.items() if view.epoch == STANDBYS} == lost
            assert {view.epoch for key, view in found.items() if key not in lost} == {JOBS}


def test_a_demand_excludes_answers_of_an_earlier_epoch(make: Callable[..., Any], job: Job, standby: Job) -> None:
    with make(job.proxy.address, standby.proxy.address) as client:
        seen = epoch_of(client, min_epoch=JOBS)
        job.close()
        assert epoch_of(client, min_epoch=STANDBYS) == STANDBYS
        with pytest.raises(QueryError) as caught:
            epoch_of(client, min_epoch=seen, timeout_s=0.3)
        assert caught.value.code.name in ("UNAVAILABLE", "EPOCH_NOT_REACHED")


def test_the_standby_answers_until_the_job_has_started(make: Callable[..., Any], job: Job, standby: Job) -> None:
    with make(job.proxy.address, standby.proxy.address) as client:
        job.proxy.set_location_oracle("job", None)
        assert epoch_of(client) == STANDBYS
        job.proxy.set_location_oracle("job", job)
        ids = [subtask.ids.pop("reducing") for subtask in job.subtasks]
        assert epoch_of(client) == STANDBYS
        for subtask, state_id in zip(job.subtasks, ids, strict=True):
            subtask.ids["reducing"] = state_id
        assert epoch_of(client) == JOBS


def test_unknown_names_fail_at_once(make: Callable[..., Any], job: Job, standby: Job) -> None:
    with make(job.proxy.address, standby.proxy.address, timeout_s=PATIENCE_S) as client:
        started = time.monotonic()
        with pytest.raises(UnknownJob):
            client.get("nobody", "reducing", "key-7", isolation=COMMITTED)
        with pytest.raises(UnknownJob):
            client.states("nobody")
        with pytest.raises(WrongKeyType):
            client.get("job", "reducing", 7, isolation=COMMITTED)
        with pytest.raises(WrongKeyType):
            client.get_many("job", "reducing", ["key-7", 7], isolation=COMMITTED)
        job.close()
        with pytest.raises(WrongKeyType):
            client.get("job", "reducing", 7, isolation=COMMITTED)
        assert time.monotonic() - started < PATIENCE_S / 2


def test_the_next_fallback_is_asked_when_the_first_is_stopped_too(
    make: Callable[..., Any], job: Job, standby: Job
) -> None:
    job.close()
    with make(job.proxy.address, job.subtasks[0].server.address, standby.proxy.address) as client:
        assert epoch_of(client) == STANDBYS


def test_without_any_server_the_failure_is_the_jobs(job: Job, standby: Job) -> None:
    job.close()
    standby.close()
    with QueryableStateClient(*job.proxy.address, fallback=[standby.proxy.address]) as client:
        with pytest.raises(Unavailable) as caught:
            epoch_of(client, timeout_s=1.0)
        assert caught.value.details["port"] == job.proxy.address[1]
    with pytest.raises(Unavailable):
        Asked(job.proxy.address, fallback=[standby.proxy.address], timeout_s=1.0)


# A third of the shorter time is still longer than the pauses of a busy machine.
@pytest.mark.parametrize("timeout_s", [0.9, 10.0])
def test_a_silent_job_does_not_use_up_the_time(make: Callable[..., Any], standby: Job, timeout_s: float) -> None:
    with Peer() as silent, make(silent.address, standby.proxy.address) as client:
        silent.script = lambda request: ()
        started = time.monotonic()
        assert {epoch_of(client, timeout_s=timeout_s) for _ in range(10)} == {STANDBYS}
        assert time.monotonic() - started < 5.0


def test_a_silent_job_is_not_tried_by_every_query(make: Callable[..., Any], standby: Job) -> None:
    with Peer() as silent, make(silent.address, standby.proxy.address) as client:
        silent.script = lambda request: ()
        silent.requests.clear()
        started = time.monotonic()
        assert {epoch_of(client) for _ in range(20)} == {STANDBYS}
        # It is tried again once a second, and when the standby has not answered in the time of an attempt.
        assert len(silent.requests) <= 1 + (time.monotonic() - started) / ATTEMPT_TIMEOUT_S


def test_a_connection_that_stays_silent_is_given_up_however_short_the_deadlines(standby: Job) -> None:
    with Peer() as silent, QueryableStateClient(*silent.address, fallback=[standby.proxy.address]) as client:
        silent.script = lambda request: ()
        until = time.monotonic() + PATIENCE_S
        while silent.connections < 2:
            assert epoch_of(client) == STANDBYS
            assert time.monotonic() < until
        silent.script = silent.honest
        while not any(isinstance(request, Get) for request in silent.requests):
            client.get("job", "reducing", "key-7", isolation=COMMITTED)
            assert time.monotonic() < until


def test_answers_are_decoded_by_the_description_of_their_own_server(make: Callable[..., Any], standby: Job) -> None:
    with Peer() as other:
        # Its state of the same name needs a serializer that no client has.
        other.script = lambda request: (
            [other.location(request, serializer="nobody's")] if isinstance(request, Locate) else other.honest(request)
        )
        with make(other.address, standby.proxy.address) as client, pytest.raises(SerializationError):
            epoch_of(client)
        with make(standby.proxy.address, other.address) as client:
            assert epoch_of(client) == STANDBYS


def test_futures_and_tasks_fail_over_too(job: Job, standby: Job) -> None:
    with QueryableStateClient(*job.proxy.address, fallback=[standby.proxy.address]) as client:
        assert epoch_of(client) == JOBS
        job.close()
        futures = [client.submit("job", "reducing", key, isolation=COMMITTED) for key in KEYS]
        assert [future.result(PATIENCE_S).get() for future in futures] == list(range(len(KEYS)))

    async def ask() -> set[int]:
        address, fallback = job.proxy.address, [standby.proxy.address]
        async with await AsyncQueryableStateClient.connect(*address, fallback=fallback) as client:
            gets = [client.get("job", "reducing", key, isolation=COMMITTED) for key in KEYS]
            views = await asyncio.gather(*gets)
            assert [view.get() for view in views] == list(range(len(KEYS)))
            nobody = [client.get("nobody", "reducing", key, isolation=COMMITTED, timeout_s=1.0) for key in KEYS[:3]]
            errors = await asyncio.gather(*nobody, return_exceptions=True)
            assert [type(error) for error in errors] == [Unavailable] * 3
            return {view.epoch for view in views}

    assert asyncio.run(asyncio.wait_for(ask(), 2 * PATIENCE_S)) == {STANDBYS}


@pytest.mark.parametrize("known", [True, False], ids=["the job was known", "the job was never there"])
def test_gets_of_one_turn_are_one_request_to_the_standby(known: bool) -> None:
    async def ask(address: tuple[str, int], fallback: tuple[str, int]) -> list[Any]:
        if not known:
            gone.close()
        async with await AsyncQueryableStateClient.connect(*address, fallback=[fallback]) as client:
            await client.get("job", "state", "warm", isolation=COMMITTED)
            gone.close()
            standby.requests.clear()
            return await asyncio.gather(
                *(client.get("job", "state", f"{number}", isolation=COMMITTED) for number in range(20))
            )

    with Peer() as gone, Peer() as standby:
        views = asyncio.run(ask(gone.address, standby.address))
        assert [view.value() for view in views] == [f"{number}" for number in range(20)]
        assert [len(request.keys) for request in standby.requests if isinstance(request, Get)] == [20]


def test_close_ends_every_connection_and_wakes_every_waiter() -> None:
    with Peer() as job, Peer() as standby:
        job.script = standby.script = lambda request: ()
        client = QueryableStateClient(*job.address, fallback=[standby.address], timeout_s=PATIENCE_S)
        with ThreadPoolExecutor(4) as threads:
            get = partial(client.get, "job", "state", "key", isolation=COMMITTED)
            waiting = [threads.submit(get) for _ in range(4)]
            until = time.monotonic() + PATIENCE_S
            while not standby.requests and time.monotonic() < until:
                client.submit("job", "state", "key", isolation=COMMITTED).done()
            client.close()
            assert {type(future.exception(PATIENCE_S)) for future in waiting} == {ClosedError}
        with pytest.raises(ClosedError):
            get()
        assert not client._links._links and not client._links._polled


@pytest.mark.parametrize(
    "fallback", [["standby"], ["standby:9069"], [("standby", "9069")], [("standby", 0)], [(9069, "standby")], [1]]
)
def test_an_invalid_fallback_is_refused(fallback: Any) -> None:
    with pytest.raises(ConfigError, match="host, port"):
        QueryableStateClient("127.0.0.1", 9069, fallback=fallback)
    with pytest.raises(ConfigError, match="host, port"):
        asyncio.run(AsyncQueryableStateClient.connect("127.0.0.1", 9069, fallback=fallback))


# --- a job that is killed and started again under load -------------------------------------------------------------


@contextmanager
def job_process(directory: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], tuple[str, int]]]:
    """A job in a process of its own; killed at the end."""
    command = [sys.executable, "-m", "tests.runtime.client.real_job", str(directory), str(port), str(JOBS)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        host, bound = process.stdout.readline().split()
        yield process, (host, int(bound))
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()


class Tally:
    """What the callers got: how many answers of each epoch, the requests that were in flight when the job was killed,
    and every other failure."""

    def __init__(self) -> None:
        self.epochs: Counter[int] = Counter()
        self.broken: Counter[int] = Counter()
        self.failures: list[BaseException] = []
        self.over = False
        self._changed = threading.Condition()

    def count(self, view: Any, key: str) -> None:
        with self._changed:
            if view.get() != KEYS.index(key):
                self.failures.append(AssertionError(f"{view.get()} for {key}"))
            self.epochs[view.epoch] += 1
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def broke(self, caller: int) -> None:
        with self._changed:
            self.broken[caller] += 1

    def await_more(self, epoch: int, answers: int) -> None:
        """Wait for so many more answers of an epoch, or a failure."""
        with self._changed:
            wanted = self.epochs[epoch] + answers
            assert self._changed.wait_for(lambda: self.failures or self.epochs[epoch] >= wanted, PATIENCE_S)
        assert self.failures == []


#: The first job is killed, and the second one at the end of the test.
DEATHS = 2
#: To the proxy and two owners. They do not break at the same moment, so a get in flight may break with each of them.
CONNECTIONS = 3


def kill_and_restart(directory: Path, tally: Tally, process: subprocess.Popen[str], port: int) -> None:
    """Kill the job under its callers, have the standby answer them, bring it back."""
    tally.await_more(JOBS, 1000)
    process.kill()
    process.wait(PATIENCE_S)
    tally.await_more(STANDBYS, 1000)
    with job_process(directory, port):
        tally.await_more(JOBS, 1000)
        tally.over = True


@pytest.mark.parametrize("direct", [None, False, True], ids=["reached", "proxy", "direct"])
def test_a_job_that_is_killed_costs_a_thread_its_request_in_flight_and_no_more(
    tmp_path: Path, standby: Job, direct: bool | None
) -> None:
    tally = Tally()

    def ask(client: QueryableStateClient, worker: int) -> None:
        random = Random(worker)
        try:
            while not tally.over:
                keys = random.sample(KEYS, 1 + 4 * (worker % 2))
                try:
                    found = client.get_many("job", "reducing", keys, isolation=COMMITTED)
                except Unavailable:
                    tally.broke(worker)
                    continue
                for key, view in found.items():
                    tally.count(view, key)
        except BaseException as exc:
            tally.fail(exc)

    with job_process(tmp_path / "first", 0) as (process, (host, port)):
        fallback = [standby.proxy.address]
        client = QueryableStateClient(host, port, direct=direct, fallback=fallback)
        with client, ThreadPoolExecutor(64) as threads:
            for worker in range(64):
                threads.submit(ask, client, worker)
            try:
                kill_and_restart(tmp_path / "second", tally, process, port)
            finally:
                tally.over = True
        assert tally.failures == []
        assert set(tally.epochs) == {JOBS, STANDBYS}
        assert max(tally.broken.values(), default=0) <= DEATHS * (1 if direct is False else CONNECTIONS)


def test_a_job_that_is_killed_costs_a_task_its_request_in_flight_and_no_more(tmp_path: Path, standby: Job) -> None:
    tally = Tally()

    async def ask(client: AsyncQueryableStateClient, task: int) -> None:
        random = Random(task)
        try:
            while not tally.over:
                key = random.choice(KEYS)
                try:
                    view = await client.get("job", "reducing", key, isolation=COMMITTED)
                except Unavailable:
                    tally.broke(task)
                else:
                    tally.count(view, key)
        except Exception as exc:
            tally.fail(exc)

    async def ask_all(address: tuple[str, int]) -> None:
        fallback = [standby.proxy.address]
        async with await AsyncQueryableStateClient.connect(*address, fallback=fallback) as client:
            await asyncio.gather(*(ask(client, task) for task in range(64)))

    with job_process(tmp_path / "first", 0) as (process, address), ThreadPoolExecutor(1) as threads:
        asking = threads.submit(asyncio.run, ask_all(address))
        try:
            kill_and_restart(tmp_path / "second", tally, process, address[1])
        finally:
            tally.over = True
        asking.result(PATIENCE_S)
    assert tally.failures == []
    assert set(tally.epochs) == {JOBS, STANDBYS}
    assert max(tally.broken.values(), default=0) <= DEATHS * CONNECTIONS
