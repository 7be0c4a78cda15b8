"""Chooses the state that a subtask without an epoch log begins with.

Rules of this module: it chooses the source, and the epoch of the source, from the manifest and the first epoch that
Spark gives the subtask. Spark asks for epoch n only when it has committed n - 1.

    an earlier layout (the parallelism changed)      as of n - 1
    restored from elsewhere, same query              as of n - 1: the epoch numbers continue
    restored from elsewhere, another query           as of the last final epoch there; epochs begin at 0
    restored from elsewhere, no query yet            the same
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from qstate.backends.contract import Change
from qstate.checkpoint.log.chain import NO_EPOCH, States
from qstate.checkpoint.log.operator_state import OperatorState
from qstate.checkpoint.manifest import MANIFEST_FILE, JobManifest
from qstate.checkpoint.sources.history import JobHistory, Prepare, StateSource, StoredOperator
from qstate.checkpoint.sources.opening import Origin
from qstate.checkpoint.sources.savepoint import Savepoint
from qstate.checkpoint.storage.directory import Directory, doing
from qstate.checkpoint.storage.locations import NO_OPTIONS, open_directory
from qstate.errors import CheckpointError, ConfigError
from qstate.keys import KeyGroupRange
from qstate.values.value_forms import same

__all__ = ["open_source", "origin_of"]

#: The longest chain of jobs that were restored from each other. A job needs its origin only until it has restored it.
MOST_ORIGINS = 100


def open_source(location: str, options: Mapping[str, Any] = NO_OPTIONS) -> StateSource:
    """The savepoint or checkpoint directory at a location; `options` are those of its storage.

    Raises `CheckpointError` when there is neither, and `ConfigError` for an invalid location.
    """
    return _opened(location, options, ())


def _opened(location: str, options: Mapping[str, Any], before: tuple[str, ...]) -> StateSource:
    """`before` are the locations of the jobs that were restored from this one, in their order."""
    root = open_directory(location, options)
    savepoint = Savepoint.read(root)
    if savepoint is not None:
        return savepoint
    manifest = JobManifest.read(root)
    if manifest is None:
        raise CheckpointError(
            f"{location} is neither a savepoint (no savepoint.json) nor a checkpoint directory of a job (no job.json)"
        )
    # The source that the job was restored from may be gone, once every subtask has restored its state.
    lineage = (*before, location)
    kept = manifest.restored_from is not None and _is_there(
        _origin_directory(root, manifest.restored_from, options, lineage)
    )
    return JobHistory(root, manifest, origin=_restored(manifest, options, lineage) if kept else None)


def origin_of(
    root: Path | Directory,
    manifest: JobManifest,
    operator: str,
    groups: KeyGroupRange,
    first_epoch: int,
    *,
    options: Mapping[str, Any] = NO_OPTIONS,
) -> Origin | None:
    """The state that a subtask without a log begins with; None: it begins empty.

    `first_epoch` is Spark's first epoch for the subtask, `options` are those of the storage that the job was restored
    from.
    """
    source: StateSource | None = _restored(manifest, options, ())
    if source is not None and operator not in source.operators():
        source = None
    if len(manifest.layouts) > 1:
        source = JobHistory(root, replace(manifest, layouts=manifest.layouts[:-1]), origin=source, current=False)
    if source is None:
        return None
    upto = first_epoch - 1
    return Origin(source, upto, source.epoch(operator, groups, upto))


def _is_there(directory: Directory) -> bool:
    with doing(f"read {directory.path}", directory):
        return bool(directory.names())


def _origin_directory(
    root: Directory, restored_from: str, options: Mapping[str, Any], lineage: Sequence[str]
) -> Directory:
    says = f"{root.path / MANIFEST_FILE} says that the job was restored from {restored_from!r:.200}"
    if restored_from in lineage or len(lineage) > MOST_ORIGINS:
        raise CheckpointError(f"{says}, which leads back to itself; bring the file back from a copy")
    try:
        return open_directory(restored_from, options)
    except ConfigError as exc:
        raise CheckpointError(f"{says}: {exc}") from exc


def _restored(manifest: JobManifest, options: Mapping[str, Any], lineage: tuple[str, ...]) -> StateSource | None:
    """The source that the job was restored from, with the epochs of the queries that run it now."""
    if manifest.restored_from is None:
        return None
    return _Restored(_opened(manifest.restored_from, options, lineage), manifest.operators)


class _Restored(StateSource):
    """A source as seen by a job restored from it: state that another query wrote comes before epoch 0."""

    def __init__(self, source: StateSource, queries: Mapping[str, str]) -> None:
        self.location = source.location
        self.job = source.job
        self.max_parallelism = source.max_parallelism
        self._source = source
        self._queries = queries
        self._operators = source.operators()

    def operators(self) -> Mapping[str, StoredOperator]:
        return self._operators

    def epoch(self, operator: str, groups: KeyGroupRange, upto: int) -> int:
        stored = self._operators.get(operator)
        if stored is None or self._restarts_epochs(stored):
            return NO_EPOCH
        return self._source.epoch(operator, groups, upto)

    def state(self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = same) -> Iterator[Change]:
        there = self._epoch_there(operator, upto)
        return iter(()) if there is None else self._source.state(operator, groups, there, prepare)

    def states(self, operator: str, upto: int) -> States:
        there = self._epoch_there(operator, upto)
        return () if there is None else self._source.states(operator, there)

    def operator_states(self, operator: str, upto: int) -> list[OperatorState]:
        there = self._epoch_there(operator, upto)
        return [] if there is None else self._source.operator_states(operator, there)

    def _epoch_there(self, operator: str, upto: int) -> int | None:
        """The epoch of the source to read in the place of this one; None: the source has no such operator."""
        stored = self._operators.get(operator)
        if stored is None:
            return None
        return stored.epoch if self._restarts_epochs(stored) else upto

    def _restarts_epochs(self, stored: StoredOperator) -> bool:
        return stored.query != self._queries.get(stored.uid)
