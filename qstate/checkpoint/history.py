"""Stored state as a source to read from: a checkpoint directory, or a savepoint, whoever wrote it and wherever.

Rules of this module: it reads. A source gives the state of an operator's key groups as of an epoch, in ascending
order; it needs no code of the job's. A checkpoint directory may be in use: its files are replaced by snapshots
while they are read, so a file that went missing means reading its directory again.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain as chained
from itertools import islice
from pathlib import Path

from qstate.backends.contract import Change
from qstate.checkpoint.chain import (
    NO_EPOCH,
    Chain,
    LogIdentity,
    Part,
    Snapshot,
    States,
    data_schema,
    read_chain,
    reading,
)
from qstate.checkpoint.durable_directory import DurableDirectory
from qstate.checkpoint.manifest import JobManifest, operator_directory, read_final, subtask_directory
from qstate.checkpoint.merge import merged_parts
from qstate.checkpoint.segment import WHAT_TO_DO
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.keys import KeyGroupRange

__all__ = [
    "JobHistory",
    "OutrunCheckpoint",
    "Prepare",
    "StateSource",
    "StoredOperator",
    "existing_chain",
    "in_one_form",
]

#: What is done to the parts of a history before they are merged, such as converting them.
Prepare = Callable[[Iterable[Part]], Iterable[Part]]

_HISTORY_FILE = re.compile(r"\d{12}\.(log|snapshot)")

#: How often a directory is read again because files were replaced meanwhile.
MOST_READS = 5


class OutrunCheckpoint(CheckpointError):
    """An epoch is not there any more: newer snapshots took its place, perhaps while it was being read."""


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """What a source has of an operator. Epochs are -1 when there is none.

    `epoch` is the newest one that is final and can be read, `sealed` the newest one that can be read. `committed` is
    the newest one that Spark is known to have committed: later than `epoch` where files were damaged or lost.
    """

    uid: str
    query: str
    epoch: int
    sealed: int
    committed: int
    parallelism: int
    states: States


class StateSource(ABC):
    """Where the state of a job's operators can be read."""

    #: For messages, and to open it again.
    location: str
    job: str
    max_parallelism: int

    @abstractmethod
    def operators(self) -> Mapping[str, StoredOperator]:
        """What there is, by uid. Raises `CheckpointError`."""

    @abstractmethod
    def epoch(self, operator: str, groups: KeyGroupRange, upto: int) -> int:
        """The newest epoch up to `upto` that all these key groups have state as of, -1 when there is none."""

    @abstractmethod
    def state(
        self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = lambda parts: parts
    ) -> Iterator[Change]:
        """The state of these key groups as of `epoch(operator, groups, upto)`: PUT and MAP_PUT changes, ascending.

        Raises `CheckpointError`, at once or while it is read.
        """


class JobHistory(StateSource):
    """A checkpoint directory, of a running or a stopped job."""

    def __init__(self, root: Path, manifest: JobManifest, *, origin: StateSource | None = None) -> None:
        """`origin` is what the job was restored from, for operators that have no state of their own yet."""
        self.location = str(root)
        self.job = manifest.job
        self.max_parallelism = manifest.max_parallelism
        self._root = root
        self.manifest = manifest
        self._origin = origin

    def operators(self) -> dict[str, StoredOperator]:
        final = read_final(self._root)
        restored = self._origin.operators() if self._origin is not None else {}
        begun, elsewhere = {}, {}
        for uid in sorted({*self.manifest.operators, *restored}):
            chains = self.subtasks(uid)
            if not chains and uid in restored:
                elsewhere[uid] = restored[uid]  # it has not begun here
            else:
                query = self.manifest.operators.get(uid, "")
                begun[uid] = self._begun(uid, query, chains, final.get(query, NO_EPOCH))
        return {**_of_one_epoch(begun), **elsewhere}

    def _begun(self, uid: str, query: str, chains: Sequence[tuple[KeyGroupRange, Chain]], final: int) -> StoredOperator:
        latest = [NO_EPOCH if epoch is None else epoch for epoch in (chain.latest() for _, chain in chains)]
        # An epoch that one subtask has sealed proves the one before it committed.
        begun = max(latest, default=NO_EPOCH)
        committed = max((final, *(_before(chain, begun) for _, chain in chains)))
        missing = _missing(chains, self._every_group())
        taken_up = [base.epoch for _, chain in chains for base in _taken_up(chain)]
        gone = self.manifest.restored_from is not None and self._origin is None
        if missing and (committed > max(taken_up, default=NO_EPOCH) or (taken_up and gone)):
            raise DamagedCheckpoint(
                f"{operator_directory(self._root, uid)} lacks the epoch logs of the key groups {missing[0].start} to "
                f"{missing[0].stop - 1}, although epochs of it are committed; {WHAT_TO_DO}"
            )
        committed = max((committed, *taken_up))
        for groups in missing:
            latest.append(NO_EPOCH if self._origin is None else self._origin.epoch(uid, groups, committed))
        sealed = min(latest)
        states = {plain.get("name"): plain for _, chain in reversed(chains) for plain in chain.states}
        parallelism = self.manifest.parallelism
        return StoredOperator(
            uid, query, min(sealed, committed), sealed, committed, parallelism, tuple(states.values())
        )

    def subtasks(self, operator: str) -> list[tuple[KeyGroupRange, Chain]]:
        """The histories that the operator's state is made of now, by their key groups."""
        return self._chains(operator, self._every_group())

    def epoch(self, operator: str, groups: KeyGroupRange, upto: int) -> int:
        chains = self._chains(operator, groups)
        found = [_reached(chain, upto) for _, chain in chains]
        for missing in _missing(chains, groups):
            found.append(NO_EPOCH if self._origin is None else self._origin.epoch(operator, missing, upto))
        return min(found, default=NO_EPOCH)

    def state(
        self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = lambda parts: parts
    ) -> Iterator[Change]:
        at = groups.start
        for part, chain in self._chains(operator, groups):
            if self._origin is not None and at < part.start:
                yield from self._origin.state(operator, KeyGroupRange(at, part.start), upto, prepare)
            yield from self._of_chain(chain, part, upto, prepare)
            at = part.stop
        if self._origin is not None and at < groups.stop:
            yield from self._origin.state(operator, KeyGroupRange(at, groups.stop), upto, prepare)

    def _of_chain(self, chain: Chain, groups: KeyGroupRange, upto: int, prepare: Prepare) -> Iterator[Change]:
        for _ in range(MOST_READS):
            try:
                base = _sound_base(chain, upto)
                found = iter(merged_parts(prepare(chain.parts(base, upto, groups))))
                begun = list(islice(found, 1))  # all files are read, or open: they may go now
                break
            except DamagedCheckpoint as exc:
                again = read_chain(chain.files, chain.identity)
                if again is None or _same_files(again, chain):
                    raise
                chain, failure = again, exc
        else:
            raise failure
        for change in chained(begun, found):
            if change.group in groups:
                yield change

    def directories(self, operator: str) -> list[tuple[KeyGroupRange, Path, LogIdentity]]:
        """Where the histories of the operator's key groups are, ascending: in the newest layout that has one."""
        return self._directories(operator, self._every_group(), self.manifest.layout)

    def needs_origin(self) -> bool:
        """Whether some state is still only where the job was restored from."""
        if self._origin is None:
            return False
        chains = ((uid, self.subtasks(uid)) for uid in {*self.manifest.operators, *self._origin.operators()})
        return any(_missing(found, self._every_group()) for uid, found in chains if uid in self._origin.operators())

    def _directories(
        self, operator: str, groups: KeyGroupRange, layout: int
    ) -> list[tuple[KeyGroupRange, Path, LogIdentity]]:
        found: list[tuple[KeyGroupRange, Path, LogIdentity]] = []
        if layout < 0:
            return found
        parallelism = self.manifest.layouts[layout]
        for subtask in range(parallelism):
            identity = LogIdentity(self.job, operator, subtask, parallelism, self.max_parallelism)
            shared = _intersection(identity.key_groups, groups)
            if shared is None:
                continue
            directory = subtask_directory(self._root, operator, layout, subtask)
            if _holds_history(directory):
                found.append((shared, directory, identity))
            else:
                found += self._directories(operator, shared, layout - 1)
        return found

    def _chains(self, operator: str, groups: KeyGroupRange) -> list[tuple[KeyGroupRange, Chain]]:
        """The histories of these key groups, ascending."""
        found = []
        for shared, directory, identity in self._directories(operator, groups, self.manifest.layout):
            chain = existing_chain(directory, identity)
            if chain is not None:
                found.append((shared, chain))
        return found

    def _every_group(self) -> KeyGroupRange:
        return KeyGroupRange(0, self.max_parallelism)


def _of_one_epoch(operators: Mapping[str, StoredOperator]) -> dict[str, StoredOperator]:
    """Spark commits an epoch for all operators of a query at once, so what one of them proves holds for the others."""
    committed: dict[str, int] = {}
    for stored in operators.values():
        committed[stored.query] = max(stored.committed, committed.get(stored.query, NO_EPOCH))
    return {
        uid: replace(stored, epoch=min(stored.sealed, committed[stored.query]), committed=committed[stored.query])
        for uid, stored in operators.items()
    }


def _holds_history(directory: Path) -> bool:
    return directory.exists() and any(map(_HISTORY_FILE.fullmatch, DurableDirectory(directory).names()))


def existing_chain(directory: Path, identity: LogIdentity) -> Chain | None:
    """The history in a directory that a job may be using; None when there is none. Raises `CheckpointError`."""
    if not directory.exists():
        return None
    for attempt in range(MOST_READS):
        try:
            return read_chain(DurableDirectory(directory), identity)
        except DamagedCheckpoint:  # or replaced by a snapshot between listing and reading
            if attempt == MOST_READS - 1:
                raise
        except OSError as exc:
            raise CheckpointError(f"cannot read {directory}: {exc}") from exc
    raise AssertionError("unreachable")


def in_one_form(states: States) -> Prepare:
    """Refuses parts whose data is of other schemas: only the job, which has the user's code, can convert it.

    The stream that it prepares raises `CheckpointError` when such a part comes.
    """
    wanted = {plain.get("name"): data_schema(plain) for plain in states}

    def checked(parts: Iterable[Part]) -> Iterator[Part]:
        for part in parts:
            for plain in part.states:
                if wanted.get(plain.get("name")) != data_schema(plain):
                    raise CheckpointError(
                        f"state {plain.get('name')!r} is stored in two forms, by an older and a newer program; start "
                        "the job once and let it commit an epoch: it converts what is there"
                    )
            yield part

    return checked


def _missing(chains: Sequence[tuple[KeyGroupRange, Chain]], groups: KeyGroupRange) -> list[KeyGroupRange]:
    """What of these key groups has no history."""
    bounds = [groups.start, *(at for part, _ in chains for at in (part.start, part.stop)), groups.stop]
    return [KeyGroupRange(*pair) for pair in zip(bounds[::2], bounds[1::2], strict=True) if pair[0] < pair[1]]


def _taken_up(chain: Chain) -> Iterator[Snapshot]:
    """The state that a history began with: it was final before."""
    yield from (base for base in chain.bases if base is not None and base.sequence == 0)


def _before(chain: Chain, epoch: int) -> int:
    """The newest epoch before this one that was sealed in a history, what it began with aside."""
    begun_with = {base.epoch for base in _taken_up(chain)}
    return max((one for one in _epochs(chain) if one < epoch and one not in begun_with), default=NO_EPOCH)


def _reached(chain: Chain, upto: int) -> int:
    """The newest epoch up to `upto` that a history can be read as of; -1 when there is none."""
    return max((one for one in _epochs(chain) if one <= upto), default=NO_EPOCH)


def _epochs(chain: Chain) -> Iterator[int]:
    yield from (base.epoch for base in chain.bases if base is not None)
    yield from (segment.epoch for segment in chain.segments)


def _sound_base(chain: Chain, upto: int) -> Snapshot | None:
    """The best base for an epoch whose file is as it was written: a stream that was begun cannot be taken back."""
    failure: DamagedCheckpoint | None = None
    for base in chain.bases:
        if base is None:
            return None
        if base.epoch > upto:
            continue
        try:
            with reading(chain.files, base.name) as reader:
                reader.verify()
            return base
        except DamagedCheckpoint as exc:
            failure = exc
    raise failure or OutrunCheckpoint(
        f"{chain.files.path} holds nothing as old as epoch {upto} any more: older snapshots are not retained. If the "
        "job has just gone on, try again; retained_snapshots says how many it keeps"
    )


def _same_files(one: Chain, other: Chain) -> bool:
    return one.bases == other.bases and one.segments == other.segments


def _intersection(one: KeyGroupRange, other: KeyGroupRange) -> KeyGroupRange | None:
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return KeyGroupRange(start, stop) if start < stop else None
