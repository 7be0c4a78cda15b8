"""One operator subtask inside a task manager: operator, backend and epoch log, driven epoch by epoch.

Rules of this module: it turns sessions (an attempt of an epoch, its rows, its end) into calls of the operator, the
backend and the epoch log, in the order that makes every row count once. It knows channels as frames, not sockets.

    session opens    older than the newest one: fenced off. Else the session that runs is cut off, and when it has
                     let go, attempts decide: process (after a rollback if need be), or replay what was stored
    rows             the operator runs them; results go back at once and are kept for the seal
    end of input     commit -> seal (durable) -> SEALED. Sealing failed: `broken`, to be closed and opened anew
    anything else    the epoch is abandoned; the next attempt starts with a rollback
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from qstate.backends.catalog import open_backend
from qstate.backends.contract import Capability, Change, Isolation, StateBackend
from qstate.checkpoint.attempts import EpochAttempts, Process
from qstate.checkpoint.chain import LogIdentity
from qstate.checkpoint.epoch_log import EpochLog, OutputSpool
from qstate.config import JobConfig
from qstate.errors import FencedError, JobError
from qstate.keys import KeyGroupRange
from qstate.operators.context import Subtask as OperatorSubtask
from qstate.operators.operator import KeyedOperator, OperatorSpec
from qstate.runtime.data_channel import FrameKind, SessionRequest, TaskChannel
from qstate.runtime.registry import StateInstance

__all__ = ["Subtask", "SubtaskPlace"]

log = logging.getLogger(__name__)

#: How long a newer attempt waits for the user's function to come back from the row that it is in.
CUT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class SubtaskPlace:
    """Where a subtask stands: which job, which part of the key groups, which directories."""

    job: str
    subtask: int
    parallelism: int
    config: JobConfig
    checkpoint_dir: Path
    scratch_dir: Path

    @property
    def operator_subtask(self) -> OperatorSubtask:
        return OperatorSubtask(self.subtask, self.parallelism, self.config.max_parallelism)

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.operator_subtask.key_groups


class Subtask:
    """Opened with the state of the last sealed epoch. `run` serves one session at a time; a newer one cuts it off."""

    def __init__(self, spec: OperatorSpec, place: SubtaskPlace) -> None:
        self.spec = spec
        self._place = place
        self._identity = LogIdentity(
            place.job, spec.uid, place.subtask, place.parallelism, place.config.max_parallelism
        )
        self._gate = threading.Lock()
        self._busy = threading.Lock()
        self._current: TaskChannel | None = None
        self._newest = (-1, -1)
        self._closed = False
        self._sealed_by: tuple[int, int] | None = None
        #: The backend holds an epoch that could not be made durable: close this object and open another.
        self.broken = False
        self._restore()

    def instances(self) -> list[StateInstance]:
        """The queryable states as the server registers them."""
        capabilities = self._backend.capabilities
        readers = {Isolation.LIVE: self._backend.reader(Isolation.LIVE)}
        if Capability.COMMITTED_READS in capabilities:
            readers[Isolation.COMMITTED] = self._backend.reader(Isolation.COMMITTED)
        return [
            StateInstance(
                self._place.job,
                descriptor,
                self.spec.key_types,
                self._place.key_groups,
                self._place.config.max_parallelism,
                capabilities,
                readers,
            )
            for descriptor in self._operator.descriptors
            if descriptor.queryable_name is not None
        ]

    def run(self, request: SessionRequest, channel: TaskChannel) -> None:
        """Serve one session to its end.

        Raises `FencedError` for an attempt that is too old, `JobError` for what the user has to mend, and
        `ConnectionError` when the relay went away or was cut off. The epoch is abandoned in every such case.
        """
        with self._turn(request, channel) as decision:
            channel.send(FrameKind.SCHEMA, self.spec.output_schema.serialize())
            if isinstance(decision, Process):
                self._process(request, channel, decision)
            else:
                self._replay(request, channel)
            channel.send(FrameKind.SEALED)

    def finalize(self, epoch: int) -> None:
        """Spark has committed the epoch. Ignored unless it is the one sealed last and nothing runs."""
        if self._busy.acquire(blocking=False):
            try:
                if self._attempts.sealed == epoch and not (self._closed or self.broken):
                    self._backend.finalize(epoch)
            finally:
                self._busy.release()

    def close(self) -> None:
        """Cut the running session off and free everything. Idempotent; what the function's close() raises is logged."""
        with self._gate:
            if self._current is not None:
                self._current.cut()
        if not self._busy.acquire(timeout=CUT_TIMEOUT_S):
            log.warning("operator %s subtask %d is still in the user's function", self.spec.uid, self._place.subtask)
            return
        try:
            if not self._closed:
                self._closed = True
                self._free()
        finally:
            self._busy.release()

    def _free(self) -> None:
        try:
            self._operator.close()
        except (Exception, SystemExit) as exc:
            log.warning("operator %s subtask %d: %s", self.spec.uid, self._place.subtask, exc)
        self._backend.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- one session ------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, request: SessionRequest, channel: TaskChannel) -> Iterator[object]:
        """Take the subtask over for one attempt, cutting an older one off.

        What that one has sealed by the time it lets go counts: so attempts are asked only then.
        """
        with self._gate:
            self._fence(request)
            if self._current is not None:
                self._current.cut()
            self._newest = (request.epoch, request.attempt)
            self._current = channel
        try:
            if not self._busy.acquire(timeout=CUT_TIMEOUT_S):
                raise JobError(
                    f"operator {self.spec.uid!r} subtask {self._place.subtask}: an older attempt is still inside the "
                    f"user's function after {CUT_TIMEOUT_S:.0f} s; find out what it waits for"
                )
            try:
                self._check_current(request, channel)
                if self._closed or self.broken:
                    raise ConnectionError("the subtask is being opened anew from its epoch log")
                yield self._attempts.open(request.epoch, request.attempt)
            finally:
                self._busy.release()
        finally:
            with self._gate:
                if self._current is channel:
                    self._current = None

    def _fence(self, request: SessionRequest) -> None:
        """Refuse whoever may not cut off what runs."""
        mine = (request.epoch, request.attempt)
        if mine < self._newest or (mine == self._newest and self._current is not None):
            raise FencedError(
                f"attempt {request.attempt} of epoch {request.epoch} came after attempt {self._newest[1]} of epoch "
                f"{self._newest[0]}"
            )

    def _check_current(self, request: SessionRequest, channel: TaskChannel) -> None:
        with self._gate:
            if self._current is not channel:
                raise FencedError(f"attempt {request.attempt} of epoch {request.epoch} was cut off by a newer one")

    def _process(self, request: SessionRequest, channel: TaskChannel, decision: Process) -> None:
        output: OutputSpool | None = None
        try:
            if decision.rollback:
                self._backend.rollback()
            if decision.gap:
                self._skipped(request)
            self._log.drop_output(before_epoch=request.epoch)
            self._backend.begin(request.epoch)
            output = self._log.begin_output()
            for batch in self._results(channel):
                frame = batch.serialize()
                output.append(frame)
                channel.send(FrameKind.OUTPUT, memoryview(frame))
            self._check_current(request, channel)
            changes = self._backend.commit(request.epoch)
        except BaseException:
            self._abandon(request, output)
            raise
        self._seal(request, changes, output)

    def _skipped(self, request: SessionRequest) -> None:
        """Epochs are missing between the last sealed one and this one: their rows are not in the state."""
        what = (
            f"operator {self.spec.uid!r} subtask {self._place.subtask}: epoch {request.epoch} follows epoch "
            f"{self._attempts.sealed}, so the rows of the epochs between never reached its state"
        )
        if not self._place.config.allow_skipped_epochs:
            raise JobError(
                f"{what}. Either the sink does not evaluate its whole input (show(), take(), limit() in "
                "foreachBatch), or the query goes on from a checkpointLocation whose state this job does not have "
                "(checkpoint_dir). Mend that, start with a new checkpointLocation, or set allow_skipped_epochs=True "
                "to go on without those rows"
            )
        log.warning("%s; allow_skipped_epochs permits that", what)

    def _replay(self, request: SessionRequest, channel: TaskChannel) -> None:
        if self._sealed_by == (request.epoch, request.attempt):
            raise JobError(
                f"operator {self.spec.uid!r}: one task evaluated subtask {self._place.subtask} twice. Something after "
                "the operator merged its partitions, such as coalesce(); use repartition() there instead"
            )
        for frame in self._log.output(request.epoch):
            channel.send(FrameKind.OUTPUT, frame)

    def _results(self, channel: TaskChannel) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None
        while True:
            if channel.quiet():
                self._backend.publish()  # live queries see what came so far, however long the next row takes
            frame = channel.receive()
            if frame.kind is FrameKind.BATCH:
                yield from self._operator.process(pa.ipc.read_record_batch(pa.py_buffer(frame.payload), schema))
            elif frame.kind is FrameKind.SCHEMA:
                schema = pa.ipc.read_schema(pa.py_buffer(frame.payload))
            elif frame.kind is FrameKind.END:
                yield from self._operator.finish()
                return
            else:
                raise JobError(f"a relay sent {frame.kind.name} where rows were due")

    def _abandon(self, request: SessionRequest, output: OutputSpool | None) -> None:
        """Back to the last sealed epoch, at once: live queries must not see a failed epoch for longer than it ran."""
        try:
            self._operator.discard()
            self._backend.rollback()
            self._attempts.abandon(request.epoch, request.attempt)
        except BaseException:
            self.broken = True
            raise
        if output is not None:
            try:
                output.discard()
            except OSError as exc:  # the next opening of the log removes it
                log.warning("operator %s subtask %d: %s", self.spec.uid, self._place.subtask, exc)

    def _seal(self, request: SessionRequest, changes: Iterable[Change], output: OutputSpool) -> None:
        try:
            self._log.seal(request.epoch, changes, output)
            self._attempts.seal(request.epoch, request.attempt)
        except FencedError as exc:
            self.broken = True
            raise FencedError(str(exc), superseded=True) from exc
        except BaseException:
            self.broken = True
            raise
        self._sealed_by = (request.epoch, request.attempt)

    def _restore(self) -> None:
        """The log opened as its only writer, a fresh backend with the last sealed epoch, an operator on it."""
        place = self._place
        self._log = EpochLog.open(self._identity.directory_under(place.checkpoint_dir), self._identity)
        latest = self._log.latest()
        self._attempts = EpochAttempts(latest)
        place.scratch_dir.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix=f"backend-{place.subtask}-", dir=place.scratch_dir))
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._backend: StateBackend = open_backend(
                place.config.backend,
                key_groups=place.key_groups,
                max_parallelism=place.config.max_parallelism,
                directory=self._directory,
                options=place.config.backend_options,
            )
            undo.callback(self._backend.close)
            self._operator = KeyedOperator(self.spec, place.operator_subtask, self._backend)
            self._operator.open()
            undo.callback(self._operator.close)
            if latest is not None:
                self._backend.restore(latest, self._log.changes())
            undo.pop_all()
