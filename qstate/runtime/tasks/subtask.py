"""One operator subtask inside a task manager: it serves one session (an attempt of an epoch) at a time.

Rules of this module: it decides whose turn it is, from any thread. The attempts are processed by `subtask_epochs`.

    session opens    older than the newest one: refused (fenced). Else the running session is cut off, and when it has
                     ended, the epoch is processed (after a rollback if necessary), or its stored results are replayed
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from qstate.backends.contract import Capability, Isolation
from qstate.backends.expiry import change_converter
from qstate.checkpoint.sources.change_feed import FedState, StateFeed
from qstate.errors import FencedError, JobError
from qstate.evolution import StateSchema
from qstate.operators.steps import step_in
from qstate.runtime.control.addresses import RestoredSubtask
from qstate.runtime.control.job_statistics import SubtaskStatistics
from qstate.runtime.relay.data_channel import SessionRequest, TaskChannel
from qstate.runtime.serving.registry import StateInstance
from qstate.runtime.tasks.subtask_epochs import EpochAttempt, EpochClock, SubtaskEpochs
from qstate.runtime.tasks.subtask_restore import SubtaskParts

__all__ = ["Subtask"]

log = logging.getLogger(__name__)

#: How long a newer attempt waits for the user's function to return from its current row.
CUT_TIMEOUT_S = 30.0


class Subtask:
    """An open subtask. `run` serves one session at a time; a newer one cuts it off."""

    def __init__(self, parts: SubtaskParts) -> None:
        self._parts = parts
        self._epochs = SubtaskEpochs(parts)
        self._gate = threading.Lock()
        self._busy = threading.Lock()
        self._current: TaskChannel | None = None
        self._newest = (-1, -1)
        self._closed = False
        #: The newest epoch that Spark is reported to have committed.
        self._reported = -1

    @property
    def broken(self) -> bool:
        """Whether the backend holds an epoch that is not durable: close this object and open another."""
        return self._epochs.broken

    @property
    def restored(self) -> RestoredSubtask | None:
        """The state that it began with, None for none."""
        return self._parts.restored.report

    def statistics(self) -> SubtaskStatistics:
        """Its figures as of the epoch sealed last. Any thread."""
        return self._epochs.meter.statistics()

    def instances(self) -> list[StateInstance]:
        """The queryable states as the server registers them."""
        parts = self._parts
        capabilities = parts.backend.capabilities
        readers = {Isolation.LIVE: parts.backend.reader(Isolation.LIVE)}
        if Capability.COMMITTED_READS in capabilities:
            readers[Isolation.COMMITTED] = parts.backend.reader(Isolation.COMMITTED)
        return [
            StateInstance(
                parts.place.job,
                descriptor,
                parts.operator.key_types_of(descriptor.name),
                parts.place.key_groups,
                parts.place.config.max_parallelism,
                capabilities,
                readers,
                lambda: self._epochs.uncommitted_since,
                parts.restored.holds_committed,
                parts.operator.namespace_types,
                StateFeed(parts.feed, FedState(StateSchema.of(descriptor), change_converter(descriptor))),
            )
            for descriptor in parts.operator.descriptors
            if descriptor.queryable_name is not None
        ]

    def end_feed(self) -> None:
        """Let subscribers wait here no longer: the states are not served any more."""
        self._parts.feed.close()

    def run(self, request: SessionRequest, channel: TaskChannel, clock: EpochClock, *, committed: bool = False) -> None:
        """Serve one session to its end; `clock` has the time of the epoch.

        `committed`: Spark has already committed the epoch, so it may only be replayed.
        Raises `FencedError` for an attempt that is too old, `JobError` for an error that the user has to fix, and
        `ConnectionError` when the connection to the relay ended or was cut off. In all cases the epoch is abandoned.
        """
        check_current = partial(self._check_current, request, channel)
        with self._turn(request, channel):
            self._epochs.run(EpochAttempt(request.epoch, request.attempt, channel, committed, clock, check_current))

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
                self._parts.spec.uid,
                self._parts.place.subtask,
                self._position(),
            )
            return
        try:
            self._closed = True
            self._parts.resources.close()
        finally:
            self._busy.release()

    def _position(self) -> str:
        """Where the user's function is, for the end of a sentence; empty when it has returned."""
        step = step_in(self._parts.operator)
        return "" if step is None else f", in {step.where}; it is at:\n{step.stack()}"

    def _make_final(self) -> None:
        """Make the epoch sealed last final if it is reported as committed.

        Called after each report and after each session: when both happen at the same time, one of them sees the other.
        The lock is taken only when an epoch is due; otherwise a report could find it taken for nothing, and be lost.
        """
        if self._epochs.sealed_and_due(self._reported) is not None and self._busy.acquire(blocking=False):
            try:
                epoch = self._epochs.sealed_and_due(self._reported)
                if epoch is not None and not (self._closed or self.broken):
                    self._epochs.finalize(epoch)
            finally:
                self._busy.release()

    @contextmanager
    def _turn(self, request: SessionRequest, channel: TaskChannel) -> Iterator[None]:
        """Take the subtask over for one attempt, cutting an older one off.

        The older attempt may still seal its epoch before it ends, so what to do is decided only afterwards.
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
                    f"{self._parts.name}: an older attempt is still inside the user's function "
                    f"after {CUT_TIMEOUT_S:.0f} s{self._position()}"
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
