"""Opens the parts of a subtask (backend, operator, epoch log) with the state of the last sealed epoch.

Rules of this module: it opens, fills and frees the parts. It processes no rows. When opening fails half way, everything
that was opened before is freed.

    log found -> the lists of its last epoch -> function opened with them, which declares its states
              -> log opened in their schemas -> backend filled
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from qstate.backends.catalog import open_backend
from qstate.backends.change_blocks import chained
from qstate.backends.contract import StateBackend
from qstate.backends.expiry import stored_form
from qstate.backends.replay import replay_epoch
from qstate.checkpoint.log.chain import NO_EPOCH, Snapshot
from qstate.checkpoint.log.epoch_log import EpochLog
from qstate.checkpoint.log.file_facts import readable
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.checkpoint.sources.change_feed import ChangeFeed
from qstate.checkpoint.sources.opening import DeclaredStates, Origin, open_epoch_log, stored_lists
from qstate.checkpoint.sources.origins import origin_of
from qstate.errors import DamagedCheckpoint
from qstate.operators.operator import FunctionOperator
from qstate.operators.operator_spec import OperatorSpec
from qstate.runtime.control.addresses import RestoredSubtask
from qstate.runtime.control.scratch_directory import temporary_directory
from qstate.runtime.job.directory_owner import check_owner
from qstate.runtime.job.replayed_epoch import ReplayedEpoch
from qstate.runtime.tasks.snapshotter import Snapshotter
from qstate.runtime.tasks.subtask_place import Restart, SubtaskPlace

__all__ = ["RestoredState", "SubtaskParts", "restore_subtask"]

log = logging.getLogger(__name__)

#: How often a log is opened before a file that cannot be read counts as damaged.
MOST_OPENINGS = 2


@dataclass(frozen=True, slots=True)
class RestoredState:
    """The state that a subtask began with."""

    #: The newest epoch that other task managers sealed, None for none. An older epoch is not a late attempt.
    sealed: int | None
    #: Whether there is state that is known to be committed, and the epoch that it is of.
    holds_committed: bool
    committed: int
    #: Whether the newest epoch may not be committed yet.
    pending: bool
    #: For the job manager; None when there was no state.
    report: RestoredSubtask | None


@dataclass(frozen=True, slots=True)
class SubtaskParts:
    """The parts of an open subtask. `make_spec` gives another copy of the operator's spec, and of its function."""

    make_spec: Callable[[], OperatorSpec]
    place: SubtaskPlace
    operator: FunctionOperator
    backend: StateBackend
    declared: DeclaredStates
    log: EpochLog
    restored: RestoredState
    feed: ChangeFeed
    snapshotter: Snapshotter
    #: Closing it frees all parts, and logs an error of the function's close().
    resources: ExitStack

    @property
    def spec(self) -> OperatorSpec:
        return self.operator.spec

    @property
    def name(self) -> str:
        """The name of the subtask in errors."""
        return f"operator {self.spec.uid!r} subtask {self.place.subtask}"


@dataclass(frozen=True, slots=True)
class _OpenOperator:
    """The operator on a backend of its own, which is empty at first. `has_state`: it began with stored state."""

    operator: FunctionOperator
    backend: StateBackend
    declared: DeclaredStates
    has_state: bool

    def began_with(self, stored: OperatorState | None) -> bool:
        """Whether it began with these lists; None: without any state."""
        if stored is None or not self.has_state:
            return stored is None and not self.has_state
        return self.declared.lists(stored) == self.operator.lists.restored


class _Opening:
    """Opens the operator with the stored lists, once these are found. Closing `resources` closes it."""

    def __init__(
        self, make_spec: Callable[[], OperatorSpec], place: SubtaskPlace, restart: Restart, resources: ExitStack
    ) -> None:
        self._make_spec = make_spec
        self._place = place
        self._opened_at_ms = restart.opened_at_ms
        self._directory = temporary_directory(f"backend-{place.subtask}-", place.scratch_directory)
        resources.callback(shutil.rmtree, self._directory, ignore_errors=True)
        self._resources = resources.enter_context(ExitStack())
        self._spec: OperatorSpec | None = make_spec()
        self._opened: _OpenOperator | None = None
        self.uid = self._spec.uid

    def declare(self, stored: OperatorState | None) -> DeclaredStates:
        """The states of the operator that begins with these lists."""
        return self.opened(stored).declared

    def opened(self, stored: OperatorState | None) -> _OpenOperator:
        """The operator that begins with these lists. If it is not open with them, it is closed and opened."""
        if self._opened is None or not self._opened.began_with(stored):
            self.close()
            spec, self._spec = self._spec or self._make_spec(), None
            self._opened = self._open(spec, stored)
        return self._opened

    def close(self) -> None:
        """Close the operator and its backend. It can be opened again."""
        self._opened = None
        self._resources.close()

    def _open(self, spec: OperatorSpec, stored: OperatorState | None) -> _OpenOperator:
        config, opened_at_ms = self._place.config, self._opened_at_ms
        backend = open_backend(
            config.backend,
            key_groups=self._place.key_groups,
            max_parallelism=config.max_parallelism,
            directory=temporary_directory("", self._directory),
            options=config.backend_options,
        )
        self._resources.callback(backend.close)
        operator = FunctionOperator(
            spec, self._place.operator_subtask, backend, stored=stored, ttl_sweep_entries=config.ttl_sweep_entries
        )
        self._resources.callback(self._close_operator, operator)  # also when the function fails after its open()
        operator.open()
        reached = operator.reached
        declared = DeclaredStates(
            spec.uid,
            operator.descriptors,
            spec.key_types,
            allow_non_restored=config.allow_non_restored_state,
            lists=operator.lists.declared(allow_non_restored=config.allow_non_restored_state),
            own_key_types={one.name: operator.key_types_of(one.name) for one in spec.broadcast_states},
            # The clock of this host may be behind that of the driver, whose time the function has.
            opened_at_ms=opened_at_ms if reached is None else max(opened_at_ms, reached.processing_time),
        )
        return _OpenOperator(operator, backend, declared, stored is not None)

    def _close_operator(self, operator: FunctionOperator) -> None:
        try:
            operator.close()
        except (Exception, SystemExit) as exc:
            log.warning("operator %s subtask %d: %s", operator.spec.uid, self._place.subtask, exc, exc_info=exc)


def restore_subtask(make_spec: Callable[[], OperatorSpec], place: SubtaskPlace, restart: Restart) -> SubtaskParts:
    """Open the parts, the log as its only writer, and fill the backend from the best base that can be read.

    `make_spec` gives a new copy of the operator's spec, and of its function, each time.
    """
    with ExitStack() as resources:
        opening = _Opening(make_spec, place, restart, resources)
        snapshotter = Snapshotter(place.log_directory(opening.uid), place.config)
        resources.callback(snapshotter.close)
        for epoch_log, base, last in _bases(opening, place, restart):
            try:
                opened = opening.opened(stored_lists(epoch_log))
                with readable(epoch_log.path):
                    restored = _fill(opened, place, epoch_log, base, restart.final)
                break
            except DamagedCheckpoint as exc:
                if last:
                    raise
                log.warning("%s; trying another base", exc)
                opening.close()
        return SubtaskParts(
            make_spec,
            place,
            opened.operator,
            opened.backend,
            opened.declared,
            epoch_log,
            restored,
            ChangeFeed(place.checkpoint_dir, opening.uid, place.key_groups, restart.history, restored.committed),
            snapshotter,
            resources.pop_all(),
        )


def _bases(
    opening: _Opening, place: SubtaskPlace, restart: Restart
) -> Iterator[tuple[EpochLog, Snapshot | None, bool]]:
    """The open log with each base that it can be read from, and whether it is the last one to try.

    The snapshot process of a task manager that has just died may still replace files. So the log is opened again
    before an unreadable file counts as damaged.
    """
    for number in range(1, MOST_OPENINGS + 1):
        epoch_log = _open_log(opening, place, restart)
        for base in epoch_log.bases:
            yield epoch_log, base, number == MOST_OPENINGS and base is epoch_log.bases[-1]


def _open_log(opening: _Opening, place: SubtaskPlace, restart: Restart) -> EpochLog:
    check_owner(place.checkpoint_dir, place.owner_token)
    return open_epoch_log(
        place.log_directory(opening.uid),
        place.identity(opening.uid),
        opening.declare,
        _origin(opening.uid, place, restart),
        first_epoch=restart.first_epoch,
        final=restart.final,
        compression=place.config.checkpoint_compression,
    )


def _origin(uid: str, place: SubtaskPlace, restart: Restart) -> Origin | None:
    """The state that a new log begins with, None for none. Raises `JobError` for an epoch that is committed already."""
    if restart.first_epoch is None or not place.begins_elsewhere(uid):
        return None
    if restart.first_epoch <= restart.final:
        replayed = ReplayedEpoch(uid, place.subtask, restart.first_epoch, place.checkpoint_dir.path, True)
        raise replayed.refused(place.other_results())
    return origin_of(
        place.checkpoint_dir,
        place.manifest(),
        uid,
        place.key_groups,
        restart.first_epoch,
        options=place.config.checkpoint_storage_options,
    )


def _fill(
    opened: _OpenOperator, place: SubtaskPlace, epoch_log: EpochLog, base: Snapshot | None, final: int
) -> RestoredState:
    """Restore the sealed state. The newest epoch is replayed as sealed only, if it may not be final."""
    stored = list(opened.declared.prepare(epoch_log.parts(base)))
    newest = stored[-1] if stored else None
    pending = newest if newest is not None and newest.epoch > final and not newest.ascending else None
    committed = stored if pending is None else stored[:-1]
    if committed:
        opened.backend.restore(committed[-1].epoch, chained(part.changes for part in committed))
    if pending is not None:
        descriptors = {descriptor.name: stored_form(descriptor) for descriptor in opened.operator.descriptors}
        replay_epoch(opened.backend, descriptors, pending.epoch, pending.changes)
    report = None
    if newest is not None:
        uid = opened.operator.spec.uid
        directory = place.log_directory(uid).path
        source = str(directory / base.name if base is not None and newest.ascending else directory)
        report = RestoredSubtask(uid, place.subtask, newest.epoch, source)
    final_epoch = committed[-1].epoch if committed else NO_EPOCH
    return RestoredState(epoch_log.latest(), bool(committed), final_epoch, pending is not None, report)
