"""One operator subtask inside a task manager: operator, backend and epoch log, driven epoch by epoch.

Rules of this module: it turns sessions (an attempt of an epoch, its rows, its end) into calls of the operator, the
backend and the epoch log, in the order that makes every row count once. It knows channels as frames, not sockets.

    session opens    older than the newest one: refused (fenced). Else the running session is cut off, and when it has
                     ended, `attempts` decides: process (after a rollback if necessary), or replay the stored results
    replay           read all rows and compare them with the sealed ones; then send the stored results
    rows             the operator processes them; results are sent at once and kept for the seal
    end of input     commit -> seal (durable) -> SEALED. If sealing fails: `broken`, to be closed and reopened
    anything else    the epoch is abandoned; the next attempt starts with a rollback
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from qstate.backends.catalog import open_backend
from qstate.backends.change_blocks import chained
from qstate.backends.contract import Capability, Change, Isolation, StateBackend
from qstate.backends.replay import replay_epoch
from qstate.checkpoint.log.attempts import EpochAttempts, Process, Replay
from qstate.checkpoint.log.chain import LogIdentity, Part, Snapshot, read_chain
from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.checkpoint.log.epoch_log import EpochLog, OutputSpool
from qstate.checkpoint.log.file_facts import readable
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.checkpoint.manifest import MANIFEST_FILE, JobManifest, subtask_directory
from qstate.checkpoint.sources.opening import DeclaredStates, convert_log, open_epoch_log
from qstate.checkpoint.sources.origins import origin_of
from qstate.checkpoint.sources.superseded_layouts import without_unused_layouts
from qstate.checkpoint.storage.directory import Directory
from qstate.config import JobConfig
from qstate.errors import DamagedCheckpoint, FencedError, JobError, SerializationError
from qstate.forks import end_forked_child
from qstate.keys import KeyGroupRange
from qstate.operators.context import Subtask as OperatorSubtask
from qstate.operators.operator import KeyedOperator, OperatorSpec
from qstate.operators.steps import step_in
from qstate.runtime.control.addresses import RestoredSubtask
from qstate.runtime.control.scratch_directory import temporary_directory
from qstate.runtime.job.directory_owner import check_owner
from qstate.runtime.job.replayed_epoch import ReplayedEpoch, older_than_state
from qstate.runtime.relay.data_channel import FrameKind, SessionRequest, TaskChannel
from qstate.runtime.serving.registry import StateInstance
from qstate.runtime.tasks.session_input import SessionInput
from qstate.runtime.tasks.snapshotter import Snapshotter

__all__ = ["Restart", "Subtask", "SubtaskPlace"]

log = logging.getLogger(__name__)

#: How long a newer attempt waits for the user's function to return from its current row.
CUT_TIMEOUT_S = 30.0
#: How often a log is opened before a file that cannot be read counts as damaged.
MOST_OPENINGS = 2


@dataclass(frozen=True, slots=True)
class SubtaskPlace:
    """The place of a subtask: its job, its part of the key groups, and its directories."""

    job: str
    subtask: int
    parallelism: int
    config: JobConfig
    checkpoint_dir: Directory
    owner_token: str
    layout: int
    scratch_directory: Path

    @property
    def operator_subtask(self) -> OperatorSubtask:
        return OperatorSubtask(self.subtask, self.parallelism, self.config.max_parallelism)

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.operator_subtask.key_groups

    def identity(self, operator: str) -> LogIdentity:
        return LogIdentity(self.job, operator, self.subtask, self.parallelism, self.config.max_parallelism)

    def log_directory(self, operator: str) -> Directory:
        return subtask_directory(self.checkpoint_dir, operator, self.layout, self.subtask)

    def begins_elsewhere(self, operator: str) -> bool:
        """Whether the state comes from another layout, a savepoint or another job's checkpoint."""
        if read_chain(self.log_directory(operator), self.identity(operator)) is not None:
            return False
        manifest = self.manifest()
        return len(manifest.layouts) > 1 or manifest.restored_from is not None

    def other_results(self) -> str:
        """Where the results of an epoch are that is not in this subtask's own log, as the end of a sentence."""
        used = without_unused_layouts(self.checkpoint_dir, self.manifest())
        if used.layout == self.layout:
            return "its results are stored for another parallelism, or elsewhere"
        return (
            f"its results are stored for another parallelism: start the job with parallelism={used.parallelism} until "
            "the query has repeated the epoch"
        )

    def manifest(self) -> JobManifest:
        found = JobManifest.read(self.checkpoint_dir)
        if found is None:
            raise JobError(
                f"{self.checkpoint_dir.path} has no {MANIFEST_FILE} on this host, but the driver has written one: "
                "checkpoint_dir must be on storage that the driver and all executors share"
            )
        return found


@dataclass(frozen=True, slots=True)
class Restart:
    """What is known when a subtask is opened: `final`, the newest epoch that is known to be committed, and
    `first_epoch`, the epoch of the session that opens it (None without a session)."""

    final: int = -1
    first_epoch: int | None = None


class Subtask:
    """Opened with the state of the last sealed epoch. `run` serves one session at a time; a newer one cuts it off."""

    def __init__(self, spec: OperatorSpec, place: SubtaskPlace, restart: Restart) -> None:
        self.spec = spec
        self._place = place
        self._pid = os.getpid()
        self._gate = threading.Lock()
        self._busy = threading.Lock()
        self._current: TaskChannel | None = None
        self._newest = (-1, -1)
        self._closed = False
        self._sealed_by: tuple[int, int] | None = None
        #: The newest epoch that Spark is reported to have committed.
        self._reported = -1
        #: When the newest epoch was sealed, by `time.monotonic` (minus infinity when unknown); None once it is known
        #: to be committed.
        self._uncommitted_since: float | None = None
        #: The backend holds an epoch that is not durable: close this object and open another.
        self.broken = False
        #: The state that it began with, None for none.
        self.restored: RestoredSubtask | None = None
        self._holds_committed_state = False
        self._restore(restart)

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
                lambda: self._uncommitted_since,
                self._holds_committed_state,
            )
            for descriptor in self._operator.descriptors
            if descriptor.queryable_name is not None
        ]

    def run(
        self, request: SessionRequest, channel: TaskChannel, begun: Callable[[], object], *, committed: bool = False
    ) -> None:
        """Serve one session to its end; `begun` is called when the subtask begins the epoch.

        `committed`: Spark has already committed the epoch, so it may only be replayed.
        Raises `FencedError` for an attempt that is too old, `JobError` for an error that the user has to fix, and
        `ConnectionError` when the connection to the relay ended or was cut off. In all cases the epoch is abandoned.
        """
        replayed = ReplayedEpoch(
            self.spec.uid, self._place.subtask, request.epoch, self._place.checkpoint_dir.path, committed
        )
        with self._turn(request, channel):
            decision = self._decided(request, replayed)
            channel.send(FrameKind.SCHEMA, self.spec.output_schema.serialize())
            if isinstance(decision, Process):
                try:
                    self._process(request, channel, decision, begun)
                except SerializationError as exc:  # the error names the state and the key
                    raise SerializationError(
                        f"operator {self.spec.uid!r} subtask {self._place.subtask}: {exc}"
                    ) from exc
            else:
                self._replay(request, channel, replayed)
            channel.send(FrameKind.SEALED)

    def finalize(self, epoch: int) -> None:
        """Spark has committed this epoch and all before: make them final now, or when the running session has ended."""
        with self._gate:
            self._reported = max(self._reported, epoch)
        self._make_final()

    def close(self) -> None:
        """Cut the running session off and free everything. Idempotent; an error of the function's close() is logged."""
        with self._gate:
            if self._current is not None:
                self._current.cut()
        if not self._busy.acquire(timeout=CUT_TIMEOUT_S):
            log.warning(
                "operator %s subtask %d is still in the user's function%s",
                self.spec.uid,
                self._place.subtask,
                self._position(),
            )
            return
        try:
            if not self._closed:
                self._closed = True
                self._free()
        finally:
            self._busy.release()

    def _position(self) -> str:
        """Where the user's function is, for the end of a sentence; empty when it has returned."""
        step = step_in(self._operator)
        return "" if step is None else f", in {step.where}; it is at:\n{step.stack()}"

    def _make_final(self) -> None:
        """Make the epoch sealed last final if it is reported as committed.

        Called after each report and after each session: when both happen at the same time, one of them sees the other.
        The lock is taken only when an epoch is due; otherwise a report could find it taken for nothing, and be lost.
        """
        if self._due() is not None and self._busy.acquire(blocking=False):
            try:
                epoch = self._due()
                if epoch is not None and not (self._closed or self.broken):
                    self._backend.finalize(epoch)
                    self._uncommitted_since = None
            finally:
                self._busy.release()

    def _due(self) -> int | None:
        """The epoch sealed last, when it is reported as committed and not final yet."""
        sealed = self._attempts.sealed
        if sealed is None or sealed > self._reported or self._uncommitted_since is None:
            return None
        return sealed

    def _free(self) -> None:
        try:
            self._operator.close()
        except (Exception, SystemExit) as exc:
            log.warning("operator %s subtask %d: %s", self.spec.uid, self._place.subtask, exc, exc_info=exc)
        self._snapshotter.close()
        self._backend.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    # -- one session ------------------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, request: SessionRequest, channel: TaskChannel) -> Iterator[None]:
        """Take the subtask over for one attempt, cutting an older one off.

        The older attempt may still seal its epoch before it ends, so `attempts` decides only afterwards.
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
                    f"user's function after {CUT_TIMEOUT_S:.0f} s{self._position()}"
                )
            try:
                self._check_current(request, channel)
                if self._closed or self.broken:
                    raise ConnectionError("the subtask is being reopened from its epoch log")
                yield
            finally:
                self._busy.release()
                self._make_final()
        finally:
            with self._gate:
                if self._current is channel:
                    self._current = None

    def _decided(self, request: SessionRequest, replayed: ReplayedEpoch) -> Process | Replay:
        """Whether to process or replay the epoch. Raises `JobError` when the state is newer, else as `attempts`."""
        epoch, sealed = request.epoch, self._attempts.sealed
        if self._found is not None and epoch < self._found:
            why = f"epoch {self._found} is sealed already"
            raise older_than_state(self.spec.uid, epoch, replayed.checkpoint_dir, why)
        if replayed.committed and (sealed is None or sealed < epoch or not self._log.has_output(sealed)):
            raise replayed.refused("its results are not stored any more")
        return self._attempts.open(epoch, request.attempt)

    def _fence(self, request: SessionRequest) -> None:
        """Refuse a session that is not newer than the newest one."""
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

    def _process(
        self, request: SessionRequest, channel: TaskChannel, decision: Process, begun: Callable[[], object]
    ) -> None:
        output: OutputSpool | None = None
        try:
            if decision.rollback:
                self._rollback()
            if decision.gap:
                self._skipped(request)
            if self._log.unconverted:
                convert_log(self._log, self._declared)  # the epoch sealed last is committed now
            begun()  # records the epoch before as final; only then may its results be dropped
            self._log.drop_output(before_epoch=request.epoch)
            if self._attempts.sealed is not None and decision.rollback is False:
                self._snapshotter.epoch_is_final(self._attempts.sealed)
            self._backend.begin(request.epoch)
            self._uncommitted_since = None
            output = self._log.begin_output()
            rows = SessionInput(channel, self.spec.input_schema)
            for batch in self._results(rows):
                frame = batch.serialize()
                output.append(frame)
                channel.send(FrameKind.OUTPUT, memoryview(frame))
            self._check_current(request, channel)
            lists = self._operator.lists.packed()
            changes = self._backend.commit(request.epoch)
        except BaseException:
            self._abandon(request, output)
            raise
        self._seal(request, changes, output, lists, rows.identity)

    def _skipped(self, request: SessionRequest) -> None:
        """Raise `JobError`, or warn: the rows of the epochs between the last sealed one and this one are missing."""
        what = (
            f"operator {self.spec.uid!r} subtask {self._place.subtask}: epoch {request.epoch} follows epoch "
            f"{self._attempts.sealed}, so the rows of the epochs between never reached its state"
        )
        if not self._place.config.allow_skipped_epochs:
            raise JobError(
                f"{what}. Either the sink does not evaluate its whole input (show(), take(), limit() in "
                "foreachBatch), or the query continues from a checkpointLocation whose state this job does not have "
                "(checkpoint_dir). Fix that, start with a new checkpointLocation, or set allow_skipped_epochs=True "
                "to continue without those rows"
            )
        log.warning("%s; allow_skipped_epochs permits that", what)

    def _replay(self, request: SessionRequest, channel: TaskChannel, replayed: ReplayedEpoch) -> None:
        if self._sealed_by == (request.epoch, request.attempt):
            raise JobError(
                f"operator {self.spec.uid!r}: one task evaluated subtask {self._place.subtask} twice. Something after "
                "the operator merged its partitions, such as coalesce(); use repartition() there instead"
            )
        given = SessionInput(channel, self.spec.input_schema).skip()
        stored = self._log.epoch_input(request.epoch)
        replayed.check(stored, given, allow_changed=self._place.config.allow_changed_input)
        for frame in self._log.output(request.epoch):
            channel.send(FrameKind.OUTPUT, frame)

    def _results(self, rows: SessionInput) -> Iterator[pa.RecordBatch]:
        # Publish before each wait: live queries see all rows so far, however long the next one takes.
        for batch in rows.batches(waiting=self._backend.publish):
            yield from self._operator.process(batch)
        yield from self._operator.finish()

    def _abandon(self, request: SessionRequest, output: OutputSpool | None) -> None:
        """Return to the last sealed epoch now, because live queries must not see a failed epoch after its end."""
        end_forked_child(self._pid)  # the backend's files are its parent's
        try:
            self._operator.discard()
            self._rollback()
            self._attempts.abandon(request.epoch, request.attempt)
        except BaseException:
            self.broken = True
            raise
        if output is not None:
            try:
                output.discard()
            except OSError as exc:  # the file stays until the log is opened again
                log.warning("operator %s subtask %d: %s", self.spec.uid, self._place.subtask, exc)

    def _note(self, base: Snapshot | None, parts: list[Part], pending: Part | None) -> None:
        found = [*parts, *([pending] if pending is not None else [])]
        if found:
            directory = self._place.log_directory(self.spec.uid).path
            source = str(directory / base.name if base is not None and found[-1].ascending else directory)
            self.restored = RestoredSubtask(self.spec.uid, self._place.subtask, found[-1].epoch, source)

    def _rollback(self) -> None:
        """Undo the unsealed writes of an attempt. With at-least-once they stay, and the next attempt adds to them."""
        if self._place.config.exactly_once:
            self._backend.rollback()
            self._operator.lists.rollback()

    def _seal(
        self,
        request: SessionRequest,
        changes: Iterable[Change],
        output: OutputSpool,
        lists: OperatorState,
        identity: EpochInput | None,
    ) -> None:
        try:
            self._log.seal(request.epoch, changes, output, operator_state=lists, epoch_input=identity)
            self._operator.lists.sealed(lists)
            self._uncommitted_since = time.monotonic()  # before SEALED is sent: Spark commits only after that
            self._attempts.seal(request.epoch, request.attempt)
        except FencedError as exc:
            self.broken = True
            raise FencedError(str(exc), superseded=True) from exc
        except BaseException:
            self.broken = True
            raise
        self._sealed_by = (request.epoch, request.attempt)

    def _restore(self, restart: Restart) -> None:
        """Open the backend, the operator and the log (as its only writer), and restore the last sealed epoch."""
        place = self._place
        self._directory = temporary_directory(f"backend-{place.subtask}-", place.scratch_directory)
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self._open_backend()
            undo.callback(lambda: self._backend.close())
            self._operator = KeyedOperator(self.spec, place.operator_subtask, self._backend)
            self._operator.open()
            undo.callback(lambda: self._operator.close())
            self._open_and_fill(restart)
            self._snapshotter = Snapshotter(place.log_directory(self.spec.uid), place.config)
            undo.pop_all()

    def _open_and_fill(self, restart: Restart) -> None:
        """Fill the backend from the best base that can be read.

        The snapshot process of a task manager that has just died may still replace files. So the log is opened again
        before an unreadable file counts as damaged.
        """
        for attempt in range(1, MOST_OPENINGS + 1):
            self._log = self._open_log(restart)
            #: The newest epoch that other task managers sealed. An older epoch is not a late attempt.
            self._found = self._log.latest()
            self._attempts = EpochAttempts(self._found)
            for base in self._log.bases:
                try:
                    with readable(self._log.path):
                        return self._fill(base, restart.final)
                except DamagedCheckpoint as exc:
                    if attempt == MOST_OPENINGS and base is self._log.bases[-1]:
                        raise
                    log.warning("%s; trying another base", exc)
                    self._start_over()
        return None

    def _open_backend(self) -> None:
        place = self._place
        self._backend: StateBackend = open_backend(
            place.config.backend,
            key_groups=place.key_groups,
            max_parallelism=place.config.max_parallelism,
            directory=temporary_directory("", self._directory),
            options=place.config.backend_options,
        )

    def _start_over(self) -> None:
        """Replace the half-filled backend, and the operator on it."""
        self._operator.close()
        self._backend.close()
        self._open_backend()
        place = self._place
        self._operator = KeyedOperator(self.spec, place.operator_subtask, self._backend)
        self._operator.open()

    def _open_log(self, restart: Restart) -> EpochLog:
        place, uid = self._place, self.spec.uid
        check_owner(place.checkpoint_dir, place.owner_token)
        self._declared = DeclaredStates(
            uid,
            self._operator.descriptors,
            self.spec.key_types,
            allow_non_restored=place.config.allow_non_restored_state,
            lists=self._operator.lists.declared(allow_non_restored=place.config.allow_non_restored_state),
        )
        origin = None
        if restart.first_epoch is not None and place.begins_elsewhere(uid):
            if restart.first_epoch <= restart.final:
                replayed = ReplayedEpoch(uid, place.subtask, restart.first_epoch, place.checkpoint_dir.path, True)
                raise replayed.refused(place.other_results())
            origin = origin_of(
                place.checkpoint_dir,
                place.manifest(),
                uid,
                place.key_groups,
                restart.first_epoch,
                options=place.config.checkpoint_storage_options,
            )
        return open_epoch_log(
            place.log_directory(uid),
            place.identity(uid),
            self._declared,
            origin,
            first_epoch=restart.first_epoch,
            final=restart.final,
            compression=place.config.checkpoint_compression,
        )

    def _fill(self, base: Snapshot | None, final: int) -> None:
        """Restore the sealed state. The newest epoch is replayed as sealed only, if it may not be final."""
        parts = list(self._declared.prepare(self._log.parts(base)))
        pending = parts.pop() if parts and parts[-1].epoch > final and not parts[-1].ascending else None
        self._holds_committed_state = bool(parts)
        if parts:
            self._backend.restore(parts[-1].epoch, chained(part.changes for part in parts))
        self._operator.lists.fill(self._declared.lists(self._log.operator_state()))
        self._note(base, parts, pending)
        if pending is not None:
            descriptors = {descriptor.name: descriptor for descriptor in self._operator.descriptors}
            replay_epoch(self._backend, descriptors, pending.epoch, pending.changes)
            self._uncommitted_since = -math.inf  # the time of the seal is unknown
