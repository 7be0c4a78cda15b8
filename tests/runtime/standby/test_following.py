"""A standby follows a live checkpoint directory, through what happens to its job."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qstate.client import QueryableStateClient
from qstate.config import JobConfig
from qstate.errors import FailureCode, QueryError, Restoring, TooStale, UnknownJob
from qstate.protocol.messages import Changes, Failure
from qstate.runtime.standby.served_operator import Generation
from qstate.runtime.standby.standby import StandbyOracle
from qstate.standby import Standby
from tests.either_backend import EITHER_BACKEND
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import JOB, QUERY, Background, RunningJob, kill, rows_batch, until
from tests.runtime.serving.raw_client import RawClient
from tests.runtime.serving.test_polls import poll
from tests.runtime.standby.asked import KEYS, feed, reached, settled, total
from tests.runtime.standby.functions import EveryKind, FloatTotals, Hidden

ROOT = Path(__file__).parents[3]
JobOf = Callable[..., RunningJob]
StandbyOf = Callable[..., Standby]


@pytest.mark.parametrize("backend", EITHER_BACKEND)
def test_standby_follows_a_live_job(job_of: JobOf, standby_of: StandbyOf, backend: str) -> None:
    job = job_of(Totals(), parallelism=2)
    standby = standby_of(backend=backend)
    for epoch in range(4):
        feed(job, epoch)
        reached(standby, min(epoch, 0))  # before its first epoch a state is unknown
        assert total(standby.address, min_epoch=epoch) == (epoch + 1, epoch)
    feed(job, 4, commit=False)
    assert total(standby.address) == (4, 3)
    status = standby.status()
    assert (status.fills, status.failures, status.failure) == (1, 0, None)


def test_the_standby_waits_for_a_directory_that_does_not_exist_yet(
    job_of: JobOf, standby_of: StandbyOf, tmp_path: Path
) -> None:
    standby = standby_of()
    assert not (tmp_path / "checkpoint").exists(), "a standby writes nothing"
    assert standby.status().job is None
    with QueryableStateClient(*standby.address) as client, pytest.raises(UnknownJob):
        client.get(JOB, "totalAmount", KEYS[0], isolation="committed")
    feed(job_of(Totals()), 0)
    reached(standby, 0)
    assert total(standby.address) == (1, 0)


def test_the_job_of_a_standby_that_has_not_looked_yet_is_not_unknown(
    job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that comes back on its port has clients before it has read the directory, which may be far away."""
    feed(job_of(Totals()), 0)
    near, find = threading.Event(), Standby._find_source

    def find_later(standby: Standby) -> Any:
        assert near.wait(20)
        return find(standby)

    monkeypatch.setattr(Standby, "_find_source", find_later)
    with Standby(tmp_path / "checkpoint", JobConfig(proxy_ports="0", server_ports="0")) as standby:
        standby.start()
        with QueryableStateClient(*standby.address, timeout_s=0.2) as hasty:
            for ask in (hasty.jobs, lambda: hasty.states(JOB), lambda: total(standby.address, timeout_s=0.2)):
                with pytest.raises(Restoring):
                    ask()
        with QueryableStateClient(*standby.address, timeout_s=20) as patient:
            scanned = Background(lambda: list(patient.scan(JOB, "totalAmount", isolation="committed")))
            assert not scanned.ended(0.1)
            near.set()
            assert {entry.view.get() for entry in scanned.result()} == {1}
            assert patient.jobs() == [JOB]
            with pytest.raises(UnknownJob):
                patient.get("another", "totalAmount", KEYS[0])


def test_states_are_listed_when_all_are_there(job_of: JobOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A standby that has filled some operators does not know yet which states the others have."""
    feed(job_of(Totals()), 0)
    published, go_on, looked = threading.Event(), threading.Event(), StandbyOracle.looked

    def look_later(oracle: StandbyOracle) -> None:
        published.set()
        assert go_on.wait(20)
        looked(oracle)

    monkeypatch.setattr(StandbyOracle, "looked", look_later)
    with Standby(tmp_path / "checkpoint", JobConfig(proxy_ports="0", server_ports="0")) as standby:
        standby.start()
        assert published.wait(20)
        with QueryableStateClient(*standby.address, timeout_s=0.2) as hasty, pytest.raises(Restoring):
            hasty.states(JOB)
        assert total(standby.address) == (1, 0), "what is there is served"
        with QueryableStateClient(*standby.address, timeout_s=20) as patient:
            listed = Background(lambda: patient.states(JOB))
            assert not listed.ended(0.1)
            go_on.set()
            assert [state["name"] for state in listed.result()] == ["totalAmount"]


def test_standby_serves_after_the_job_is_killed_or_stopped(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals())
    standby = standby_of()
    for epoch in range(3):
        feed(job, epoch)
    reached(standby, 2)
    kill(job.task_manager())
    assert total(standby.address) == (3, 2)
    job.stop()
    assert total(standby.address) == (3, 2)
    assert total(standby_of().address) == (3, 2), "a standby that is started when the job is gone"


def test_standby_follows_a_job_that_is_restarted_with_another_parallelism(job_of: JobOf, standby_of: StandbyOf) -> None:
    standby = None
    for epoch, parallelism in enumerate([2, 3, 3, 1]):
        job = job_of(Totals(), parallelism=parallelism)
        standby = standby or standby_of()
        feed(job, epoch)
        reached(standby, epoch)
        assert total(standby.address, min_epoch=epoch) == (epoch + 1, epoch)
        job.stop()
    assert standby is not None
    assert standby.status().fills == 3, "a restart with the same parallelism costs nothing"
    assert standby.status().failures == 0


@pytest.mark.parametrize(
    "direct",
    [
        pytest.param(None, id="reached"),
        pytest.param(False, id="proxy", marks=pytest.mark.soak),
        pytest.param(True, id="direct", marks=pytest.mark.soak),
    ],
)
def test_queries_never_fail_and_never_go_back_while_backends_are_replaced(
    job_of: JobOf, standby_of: StandbyOf, direct: bool | None
) -> None:
    job = job_of(Totals(), parallelism=2)
    feed(job, 0)
    standby = standby_of()
    ended, answers, failures = threading.Event(), list[tuple[int, int]](), list[QueryError]()

    def ask() -> None:
        with QueryableStateClient(*standby.address, direct=direct, timeout_s=20.0) as client:
            while not ended.is_set():
                try:
                    view = client.get(JOB, "totalAmount", KEYS[len(answers) % len(KEYS)], isolation="committed")
                except QueryError as exc:
                    failures.append(exc)
                    return
                answers.append((view.get(), view.epoch))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for epoch, parallelism in enumerate([3, 2, 1], start=1):
            job.stop()
            job = job_of(Totals(), parallelism=parallelism)
            feed(job, epoch)
            reached(standby, epoch)
        until(lambda: (4, 3) in answers[-3:], "the newest epoch is read")
    finally:
        ended.set()
        asking.join(30.0)
    assert not failures
    assert standby.status().fills == 4
    assert all(value == epoch + 1 for value, epoch in answers)
    assert [epoch for _, epoch in answers] == sorted(epoch for _, epoch in answers)


def test_a_fill_is_counted_before_the_old_generation_is_closed(
    job_of: JobOf, standby_of: StandbyOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(Totals(), parallelism=2)
    feed(job, 0)
    standby = standby_of()
    readers_left, close = threading.Event(), Generation.close

    def close_when_readers_left(generation: Generation) -> None:
        assert readers_left.wait(30.0)
        close(generation)

    monkeypatch.setattr(Generation, "close", close_when_readers_left)
    try:
        job.stop()
        feed(job_of(Totals(), parallelism=1), 1)
        reached(standby, 1)
        assert standby.status().fills == 2
    finally:
        readers_left.set()


def test_standby_that_missed_replaced_files_reads_the_whole_state(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals(), snapshot_interval=2, retained_snapshots=1)
    feed(job, 0)
    standby = standby_of(interval_s=3600.0)
    assert total(standby.address) == (1, 0)
    for epoch in range(1, 9):
        feed(job, epoch)
        job.wait_for_snapshots()
    assert not (job.epoch_log() / "000000000003.log").exists(), "what it has not seen is gone"
    assert standby._look() is None  # its own next look is an hour away
    assert total(standby.address) == (9, 8)
    assert standby.status().fills == 2


def test_damaged_newest_file_leaves_the_last_good_epoch_and_is_reported(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals())
    for epoch in range(3):
        feed(job, epoch)
    standby = standby_of()
    assert standby.status().epochs == {"it": 2}
    feed(job, 3, commit=False)
    newest = sorted(job.epoch_log().glob("*.log"))[-1]
    sound = newest.read_bytes()
    newest.write_bytes(sound[:60] + bytes([sound[60] ^ 1]) + sound[61:])
    job.manager.finalize(QUERY, 3)
    until(lambda: standby.status().failure is not None, "the damage is seen")
    assert newest.name in str(standby.status().failure)
    assert total(standby.address) == (3, 2)
    with QueryableStateClient(*standby.address) as client, pytest.raises(TooStale):
        client.get(JOB, "totalAmount", KEYS[0], isolation="committed", max_staleness_s=0.0, wait_s=0.1)
    assert total(standby_of().address) == (3, 2), "one that is started now serves the epoch before"
    newest.write_bytes(sound)
    reached(standby, 3)
    assert total(standby.address) == (4, 3)
    until(lambda: standby.status().failure is None, "the look after that is complete")
    assert standby.status().fills == 1


def test_damaged_epoch_that_is_sealed_again_is_followed(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals())
    for epoch in range(2):
        feed(job, epoch)
    standby = standby_of()
    feed(job, 2, commit=False)
    newest = sorted(job.epoch_log().glob("*.log"))[-1]
    job.stop()
    newest.write_bytes(newest.read_bytes()[:-3])
    job = job_of(Totals())
    feed(job, 2)
    feed(job, 3)
    assert total(standby.address, min_epoch=3) == (4, 3)
    assert standby.status().fills == 1


def test_damage_before_the_newest_file_keeps_the_served_state(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals())
    for epoch in range(4):
        feed(job, epoch)
    standby = standby_of()
    first = sorted(job.epoch_log().glob("*.log"))[1]
    first.write_bytes(b"")
    feed(job, 4)
    assert total(standby.address, min_epoch=4) == (5, 4), "what was read already is not read again"
    other = standby_of()
    assert other.status().epochs == {"it": -1}
    assert first.name in str(other.status().failure)


def test_one_damaged_operator_does_not_delay_the_others(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals())
    job.add_operator("other", Hidden())
    job.epoch(0, rows_batch((KEYS[0], 1)), operator="other")
    feed(job, 0)
    standby = standby_of(interval_s=3600.0)
    assert standby.status().epochs == {"it": 0, "other": 0}
    job.epoch(1, rows_batch((KEYS[0], 1)), operator="other")
    (directory,) = job.manager.checkpoint_dir.glob("other-*/*/00000")
    sorted(directory.glob("*.log"))[-1].write_bytes(b"")
    feed(job, 1)
    # Its own next look is an hour away: an earlier one might have seen a file that was sound.
    assert "operator 'other'" in str(standby._look())
    assert total(standby.address) == (2, 1)
    assert standby.status().epochs == {"it": 1, "other": 0}


def test_client_with_a_fallback_reads_from_the_standby_while_the_job_is_gone(
    job_of: JobOf, standby_of: StandbyOf
) -> None:
    job = job_of(Totals())
    standby = standby_of()
    feed(job, 0)
    reached(standby, 0)
    proxy = job.manager.wait_for_proxy(20.0)
    settled(proxy, 0)
    with QueryableStateClient(*proxy, fallback=[standby.address], timeout_s=20.0) as client:
        assert client.get(JOB, "totalAmount", KEYS[0]).epoch == 0
        assert client.get(JOB, "totalAmount", KEYS[0], isolation="committed").get() == 1
        job.stop()
        view = client.get(JOB, "totalAmount", KEYS[0], isolation="committed")
        assert (view.get(), view.epoch) == (1, 0)
        assert [state["name"] for state in client.states(JOB)] == ["totalAmount"]


def test_state_of_another_type_is_served_when_its_program_has_committed(job_of: JobOf, standby_of: StandbyOf) -> None:
    job = job_of(Totals())
    feed(job, 0)
    standby = standby_of()
    job.stop()
    job = job_of(FloatTotals())
    feed(job, 1, commit=False)
    assert total(standby.address) == (1, 0)
    assert type(total(standby.address)[0]) is int
    job.manager.finalize(QUERY, 1)
    assert total(standby.address, min_epoch=1) == (2.0, 1)
    with QueryableStateClient(*standby.address) as client:
        types = {state["name"]: state["value_type"] for state in client.states(JOB)}
        assert types == {"totalAmount": "float", "lastAmount": "int"}
        assert client.get(JOB, "lastAmount", KEYS[0], isolation="committed").value() == 1
    assert type(total(standby.address)[0]) is float
    assert standby.status().fills == 2
    feed(job, 2)
    assert total(standby.address, min_epoch=2) == (3.0, 2)
    assert standby.status().fills == 2


def test_job_that_was_restored_is_served_from_its_first_committed_epoch(
    job_of: JobOf, standby_of: StandbyOf, tmp_path: Path
) -> None:
    job = job_of(Totals(), parallelism=2)
    feed(job, 0, 5)
    job.stop()
    standby = standby_of(tmp_path / "new")
    again = job_of(Totals(), checkpoint_dir=str(tmp_path / "new"), restore_from=str(tmp_path / "checkpoint"))
    feed(again, 0, commit=False, query="another")
    assert standby.status().epochs.get("it", -1) == -1
    again.manager.finalize("another", 0)
    reached(standby, 0)
    assert total(standby.address) == (6, 0)


def test_lost_log_of_a_subtask_is_reported_and_keeps_the_served_state(
    job_of: JobOf, standby_of: StandbyOf, tmp_path: Path
) -> None:
    job = job_of(Totals(), parallelism=2)
    feed(job, 0)
    standby = standby_of()
    job.stop()
    (lost,) = job.manager.checkpoint_dir.glob("it-*/*/00001")
    lost.rename(tmp_path / "lost")
    looks = standby.status().looks
    until(lambda: standby.status().looks > looks + 1, "the standby has looked")
    assert total(standby.address, max_staleness_s=20.0) == (1, 0), "it lacks nothing"
    other = standby_of()
    assert other.status().epochs == {"it": -1}
    assert "epoch logs of some of its key groups are missing" in str(other.status().failure)


def test_directory_that_is_gone_keeps_the_served_state(job_of: JobOf, standby_of: StandbyOf, tmp_path: Path) -> None:
    job = job_of(Totals())
    feed(job, 0)
    standby = standby_of()
    job.stop()
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    until(lambda: "no job.json any more" in str(standby.status().failure), "the loss is reported")
    assert total(standby.address) == (1, 0)
    (tmp_path / "elsewhere").rename(tmp_path / "checkpoint")
    until(lambda: standby.status().failure is None, "the directory can be read again")
    feed(job_of(Totals()), 1)
    assert total(standby.address, min_epoch=1) == (2, 1)


@pytest.mark.parametrize("from_epoch", [0, 1])
def test_poll_that_comes_when_the_directory_is_emptied_has_an_answer(
    job_of: JobOf, standby_of: StandbyOf, tmp_path: Path, from_epoch: int
) -> None:
    job = job_of(Totals())
    feed(job, 0)
    standby = standby_of()
    job.stop()
    shutil.rmtree(tmp_path / "checkpoint")
    with RawClient(standby.address) as client:
        found = poll(client, (JOB, "totalAmount"), from_epoch=from_epoch)
    if from_epoch == 0:
        assert isinstance(found, Failure)
        assert (found.code, dict(found.details)) == (FailureCode.COMPACTED, {"epoch": 0, "oldest_epoch": 1})
    else:
        assert isinstance(found, Changes) and found.next_epoch == 1


def test_directory_of_another_query_is_not_followed(job_of: JobOf, standby_of: StandbyOf, tmp_path: Path) -> None:
    job = job_of(Totals())
    for epoch in range(2):
        feed(job, epoch)
    standby = standby_of()
    job.stop()
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    job = job_of(Totals())
    for epoch in range(3):
        feed(job, epoch, 7, query="another")
    until(lambda: "another history of its state" in str(standby.status().failure), "the change is reported")
    assert total(standby.address) == (2, 1)


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_command_serves_until_sigterm(job_of: JobOf, tmp_path: Path, end: signal.Signals) -> None:
    job = job_of(EveryKind())
    feed(job, 0)
    job.stop()
    command = [sys.executable, "-m", "qstate.cli.main", "serve", str(tmp_path / "checkpoint"), "--port", "0"]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with subprocess.Popen(
        [
            *command,
            "--server-port",
            "0",
            "--interval",
            "0.05",
            "--descriptors",
            "tests.runtime.standby.functions:AGGREGATING",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch)},
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            port = int(line.split(" at 127.0.0.1:")[1].split(";")[0])
            until(lambda: answers(port), "the first look is over")
            assert total(("127.0.0.1", port)) == (1, 0)
            with QueryableStateClient("127.0.0.1", port) as client:
                assert client.get(JOB, "mean", KEYS[0], isolation="committed").get() == 1.0
            process.send_signal(end)
            assert process.wait(20.0) == 0
        finally:
            process.kill()
    assert list(scratch.iterdir()) == []


def answers(port: int) -> bool:
    with QueryableStateClient("127.0.0.1", port) as client:
        return JOB in client.jobs()
