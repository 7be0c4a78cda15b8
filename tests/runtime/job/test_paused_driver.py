"""Laws of a paused driver: its tasks wait for it, and its task managers end with their lease."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest

from qstate.operators.time.epoch_time import EpochTime
from qstate.runtime.control import secure_socket
from qstate.runtime.job.job_manager import JobManager
from tests.runtime.control.middleman import Relay
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import Background, RunningJob, rows_batch, until

JobOf = Callable[..., RunningJob]


class Gate(Relay):
    """A relay in front of a job manager. While shut, it accepts but does not answer, like a stopped process."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        super().__init__()

    def close(self) -> None:
        self.open.set()
        super().close()

    def carry(self, source: socket.socket, sink: socket.socket, direction: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.open.wait()
                sink.sendall(data)
        self.open.wait()
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """A gate in front of the job manager of every job of the test."""
    made = Gate()

    def address(manager: JobManager) -> tuple[str, int]:
        made.behind = (manager._host, manager._listener.port)
        return "127.0.0.1", made.port

    monkeypatch.setattr(JobManager, "address", property(address))
    yield made
    made.close()


def test_a_task_waits_for_a_paused_driver(gate: Gate, job_of: JobOf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secure_socket, "HANDSHAKE_TIMEOUT_S", 0.5)
    job = job_of(Totals())
    gate.open.clear()
    running = Background(lambda: job.epoch(0, rows_batch(("a", 1))))
    until(lambda: gate.connections > 2, "the relay tries again")
    gate.open.set()
    assert running.result() == [("a", 1)]


def test_a_task_manager_ends_with_its_lease_though_a_session_waits_for_the_driver(
    gate: Gate, job_of: JobOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = JobManager._begun
    pauses = threading.Event()

    def pause_at_begun(manager: JobManager, *args: Any) -> EpochTime:
        """Shut the gate before the answer, once."""
        if pauses.is_set():
            pauses.clear()
            gate.open.clear()
        return begun(manager, *args)

    monkeypatch.setattr(JobManager, "_begun", pause_at_begun)
    job = job_of(Totals(), lease_s=1.0)
    job.epoch(0, rows_batch(("a", 1)))
    process = psutil.Process(job.task_manager().pid)
    pauses.set()
    running = Background(lambda: job.epoch(1, rows_batch(("a", 2))))
    until(lambda: not gate.open.is_set(), "the session reports its begin to the driver")
    process.wait(15)
    gate.open.set()
    assert running.result() == [("a", 3)]
