"""One operator of a checkpoint as a standby serves it: backends with the committed state, brought forward by epochs.

Rules of this module: it fills backends from what `qstate.checkpoint` reads, and registers their readers. It knows no
sockets, and does not decide when to look. One thread at a time uses it; other threads read.

All subtasks of an operator show the same epoch, which never goes back. A new epoch is added to the backends if it
follows the one that they have. If it does not (snapshots have replaced epochs that were not read yet, the parallelism
or the form of a state has changed), a new generation of backends is filled while the old one still serves.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qstate.backends.catalog import open_backend
from qstate.backends.contract import Change, Isolation, StateBackend
from qstate.backends.expiry import change_converter, stored_form
from qstate.backends.replay import replay_epoch
from qstate.checkpoint.log.chain import NO_EPOCH, Part, States, data_schema
from qstate.checkpoint.log.file_facts import readable
from qstate.checkpoint.manifest import JobManifest
from qstate.checkpoint.sources.change_feed import ChangeFeed, FedState, StateFeed
from qstate.checkpoint.sources.following import FollowedOperator
from qstate.checkpoint.sources.history import StateSource
from qstate.config import JobConfig
from qstate.descriptors import StateDescriptor
from qstate.errors import CheckpointError, ClosedError
from qstate.evolution import StateSchema
from qstate.keys import KeyGroupRange
from qstate.runtime.control.scratch_directory import temporary_directory
from qstate.runtime.routing.location import LocationTable, Owner
from qstate.runtime.serving.registry import StateInstance, StateRegistry
from qstate.runtime.standby.stored_states import RefusingReader, RetiringReader, StoredState, stored_states

__all__ = ["Generation", "ServedOperator", "ServingSettings"]

_NOT_RUNNING = "the job is not running here: ask with the isolation committed, or ask the job"


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """How states are served: the backends, their directory and address, and the job's descriptors for states that need
    them."""

    config: JobConfig
    scratch_directory: Path
    #: The address of the state server.
    server: tuple[str, int]
    descriptors: Sequence[StateDescriptor] = ()
    stopping: Callable[[], bool] = lambda: False


#: The number of changes between two checks of `stopping`.
STOPPING_CHANGES = 4096

#: A function to call when the tables of an operator have changed.
Publish = Callable[[], None]


class _Share:
    """A range of key groups in a backend. `committed` is the last epoch in the backend."""

    def __init__(self, groups: KeyGroupRange, backend: StateBackend, epoch: int, feed: ChangeFeed | None) -> None:
        self.groups = groups
        #: None: there is no history.
        self.feed = feed
        self.backend = backend
        self.reader = RetiringReader(backend.reader(Isolation.COMMITTED))
        self.committed = epoch


class Generation:
    """Backends with one operator's state, as of `epoch`. A read that meets their closing looks the state up again."""

    def __init__(self, settings: ServingSettings, uid: str, source: StateSource, states: Sequence[StoredState]) -> None:
        self.epoch = NO_EPOCH
        self._uid = uid
        self._root, self._history = source.root, source.history_of(uid)
        self.states = states
        self._filled = False
        self._settings = settings
        self._max_parallelism = source.max_parallelism
        self._held = {state.name: stored_form(state.descriptor) for state in states if state.refusal is None}
        self._forms = {state.name: state.form for state in states if state.refusal is None}
        self._shares: list[_Share] = []
        self._directory = temporary_directory("standby-", settings.scratch_directory)

    def fill(self, source: StateSource, operator: str, epoch: int, ranges: Iterable[KeyGroupRange]) -> None:
        """Restore every range as of the epoch. Raises the errors of the source and the backend: close it then."""
        for groups in ranges:
            backend = self._open(groups)
            try:
                changes = source.state(operator, groups, epoch, self._admitted) if self._held else iter(())
                with readable(source.location):
                    backend.restore(epoch, changes)
                self._shares.append(_Share(groups, backend, epoch, self._feed(groups, epoch)))
            except BaseException:
                backend.close()
                raise
        self.epoch = epoch
        self._filled = True

    def wait(self, ranges: Iterable[KeyGroupRange]) -> None:
        """Serve the states before their first commit: committed queries get an answer that makes clients wait."""
        self._shares = [_Share(groups, self._open(groups), NO_EPOCH, self._feed(groups, NO_EPOCH)) for groups in ranges]

    def advance(self, epoch: int, changes: Sequence[Callable[[int], Iterable[Change]]]) -> None:
        """Add an epoch, with the changes of each range; all ranges show it together.

        Raises `CheckpointError` when it cannot be read. Ranges that have the epoch keep it, do not show it yet, and do
        not read it again. After any other exception the generation can only be read.
        """
        for share, changes_of in zip(self._shares, changes, strict=True):
            if share.committed < epoch:
                found = self._kept(changes_of(epoch)) if self._held else ()
                with readable(f"epoch {epoch}"):
                    replay_epoch(share.backend, self._held, epoch, found)
                share.committed = epoch
        for share in self._shares:
            share.backend.finalize(epoch)
            if share.feed is not None:
                share.feed.finalize(epoch)
        self.epoch = epoch

    def instances(self, job: str, behind_since: Callable[[], float | None]) -> Iterator[StateInstance]:
        """The states as the server registers them."""
        live = RefusingReader(_NOT_RUNNING)
        for state in self.states:
            for share in self._shares:
                committed = share.reader if state.refusal is None else RefusingReader(state.refusal)
                yield StateInstance(
                    job,
                    state.descriptor,
                    state.key_types,
                    share.groups,
                    self._max_parallelism,
                    share.backend.capabilities,
                    {Isolation.LIVE: live, Isolation.COMMITTED: committed},
                    behind_since,
                    self._filled,
                    changes=_changes_of(share, state),
                )

    def close(self) -> None:
        """Idempotent."""
        for share in self._shares:
            share.reader.retire()
            if share.feed is not None:
                share.feed.close()
        for share in self._shares:
            share.backend.close()
        self._shares = []
        shutil.rmtree(self._directory, ignore_errors=True)

    def _feed(self, groups: KeyGroupRange, epoch: int) -> ChangeFeed | None:
        if self._root is None or self._history is None:
            return None
        return ChangeFeed(self._root, self._uid, groups, self._history, epoch)

    def _open(self, groups: KeyGroupRange) -> StateBackend:
        config = self._settings.config
        backend = open_backend(
            config.backend,
            key_groups=groups,
            max_parallelism=self._max_parallelism,
            directory=temporary_directory("", self._directory),
            options=config.backend_options,
        )
        for descriptor in self._held.values():
            backend.table(descriptor)
        return backend

    def _admitted(self, parts: Iterable[Part]) -> Iterator[Part]:
        """The parts, only with the states that are served. Raises `CheckpointError` for a state in another form."""
        for part in parts:
            self._check_forms(part.states)
            yield part._replace(changes=self._kept(part.changes))

    def _kept(self, changes: Iterable[Change]) -> Iterator[Change]:
        """The changes of states that are served. They may be many: raises `ClosedError` when the standby is closing."""
        held, stopping = self._held, self._settings.stopping
        for number, change in enumerate(changes):
            if number % STOPPING_CHANGES == 0 and stopping():
                raise ClosedError("the standby is being closed")
            if change.state in held:
                yield change

    def _check_forms(self, states: States) -> None:
        for plain in states:
            form = self._forms.get(plain.get("name", ""))
            stored = StateSchema.from_plain(plain).to_plain()
            if form is not None and data_schema(stored) != data_schema(form.to_plain()):
                raise CheckpointError(
                    f"state {form.name!r} is stored in two forms, because its job is converting it; it is served when "
                    "the job has committed an epoch"
                )


def _changes_of(share: _Share, state: StoredState) -> StateFeed | None:
    if share.feed is None or state.refusal is not None:
        return None
    return StateFeed(share.feed, FedState(state.form, change_converter(state.descriptor)))


class ServedOperator:
    """An operator's current generation, and the locations of its queryable states."""

    def __init__(
        self, uid: str, source: StateSource, settings: ServingSettings, registry: StateRegistry, publish: Publish
    ) -> None:
        """`publish` is called when `tables` have changed, while the previous ones are still served."""
        self.uid = uid
        #: The locations of the queryable states, by name.
        self.tables: Mapping[str, LocationTable] = {}
        #: The time (`time.monotonic`) up to which the view is complete: it may lack what was committed later.
        self.complete_at = -math.inf
        #: When the served state was written, by `time.time`.
        self.written_at = 0.0
        #: How often the whole state was read.
        self.fills = 0
        self._source = source
        self._settings = settings
        self._registry = registry
        self._publish = publish
        self._generation: Generation | None = None
        self._ids: list[bytes] = []
        self._worn = False
        #: The schemas of the states whose first commit is awaited.
        self._awaited: States = ()

    @property
    def epoch(self) -> int:
        """The epoch that is served, -1 when none is."""
        return NO_EPOCH if self._generation is None else self._generation.epoch

    def follow(self, history: FollowedOperator, manifest: JobManifest, committed: int, source: StateSource) -> None:
        """Show the newest committed epoch, if it is newer. `history` has just looked.

        `committed` is the newest epoch that is known to be committed; `source` has the whole state, if it must be read.
        Raises `CheckpointError` when something cannot be read; the epoch before is then still shown.
        """
        try:
            self._show(history, history.final(committed), source)
        except CheckpointError:
            # A snapshot may have replaced the files that were listed: list them again.
            history.invalidate()
            history.look(manifest)
            self._show(history, history.final(committed), source)

    def _show(self, history: FollowedOperator, final: int, source: StateSource) -> None:
        if final <= self.epoch:
            if self.epoch == NO_EPOCH and history.declared != self._awaited:
                self._await(history, source)
            return
        self.written_at = max(self.written_at, history.written_at())
        if self._generation is None or self._worn or not history.continues:
            self.fill(source, history.states, final, [log.place.groups for log in history.logs])
            history.mark_applied(final)
        else:
            self._advance(self._generation, history, final)

    def _await(self, history: FollowedOperator, source: StateSource) -> None:
        """Register the states of a job that has not committed its first epoch yet, so that queries find them."""
        states = stored_states(history.declared, self._settings.descriptors)
        generation = Generation(self._settings, self.uid, source, states)
        try:
            generation.wait([log.place.groups for log in history.logs])
        except BaseException:
            generation.close()
            raise
        self._awaited = history.declared
        self._replace(generation)

    def fill(self, source: StateSource, states: States, epoch: int, ranges: Sequence[KeyGroupRange]) -> None:
        """Read the whole state as of an epoch and show it. Raises as `follow`."""
        generation = Generation(self._settings, self.uid, source, stored_states(states, self._settings.descriptors))
        try:
            generation.fill(source, self.uid, epoch, ranges)
        except BaseException:
            generation.close()
            raise
        self.fills += 1  # before it shows: closing the old generation can take a while
        self._replace(generation)

    def close(self) -> None:
        """Idempotent."""
        self.tables = {}
        self._withdraw(self._ids, self._generation)
        self._generation = None

    def _advance(self, generation: Generation, history: FollowedOperator, final: int) -> None:
        try:
            for epoch in history.epochs(final):
                generation.advance(epoch, [log.changes for log in history.logs])
                history.mark_applied(epoch)
        except CheckpointError:
            raise
        except BaseException:
            self._worn = True
            raise

    def _replace(self, generation: Generation) -> None:
        outdated, ids = self._generation, self._ids
        host, port = self._settings.server
        owned: dict[str, tuple[StateInstance, list[Owner]]] = {}
        registered: list[bytes] = []
        for instance in generation.instances(self._source.job, lambda: self.complete_at):
            registered.append(self._registry.register(instance))
            _, owners = owned.setdefault(instance.name, (instance, []))
            owners.append(Owner(instance.key_groups, host, port, registered[-1]))
        tables = {
            name: LocationTable(one.job, one.describe(), one.max_parallelism, tuple(owners))
            for name, (one, owners) in owned.items()
        }
        self.tables, self._generation, self._ids, self._worn = tables, generation, registered, False
        self._publish()
        self._withdraw(ids, outdated)

    def _withdraw(self, ids: Sequence[bytes], generation: Generation | None) -> None:
        for state_id in ids:
            self._registry.unregister(state_id)
        if generation is not None:
            generation.close()
