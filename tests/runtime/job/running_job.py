"""A job without Spark: a real job manager, real task manager processes, and the relay driven with plain rows."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from qstate.config import JobConfig
from qstate.host.private_files import own_directory
from qstate.operators.functions import StreamFunction
from qstate.operators.operator_spec import OperatorSpec
from qstate.operators.time.epoch_time import EventTime
from qstate.runtime.client.sync_client import QueryableStateClient
from qstate.runtime.control.addresses import TaskManagerAddress
from qstate.runtime.control.launch import LOGS_PREFIX
from qstate.runtime.job.declarations import Declaration
from qstate.runtime.job.job_manager import JobManager
from qstate.runtime.relay.data_channel import SessionRequest
from qstate.runtime.relay.input_digest import InputDigest
from qstate.runtime.relay.relay import JobTicket, relay
from qstate.testing.inputs import HarnessInputs

JOB = "job"
QUERY = "query-1"
INPUT = pa.schema([("key", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("key", pa.string()), ("total", pa.int64())])


class RunningJob:
    """One job of one operator `it`, by default of one input. The test does Spark's part (epochs, attempts, tasks)."""

    def __init__(
        self,
        function: StreamFunction,
        *,
        input_schema: pa.Schema = INPUT,
        event_time: EventTime | None = None,
        inputs: HarnessInputs | None = None,
        **settings: Any,
    ) -> None:
        self._input_schema = input_schema
        self._event_times = () if event_time is None else (event_time,)
        self._inputs = inputs
        self.config = JobConfig(
            **{
                "parallelism": 1,
                "proxy_ports": "0",
                "server_ports": "0",
                **settings,
            }
        )
        self.manager = JobManager(JOB, self.config, parallelism=self.config.parallelism, host="127.0.0.1", local=True)
        #: The tokens of the last declarations.
        self.declarations: dict[str, str] = {}
        self.add_operator("it", function)
        self._attempts = itertools.count(1)

    def add_operator(
        self, uid: str, function: StreamFunction, running: Mapping[str, str | None] = MappingProxyType({})
    ) -> None:
        """Declare an operator; `running` maps the ids of running queries to their names."""
        fields: dict[str, Any] = {
            "key_columns": ("key",),
            "input_schema": self._input_schema,
            "event_times": self._event_times,
        }
        if self._inputs is not None:
            fields = self._inputs.spec_fields()
        spec = OperatorSpec(
            uid=uid,
            job=JOB,
            function=function,
            output_schema=OUTPUT,
            **fields,
        )
        declaration = Declaration(uuid4().hex, pickle.dumps(spec), spec.event_times, spec.keeps_time)
        self.manager.declare(uid, declaration, running)
        self.declarations[uid] = declaration.token

    def epoch(self, epoch: int, *batches: pa.RecordBatch, **settings: Any) -> list[tuple[str, int]]:
        """Run one task to its end and give the rows that it emitted."""
        return [row for batch in self.task(epoch, batches, **settings) for row in rows_of(batch)]

    def task(
        self,
        epoch: int,
        batches: Iterable[pa.RecordBatch],
        *,
        subtask: int = 0,
        query: str = QUERY,
        attempt: int | None = None,
        operator: str = "it",
        declaration: str | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The iterator that Spark reads: one attempt of one epoch, by default a new attempt."""
        number = next(self._attempts) if attempt is None else attempt
        token = self.declarations[operator] if declaration is None else declaration
        request = SessionRequest(operator, subtask, epoch, number, query, token)
        return relay(self.ticket(), request, map(hashed, batches))

    def ticket(self) -> JobTicket:
        return JobTicket(
            JOB,
            self.manager.address,
            self.manager.secret,
            self.config.start_timeout_s,
            self.config.replay_buffer_bytes,
        )

    def task_manager(self, timeout_s: float = 30.0) -> TaskManagerAddress:
        """Wait for the only task manager."""
        until(lambda: bool(self.manager.task_managers()), "a task manager registers", timeout_s)
        return self.manager.task_managers()[0]

    def successor_of(self, lost: TaskManagerAddress, timeout_s: float = 30.0) -> TaskManagerAddress:
        """Wait for the successor of a lost task manager."""

        def came() -> bool:
            return any(
                manager.index == lost.index and manager.incarnation > lost.incarnation
                for manager in self.manager.task_managers()
            )

        until(came, "another task manager registers", timeout_s)
        return next(manager for manager in self.manager.task_managers() if manager.index == lost.index)

    def totals(self, *keys: str, timeout_s: float = 20.0) -> dict[str, int | None]:
        """The state, read by a client over TCP."""
        with QueryableStateClient(*self.manager.wait_for_proxy(timeout_s), timeout_s=timeout_s) as client:
            found = client.get_many(JOB, "totalAmount", list(keys))
            return {key: None if view is None else view.get() for key, view in found.items()}

    def epoch_log(self, subtask: int = 0) -> Path:
        """The directory of a subtask's epoch log."""
        (directory,) = self.manager.checkpoint_dir.glob(f"it-*/*/{subtask:05d}")
        return directory

    def wait_for_snapshots(self) -> None:
        """Wait until no snapshot is being written."""
        for manager in self.manager.task_managers():
            process = psutil.Process(manager.pid)
            until(lambda process=process: not process.children(), "the snapshot's process ends")

    def logs(self) -> list[Path]:
        """The task managers' log files."""
        directory = Path(self.config.log_dir) if self.config.log_dir else own_directory(LOGS_PREFIX)
        return sorted(directory.glob(f"{JOB}-*.log"))

    def log_text(self) -> str:
        return "".join(file.read_text() for file in self.logs())

    def stop(self) -> None:
        self.manager.stop()


def rows_batch(*rows: tuple[str, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([key for key, _ in rows], pa.string()), pa.array([n for _, n in rows], pa.int64())], schema=INPUT
    )


def hashed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with a hash of each row as its last column."""
    columns = [pc.cast(column, pa.string()) for column in batch.columns]
    rows = pc.binary_join_element_wise(*columns, "|", null_handling="replace").dictionary_encode()
    hashes = np.array([xxh64_intdigest(row.as_py().encode()) for row in rows.dictionary], np.uint64).view(np.int64)
    return batch.append_column("hash", pa.array(hashes).take(rows.indices))


def end_of(*batches: pa.RecordBatch) -> bytes:
    """The payload of END after these batches."""
    digest = InputDigest()
    for batch in batches:
        digest.take(hashed(batch))
    return digest.to_bytes()


def many_rows(rows: int, keys: int = 100) -> pa.RecordBatch:
    return rows_batch(*((f"k{number % keys}", 1) for number in range(rows)))


def rows_of(batch: pa.RecordBatch) -> list[tuple[str, int]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def until(condition: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Wait for a condition that another thread or process fulfils; fail with its description."""
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        pause.wait(0.02)


def kill(manager: TaskManagerAddress) -> None:
    """kill -9, and wait until the process is gone."""
    process = psutil.Process(manager.pid)
    os.kill(manager.pid, signal.SIGKILL)
    process.wait(10)


class Background:
    """A call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ended(self, within_s: float) -> bool:
        """Whether the call has ended, now or within a bounded wait."""
        self._thread.join(within_s)
        return not self._thread.is_alive()

    def result(self, timeout_s: float = 60.0) -> Any:
        """The result of the call; raises its exception."""
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"no result within {timeout_s} s"
        if self._error is not None:
            raise self._error
        return self._result

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as exc:
            self._error = exc
