"""Laws of a job with somebody on the path of its rows: every attack is found out, and every row counts once."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qstate.runtime.control.addresses import TaskManagerAddress
from qstate.runtime.job.job_manager import JobManager
from qstate.runtime.relay import relay as relay_module
from qstate.runtime.relay.data_channel import FrameKind, RelayChannel, open_channel
from tests.runtime.control.middleman import ATTACKS, Attack, Middleman
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import RunningJob, kill, rows_batch

JobOf = Callable[..., RunningJob]


class OnTheRows(Middleman):
    """A middleman between relays and the task manager of a job, who strikes after the next handshake."""

    def __init__(self, manager: TaskManagerAddress) -> None:
        # Less than one frame: so more bytes always follow, by which an attack is found out.
        super().__init__((manager.host, manager.data_port), piece_bytes=64)
        self.planned: dict[str, Attack] = {}

    def open(self, manager: TaskManagerAddress, secret: bytes, **options: Any) -> RelayChannel:
        """The relay's `open_channel`, on a path through here. Who is on the path has no way to a Unix socket."""
        channel = open_channel(replace(manager, data_port=self.port), secret, **{**options, "same_host": False})
        self.forward, self.backward = self.planned.pop("forward", None), self.planned.pop("backward", None)
        return channel


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[RunningJob], OnTheRows]]:
    """Lead the relays of a job through a middleman from now on."""
    met: list[OnTheRows] = []

    def lead(job: RunningJob) -> OnTheRows:
        met.append(OnTheRows(job.task_manager()))
        monkeypatch.setattr(relay_module, "open_channel", met[-1].open)
        return met[-1]

    yield lead
    for middleman in met:
        middleman.close()


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def __reduce__(self) -> tuple[Callable[[str, int], int], tuple[str, int]]:
        return os.open, (self._path, os.O_CREAT)


def frame(kind: FrameKind, payload: bytes) -> bytes:
    """As `data_channel` draws it."""
    return len(payload).to_bytes(8, "big") + bytes([kind]) + payload


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_the_rows_is_found_and_each_row_counts_once(
    name: str,
    direction: str,
    job_of: JobOf,
    between: Callable[[RunningJob], OnTheRows],
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    middleman = between(job)
    middleman.planned[direction] = ATTACKS[name]
    assert job.epoch(1, rows_batch(("a", 2), ("b", 5))) == [("a", 3), ("b", 5)]
    assert middleman.struck.is_set()
    log = caplog.text if direction == "backward" else job.log_text()
    assert "was changed on the way" in log or "connection was refused" in log, "the latter: the handshake's last bytes"
    assert job.totals("a", "b") == {"a": 3, "b": 5}
    assert job.epoch(2, rows_batch(("a", 1))) == [("a", 4)]


def test_an_added_pickle_is_unpickled_at_neither_end(
    job_of: JobOf, between: Callable[[RunningJob], OnTheRows], tmp_path: Path
) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    middleman = between(job)
    request = frame(FrameKind.OPEN, pickle.dumps(Touch(tmp_path / "request")))
    failure = frame(FrameKind.FAILED, pickle.dumps(Touch(tmp_path / "failure")))
    middleman.planned["forward"] = lambda data: request + data
    assert job.epoch(1, rows_batch(("a", 2))) == [("a", 3)]
    assert middleman.struck.is_set()
    middleman.struck.clear()
    middleman.planned["backward"] = lambda data: failure + data
    assert job.epoch(2, rows_batch(("a", 2))) == [("a", 5)]
    assert middleman.struck.is_set()
    assert not {"request", "failure"} & {entry.name for entry in tmp_path.iterdir()}


def test_a_job_goes_on_after_an_attack_on_its_control_connection(
    job_of: JobOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(Totals())
    job.epoch(0, rows_batch(("a", 1)))
    middleman = Middleman(job.manager.address)
    try:
        monkeypatch.setattr(JobManager, "address", (job.manager.address[0], middleman.port))
        first = job.task_manager()
        kill(first)
        second = job.successor_of(first)
        middleman.forward = ATTACKS["flips a bit"]  # of a heartbeat
        third = job.successor_of(second)
        assert "a control connection is closed: the data of this connection was changed on the way" in caplog.text
        middleman.backward = ATTACKS["flips a bit"]  # of its answer
        job.successor_of(third)
        assert job.log_text().count("a control connection is closed: the data of this connection was changed") == 1
        assert job.totals("a") == {"a": 1}
        assert job.epoch(1, rows_batch(("a", 2))) == [("a", 3)]
    finally:
        job.stop()
        middleman.close()
