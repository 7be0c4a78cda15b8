"""Processes or replays the epochs of one subtask, and makes them durable.

Rules of this module: one caller at a time. It calls the operator, the backend and the epoch log in the order that
makes every row count once. It knows channels as frames, not sockets.

    replay           read all rows and compare them with the sealed ones; then send the stored results
    rows             the operator processes them; results are sent at once and kept for the seal
    end of input     commit -> seal (durable) -> SEALED. If sealing fails: `broken`, to be closed and reopened
    anything else    the epoch is abandoned: the backend is rolled back. The next attempt starts with a new copy of the
                     function, so that nothing is left of what the abandoned one did to its attributes
    final            the function is told, once, that the epoch sealed last is final
    any end          the meter is told the figures of the epoch
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from qstate.backends.contract import Change
from qstate.checkpoint.log.attempts import EpochAttempts, Process, Replay
from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.checkpoint.log.epoch_log import OutputSpool
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.checkpoint.sources.opening import convert_log
from qstate.errors import FencedError, JobError, SerializationError
from qstate.host.forks import end_forked_child
from qstate.operators.time.epoch_time import EpochTime, Reached
from qstate.operators.time.timers import FirstTimers
from qstate.runtime.job.replayed_epoch import ReplayedEpoch, older_than_state
from qstate.runtime.relay.data_channel import FrameKind, SessionChannel
from qstate.runtime.tasks.session_input import read_rows, skip_rows
from qstate.runtime.tasks.subtask_meter import EpochFigures, SubtaskMeter
from qstate.runtime.tasks.subtask_restore import SubtaskParts

__all__ = ["EpochAttempt", "EpochClock", "SubtaskEpochs"]

log = logging.getLogger(__name__)


class EpochClock(Protocol):
    """The clock of an operator, for one attempt of an epoch: the job manager decides the time."""

    def begin(self, reached: Reached | None) -> EpochTime:
        """The subtask begins the epoch, and has reached this before (None: not stored). Returns the epoch's time."""

    def sealed(self, reached: Reached, first_timers: FirstTimers) -> None:
        """The subtask has sealed or replayed the epoch, has reached this, and these are its earliest timers."""


@dataclass(frozen=True, slots=True)
class EpochAttempt:
    """One attempt of an epoch. `committed`: Spark has already committed the epoch, so it may only be replayed."""

    epoch: int
    number: int
    channel: SessionChannel
    committed: bool
    clock: EpochClock
    #: Raises `FencedError` when a newer attempt has cut this one off.
    check_current: Callable[[], None]


class SubtaskEpochs:
    """The epochs of one subtask, after those that `parts` were restored from."""

    def __init__(self, parts: SubtaskParts) -> None:
        self._parts = parts
        self._pid = os.getpid()
        self._attempts = EpochAttempts(parts.restored.sealed)
        self._sealed_by: tuple[int, int] | None = None
        self.meter = SubtaskMeter(parts)
        #: When the newest epoch was sealed, by `time.monotonic` (minus infinity when unknown); None once it is known
        #: to be committed.
        self.uncommitted_since = -math.inf if parts.restored.pending else None
        #: The backend holds an epoch that is not durable: close this object and open another.
        self.broken = False

    def run(self, attempt: EpochAttempt) -> None:
        """Serve one attempt to its end. Raises what `Subtask.run` raises; the epoch is abandoned then."""
        place = self._parts.place
        replayed = ReplayedEpoch(
            self._parts.spec.uid, place.subtask, attempt.epoch, place.checkpoint_dir.path, attempt.committed
        )
        decision = self._decided(attempt, replayed)
        attempt.channel.send(FrameKind.SCHEMA, self._parts.spec.result_schema.serialize())
        if isinstance(decision, Process):
            try:
                self._process(attempt, decision)
            except SerializationError as exc:  # the error names the state and the key
                raise SerializationError(f"{self._parts.name}: {exc}") from exc
        else:
            self._replay(attempt, replayed)
        reached = self._parts.operator.reached
        if reached is not None:  # before SEALED is sent: the time of the next epoch follows from it
            attempt.clock.sealed(reached, self._parts.operator.first_timers)
        attempt.channel.send(FrameKind.SEALED)

    def sealed_and_due(self, reported: int) -> int | None:
        """The epoch sealed last, when it is at most `reported` and not final yet."""
        sealed = self._attempts.sealed
        if sealed is None or sealed > reported or self.uncommitted_since is None:
            return None
        return sealed

    def finalize(self, epoch: int) -> None:
        """Make the epoch sealed last final."""
        self._parts.backend.finalize(epoch)
        self._committed()

    def _committed(self) -> None:
        """The epoch sealed last is known to be committed."""
        sealed = self._attempts.sealed
        if sealed is not None and self.uncommitted_since is not None:
            self._parts.operator.complete(sealed)
            self.meter.committed()
            self._parts.feed.finalize(sealed)
        self.uncommitted_since = None

    def _decided(self, attempt: EpochAttempt, replayed: ReplayedEpoch) -> Process | Replay:
        """Whether to process or replay the epoch. Raises `JobError` when the state is newer, else as `attempts`."""
        epoch, sealed, found = attempt.epoch, self._attempts.sealed, self._parts.restored.sealed
        if found is not None and epoch < found:
            why = f"epoch {found} is sealed already"
            raise older_than_state(self._parts.spec.uid, epoch, replayed.checkpoint_dir, why)
        if attempt.committed and (sealed is None or sealed < epoch or not self._parts.log.has_output(sealed)):
            raise replayed.refused("its results are not stored any more")
        return self._attempts.open(epoch, attempt.number)

    def _process(self, attempt: EpochAttempt, decision: Process) -> None:
        output: OutputSpool | None = None
        figures = EpochFigures(time.monotonic())
        try:
            epoch_time = self._begin(attempt, decision)
            output = self._parts.log.begin_output()
            identity = self._send_results(attempt, epoch_time, output, figures)
            figures.watermark_ms, figures.rows_in = epoch_time.watermark, identity.rows
            attempt.check_current()
            lists = self._parts.operator.snapshot(attempt.epoch)
            changes = self._parts.backend.commit(attempt.epoch)
        except BaseException:
            self._abandon(attempt, output)
            raise
        self._seal(attempt, changes, output, lists, identity)
        self.meter.sealed(attempt.epoch, figures)

    def _begin(self, attempt: EpochAttempt, decision: Process) -> EpochTime:
        parts = self._parts
        if decision.rollback and self._exactly_once:
            parts.backend.rollback()
            parts.operator.restart(parts.make_spec())
        if decision.gap:
            self._skipped(attempt.epoch)
        if parts.log.unconverted:
            convert_log(parts.log, parts.declared)  # the epoch sealed last is committed now
        # This records the epoch before as final; only then may its results be dropped.
        epoch_time = attempt.clock.begin(parts.operator.reached)
        parts.log.drop_output(before_epoch=attempt.epoch)
        if self._attempts.sealed is not None and not decision.rollback:
            parts.snapshotter.epoch_is_final(self._attempts.sealed)
        parts.backend.begin(attempt.epoch)
        self._committed()
        return epoch_time

    def _send_results(
        self, attempt: EpochAttempt, epoch_time: EpochTime, output: OutputSpool, figures: EpochFigures
    ) -> EpochInput:
        """Fire timers, process the rows as they arrive, send and keep the results. Returns the identity of the rows."""
        operator = self._parts.operator

        def send(results: Iterable[pa.RecordBatch]) -> None:
            for batch in results:
                frame = batch.serialize()
                output.append(frame)
                figures.rows_out += batch.num_rows
                attempt.channel.send(FrameKind.OUTPUT, memoryview(frame))

        send(operator.begin(attempt.epoch, epoch_time))
        identity = read_rows(
            attempt.channel,
            self._parts.spec.input_schema,
            # Publish before each wait: live queries see all rows so far, however long the next one takes.
            waiting=self._parts.backend.publish,
            received=lambda batch: send(operator.process(batch)),
        )
        figures.input_ended_at = time.monotonic()
        send(operator.finish())
        return identity

    def _skipped(self, epoch: int) -> None:
        """Raise `JobError`, or warn: the rows of the epochs between the last sealed one and this one are missing."""
        what = (
            f"{self._parts.name}: epoch {epoch} follows epoch {self._attempts.sealed}, so the rows of the epochs "
            "between never reached its state"
        )
        if not self._parts.place.config.allow_skipped_epochs:
            raise JobError(
                f"{what}. Either the sink does not evaluate its whole input (show(), take(), limit() in "
                "foreachBatch), or the query continues from a checkpointLocation whose state this job does not have "
                "(checkpoint_dir). Fix that, start with a new checkpointLocation, or set allow_skipped_epochs=True "
                "to continue without those rows"
            )
        log.warning("%s; allow_skipped_epochs permits that", what)

    def _replay(self, attempt: EpochAttempt, replayed: ReplayedEpoch) -> None:
        spec, place = self._parts.spec, self._parts.place
        if self._sealed_by == (attempt.epoch, attempt.number):
            raise JobError(
                f"operator {spec.uid!r}: one task evaluated subtask {place.subtask} twice. Something after "
                "the operator merged its partitions, such as coalesce(); use repartition() there instead"
            )
        given = skip_rows(attempt.channel, spec.input_schema)
        stored = self._parts.log.epoch_input(attempt.epoch)
        replayed.check(stored, given, allow_changed=place.config.allow_changed_input)
        for frame in self._parts.log.output(attempt.epoch):
            attempt.channel.send(FrameKind.OUTPUT, frame)
        self.meter.replayed()

    def _abandon(self, attempt: EpochAttempt, output: OutputSpool | None) -> None:
        """Return to the last sealed epoch now, because live queries must not see a failed epoch after its end."""
        end_forked_child(self._pid)  # the backend's files are its parent's
        self.meter.abandoned()
        try:
            self._parts.operator.discard()
            if self._exactly_once:
                self._parts.backend.rollback()
            self._attempts.abandon(attempt.epoch, attempt.number)
        except BaseException:
            self.broken = True
            raise
        if output is not None:
            try:
                output.discard()
            except OSError as exc:  # the file stays until the log is opened again
                log.warning("operator %s subtask %d: %s", self._parts.spec.uid, self._parts.place.subtask, exc)

    @property
    def _exactly_once(self) -> bool:
        """Whether an abandoned attempt is undone. With at-least-once, its state and its function stay as they are."""
        return self._parts.place.config.exactly_once

    def _seal(
        self,
        attempt: EpochAttempt,
        changes: Iterable[Change],
        output: OutputSpool,
        lists: OperatorState,
        identity: EpochInput,
    ) -> None:
        try:
            self._parts.log.seal(attempt.epoch, changes, output, operator_state=lists, epoch_input=identity)
            self._parts.operator.sealed(lists)
            self.uncommitted_since = time.monotonic()  # before SEALED is sent: Spark commits only after that
            self._attempts.seal(attempt.epoch, attempt.number)
        except FencedError as exc:
            self.broken = True
            raise FencedError(str(exc), superseded=True) from exc
        except BaseException:
            self.broken = True
            raise
        self._sealed_by = (attempt.epoch, attempt.number)
