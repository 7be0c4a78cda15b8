"""Follows an operator's epoch logs while its job writes them: which epochs are new since the last look, and final.

Rules of this module: it reads files and knows no backend. A look costs one listing of each subtask's directory, the
header and footer of each new file, and the manifest. It reads a whole log again only if the new files do not follow
the known ones: a damaged file was declared void, snapshots have replaced files, or the parallelism changed.

A follower has the state as of one epoch. It `continues` while the files after that epoch exist and have the schemas
that it began with. Otherwise the caller must begin again with the state as of a later epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from qstate.backends.change_blocks import ChangeBlock, ChangeBlocks
from qstate.checkpoint.log.chain import NO_EPOCH, Sealed, States, reading
from qstate.checkpoint.log.file_facts import check_log_file
from qstate.checkpoint.log.file_names import FileKind, log_name
from qstate.checkpoint.log.log_identity import owner_of
from qstate.checkpoint.manifest import JobManifest, LogPlace, newest_places
from qstate.checkpoint.sources.history import OutrunCheckpoint, check_history, existing_chain
from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import DamagedCheckpoint
from qstate.keys import KeyGroupRange

__all__ = ["FollowedLog", "FollowedOperator"]


class FollowedLog:
    """The log of one subtask. `sealed` are the epochs after the one that the follower has, in their order."""

    def __init__(self, place: LogPlace) -> None:
        """Reads the log. Raises `CheckpointError`."""
        self.place = place
        #: The schemas of the newest data.
        self.states: States = ()
        #: The schemas that the newest writer opened the log with.
        self.declared: States = ()
        self.sealed: list[Sealed] = []
        #: Further epochs that exist: those of snapshots, and the one that the follower has.
        self.older: set[int] = set()
        #: The epoch of the snapshot that the log began with. It is final: Spark asked for the epoch after it.
        self.given = NO_EPOCH
        #: The log has the changes of each epoch after this one that was sealed in it; -1: of all.
        self.begins_after = NO_EPOCH
        #: The schemas of the data of each writer, by the number of its opening.
        self.schemas: dict[int, States] = {}
        #: The path of the newest file if it is damaged.
        self.damaged: str | None = None
        #: Whether the files after the epoch that the follower has exist.
        self.continues = True
        #: The newest snapshot of an epoch, by the number and seal of the `.log` file that it comes after.
        self._bases: dict[int, tuple[int, int]] = {}
        self._applied: tuple[int, int] | None = None
        self._last = (0, 0)
        self._sound = False
        self._read()

    @property
    def snapshots(self) -> Collection[int]:
        """The epochs of the snapshots, with that of the one that the log began with."""
        return self._bases.keys()

    @property
    def latest(self) -> int:
        """The newest epoch, -1 when there is none."""
        return max(self.epochs(), default=NO_EPOCH)

    def epochs(self) -> Iterator[int]:
        """Every known epoch."""
        yield from self.older
        for one in self.sealed:
            yield one.epoch

    def look(self, place: LogPlace) -> None:
        """Read the new `.log` files; `place` is from a new listing. Raises `CheckpointError`."""
        self.place = place  # its directory caches the sizes of the listing
        if self._sound:
            try:
                for number in sorted(number for number, kind in place.files if kind is FileKind.LOG):
                    if number > self._last[0]:
                        self._read_next(number)
            except DamagedCheckpoint:  # or declared void, or replaced by a snapshot: reading the whole log shows which
                self._sound = False
        # A snapshot beyond the last file has replaced files that this follower has not read.
        if not self._sound or any(number > self._last[0] for number, _ in place.files):
            self._read()

    def written_at(self) -> float:
        """When the newest file was written, in seconds since the epoch of `time.time`; 0 when that is not known."""
        try:
            return self.place.directory.modified_at(log_name(self._last[0]))
        except OSError:  # replaced by a snapshot
            return 0.0

    def invalidate(self) -> None:
        """Read the whole log at the next look, because a known file turned out to be damaged."""
        self._sound = False

    def mark_applied(self, epoch: int) -> None:
        """Record that the follower has the state as of this epoch."""
        taken = [one for one in self.sealed if one.epoch <= epoch]
        self.sealed = [one for one in self.sealed if one.epoch > epoch]
        reached = [(one.sequence, one.seal) for one in taken]
        reached += [position for of_epoch, position in self._bases.items() if of_epoch <= epoch]
        if self._applied is not None:
            reached.append(self._applied)
        self._applied = max(reached, default=None)
        self.older = {max([*self.older, *(one.epoch for one in taken)], default=NO_EPOCH)} - {NO_EPOCH}
        self.continues = True

    def drop_removed(self) -> None:
        """Forget the epochs whose files the last listing does not have any more: snapshots have replaced them."""
        numbers = {number for number, kind in self.place.files if kind is FileKind.LOG}
        gone = [one.epoch for one in self.sealed if one.sequence not in numbers]
        if gone:
            self.begins_after = max(self.begins_after, *gone)
            self.sealed = [one for one in self.sealed if one.sequence in numbers]

    def changes(self, epoch: int) -> ChangeBlocks:
        """The changes of an epoch in `sealed`; empty for other epochs. Raises `CheckpointError` while they are read."""
        return ChangeBlocks(self._blocks(epoch))

    def _blocks(self, epoch: int) -> Iterator[ChangeBlock]:
        for one in self.sealed:
            if one.epoch == epoch:
                with reading(self.place.directory, one.name) as reader:
                    for block in reader.changes(one.seal).blocks():
                        yield block.within(self.place.groups)

    def _read_next(self, number: int) -> None:
        sequence, seal = self._last
        name = log_name(number)
        with reading(self.place.directory, name) as reader:
            info = reader.info()
        header = info.header
        check_log_file(header, self.place.directory.path / name)
        follows = (header["sequence"], header["previous"]) == (sequence + 1, seal)
        if not follows or header["kind"] not in ("writer", "epoch") or owner_of(header) != self.place.identity:
            raise DamagedCheckpoint(f"{self.place.directory.path / name} does not follow the file before it")
        if header["kind"] == "writer":  # its schemas describe data only once it has sealed an epoch
            self.declared = self.schemas[number] = tuple(header.get("states", ()))
        else:
            self.states = self.declared
            self.sealed.append(Sealed(number, info.seal, header["epoch"], header["writer"]))
        self._last = number, info.seal

    def _read(self) -> None:
        """Read the headers and footers of all files."""
        self._sound = False
        chain = existing_chain(self.place)
        if chain is None:
            raise DamagedCheckpoint(f"{self.place.directory.path} has lost its epoch log; bring it back from a copy")
        self.states = self.declared = chain.states
        bases = [base for base in chain.bases if base is not None]
        self.schemas = {base.writer: base.states for base in bases}
        for one in chain.segments:
            if one.writer == one.sequence:
                self.declared = self.schemas[one.sequence] = one.states
        self.damaged = chain.damaged
        self._bases = {base.epoch: (base.sequence, base.previous) for base in reversed(bases)}
        self.given = max((base.epoch for base in bases if base.sequence == 0), default=NO_EPOCH)
        oldest = chain.bases[-1]
        self.begins_after = self.given if oldest is None else oldest.epoch
        after = self._applied[0] if self._applied is not None else -1
        epochs = [one for one in chain.segments if one.epoch != NO_EPOCH]
        self.sealed = [one for one in epochs if one.sequence > after]
        self.older = {*self._bases, *(one.epoch for one in epochs if one.sequence <= after)} - {NO_EPOCH}
        known = {*self._bases.values(), *((one.sequence, one.seal) for one in epochs)}
        self.continues = self._applied is None or self._applied in known
        self._last = chain.top - (chain.damaged is not None), chain.seal
        self._sound = chain.damaged is None


class FollowedOperator:
    """The logs of one operator. `look` finds new epochs; `mark_applied` records which one the follower has."""

    def __init__(self, root: Path | Directory, uid: str) -> None:
        self.uid = uid
        self.logs: Sequence[FollowedLog] = ()
        self._root = directory_of(root)
        #: Whether there is a log for every key group.
        self.whole = False
        self._begun_with: list[States] = []

    def look(self, manifest: JobManifest) -> None:
        """Read the new files of all subtasks. Raises `CheckpointError`; the next look tries again.

        Raises `OutrunCheckpoint`, and begins again with the next look, when the directory has another history than
        `manifest` says.
        """
        places = newest_places(self._root, manifest, self.uid, KeyGroupRange(0, manifest.max_parallelism))
        if [log.place for log in self.logs] == places:
            for log, place in zip(self.logs, places, strict=True):
                log.look(place)
        else:
            logs = [FollowedLog(place) for place in places]
            self.logs, self._begun_with = logs, []
        self.whole = sum(len(place.groups) for place in places) == manifest.max_parallelism
        try:
            check_history(self._root, manifest)
        except OutrunCheckpoint:
            self.logs, self._begun_with, self.whole = (), [], False
            raise

    @property
    def continues(self) -> bool:
        """Whether the new epochs can be added to the state that the follower has."""
        return bool(self._begun_with) and all(
            log.continues and log.states == states for log, states in zip(self.logs, self._begun_with, strict=True)
        )

    @property
    def states(self) -> States:
        """The schemas of the newest data."""
        return self.logs[0].states if self.logs else ()

    @property
    def declared(self) -> States:
        """The schemas that the newest writers opened the logs with, whether they have sealed an epoch or not."""
        return self.logs[0].declared if self.logs else ()

    def written_at(self) -> float:
        """When the newest file was written, in seconds since the epoch of `time.time`; 0 when that is not known."""
        return max((log.written_at() for log in self.logs), default=0.0)

    def invalidate(self) -> None:
        """Read all logs whole at the next look, because a known file turned out to be damaged."""
        for log in self.logs:
            log.invalidate()

    @property
    def damaged(self) -> str | None:
        """The path of a log's newest file if it is damaged."""
        return next((log.damaged for log in self.logs if log.damaged is not None), None)

    @property
    def sealed(self) -> int:
        """The newest epoch that every subtask has sealed, -1 when there is none. No later one can be committed."""
        return min((log.latest for log in self.logs), default=NO_EPOCH)

    @property
    def proved(self) -> int:
        """The newest epoch that these logs prove committed, for every operator of the query. -1 when there is none.

        If one subtask has sealed an epoch, Spark has committed the one before it. Snapshots are of committed epochs.
        """
        begun = max((log.latest for log in self.logs), default=NO_EPOCH)
        found = [epoch for log in self.logs for epoch in log.epochs() if epoch < begun or epoch in log.snapshots]
        return max(found, default=NO_EPOCH)

    def final(self, committed: int) -> int:
        """The newest epoch up to `committed` that all subtasks have, -1 when there is none."""
        return min(self.sealed, committed) if self.whole else NO_EPOCH

    def epochs(self, upto: int) -> list[int]:
        """The epochs up to this one that the follower does not have yet."""
        return sorted({one.epoch for log in self.logs for one in log.sealed if one.epoch <= upto})

    def mark_applied(self, epoch: int) -> None:
        """Record that the follower has the state as of this epoch, of all subtasks and in the schemas stored now."""
        for log in self.logs:
            log.mark_applied(epoch)
        self._begun_with = [log.states for log in self.logs]
