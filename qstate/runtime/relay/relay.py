"""The relay: carries one task's rows to the subtask's task manager and its results back.

Rules of this module: it runs in a Spark Python worker but does not know Spark. It keeps no state beyond its task,
except the addresses of the task managers that it used last. It starts a task manager when the job manager orders it.

Surviving the loss of a task manager. Spark's `local[N]` does not retry tasks, so the relay keeps the epoch's
input (up to `replay_buffer_bytes`) and sends it again to the next incarnation, which has restored the last sealed
epoch. Spark has already received some results, and they cannot be taken back. So the new incarnation must first
produce the same results, byte for byte. A function that is not deterministic fails that comparison, and the task
fails: Spark then retries the whole task, or stops the query, and nothing is counted twice.

The last column of the batches has a hash of each row. The relay removes that column, adds the hashes up
(`qstate.runtime.relay.input_digest`) and sends their sum after the rows.
"""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import psutil
import pyarrow as pa
from xxhash import xxh3_128_digest

from qstate.errors import FencedError, JobError
from qstate.runtime.control.addresses import Bootstrap, TaskManagerAddress, host_id
from qstate.runtime.control.daemonize import KILLED_STATUS
from qstate.runtime.control.launch import StartedTaskManager, start_task_manager
from qstate.runtime.control.rpc import RpcPeer, connect
from qstate.runtime.control.secure_socket import SecureSocket
from qstate.runtime.relay.data_channel import Frame, FrameKind, RelayChannel, SessionRequest, open_channel
from qstate.runtime.relay.input_digest import InputDigest

__all__ = ["JobTicket", "relay"]

log = logging.getLogger(__name__)

#: How often a relay checks whether the process that it started still runs.
START_POLL_S = 0.25
#: How many task managers one task may lose before the relay gives up and Spark has to retry the task.
MAX_LOSSES = 5
#: The pause before the second repetition; it doubles with each.
RECONNECT_PAUSE_S = 0.025
#: The low bits of an attempt number that count the relay's own reconnections.
RECONNECTION_BITS = 8
#: The least time that a started process gets to end with its status.
REAP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class JobTicket:
    """What a relay needs to connect to its job. Sent inside Spark's own closure, with the secret."""

    job: str
    job_manager: tuple[str, int]
    secret: bytes = field(repr=False)
    start_timeout_s: float
    replay_buffer_bytes: int


#: The last task manager by job secret and subtask: saves most tasks the call to the job manager.
_known: dict[tuple[bytes, int], TaskManagerAddress] = {}


def relay(ticket: JobTicket, request: SessionRequest, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The results of one task, for batches whose last column is an int64 hash of each row.

    Raises the task manager's error, or `JobError` when no task manager can be reached.
    """
    with closing(_RelaySession(ticket, request)) as session:
        yield from session.run(iter(batches))


class _RelaySession:
    """One task: the input kept for a replay, the digests of the results so far, and the current channel."""

    def __init__(self, ticket: JobTicket, request: SessionRequest) -> None:
        self._ticket = ticket
        self._request = replace(request, attempt=request.attempt << RECONNECTION_BITS)
        self._channel: RelayChannel | None = None
        self._incarnation = 0
        self._losses = 0
        self._kept: list[tuple[FrameKind, Any]] = []
        self._kept_bytes = 0
        self._replayable = True
        self._given: list[bytes] = []
        self._to_match = 0
        self._schema: pa.Schema | None = None
        self._sealed = False

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send every batch, then the end; yields results as they arrive."""
        for kind, payload in self._frames(batches):
            self._keep(kind, payload)
            try:
                yield from self._deliver(kind, payload)
            except ConnectionError as exc:
                if not self._sealed:
                    yield from self._recover(exc)
        while not self._sealed:
            try:
                assert self._channel is not None
                frames = self._channel.await_frames()
            except ConnectionError as exc:
                yield from self._recover(exc)
                continue
            yield from self._take(frames)

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _frames(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[FrameKind, Any]]:
        digest = InputDigest()
        yield FrameKind.OPEN, b""
        for number, batch in enumerate(map(digest.take, batches)):
            if number == 0:
                yield FrameKind.SCHEMA, batch.schema.serialize()
            yield FrameKind.BATCH, batch.serialize()
        yield FrameKind.END, digest.to_bytes()

    def _keep(self, kind: FrameKind, payload: Any) -> None:
        self._kept_bytes += len(payload)
        if self._kept_bytes > self._ticket.replay_buffer_bytes:
            self._replayable = False
            self._kept.clear()
        if self._replayable:
            self._kept.append((kind, payload))

    def _deliver(self, kind: FrameKind, payload: Any) -> Iterator[pa.RecordBatch]:
        """Send a frame; yields the results that arrive meanwhile."""
        if kind is FrameKind.OPEN:
            self._connect()
            return
        assert self._channel is not None
        for frame in self._channel.exchange(kind, payload):
            yield from self._take([frame])

    def _recover(self, cause: ConnectionError) -> Iterator[pa.RecordBatch]:
        """Send the epoch so far to the next incarnation again, until that succeeds or is impossible."""
        while True:
            self.close()
            self._losses += 1
            if not self._replayable or self._losses > MAX_LOSSES:
                raise JobError(
                    f"the task manager of {self._request.operator!r} subtask {self._request.subtask} was lost "
                    f"({cause}) and the relay cannot repeat the epoch itself: "
                    + (f"{self._losses} were lost" if self._replayable else "its input is over replay_buffer_bytes")
                    + ". Spark can, where it retries tasks: local[N,4] or a cluster; local[N] does not"
                ) from cause
            log.warning("task manager lost (%s): repeating the epoch", cause)
            if self._losses > 1:  # the job manager may not yet know that the task manager is ending
                time.sleep(RECONNECT_PAUSE_S * (1 << self._losses))
            self._to_match = len(self._given)
            try:
                for kind, payload in list(self._kept):
                    yield from self._deliver(kind, payload)
            except ConnectionError as exc:
                cause = exc
                if not self._sealed:
                    continue
            return

    def _take(self, frames: list[Frame]) -> Iterator[pa.RecordBatch]:
        for frame in frames:
            if frame.kind is FrameKind.OUTPUT:
                yield from self._take_output(frame.payload)
            elif frame.kind is FrameKind.SCHEMA:
                self._schema = pa.ipc.read_schema(pa.py_buffer(frame.payload))
            elif frame.kind is FrameKind.SEALED:
                if self._to_match:
                    raise self._not_repeatable()
                self._sealed = True
            else:
                raise pickle.loads(frame.payload)

    def _take_output(self, payload: Any) -> Iterator[pa.RecordBatch]:
        digest = xxh3_128_digest(payload)
        if self._to_match:
            if self._given[-self._to_match] != digest:
                raise self._not_repeatable()
            self._to_match -= 1
            return
        self._given.append(digest)
        yield pa.ipc.read_record_batch(pa.py_buffer(payload), self._schema)

    def _not_repeatable(self) -> JobError:
        return JobError(
            f"operator {self._request.operator!r}: the task manager was lost after results had gone to Spark, and "
            "the repeated epoch gave other results, so the function is not deterministic. Nothing was counted "
            "twice; the task must be retried by Spark as a whole: use local[N,4] or a cluster"
        )

    # -- finding the task manager -----------------------------------------------------------------------------

    def _connect(self) -> None:
        """Open a session with the subtask's task manager; start it if necessary."""
        known = _known.get(self._cache_key) if self._losses == 0 else None
        if known is not None:
            try:
                self._open(known)
                return
            except ConnectionError:
                _known.pop(self._cache_key, None)
                self._incarnation = known.incarnation
        manager = self._acquire()
        _known[self._cache_key] = manager
        self._open(manager)

    @property
    def _cache_key(self) -> tuple[bytes, int]:
        return self._ticket.secret, self._request.subtask

    def _open(self, manager: TaskManagerAddress) -> None:
        self.close()
        self._incarnation = manager.incarnation
        self._channel = open_channel(
            manager, self._ticket.secret, same_host=manager.host_id == host_id(), silent=self._check_current
        )
        attempt = self._request.attempt + min(self._losses, (1 << RECONNECTION_BITS) - 1)
        opening = pickle.dumps(replace(self._request, attempt=attempt))
        for frame in self._channel.exchange(FrameKind.OPEN, opening):
            raise ConnectionError(f"the task manager answered {frame.kind.name} before the session was open")

    def _check_current(self) -> None:
        """Called when the task manager is silent: raise `_Lost` unless it is still the current one."""
        with self._job_manager() as job_manager:
            if not job_manager.call("is_current", self._request.subtask, self._incarnation):
                raise _Lost("the task manager missed its lease and was given up")

    def _acquire(self) -> TaskManagerAddress:
        """The subtask's task manager; this process starts it if the job manager orders it."""
        ticket = self._ticket
        started: StartedTaskManager | None = None
        with self._job_manager() as job_manager:
            deadline = time.monotonic() + ticket.start_timeout_s
            try:
                while time.monotonic() < deadline:
                    found = job_manager.call("acquire", self._request.subtask, self._incarnation, START_POLL_S)
                    if isinstance(found, TaskManagerAddress):
                        return found
                    if isinstance(found, Bootstrap):
                        started = _start(replace(found, executor_pid=_executor_pid()))
                    elif started is not None and (status := started.process.poll()):
                        job_manager.call("start_failed", self._request.subtask, started.order.incarnation)
                        if status != KILLED_STATUS:
                            raise JobError(f"a task manager ended as it started; {_log_of(started)}")
                        started.log.close()
                        started = None
                late = f"; {_log_of(started)}" if started is not None else ""
            finally:
                _reap(started, max(REAP_TIMEOUT_S, deadline - time.monotonic()))
        raise JobError(
            f"no task manager of job {ticket.job!r} came up within {ticket.start_timeout_s} s (start_timeout_s){late}"
        )

    @contextmanager
    def _job_manager(self) -> Iterator[RpcPeer]:
        """A connection to the job manager. Its failure is a `JobError`, unlike the loss of a task manager."""
        ticket = self._ticket
        try:
            with closing(RpcPeer(self._reach_job_manager(), {}).start()) as peer:
                yield peer
        except _Lost:
            raise
        except (OSError, FencedError) as exc:
            host, port = ticket.job_manager
            raise JobError(
                f"the job manager of job {ticket.job!r} does not answer at {host}:{port} ({exc}): the job has been "
                "stopped, its driver is gone, or this host cannot reach that address (job_manager_host); start a new "
                "Job to run its queries again"
            ) from exc

    def _reach_job_manager(self) -> SecureSocket:
        """Connect to the driver. A driver that accepts but does not answer is paused, not dead: keep waiting.

        Otherwise Spark would retry the task a few times during the pause, and then stop the query.
        """
        deadline = time.monotonic() + self._ticket.start_timeout_s
        while True:
            try:
                return connect(*self._ticket.job_manager, self._ticket.secret)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise


class _Lost(ConnectionError):
    """The task manager is no longer the current one."""


def _start(order: Bootstrap) -> StartedTaskManager:
    try:
        return start_task_manager(order)
    except OSError as exc:
        raise JobError(f"task manager {order.index} cannot be started on {host_id()}: {exc}") from exc


def _reap(started: StartedTaskManager | None, timeout_s: float) -> None:
    """Wait for the process that started a task manager; it ends when the task manager is up or has failed."""
    if started is None:
        return
    started.log.close()
    try:
        started.process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        log.warning("task manager %d is still restoring its state", started.order.index)


def _log_of(started: StartedTaskManager) -> str:
    return f"its log, {started.log.path} on {host_id()}, ends with:\n{started.log.tail()}"


def _executor_pid() -> int:
    """The JVM that this worker belongs to; the worker's parent when there is no JVM above it."""
    for parent in psutil.Process().parents():
        if parent.name().startswith("java"):
            return int(parent.pid)
    return os.getppid()
