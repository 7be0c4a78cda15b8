"""Laws of Spark's report that an epoch is committed: it takes effect, whenever a task manager receives it."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from qstate.backends.contract import Isolation
from qstate.checkpoint.manifest import JobManifest
from qstate.config import JobConfig
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.time.epoch_time import EpochTime, Reached
from qstate.operators.time.timers import FirstTimers
from qstate.runtime.control.addresses import Bootstrap
from qstate.runtime.control.rpc import RpcPeer
from qstate.runtime.control.secure_socket import SecureSocket
from qstate.runtime.job.declarations import Declaration
from qstate.runtime.relay.data_channel import FrameKind, RelayChannel, SessionRequest, TaskChannel
from qstate.runtime.serving.registry import StateRegistry
from qstate.runtime.tasks.subtask import Subtask
from qstate.runtime.tasks.subtask_place import Restart
from qstate.runtime.tasks.subtask_table import SubtaskTable
from tests.either_backend import EITHER_BACKEND
from tests.runtime.control.secure_pairs import secure_pair
from tests.runtime.job.functions import Totals
from tests.runtime.job.running_job import INPUT, JOB, OUTPUT, QUERY, end_of, rows_batch

UID = "it"


class StillClock:
    """A clock of the job manager for epochs whose time does not matter."""

    def begin(self, reached: Reached | None) -> EpochTime:
        return EpochTime(None, 0)

    def sealed(self, reached: Reached, first_timers: FirstTimers) -> None:
        """Nothing follows from it."""


class HeardAtSealed(TaskChannel):
    """The task manager's end of a session whose epoch is reported as committed as soon as SEALED has been sent."""

    def __init__(self, connection: SecureSocket, report: Callable[[], None]) -> None:
        super().__init__(connection)
        self._report = report

    def send(self, kind: FrameKind, payload: bytes | memoryview = b"") -> None:
        super().send(kind, payload)
        if kind is FrameKind.SEALED:
            self._report()


class TaskManagerAlone:
    """The subtasks of one task manager, in this process, and the driver's end of its control connection."""

    def __init__(self, directory: Path, backend: str) -> None:
        spec = OperatorSpec(
            uid=UID, job=JOB, function=Totals(), key_columns=("key",), input_schema=INPUT, output_schema=OUTPUT
        )
        self.directory = directory
        self.config = JobConfig(parallelism=1, backend=backend, checkpoint_dir=str(directory))
        self._closing = ExitStack()
        here, there = secure_pair()
        ignored: dict[str, Callable[..., Any]] = dict.fromkeys(
            ("register_states", "restored", "publish"), lambda *_: None
        )
        handlers: dict[str, Callable[..., Any]] = {
            **ignored,
            "operator": lambda *_: Declaration("", pickle.dumps(spec)),
            "history_of": lambda _: QUERY,
        }
        self._driver = RpcPeer(there, handlers).start()
        self._closing.callback(self._driver.close)
        self._peer = RpcPeer(here, {}).start()
        self._closing.callback(self._peer.close)
        self.subtasks = self.successor()

    def successor(self) -> SubtaskTable:
        """The subtasks of another task manager in its place."""
        bootstrap = Bootstrap(JOB, 0, 0, ("", 0), b"", self.config, str(self.directory), "", 0, 1, True)
        subtasks = SubtaskTable(
            bootstrap,
            self.directory / "scratch",
            StateRegistry(),
            self._peer,
        )
        self._closing.callback(subtasks.close)
        return subtasks

    def session(self, epoch: int, attempt: int, report: Callable[[], None] = lambda: None) -> None:
        """One attempt of an epoch, which adds 1 to the total of "a". `report` is called in the session's end."""
        ours, theirs = secure_pair()
        relay = RelayChannel(theirs, lambda: None)
        channel = HeardAtSealed(ours, report)
        try:
            batch = rows_batch(("a", 1))
            for kind, payload in (
                (FrameKind.SCHEMA, INPUT.serialize()),
                (FrameKind.BATCH, batch.serialize()),
                (FrameKind.END, end_of(batch)),
            ):
                assert not list(relay.exchange(kind, payload))
            request = SessionRequest(UID, 0, epoch, attempt, QUERY, "")
            self.opened(self.subtasks, Restart(epoch - 1, epoch)).run(request, channel, StillClock())
        finally:
            relay.close()
            channel.close()

    def opened(self, subtasks: SubtaskTable, restart: Restart) -> Subtask:
        subtask = subtasks.open(UID, 0, restart)
        assert subtask is not None
        return subtask

    def committed(self, subtasks: SubtaskTable) -> tuple[int, list[bytes | int | None]]:
        """The epoch that is shown as committed and what "a" has there."""
        (instance,) = self.opened(subtasks, Restart()).instances()
        epoch, found = instance.readers[Isolation.COMMITTED].get(instance.descriptor, None, ["a"])
        return epoch, list(found)

    def close(self) -> None:
        self._closing.close()


@pytest.fixture(params=EITHER_BACKEND)
def manager(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[TaskManagerAlone]:
    JobManifest(JOB, 128, (1,), {UID: QUERY}).write(tmp_path)
    opened = TaskManagerAlone(tmp_path, request.param)
    yield opened
    opened.close()


def test_epoch_that_is_committed_before_its_session_has_ended_becomes_final(manager: TaskManagerAlone) -> None:
    """The driver may get SEALED, commit and report that before the session's thread continues."""
    manager.session(0, attempt=1, report=lambda: manager.subtasks.finalize([UID], 0))
    assert manager.committed(manager.subtasks) == (0, [b"\x01"])


def test_epoch_that_is_committed_while_a_late_attempt_replays_it_becomes_final(manager: TaskManagerAlone) -> None:
    manager.session(0, attempt=1)
    manager.session(0, attempt=2, report=lambda: manager.subtasks.finalize([UID], 0))
    assert manager.committed(manager.subtasks) == (0, [b"\x01"])


def test_report_of_an_older_epoch_makes_no_newer_one_final(manager: TaskManagerAlone) -> None:
    manager.session(0, attempt=1)
    manager.session(1, attempt=2, report=lambda: manager.subtasks.finalize([UID], 0))
    assert manager.committed(manager.subtasks) == (0, [b"\x01"])
    manager.subtasks.finalize([UID], 1)
    manager.subtasks.finalize([UID], 0)
    assert manager.committed(manager.subtasks) == (1, [b"\x02"])
    manager.session(2, attempt=3)
    assert manager.committed(manager.subtasks) == (1, [b"\x02"])


def test_report_of_a_newer_epoch_makes_the_one_sealed_last_final(manager: TaskManagerAlone) -> None:
    """Spark commits epochs in their order."""
    manager.session(0, attempt=1)
    manager.subtasks.finalize([UID], 1)
    assert manager.committed(manager.subtasks) == (0, [b"\x01"])
    manager.session(1, attempt=2)
    assert manager.committed(manager.subtasks) == (1, [b"\x02"])


def test_epoch_that_is_committed_while_the_state_is_restored_becomes_final(manager: TaskManagerAlone) -> None:
    """A new task manager gets the final epoch, and the report of a newer epoch arrives before the state is open."""
    manager.session(0, attempt=1)
    manager.session(1, attempt=2)
    manager.subtasks.close()
    successor = manager.successor()
    successor.finalize([UID], 1)
    successor.restore({UID: 0})
    assert manager.committed(successor) == (1, [b"\x02"])
