"""The checkpoint directory of a job, in its driver: creates it, takes ownership, binds operators to queries.

Rules of this module: it knows the directory, its manifest (`qstate.checkpoint.manifest`) and its owner
(`qstate.runtime.job.directory_owner`). It does not know what the epoch logs in the directory contain.

A query's id comes from its checkpointLocation. Spark numbers the epochs of each query from 0, so state that one query
made cannot follow the epochs of another: it would silently skip rows, or replay old ones.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from qstate.checkpoint.log.operator_state import TIME_LIST, OperatorState
from qstate.checkpoint.manifest import JobManifest, layout_places, read_final, write_final
from qstate.checkpoint.sources.history import StoredOperator, existing_chain
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.superseded_layouts import without_unused_layouts
from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import absolute, open_directory
from qstate.config import JobConfig
from qstate.errors import CheckpointError, ConfigError, JobError
from qstate.host.storage_faults import BY_CHECKPOINT_DIR, usable
from qstate.operators.time.epoch_time import Reached
from qstate.runtime.control.scratch_directory import temporary_directory
from qstate.runtime.job.directory_owner import check_owner, take_ownership
from qstate.runtime.job.epoch_clocks import StoredTime
from qstate.runtime.job.layout_cleanup import OldLayouts
from qstate.runtime.job.spark_location import check_apart, check_not_sparks
from qstate.serializers import MessagePackSerializer
from qstate.setting_values import without_password

__all__ = ["JobDirectory"]

log = logging.getLogger(__name__)


class JobDirectory:
    """Made by the job manager; `close` ends the ownership of the directory, and removes a temporary one.

    In the config's `checkpoint_dir`, `~` is expanded, and a relative path is relative to the driver's working
    directory. Raises `ConfigError` when the directory cannot be created or written, is in a store that cannot fence
    writers, is in use by another job, belongs to another job or another max_parallelism, or is a checkpointLocation
    of Spark; `CheckpointError` when its manifest, or the checkpoint in `restore_from`, cannot be read.

    `location_of` returns the checkpointLocation of a running query, None for an unknown one.
    """

    def __init__(
        self,
        job: str,
        config: JobConfig,
        parallelism: int,
        *,
        location_of: Callable[[str], str | None] = lambda _: None,
    ) -> None:
        setting = config.checkpoint_dir
        self._temporary = not setting
        self._allow_non_restored = config.allow_non_restored_state
        self._options = config.checkpoint_storage_options
        self.files = _made(setting or str(temporary_directory(f"qstate-{job}-")), self._options)
        _check_not_sparks(self.files)
        self._location_of = location_of
        #: The location of the directory: a `Path`, unless it is in an object store.
        self.path: Any = self.files.path
        self._owner = take_ownership(self.files)
        self._bound: dict[str, str] = {}
        #: The checkpointLocation of each query that is known.
        self._locations: dict[str, str] = {}
        self._finalizing = threading.Lock()
        self._binding = threading.Lock()
        self._restored: Mapping[str, StoredOperator] = {}
        self._old_layouts = OldLayouts(self.files, max(1, config.snapshot_interval))
        try:
            self._final = read_final(self.files)
            self.manifest = self._opened(job, config, parallelism)
        except BaseException:
            self.close()
            raise

    def bind(self, operator: str, query: str, known: Collection[str]) -> None:
        """Bind an operator's state to one streaming query, for good. Raises `JobError` for another query.

        `known` are the operators of the job. Raises `JobError` when the directory holds state of an operator that is
        not among them. Any thread may call it; it may wait for the storage.
        """
        with self._binding:
            self._bind(operator, query, known)

    def _bind(self, operator: str, query: str, known: Collection[str]) -> None:
        running, stored = self._bound.get(operator), self.manifest.operators.get(operator)
        if running is not None and running != query:
            raise JobError(
                f"operator {operator!r} is driven by streaming query {running} already and cannot be driven by "
                f"{query} as well. Write its result from one query (foreachBatch can write to several places), "
                "restart a stopped query with its own checkpointLocation, or start a new Job"
            )
        if stored is not None and stored != query:
            raise JobError(
                f"the state of operator {operator!r} in {self.path} was made by streaming query {stored} and cannot be "
                f"driven by {query}, whose epochs are others: restart with the checkpointLocation of that query, begin "
                "again with an empty checkpoint_dir and a new checkpointLocation, or take the state along with "
                "restore_from and an empty checkpoint_dir"
            )
        if running is None:
            # Spark forgets a query that a refused task has stopped, while other tasks of it may still bind.
            location = self._locations.get(query) or self._location_of(query)
            if location is None:
                _check_not_sparks(self.files)  # the query has written its first offsets by now
            else:
                self._locations[query] = location
                check_apart(self.path, location)
            self._check_declared(query, known)
        if stored is None:
            check_owner(self.files, self._owner.token)
            manifest = self.manifest.with_operator(operator, query)
            manifest.write(self.files)
            self.manifest = manifest
        # After the manifest, which names the query of every bound operator. Replaced whole: readers need no lock.
        self._bound = {**self._bound, operator: query}

    def finalize(self, query: str, epoch: int) -> None:
        """Record that Spark has committed an epoch, for readers of the directory without the job.

        Any thread may call it; it may wait for the storage. A failure is logged.
        """
        with self._finalizing:
            if epoch <= self._final.get(query, -1):
                return
            self._final[query] = epoch
            try:
                write_final(self.files, self._final)
            except CheckpointError as exc:  # readers lag behind until the next epoch; nothing else depends on it
                log.warning("%s", exc)
        self._old_layouts.epoch_is_final(self.manifest, self.operators_of(query), epoch)

    def stored_time(self, operator: str, epoch: int) -> StoredTime:
        """What the logs of this layout say about an operator's time as of an epoch. Raises `CheckpointError`.

        A subtask without a log here has the time of all subtasks in the state that it begins with.
        """
        before: list[Reached] = []
        sealed: list[Reached] = []
        for place in layout_places(self.files, self.manifest, operator, self.manifest.layout):
            chain = existing_chain(place) if place.files else None
            if chain is None:
                continue
            before += _reached(chain.operator_state(epoch - 1))
            if any(segment.epoch == epoch for segment in chain.segments):
                sealed += _reached(chain.operator_state(epoch))
        return StoredTime(Reached.of_all(before), Reached.of_all(sealed))

    def final(self, operator: str) -> int:
        """The newest epoch of an operator that is known to be committed, -1 for none."""
        return self._final.get(self._bound.get(operator, ""), -1)

    def operators_of(self, query: str) -> list[str]:
        """The operators that this query drives in this job."""
        return [operator for operator, bound in self._bound.items() if bound == query]

    def query_of(self, operator: str) -> str | None:
        """The query that drives an operator in this job, None for none yet."""
        return self._bound.get(operator)

    def queries(self) -> set[str]:
        """The queries that have driven operators in this job."""
        return set(self._bound.values())

    def bound(self) -> list[str]:
        """The operators that have been driven in this job."""
        return list(self._bound)

    @property
    def owner_token(self) -> str:
        """The token that task managers check the owner of the directory with (`directory_owner.check_owner`)."""
        return self._owner.token

    def close(self) -> None:
        """Idempotent."""
        self._old_layouts.close()
        self._owner.close()
        if self._temporary:
            shutil.rmtree(self.path, ignore_errors=True)

    def _opened(self, job: str, config: JobConfig, parallelism: int) -> JobManifest:
        manifest = JobManifest.read(self.files)
        if manifest is None:
            origin = self._origin(config)
            manifest = JobManifest(job, config.max_parallelism, (parallelism,), restored_from=origin).with_new_history()
        elif (manifest.job, manifest.max_parallelism) != (job, config.max_parallelism):
            raise ConfigError(
                f"checkpoint_dir {self.path} belongs to job {manifest.job!r} with max_parallelism "
                f"{manifest.max_parallelism}, but this is job {job!r} with {config.max_parallelism}; keep both, or "
                "give every job a directory of its own"
            )
        elif config.restore_from and absolute(config.restore_from) != manifest.restored_from:
            raise ConfigError(
                f"checkpoint_dir {self.path} holds a job that was not started from {config.restore_from}; restore_from "
                "needs an empty checkpoint_dir, and without restore_from the job continues with the state in this one"
            )
        else:
            # A start that was refused has left a layout without state; the layout before has the stored results.
            manifest = without_unused_layouts(self.files, manifest)
            if parallelism != manifest.parallelism:
                log.info("rescaling from parallelism %d to %d", manifest.parallelism, parallelism)
            manifest = manifest.with_parallelism(parallelism)
        manifest.write(self.files)
        return manifest

    def _origin(self, config: JobConfig) -> str | None:
        """The location to restore from, checked. The manifest keeps it: subtasks need it until all have their state."""
        if not config.restore_from:
            return None
        source = open_source(absolute(config.restore_from), self._options)
        if source.max_parallelism != config.max_parallelism:
            raise ConfigError(
                f"{source.location} has max_parallelism {source.max_parallelism}, the config {config.max_parallelism}; "
                "the number of key groups cannot change, so set max_parallelism to that"
            )
        self._restored = source.operators()
        for stored in self._restored.values():
            log.info("operator %r is restored from %s as of epoch %d", stored.uid, source.location, stored.epoch)
        return source.location

    def _check_declared(self, query: str, known: Collection[str]) -> None:
        stored = {uid for uid, of_query in self.manifest.operators.items() if of_query == query} | set(self._restored)
        undeclared = sorted(stored - set(known))
        if undeclared and not self._allow_non_restored:
            raise JobError(
                f"{self.path if not self._restored else self.manifest.restored_from} holds state of operator "
                f"{undeclared[0]!r}, which the job does not have (it has {', '.join(map(repr, sorted(known)))}): give "
                "the operator its uid back, create all operators before the first query is started, or set "
                "allow_non_restored_state=True to continue without that state"
            )


def _reached(state: OperatorState) -> Iterator[Reached]:
    loads = MessagePackSerializer().loads
    yield from (Reached(*loads(element)) for one in state if one.name == TIME_LIST for element in one.elements)


def _check_not_sparks(files: Directory) -> None:
    with usable(files.path, BY_CHECKPOINT_DIR, f"checkpoint_dir {files.path} cannot be read"):
        check_not_sparks(files)


def _made(setting: str, options: Mapping[str, Any]) -> Directory:
    try:
        files = open_directory(absolute(setting), options)
    except ConfigError as exc:
        raise ConfigError(f"checkpoint_dir {without_password(setting)!r} cannot be made: {exc}") from exc
    with usable(files.path, BY_CHECKPOINT_DIR, f"checkpoint_dir {setting!r} cannot be made"):
        files.make()
    return files
