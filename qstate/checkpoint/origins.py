"""Where a subtask's state comes from when it has no epoch log of its own yet.

Rules of this module: it decides which source, and which epoch of it, from the manifest and the first epoch that Spark
gives the subtask. That epoch is the truth: Spark asks for epoch n only when it has committed n - 1.

    an earlier layout (the parallelism changed)      as of n - 1
    restored from elsewhere, by the same query       as of n - 1: epochs go on
    restored from elsewhere, by another query        as of the last final epoch there; epochs begin anew
    restored, but not driven by any query yet        the same
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from qstate.backends.contract import Change
from qstate.checkpoint.chain import NO_EPOCH
from qstate.checkpoint.history import JobHistory, Prepare, StateSource, StoredOperator
from qstate.checkpoint.manifest import JobManifest
from qstate.checkpoint.opening import Origin
from qstate.checkpoint.savepoint import Savepoint
from qstate.errors import CheckpointError
from qstate.keys import KeyGroupRange

__all__ = ["open_source", "origin_of"]


def open_source(location: str) -> StateSource:
    """The savepoint or checkpoint directory at a location. Raises `CheckpointError` when there is neither."""
    root = Path(location)
    savepoint = Savepoint.read(root)
    if savepoint is not None:
        return savepoint
    manifest = JobManifest.read(root)
    if manifest is None:
        raise CheckpointError(
            f"{location} is neither a savepoint (no savepoint.json) nor a checkpoint directory of a job (no job.json)"
        )
    # What the job was restored from may be gone, once every subtask has taken its state up.
    kept = manifest.restored_from is not None and Path(manifest.restored_from).exists()
    return JobHistory(root, manifest, origin=_restored(manifest) if kept else None)


def origin_of(
    root: Path, manifest: JobManifest, operator: str, groups: KeyGroupRange, first_epoch: int
) -> Origin | None:
    """What a subtask without a log begins with, when Spark's first epoch for it is `first_epoch`; None: empty."""
    source: StateSource | None = _restored(manifest)
    if source is not None and operator not in source.operators():
        source = None
    if len(manifest.layouts) > 1:
        source = JobHistory(root, replace(manifest, layouts=manifest.layouts[:-1]), origin=source)
    if source is None:
        return None
    upto = first_epoch - 1
    return Origin(source, upto, source.epoch(operator, groups, upto))


def _restored(manifest: JobManifest) -> StateSource | None:
    """What the job was restored from, by the epochs of the queries that drive it now."""
    if manifest.restored_from is None:
        return None
    return _Restored(open_source(manifest.restored_from), manifest.operators)


class _Restored(StateSource):
    """A source as a job sees it that was restored from it: what another query made comes before epoch 0."""

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
        if stored is None or self._begins_anew(stored):
            return NO_EPOCH
        return self._source.epoch(operator, groups, upto)

    def state(
        self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = lambda parts: parts
    ) -> Iterator[Change]:
        stored = self._operators.get(operator)
        if stored is None:
            return iter(())
        return self._source.state(operator, groups, stored.epoch if self._begins_anew(stored) else upto, prepare)

    def _begins_anew(self, stored: StoredOperator) -> bool:
        return stored.query != self._queries.get(stored.uid)
