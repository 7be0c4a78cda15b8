"""Stored state as a source to read from: the interface, and its implementation for a checkpoint directory.

Rules of this module: it only reads. A source yields the state of an operator's key groups as of an epoch, in ascending
order, without the job's code. A job may be using the checkpoint directory: snapshots replace files while they are
read. So when a file is missing, the source reads the directory again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as chained
from itertools import islice
from pathlib import Path
from typing import TypeVar

from qstate.backends.contract import Change
from qstate.checkpoint.log.chain import (
    NO_EPOCH,
    Chain,
    Part,
    Snapshot,
    States,
    data_schema,
    read_chain,
    reading,
)
from qstate.checkpoint.log.file_facts import readable
from qstate.checkpoint.log.merge import merged_parts
from qstate.checkpoint.log.operator_state import OperatorState, redistributed
from qstate.checkpoint.log.segment import WHAT_TO_DO
from qstate.checkpoint.manifest import (
    JobManifest,
    LogPlace,
    layout_places,
    newest_places,
    operator_directory,
    read_final,
)
from qstate.checkpoint.storage.directory import Directory, doing
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.keys import KeyGroupRange
from qstate.values.value_forms import same

__all__ = [
    "JobHistory",
    "OutrunCheckpoint",
    "Prepare",
    "StateSource",
    "StoredOperator",
    "check_history",
    "existing_chain",
    "in_one_form",
    "with_gaps",
]

Found = TypeVar("Found")

#: A step between reading the parts of a history and merging them, such as a conversion.
Prepare = Callable[[Iterable[Part]], Iterable[Part]]

#: How many times a directory is read at most, when files are replaced meanwhile.
MOST_READS = 5


class OutrunCheckpoint(CheckpointError):
    """An epoch is not stored any more: newer snapshots or another history have replaced it, perhaps during the read."""


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """What a source has of an operator. An epoch of -1 means that there is none.

    `epoch` is the newest one that is final and can be read, `sealed` the newest one that can be read. `committed` is
    the newest one that Spark is known to have committed; it is later than `epoch` when files are damaged or lost.
    """

    uid: str
    query: str
    epoch: int
    sealed: int
    committed: int
    parallelism: int
    states: States


class StateSource(ABC):
    """The stored state of a job's operators."""

    #: Names the source in messages, and opens it again.
    location: str
    job: str
    max_parallelism: int
    #: The directory with the epoch logs of the job; None: there is state, and no history.
    root: Directory | None = None

    def history_of(self, operator: str) -> str | None:
        """See `JobManifest.history_of`. None: there is state, and no history."""
        return None

    @abstractmethod
    def operators(self) -> Mapping[str, StoredOperator]:
        """The operators by uid. Raises `CheckpointError`."""

    @abstractmethod
    def epoch(self, operator: str, groups: KeyGroupRange, upto: int) -> int:
        """The newest epoch up to `upto` as of which all these key groups can be read, -1 when there is none."""

    @abstractmethod
    def states(self, operator: str, upto: int) -> States:
        """The schemas that the operator's states had as of the newest epoch up to `upto`."""

    @abstractmethod
    def state(self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = same) -> Iterator[Change]:
        """The state of these key groups as of `epoch(operator, groups, upto)`: PUT and MAP_PUT changes, ascending.

        Raises `CheckpointError`, at once or during the iteration. Only an iteration to the end is known to be of one
        history.
        """

    @abstractmethod
    def operator_states(self, operator: str, upto: int) -> list[OperatorState]:
        """The operator state of each subtask, in their order, as of the newest epoch up to `upto`; empty without state.

        Raises `CheckpointError`.
        """

    def look_again(self) -> None:
        """Read what a running job has changed since the source was opened. Raises `CheckpointError`."""
        return


class JobHistory(StateSource):
    """A checkpoint directory, of a running or a stopped job."""

    def __init__(
        self,
        root: Path | Directory,
        manifest: JobManifest,
        *,
        origin: StateSource | None = None,
        current: bool = True,
    ) -> None:
        """`origin` is the source that the job was restored from, for operators without a log of their own.

        `current` is False for a manifest that leaves out layouts on purpose.
        """
        self._root = self.root = directory_of(root)
        self.location = str(self._root.path)
        self.job = manifest.job
        self.max_parallelism = manifest.max_parallelism
        self.manifest = manifest
        self._origin = origin
        self._current = current

    def history_of(self, operator: str) -> str | None:
        return self.manifest.history_of(operator)

    def operators(self) -> dict[str, StoredOperator]:
        final = read_final(self._root)
        restored = self._origin.operators() if self._origin is not None else {}
        begun, elsewhere = {}, {}
        for uid in sorted({*self.manifest.operators, *restored}):
            chains = self.subtasks(uid)
            if not chains and uid in restored:
                elsewhere[uid] = restored[uid]  # it has no log here yet
            else:
                query = self.manifest.operators.get(uid, "")
                begun[uid] = self._begun(uid, query, chains, final.get(query, NO_EPOCH))
        return {**_of_one_epoch(begun), **elsewhere}

    def _begun(self, uid: str, query: str, chains: Sequence[tuple[KeyGroupRange, Chain]], final: int) -> StoredOperator:
        latest = [NO_EPOCH if epoch is None else epoch for epoch in (chain.latest() for _, chain in chains)]
        begun = max(latest, default=NO_EPOCH)
        committed = max((final, *(_proved(chain, begun) for _, chain in chains)))
        missing = _missing(chains, self._every_group())
        restored = [base.epoch for _, chain in chains for base in _restored(chain)]
        gone = self.manifest.restored_from is not None and self._origin is None
        if missing and (committed > max(restored, default=NO_EPOCH) or (restored and gone)):
            where = operator_directory(self._root, uid).path
            raise DamagedCheckpoint(
                f"{where} lacks the epoch logs of the key groups {missing[0].start} to "
                f"{missing[0].stop - 1}, although epochs of it are committed; {WHAT_TO_DO}"
            )
        committed = max((committed, *restored))
        for groups in missing:
            latest.append(NO_EPOCH if self._origin is None else self._origin.epoch(uid, groups, committed))
        sealed = min(latest)
        states = {plain.get("name"): plain for _, chain in reversed(chains) for plain in chain.states}
        parallelism = self.manifest.parallelism
        return StoredOperator(
            uid, query, min(sealed, committed), sealed, committed, parallelism, tuple(states.values())
        )

    def subtasks(self, operator: str) -> list[tuple[KeyGroupRange, Chain]]:
        """The histories that have the operator's state now, by their key groups."""
        return self._chains(operator, self._every_group())

    def states(self, operator: str, upto: int) -> States:
        chains = self.subtasks(operator)
        found = {plain.get("name"): plain for _, chain in reversed(chains) for plain in chain.states_as_of(upto)}
        if self._origin is not None and _missing(chains, self._every_group()):
            found = {**{plain.get("name"): plain for plain in self._origin.states(operator, upto)}, **found}
        return tuple(found.values())

    def epoch(self, operator: str, groups: KeyGroupRange, upto: int) -> int:
        chains = self._chains(operator, groups)
        found = [_reached(chain, upto) for _, chain in chains]
        for missing in _missing(chains, groups):
            found.append(NO_EPOCH if self._origin is None else self._origin.epoch(operator, missing, upto))
        return min(found, default=NO_EPOCH)

    def state(self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = same) -> Iterator[Change]:
        for part, chain in with_gaps(groups, self._chains(operator, groups)):
            if chain is not None:
                yield from self._of_chain(chain, part, upto, prepare)
            elif self._origin is not None:
                yield from self._origin.state(operator, part, upto, prepare)
        self._check_history()

    def operator_states(self, operator: str, upto: int) -> list[OperatorState]:
        for _ in range(MOST_READS):
            places = self.places(operator)
            found = self._operator_states(operator, upto)
            if places == self.places(operator):
                break
        if not places:
            self._check_current(operator)
        self._check_history()
        return found

    def _operator_states(self, operator: str, upto: int) -> list[OperatorState]:
        """The operator states of the newest layout's subtasks; without a log yet, the state it will begin with."""
        layers: list[list[Chain | None]] = []
        for layout in range(self.manifest.layout, -1, -1):
            places = layout_places(self._root, self.manifest, operator, layout)
            layers.append([existing_chain(place) if place.files else None for place in places])
            if None not in layers[-1]:
                break
        found: list[OperatorState] = []
        if None in layers[-1] and self._origin is not None:
            found = self._origin.operator_states(operator, upto)
        for chains in reversed(layers):
            before = found
            found = [
                redistributed(before, len(chains), subtask) if chain is None else self._operator_state(chain, upto)
                for subtask, chain in enumerate(chains)
            ]
        return found

    def _operator_state(self, chain: Chain, upto: int) -> OperatorState:
        def read(chain: Chain) -> OperatorState:
            if all(base is not None and base.epoch > upto for base in chain.bases):
                raise _outrun(chain, upto)
            return chain.operator_state(upto)

        return self._read_of(chain, upto, read)

    def _of_chain(self, chain: Chain, groups: KeyGroupRange, upto: int, prepare: Prepare) -> Iterator[Change]:
        def begin(chain: Chain) -> Iterator[Change]:
            with readable(chain.files.path):
                found = iter(merged_parts(prepare(chain.parts(_sound_base(chain, upto), upto, groups))))
                begun = list(islice(found, 1))  # now all files are read or open: the job may remove them
                return chained(begun, found)

        changes = self._read_of(chain, upto, begin)
        with readable(chain.files.path):
            yield from (change for change in changes if change.group in groups)

    def _read_of(self, chain: Chain, upto: int, read: Callable[[Chain], Found]) -> Found:
        """What `read` returns of a history; reads the history again when files of it were replaced meanwhile."""
        for _ in range(MOST_READS):
            try:
                return read(chain)
            except DamagedCheckpoint as exc:
                chain, failure = self._read_again(chain, upto, exc), exc
        raise failure

    def _read_again(self, chain: Chain, upto: int, failure: DamagedCheckpoint) -> Chain:
        """Read a history again after a file was missing or damaged. Raises `failure` if the history has not changed."""
        manifest = (JobManifest.read(self._root) if self._current else None) or self.manifest
        places = newest_places(self._root, manifest, chain.identity.operator, self._every_group())
        again = next((existing_chain(place) for place in places if place.directory == chain.files), None)
        if again is None:  # removed with its layout
            raise _outrun(chain, upto) from failure
        if again.bases == chain.bases and again.segments == chain.segments:
            raise failure
        return again

    def places(self, operator: str, groups: KeyGroupRange | None = None) -> list[LogPlace]:
        """The logs of the operator's key groups (None: of all), ascending: those of the newest layout that has one."""
        return newest_places(self._root, self.manifest, operator, groups or self._every_group())

    def needs_origin(self) -> bool:
        """Whether the source that the job was restored from has state that this directory does not have yet."""
        if self._origin is None:
            return False
        chains = ((uid, self.subtasks(uid)) for uid in {*self.manifest.operators, *self._origin.operators()})
        return any(_missing(found, self._every_group()) for uid, found in chains if uid in self._origin.operators())

    def _chains(self, operator: str, groups: KeyGroupRange) -> list[tuple[KeyGroupRange, Chain]]:
        """The histories of these key groups, ascending."""
        for _ in range(MOST_READS):
            places = self.places(operator, groups)
            failure: DamagedCheckpoint | None = None
            try:
                chains = [(place.groups, existing_chain(place)) for place in places]
                found = [(shared, chain) for shared, chain in chains if chain is not None]
                if not _missing(found, groups):
                    return found
            except DamagedCheckpoint as exc:
                failure = exc
            # A job removes an earlier layout when a newer one is complete: that may have happened meanwhile.
            if places == self.places(operator, groups):
                break
        self._check_current(operator)
        if failure is not None:
            raise failure
        return found

    def _check_current(self, operator: str) -> None:
        """Raise `OutrunCheckpoint` if the job has added a layout meanwhile: missing state may be there."""
        manifest = JobManifest.read(self._root) if self._current else None
        if manifest is not None and manifest.layouts != self.manifest.layouts:
            where = operator_directory(self._root, operator).path
            raise OutrunCheckpoint(f"the job has changed its parallelism while {where} was read; try again")

    def _check_history(self) -> None:
        if self._current:
            check_history(self._root, self.manifest)

    def look_again(self) -> None:
        if self._current:
            self.manifest = JobManifest.read(self._root) or self.manifest

    def _every_group(self) -> KeyGroupRange:
        return KeyGroupRange(0, self.max_parallelism)


def _of_one_epoch(operators: Mapping[str, StoredOperator]) -> dict[str, StoredOperator]:
    """Share the proof of commits: Spark commits an epoch for all operators of a query at once."""
    committed: dict[str, int] = {}
    for stored in operators.values():
        committed[stored.query] = max(stored.committed, committed.get(stored.query, NO_EPOCH))
    return {
        uid: replace(stored, epoch=min(stored.sealed, committed[stored.query]), committed=committed[stored.query])
        for uid, stored in operators.items()
    }


def check_history(root: Directory, manifest: JobManifest) -> None:
    """Raise `OutrunCheckpoint` if the directory does not have the history of this manifest any more.

    Call it after reading files: they may be those of a copy that has taken the place of the directory meanwhile.
    """
    if not manifest.is_current(root):
        raise OutrunCheckpoint(f"{root.path} was emptied or replaced by another history while it was read; try again")


def existing_chain(place: LogPlace) -> Chain | None:
    """The history of a log that a job may be using; None when there is none. Raises `CheckpointError`."""
    for attempt in range(MOST_READS):
        try:
            with doing(f"read {place.directory.path}", place.directory):
                return read_chain(place.directory, place.identity)
        except DamagedCheckpoint:  # or a snapshot has replaced a file between listing and reading
            if attempt == MOST_READS - 1:
                raise
    raise AssertionError("unreachable")


def in_one_form(states: States, where: str, *, newest: bool = True) -> Prepare:
    """A step that refuses parts with other schemas: only the job has the user's code to convert their data.

    It raises `CheckpointError`, which names `where` the state is, at the first such part. `newest` is False for the
    state of an earlier epoch, which no job converts any more.
    """
    what_to_do = (
        "start the job once and let it commit an epoch: it converts the older data"
        if newest
        else "the job converted it about then: ask for an earlier epoch, or for a later one"
    )
    wanted = {plain.get("name"): data_schema(plain) for plain in states}

    def checked(parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            for plain in part.states:
                if wanted.get(plain.get("name")) != data_schema(plain):
                    raise CheckpointError(
                        f"state {plain.get('name')!r} is stored with two schemas, by an older and a newer program, in "
                        f"{where}; {what_to_do}"
                    )
            yield part

    return checked


def _missing(chains: Sequence[tuple[KeyGroupRange, Chain]], groups: KeyGroupRange) -> list[KeyGroupRange]:
    """The ranges of these key groups that have no history."""
    return [part for part, chain in with_gaps(groups, chains) if chain is None]


def with_gaps(
    groups: KeyGroupRange, found: Iterable[tuple[KeyGroupRange, Found]]
) -> Iterator[tuple[KeyGroupRange, Found | None]]:
    """What was found for some of these key groups, ascending, and None for each range between without anything."""
    at = groups.start
    for part, one in found:
        if at < part.start:
            yield KeyGroupRange(at, part.start), None
        yield part, one
        at = part.stop
    if at < groups.stop:
        yield KeyGroupRange(at, groups.stop), None


def _restored(chain: Chain) -> Iterator[Snapshot]:
    """The snapshot of the state that a history began with, which was final before."""
    yield from (base for base in chain.bases if base is not None and base.sequence == 0)


def _proved(chain: Chain, begun: int) -> int:
    """The newest epoch that a history proves committed; the epoch that it began with does not count.

    If one subtask has sealed epoch `begun`, Spark has committed the one before it. Snapshots are of committed epochs.
    """
    begun_with = {base.epoch for base in _restored(chain)}
    found = [base.epoch for base in chain.bases if base is not None]
    found += [segment.epoch for segment in chain.segments if segment.epoch < begun]
    return max((one for one in found if one not in begun_with), default=NO_EPOCH)


def _reached(chain: Chain, upto: int) -> int:
    """The newest epoch up to `upto` as of which a history can be read; -1 when there is none."""
    epochs = [base.epoch for base in chain.bases if base is not None]
    epochs += [segment.epoch for segment in chain.segments]
    return max((one for one in epochs if one <= upto), default=NO_EPOCH)


def _sound_base(chain: Chain, upto: int) -> Snapshot | None:
    """The newest base up to an epoch whose files are all sound.

    It checks them before any change is yielded, because the reader of a stream cannot undo what it has read.
    """
    failure: DamagedCheckpoint | None = None
    for base in chain.bases:
        if base is None:
            return None
        if base.epoch > upto:
            continue
        try:
            for snapshot in base.stack:
                with reading(chain.files, snapshot.name) as reader:
                    reader.verify()
            return base
        except DamagedCheckpoint as exc:
            failure = exc
    raise failure or _outrun(chain, upto)


def _outrun(chain: Chain, upto: int) -> OutrunCheckpoint:
    return OutrunCheckpoint(
        f"{chain.files.path} has no state as old as epoch {upto} any more: older snapshots are not retained. If the "
        "job has just made a snapshot, try again; retained_snapshots says how many it keeps"
    )
