"""Reads the files of one operator subtask as one history, and checks that each file follows the one before.

Rules of this module: it reads and decides, and writes nothing. `segment` reads the bytes inside a file, `epoch_log`
adds files, `snapshots` replaces old files by fewer. Readers outside the job use this module as well.

    000000000001.log             a writer opened the log
    000000000002.log             an epoch: its changes
    000000000002.snapshot        the state after file 2, in ascending order; replaces the files up to 2
    000000000007.snapshot        the changes between snapshot 2 and file 7; both together replace the files up to 7

**The sequence.** `.log` files are numbered from 1 without a gap. Each is an opening or an epoch and names the seal
(see `segment`) of the file before it. A snapshot names the seal of the `.log` file of its own number. So opening the
log finds a missing file, a file of another history and a file from an old copy; reading finds a damaged byte in a
body. Gaps in *epoch* numbers are legal: an epoch may not reach this operator. The header is a map:

    format 2 (3 in a partial snapshot, which a reader of format 2 would take for the whole state), kind "writer" |
    "epoch" | "output" | "snapshot", job, operator, subtask, parallelism, max_parallelism,
    sequence, previous (seal of the file before, 0 for the first), writer (sequence number of its opening),
    epoch (-1: none), and of these what applies:
    compression   of the changes, if they are compressed (see `qstate.checkpoint.log.compression`)
    states        in an opening and a snapshot: the schemas of the states (see `qstate.evolution`) in their data
    since         in a partial snapshot: [sequence, seal] of the snapshot that it builds on
    void          in an opening: how many files right before this one are damaged and do not count

The footer of an epoch adds `output`: nil, or {seal, frames}. It adds `input` if the rows of the epoch are identified
(see `qstate.checkpoint.log.epoch_input`). The footer of an epoch or a snapshot adds `operator_state` if the operator
has some (see `qstate.checkpoint.log.operator_state`).

**Bases.** Reading begins with a snapshot, or with no state if file 1 exists. Retention removes the files that no
kept snapshot needs, the oldest first. So there may be several bases. The newest one needs the fewest files; an older
one serves when the newest, or a file before it, is damaged.

**Stacks.** A snapshot is whole or partial. A partial one holds the changes since an earlier snapshot and builds on it;
that one may be partial itself. A base is the newest snapshot of such a stack, and needs all files of the stack.

**A damaged tail.** When the newest file is damaged, the state of the epoch before it can still be read. Spark's next
epoch number decides whether that is enough (see `attempts`). So the chain leaves such a file out and names it in
`damaged`; the next opening declares it void. Spark cannot repeat an earlier epoch. So damage before the newest file is
an error unless a snapshot replaces the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from qstate.backends.change_blocks import ChangeBlock, ChangeBlocks
from qstate.backends.contract import Change
from qstate.checkpoint.log.epoch_input import EpochInput, input_of
from qstate.checkpoint.log.file_facts import FORMAT, LARGEST_VOID, check_log_file
from qstate.checkpoint.log.file_names import (
    FileKind,
    history_files,
    is_history_file,
    log_name,
    output_name,
    snapshot_name,
)
from qstate.checkpoint.log.log_identity import LogIdentity, check_name, misplaced, owner_of
from qstate.checkpoint.log.operator_state import OF_SUBTASK, OperatorState, operator_state_of
from qstate.checkpoint.log.segment import WHAT_TO_DO, SegmentInfo, SegmentReader
from qstate.checkpoint.storage.directory import Directory
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.host.private_files import NotRegular
from qstate.keys import KeyGroupRange

__all__ = [
    "NO_EPOCH",
    "Chain",
    "LogIdentity",
    "Part",
    "Sealed",
    "Snapshot",
    "States",
    "data_schema",
    "header_of",
    "read_chain",
    "reading",
    "size_of",
]

NO_EPOCH = -1

#: The schemas of an operator's states, as plain data.
States = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Sealed:
    """What memory holds of one `.log` file. Only an opening has `states`."""

    sequence: int
    seal: int
    epoch: int
    writer: int
    output: Mapping[str, int] | None = None
    states: States = ()
    input: EpochInput | None = None

    @property
    def name(self) -> str:
        return log_name(self.sequence)

    @property
    def output_name(self) -> str:
        return output_name(self.sequence, self.writer)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One `.snapshot` file: the state after the `.log` file of its sequence, whose seal is `previous`.

    A partial one has the changes since the snapshot `below` it. A whole one has no snapshot below (None).
    """

    sequence: int
    seal: int
    previous: int
    epoch: int
    writer: int
    states: States
    below: Snapshot | None = None

    @property
    def name(self) -> str:
        return snapshot_name(self.sequence)

    @property
    def stack(self) -> tuple[Snapshot, ...]:
        """The snapshots that form this state together: the whole one first, this one last."""
        found: list[Snapshot] = []
        one: Snapshot | None = self
        while one is not None:
            found.append(one)
            one = one.below
        return tuple(reversed(found))


class Part(NamedTuple):
    """A section of the history: changes that lead to `epoch`, of states with these schemas.

    `ascending`: the part is a snapshot, whose changes are in the order of the neutral dump. Such parts come first in a
    history; the first of them is whole, the others are partial.
    """

    epoch: int
    states: States
    changes: Iterable[Change]
    ascending: bool


class Chain:
    """The history of one subtask, from its oldest usable base. `segments` follow each other without a gap."""

    def __init__(
        self,
        files: Directory,
        identity: LogIdentity,
        bases: Sequence[Snapshot | None],
        segments: Sequence[Sealed],
        damaged: str | None = None,
    ) -> None:
        self.files = files
        self.identity = identity
        #: The snapshots that reading can begin with, the newest first. None is a base, too: file 1, without a snapshot.
        self.bases = tuple(bases)
        self.segments = list(segments)
        #: The path of the newest file if it is damaged; the chain does not contain it.
        self.damaged = damaged

    @property
    def top(self) -> int:
        """The highest number that is taken, damaged or not."""
        newest = self.bases[0].sequence if self.bases[0] else 0
        last = self.segments[-1].sequence if self.segments else 0
        return max(newest, last) + (self.damaged is not None)

    @property
    def seal(self) -> int:
        """The seal of the last file that counts, 0 when there is none."""
        base = self.bases[0]
        if self.segments and (base is None or self.segments[-1].sequence >= base.sequence):
            return self.segments[-1].seal
        return base.previous if base else 0

    def latest(self) -> int | None:
        """The newest sealed epoch, None when there is none."""
        for segment in reversed(self.segments):
            if segment.epoch != NO_EPOCH:
                return segment.epoch
        base = self.bases[0]
        return base.epoch if base and base.epoch != NO_EPOCH else None

    @property
    def states(self) -> States:
        """The schemas of the newest data; without data, those of the newest writer."""
        newest: States = ()
        for part in self.parts(self.bases[0]):
            newest = part.states
        if newest or not self.segments:
            return newest
        return self.segments[-1].states

    def states_as_of(self, upto: int) -> States:
        """The schemas of the data that `parts` yields for epoch `upto`, from the newest base that is not after it."""
        newest: States = ()
        for part in self.parts(next((base for base in self.bases if base is None or base.epoch <= upto), None), upto):
            newest = part.states
        return newest

    def parts(
        self,
        base: Snapshot | None,
        upto: int | None = None,
        groups: KeyGroupRange | None = None,
        *,
        above: Snapshot | None = None,
    ) -> Iterator[Part]:
        """The history from one of `bases`, up to and including epoch `upto` (None: all of it).

        `groups`: the caller needs only these key groups; a part may leave out others that it need not read.
        `above`: only the parts after this snapshot of the base's stack.

        The caller may read the changes of a part after it has asked for the next parts, as merging a stack does. The
        changes raise `DamagedCheckpoint` at the first damage, and yield a block only after it has been checked.
        """
        states: States = base.states if base else ()
        for snapshot in base.stack if base else ():
            if above is None or snapshot.sequence > above.sequence:
                changes = ChangeBlocks(self._blocks(snapshot, groups))
                yield Part(snapshot.epoch, snapshot.states, changes, ascending=True)
        for segment in self.segments:
            if base and segment.sequence <= base.sequence:
                continue
            if segment.writer == segment.sequence:
                states = segment.states
            elif upto is None or segment.epoch <= upto:
                yield Part(segment.epoch, states, ChangeBlocks(self._blocks(segment, groups)), ascending=False)

    def operator_state(self, upto: int | None = None) -> OperatorState:
        """The lists that belong to no key, as of the newest epoch up to `upto` (None: the newest of all).

        One file holds them whole. Raises `CheckpointError` when it cannot be read.
        """
        files: list[Sealed | Snapshot] = [one for one in self.segments if one.epoch != NO_EPOCH]
        files += [base for base in self.bases if base is not None]
        files = [one for one in files if upto is None or one.epoch <= upto]
        newest = max((one.sequence for one in files), default=0)
        failure: DamagedCheckpoint | None = None
        for one in (one for one in files if one.sequence == newest):  # an epoch and its snapshot hold the same lists
            try:
                with reading(self.files, one.name) as reader:
                    return operator_state_of(reader.sealed(one.seal).footer, self.files.path / one.name)
            except DamagedCheckpoint as exc:
                failure = exc
        if failure is not None:
            raise failure
        return ()

    def _blocks(self, source: Sealed | Snapshot, groups: KeyGroupRange | None) -> Iterator[ChangeBlock]:
        with reading(self.files, source.name) as reader:
            yield from reader.changes(source.seal, groups).blocks()


def data_schema(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a state's schema that describes its data.

    The queryable name may change without the data, and so may the duration of a time-to-live: only whether there is one
    decides whether the values are stored with times.
    """
    described = {name: value for name, value in plain.items() if name != "queryable_name"}
    return described if plain.get("ttl_ms") is None else {**described, "ttl_ms": True}


def header_of(identity: LogIdentity, kind: str, file: Sealed | Snapshot, previous: int) -> dict[str, Any]:
    """The header fields that every file of a log has. `previous` is the seal of the file before it."""
    return {
        "format": FORMAT,
        "kind": kind,
        **asdict(identity),
        "sequence": file.sequence,
        "previous": previous,
        "writer": file.writer,
        "epoch": file.epoch,
    }


@contextmanager
def reading(files: Directory, name: str) -> Iterator[SegmentReader]:
    """Open a file of the log. Raises `DamagedCheckpoint` if it is missing, `CheckpointError` if it cannot be read."""
    path = files.path / name
    try:
        with files.open(name) as file:
            yield SegmentReader(file, str(path))
    except FileNotFoundError as exc:
        raise DamagedCheckpoint(f"{path} is missing, or was dropped; {WHAT_TO_DO}") from exc
    except NotRegular as exc:
        raise DamagedCheckpoint(f"{path} is no regular file; {WHAT_TO_DO}") from exc
    except OSError as exc:
        raise CheckpointError(f"cannot read {path}: {exc}") from exc


def size_of(files: Directory, source: Sealed | Snapshot) -> int:
    """The size of a file of the log in bytes. Raises what `reading` raises."""
    with reading(files, source.name) as reader:
        return reader.size


def read_chain(files: Directory, identity: LogIdentity | None = None) -> Chain | None:
    """Read the history in a directory and check that each file follows the one before; None when there is no history.

    `identity` is the subtask that the log must belong to; None admits any. Raises `CheckpointError` when the log
    belongs to another one or has another format, `DamagedCheckpoint` when no usable history is left.
    """
    reader = _ChainReader(files, identity)
    if not reader.logs and not reader.snapshots and reader.failure is None:
        return None
    bases: list[Snapshot | None] = []
    segments: list[Sealed] = []
    damaged: str | None = None
    # The state that a log began with is in snapshot 0. Without it, the log must not seem to have begun with none.
    nothing = () if reader.began_with_state else (None,)
    for base in (*reversed(reader.snapshots), *nothing):
        try:
            found, found_damaged = reader.follow(base)
        except DamagedCheckpoint as exc:
            reader.failure = reader.failure or exc
            continue
        if bases and found_damaged != damaged:
            continue  # the newer base does not need the damaged file
        bases.append(base)
        segments, damaged = found, found_damaged
    if not bases:
        assert reader.failure is not None
        raise reader.failure
    assert reader.identity is not None
    return Chain(files, reader.identity, bases, segments, damaged)


class _ChainReader:
    """Reads each file's header and footer once. `failure` is the first damage that it found."""

    def __init__(self, files: Directory, identity: LogIdentity | None) -> None:
        self._files = files
        self.identity = identity
        self.failure: DamagedCheckpoint | None = None
        self._names = files.names()
        numbered = history_files(self._names)
        self.logs = {number for number, kind in numbered if kind is FileKind.LOG}
        #: Whether the log began with the state of another layout, savepoint or job.
        self.began_with_state = (0, FileKind.SNAPSHOT) in numbered
        self._infos: dict[int, SegmentInfo | DamagedCheckpoint] = {}
        #: The seals that sound snapshots, usable or not, name for the `.log` file of their number.
        self._known: dict[int, int] = {}
        #: The sound snapshots whose whole stack exists.
        self.snapshots = self._snapshots(sorted(number for number, kind in numbered if kind is FileKind.SNAPSHOT))

    def _snapshots(self, numbers: Sequence[int]) -> list[Snapshot]:
        """The snapshots whose header and footer are sound, as are those of all snapshots below them, ascending."""
        found: dict[int, Snapshot] = {}
        for number in numbers:
            name = snapshot_name(number)
            try:
                info = self._info(name)
                header = info.header
                self._known[number] = header["previous"]
                below = self._below(name, header.get("since"), found)
            except DamagedCheckpoint as exc:  # another base may do
                self.failure = self.failure or exc
                continue
            states = tuple(header.get("states", ()))
            found[number] = Snapshot(
                number, info.seal, header["previous"], header["epoch"], header["writer"], states, below
            )
        return list(found.values())

    def _below(self, name: str, since: Sequence[int] | None, found: Mapping[int, Snapshot]) -> Snapshot | None:
        """The snapshot that this one builds on, None for a whole one."""
        if since is None:
            return None
        number, seal = since
        below = found.get(number)
        if below is None or below.seal != seal:
            raise DamagedCheckpoint(
                f"{self._files.path / name} builds on {snapshot_name(number)}, which is missing, damaged or another "
                f"one; {WHAT_TO_DO}"
            )
        return below

    def follow(self, base: Snapshot | None) -> tuple[list[Sealed], str | None]:
        """The files after a base that count, and the path of the newest one if it is damaged.

        Raises `DamagedCheckpoint` when a file before the newest is damaged or missing.
        """
        if base is None and 1 not in self.logs:
            raise DamagedCheckpoint(f"{self._files.path / log_name(1)} is missing; {WHAT_TO_DO}")
        begun = Sealed(base.sequence, base.previous, base.epoch, base.writer) if base else Sealed(0, 0, NO_EPOCH, 0)
        start = begun.sequence
        top = max(max(self.logs, default=0), max(self._known, default=0))
        self._check_next(start, top)
        segments: list[Sealed] = []
        doubtful: dict[int, DamagedCheckpoint] = {}
        for sequence in range(start + 1, top + 1):
            if len(doubtful) > LARGEST_VOID:
                break  # no opening can declare more files void
            info = self._log(sequence, whole=sequence == top)
            if isinstance(info, DamagedCheckpoint):
                doubtful[sequence] = info
                continue
            for void in range(sequence - info.header.get("void", 0), sequence):
                doubtful.pop(void, None)
                segments = [segment for segment in segments if segment.sequence != void]
            if doubtful:
                break  # this file follows a damaged one
            segment = self._checked(info, sequence, segments[-1] if segments else begun)
            if segment.epoch != NO_EPOCH and segment.epoch <= _newest_epoch(begun, segments):
                raise self._not_following(segment.name)
            if self._known.get(sequence, segment.seal) != segment.seal:
                raise self._not_following(segment.name)
            segments.append(segment)
        if doubtful and (doubtful.keys() != {top} or top not in self.logs):
            raise next(iter(doubtful.values()))
        return segments, str(self._files.path / log_name(top)) if doubtful else None

    def _check_next(self, start: int, top: int) -> None:
        """Raise `DamagedCheckpoint` when the files right after a base are gone: only newer snapshots need this base.

        Without this check, the reader would look for each of those files, which may be many.
        """
        first = min((number for number in self.logs if number > start), default=top + 1)
        if first > start + 1:
            info = self._log(first, whole=first == top) if first <= top else None
            void = info.header.get("void", 0) if isinstance(info, SegmentInfo) else 0
            if first - void > start + 1:
                raise DamagedCheckpoint(f"{self._files.path / log_name(start + 1)} is missing; {WHAT_TO_DO}")

    def _log(self, sequence: int, *, whole: bool) -> SegmentInfo | DamagedCheckpoint:
        """Read a `.log` file's header and footer; `whole` also checks the body.

        The newest file needs the whole check: the chain leaves that one out when it is damaged.
        """
        if sequence not in self._infos:
            try:
                self._infos[sequence] = self._info(log_name(sequence), whole=whole)
            except DamagedCheckpoint as exc:
                self._infos[sequence] = exc
        return self._infos[sequence]

    def _info(self, name: str, *, whole: bool = False) -> SegmentInfo:
        with reading(self._files, name) as reader:
            info = reader.info()
            if whole:
                reader.verify()
        path = self._files.path / name
        check_log_file(info.header, path)
        self._admit(info.header, path)
        check_name(info.header, name, path)
        # The footers of many files are in memory at a time, so without the operator state, which may be large.
        return replace(info, footer={key: fact for key, fact in info.footer.items() if key != OF_SUBTASK})

    def _admit(self, header: Mapping[str, Any], path: object) -> None:
        """Raise `DamagedCheckpoint` for a file of another log, `CheckpointError` when the whole log is another one."""
        owner = owner_of(header)
        if self.identity is None:
            self.identity = owner
        elif owner != self.identity:
            if self._has_files_of(self.identity):
                raise misplaced(header, path, self.identity)
            raise CheckpointError(
                f"{path} belongs to {owner}, but was opened for {self.identity}; give every job its own checkpoint "
                "directory, keep operator uids and the parallelism, or start with an empty one"
            )

    def _has_files_of(self, identity: LogIdentity) -> bool:
        for name in filter(is_history_file, self._names):
            with suppress(CheckpointError), reading(self._files, name) as reader:
                header = reader.info().header
                check_log_file(header, name)
                if owner_of(header) == identity:
                    return True
        return False

    def _checked(self, info: SegmentInfo, sequence: int, last: Sealed) -> Sealed:
        """The file as the successor of `last`. Raises `DamagedCheckpoint` when it does not follow it."""
        header = info.header
        opens = header["kind"] == "writer"
        states = tuple(header.get("states", ()))
        footer = info.footer
        segment = Sealed(
            sequence, info.seal, header["epoch"], header["writer"], footer.get("output"), states, input_of(footer)
        )
        by_its_writer = header["writer"] == (sequence if opens else last.writer)
        if header["previous"] != last.seal or not by_its_writer or opens is not (segment.epoch == NO_EPOCH):
            raise self._not_following(segment.name)
        return segment

    def _not_following(self, name: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self._files.path / name} does not follow the file before it; {WHAT_TO_DO}")


def _newest_epoch(begun: Sealed, since: Sequence[Sealed]) -> int:
    return next((one.epoch for one in reversed(since) if one.epoch != NO_EPOCH), begun.epoch)
