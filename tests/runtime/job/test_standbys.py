"""Laws of standbys of a running job: committed reads go on, no answer is wrong, and no process is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from qstate.errors import EpochNotReached, QueryError, TooStale, Unavailable
from qstate.keys import KeyGroupRange, key_group
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.runtime.control.addresses import TaskManagerAddress
from qstate.runtime.control.job_statistics import StandbyStatistics
from qstate.runtime.job.location_registry import LocationRegistry
from qstate.runtime.routing.location import LocationTable, Owner
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, RunningJob, kill, rows_batch, until

JobOf = Callable[..., RunningJob]
ROOT = Path(__file__).parents[3]
STATE = "totalAmount"
#: How soon committed reads go on when a task manager is killed. A new one takes longer to start.
BOUND_S = 0.5


def standby_of(job: RunningJob) -> StandbyStatistics | None:
    """What the only standby serves; None while it is not up."""
    found = [one.standby for one in job.manager.statistics().processes if one.name == "standby 0"]
    return found[0] if found else None


def wait_for_epoch(job: RunningJob, epoch: int) -> None:
    """Finalize the epoch, and wait until the standby serves it."""
    job.manager.finalize(QUERY, epoch)

    def served() -> bool:
        found = standby_of(job)
        return found is not None and ("it", epoch) in found.epochs

    until(served, f"the standby serves epoch {epoch}")


def client_of(job: RunningJob, **options: Any) -> QueryableStateClient:
    (host, port), *proxies = job.manager.proxies()
    return QueryableStateClient(host, port, proxies=proxies, **options)


def standby_address(job: RunningJob) -> TaskManagerAddress:
    (standby,) = job.manager.standbys()
    return standby


def answer(client: QueryableStateClient, key: str = "a", **options: Any) -> tuple[int, int]:
    """The committed value and its epoch. Asks again when the connection broke under the request."""
    while True:
        try:
            view = client.get(JOB, STATE, key, isolation="committed", **options)
            return view.get(), view.epoch
        except Unavailable:
            continue


@pytest.mark.parametrize(
    ("backend", "direct"), [("heap", None), ("rocksdb", False)], ids=["heap", "rocksdb through proxies"]
)
def test_committed_reads_go_on_when_a_task_manager_is_killed(backend: str, direct: bool | None, job_of: JobOf) -> None:
    settings = {"backend": backend, "auth_token": "secret", "parallelism": 2, "standby_replicas": 1}
    job = job_of(Totals(), **settings)
    other, key = (next(f"k{n}" for n in range(100) if key_group(f"k{n}", 128) // 64 == subtask) for subtask in range(2))
    for epoch in range(3):
        job.epoch(epoch, rows_batch((other, 1)), subtask=0)
        job.epoch(epoch, rows_batch((key, 2)), subtask=1)
    wait_for_epoch(job, 2)
    with client_of(job, direct=direct, token="secret") as client:
        assert answer(client, key) == (6, 2)
        for index in (1, 0):
            (lost,) = [manager for manager in job.manager.task_managers() if manager.index == index]
            killed_at = time.monotonic()
            os.kill(lost.pid, signal.SIGKILL)
            until(lambda lost=lost: lost not in job.manager.task_managers(), "the job manager knows")  # type: ignore[misc]
            assert answer(client, key) == (6, 2)
            assert answer(client, other) == (3, 2)
            assert time.monotonic() - killed_at < BOUND_S
            scan = client.scan(JOB, STATE, isolation="committed")
            assert {entry.key: (entry.view.get(), entry.view.epoch) for entry in scan} == {key: (6, 2), other: (3, 2)}
            assert index not in {manager.index for manager in job.manager.task_managers()}  # it was the standby
            job.successor_of(lost)
        live = client.get(JOB, STATE, key)  # waits for the owner: a standby knows nothing of running epochs
        assert live.get() == 6
        for epoch in (3, 4):
            job.epoch(epoch, rows_batch((other, 1)), subtask=0)
            job.epoch(epoch, rows_batch((key, 2)), subtask=1)
        until(lambda: answer(client, key, min_epoch=3)[1] >= 3, "the owners answer again")


def test_a_standby_that_is_killed_is_replaced(job_of: JobOf) -> None:
    job = job_of(Totals(), standby_replicas=1)
    job.epoch(0, rows_batch(("a", 1)))
    wait_for_epoch(job, 0)
    assert "1 task managers, 1 standby\n" in repr(job.manager.statistics())
    assert "operator 'it': serves epoch 0" in repr(job.manager.statistics())
    lost = standby_address(job)
    kill(lost)
    until(lambda: [one.pid for one in job.manager.standbys()] not in ([], [lost.pid]), "another standby registers")
    job.epoch(1, rows_batch(("a", 1)))
    wait_for_epoch(job, 1)
    with client_of(job) as client:
        os.kill(job.task_manager().pid, signal.SIGKILL)
        assert answer(client, timeout_s=5.0) == (2, 1)
    processes = [psutil.Process(one.pid) for one in (standby_address(job),)]
    job.stop()
    assert not psutil.wait_procs(processes, timeout=5.0)[1]


def test_a_standby_whose_checkpoint_is_damaged_says_how_far_it_is(job_of: JobOf) -> None:
    job = job_of(Totals(), standby_replicas=1)
    for epoch in range(2):
        job.epoch(epoch, rows_batch(("a", 1)))
    wait_for_epoch(job, 1)
    standby = standby_address(job)
    before = set(job.epoch_log().glob("*.log"))
    os.kill(standby.pid, signal.SIGSTOP)
    job.epoch(2, rows_batch(("a", 1)))
    job.manager.finalize(QUERY, 2)
    (newest,) = set(job.epoch_log().glob("*.log")) - before
    newest.chmod(0o600)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 0xFF
    newest.write_bytes(data)
    lost = job.task_manager()
    os.kill(lost.pid, signal.SIGSTOP)  # it has the state; a restarted one would find the damage, too
    os.kill(lost.pid, signal.SIGKILL)
    os.kill(standby.pid, signal.SIGCONT)
    with QueryableStateClient(*standby.proxy) as client:  # type: ignore[misc]
        assert answer(client) == (2, 1)
        with pytest.raises(EpochNotReached):
            answer(client, min_epoch=2, wait_s=0.1)
        until(lambda: _fails(client, TooStale, max_staleness_s=0.3, timeout_s=0.2), "it reports what it lacks")
    found = standby_of(job)
    assert found is not None
    assert found.failed_looks > 0


def _fails(client: QueryableStateClient, kind: type[QueryError], **options: Any) -> bool:
    try:
        answer(client, **options)
    except kind:
        return True
    return False


def test_standbys_end_with_a_driver_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import threading
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import RunningJob, rows_batch, until
job = RunningJob(Totals(), standby_replicas=2, checkpoint_dir={str(tmp_path / "c")!r}, log_dir={str(tmp_path)!r})
job.epoch(0, rows_batch(("a", 1)))
until(lambda: len(job.manager.standbys()) == 2, "both standbys register")
print(*(one.pid for one in [*job.manager.task_managers(), *job.manager.standbys()]), flush=True)
threading.Event().wait()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT) as driver:
        try:
            assert driver.stdout is not None
            processes = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
            assert len(processes) == 3
        finally:
            driver.kill()
        assert not psutil.wait_procs(processes, timeout=15.0)[1]


STATES = {"name": "s", "fingerprint": "f"}


def table(*owners: tuple[int, int, str], standbys: tuple[tuple[int, int, str], ...] = ()) -> LocationTable:
    found, spare = (
        tuple(Owner(KeyGroupRange(start, stop), host, 1, b"0" * 16) for start, stop, host in given)
        for given in (owners, standbys)
    )
    return LocationTable(JOB, STATES, 16, found, spare)


def test_standbys_stand_in_the_place_of_missing_owners_for_committed_reads_only() -> None:
    located = table((4, 8, "one"), standbys=((0, 16, "spare"), (0, 16, "other")))
    asked = located.committed
    assert [(owner.key_groups.start, owner.key_groups.stop, owner.host) for owner in asked.owners] == [
        (4, 8, "one"),
        (0, 4, "spare"),
        (8, 16, "spare"),
    ]
    assert (asked.borrows, located.borrows) == (True, False)
    assert [owner.host for owner in located.owners] == ["one"]
    whole = table((0, 16, "one"), standbys=((0, 16, "spare"),))
    assert whole.committed is whole
    assert table((0, 8, "one")).committed.gaps() == [KeyGroupRange(8, 16)]


def test_a_standby_counts_for_states_of_the_same_description() -> None:
    registry = LocationRegistry(JOB, 16)
    registry.register("it", [STATES])
    registry.publish_standby(2, {"s": table((0, 16, "spare"))})
    assert [owner.host for owner in registry.locate("s").standbys] == ["spare"]
    registry.register("it", [{**STATES, "fingerprint": "another"}])
    assert not registry.locate("s").standbys
    registry.register("it", [STATES])
    registry.withdraw(2)
    assert not registry.locate("s").standbys
