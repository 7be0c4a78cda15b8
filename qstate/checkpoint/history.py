"""Stored state as a source to read from: a checkpoint directory, or a savepoint, whoever wrote it and wherever.

Rules of this module: it reads. A source gives the state of an operator's key groups as of an epoch, in ascending
order; it needs no code of the job's. A checkpoint directory may be in use: its files are replaced by snapshots
while they are read, so a file that went missing means reading its directory again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qstate.backends.contract import Change
from qstate.checkpoint.chain import NO_EPOCH, Chain, LogIdentity, Part, Snapshot, States, read_chain, reading
from qstate.checkpoint.durable_directory import DurableDirectory
from qstate.checkpoint.manifest import JobManifest, operator_directory, read_final, subtask_directory
from qstate.checkpoint.merge import merged_parts
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.keys import KeyGroupRange

__all__ = ["JobHistory", "Prepare", "StateSource", "StoredOperator"]

#: What is done to the parts of a history before they are merged, such as converting them.
Prepare = Callable[[Iterable[Part]], Iterable[Part]]

#: How often a directory is read again because files were replaced meanwhile.
MOST_READS = 5


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """What a source has of an operator. `epoch` is the newest one that is final, -1 when there is none."""

    uid: str
    query: str
    epoch: int
    sealed: int
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
    """A checkpoint directory, of a running or a stopped job. `layouts` reads only so many of its first layouts."""

    def __init__(self, root: Path, manifest: JobManifest, *, origin: StateSource | None = None) -> None:
        """`origin` is what the job was restored from, for operators that have no state of their own yet."""
        self.location = str(root)
        self.job = manifest.job
        self.max_parallelism = manifest.max_parallelism
        self._root = root
        self._manifest = manifest
        self._origin = origin

    def operators(self) -> dict[str, StoredOperator]:
        final = read_final(self._root)
        found = {}
        for uid, query in self._manifest.operators.items():
            chains = self._chains(uid, self._every_group(), self._manifest.layout)
            latest = [chain.latest() for _, chain in chains]
            sealed = min((NO_EPOCH if epoch is None else epoch for epoch in latest), default=NO_EPOCH)
            begun = max((NO_EPOCH if epoch is None else epoch for epoch in latest), default=NO_EPOCH)
            states = chains[0][1].states if chains else ()
            # An epoch that one subtask has sealed proves the one before it committed.
            settled = max((_before(chain, begun) for _, chain in chains), default=NO_EPOCH)
            epoch = min(sealed, max(final.get(query, NO_EPOCH), settled))
            found[uid] = StoredOperator(uid, query, epoch, sealed, self._manifest.parallelism, states)
        return found

    def subtasks(self, operator: str) -> list[tuple[KeyGroupRange, Chain]]:
        """The histories that the operator's state is made of now, by their key groups."""
        return self._chains(operator, self._every_group(), self._manifest.layout)

    def epoch(self, operator: str, groups: KeyGroupRange, upto: int) -> int:
        chains = self._chains(operator, groups, self._manifest.layout)
        found = [_reached(chain, upto) for _, chain in chains]
        if self._origin is not None and sum(len(part) for part, _ in chains) < len(groups):
            found.append(self._origin.epoch(operator, groups, upto))
        return min(found, default=NO_EPOCH)

    def state(
        self, operator: str, groups: KeyGroupRange, upto: int, prepare: Prepare = lambda parts: parts
    ) -> Iterator[Change]:
        at = groups.start
        for part, chain in self._chains(operator, groups, self._manifest.layout):
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
                found = merged_parts(prepare(chain.parts(base, upto, groups)))
                break
            except DamagedCheckpoint as exc:
                again = read_chain(chain.files, chain.identity)
                if again is None or _same_files(again, chain):
                    raise
                chain, failure = again, exc
        else:
            raise failure
        for change in found:
            if change.group in groups:
                yield change

    def _chains(self, operator: str, groups: KeyGroupRange, layout: int) -> list[tuple[KeyGroupRange, Chain]]:
        """The histories of these key groups, ascending: of the newest layout that has one for them."""
        found: list[tuple[KeyGroupRange, Chain]] = []
        if layout < 0:
            return found
        parallelism = self._manifest.layouts[layout]
        for subtask in range(parallelism):
            identity = LogIdentity(self.job, operator, subtask, parallelism, self.max_parallelism)
            shared = _intersection(identity.key_groups, groups)
            if shared is None:
                continue
            chain = _existing_chain(subtask_directory(self._root, operator, layout, subtask), identity)
            found += self._chains(operator, shared, layout - 1) if chain is None else [(shared, chain)]
        return found

    def has_state(self, operator: str) -> bool:
        """Whether there is a directory for the operator at all."""
        return operator_directory(self._root, operator).exists()

    def _every_group(self) -> KeyGroupRange:
        return KeyGroupRange(0, self.max_parallelism)


def _existing_chain(directory: Path, identity: LogIdentity) -> Chain | None:
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


def _before(chain: Chain, epoch: int) -> int:
    """The newest epoch of a history before this one."""
    return max((one for one in _epochs(chain) if one < epoch), default=NO_EPOCH)


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
    raise failure or CheckpointError(
        f"{chain.files.path} holds nothing as old as epoch {upto}: older snapshots were not retained"
    )


def _same_files(one: Chain, other: Chain) -> bool:
    return one.bases == other.bases and one.segments == other.segments


def _intersection(one: KeyGroupRange, other: KeyGroupRange) -> KeyGroupRange | None:
    start, stop = max(one.start, other.start), min(one.stop, other.stop)
    return KeyGroupRange(start, stop) if start < stop else None
