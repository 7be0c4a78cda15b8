"""The epoch log: makes an epoch durable before its task returns. One per operator subtask.

Rules of this module: it orders files and decides who may add one; what a directory of them says is `chain`'s, the
bytes inside are `segment`'s, the storage is a `Directory`'s. It must not know how a backend stores its entries or who
runs which attempt. What it needs of a storage is "create a name that nobody has": on a disk a hard link, in an
object store a conditional put.

    000000000001.log                     a writer opened the log
    000000000002.log                     an epoch: its changes
    000000000002-000000000001.output     the output of the epoch in 2, by the writer of 1; removed when not needed
    000000000002.snapshot                the state after 2
    000000000003-5f2a....tmp             being written for that number, or left by a dead writer

**Fencing.** An opening and a sealed epoch take the same thing: the next number of one sequence, by a step that
fails if the name exists. A writer knows the numbers up to its own last one and never skips any. So once another
writer has taken a number, the first one's next number is taken: its step fails, whatever it checked
before and however long it slept in between; there is no moment between a check and an act. The loser of a race is
told (`FencedError`) and has changed nothing; the winner has read everything sealed before its own opening,
because its opening is the number after. The sequence number of its opening is a writer's generation.

**Leftovers.** A file that is neither `.log` nor `.snapshot` names first the number it was made for. Once that number is
taken it can only be referred to by the file that took it, so an opening removes all others up to its own number,
whoever's they are.

**Durability.** Output first (bytes, then name), then the segment's bytes, then its name, then the directory: a
crash at any point leaves the epoch sealed whole or not at all.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from qstate.backends.contract import Change
from qstate.checkpoint.log.chain import (
    NO_EPOCH,
    Chain,
    LogIdentity,
    Part,
    Sealed,
    Snapshot,
    States,
    header_of,
    read_chain,
    reading,
)
from qstate.checkpoint.log.epoch_input import EpochInput, input_fact
from qstate.checkpoint.log.file_names import leftover_number, log_name, output_name, temporary_name
from qstate.checkpoint.log.operator_state import OperatorState, state_fact
from qstate.checkpoint.log.segment import Frame, SegmentWriter
from qstate.checkpoint.log.snapshots import write_snapshot
from qstate.checkpoint.storage.directory import Directory
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import CheckpointError, FencedError
from qstate.forks import end_forked_child
from qstate.storage_faults import BY_CHECKPOINT_DIR, storage_fault

__all__ = ["EpochLog", "OutputSpool"]

log = logging.getLogger(__name__)

#: Openings that may get in between before this one gives up; each of them is a process that started.
OPENING_RACES = 100


class OutputSpool:
    """Takes the output of the running epoch as it is made, so that it need not be held until the epoch is sealed."""

    def __init__(self, files: Directory, name: str, header: Mapping[str, Any]) -> None:
        self.name = name
        self._files = files
        files.remove(name)  # of an epoch that this writer gave up
        self._file = files.create(name)
        self._writer = SegmentWriter(self._file, header)

    def append(self, frame: Frame) -> None:
        """Add a frame. Raises `CheckpointError` when the disk fails; the spool is then good for nothing."""
        try:
            self._writer.write_frame(frame)
        except OSError as exc:
            raise _not_written(self._files, self.name, exc) from exc

    def finish(self) -> Mapping[str, int] | None:
        """Make the frames durable; gives what the epoch's footer says of them, None when there are none."""
        frames = self._writer.entries
        if not frames:
            self.discard()
            return None
        seal = self._writer.write_footer()
        self._files.finish(self._file)
        return {"seal": seal, "frames": frames}

    def discard(self) -> None:
        """Remove what was taken, for an epoch that is given up. Idempotent."""
        with suppress(OSError):  # what cannot be written any more is not wanted any more
            self._file.close()
        self._files.remove(self.name)


class EpochLog:
    """The sealed epochs of one operator subtask. `open` makes one; a newer `open` cuts it off.

    Used by one thread. A failed `seal` leaves the log as it was, on disk and here, unless the failure came after
    the epoch got its name: then the log refuses further epochs and has to be opened anew to learn what is sealed.
    """

    def __init__(self, chain: Chain, opening: Sealed) -> None:
        self._chain = chain
        self._files = chain.files
        self._identity = chain.identity
        self._last = opening
        self._writer = opening.sequence
        self._states = opening.states
        self._epochs = {segment.epoch: segment for segment in chain.segments if segment.epoch != NO_EPOCH}
        self._latest = chain.latest()
        self._outputs: dict[int, str] = {}
        self._refusal: CheckpointError | FencedError | None = None
        self._pid = os.getpid()
        #: How this writer compresses changes.
        self.compression = "none"
        #: What is there is of another form than what this writer will seal, and has to be replaced before it does.
        self.unconverted = False

    @classmethod
    def open(
        cls,
        directory: Path | Directory,
        identity: LogIdentity,
        admit: Callable[[Chain | None], States] = lambda _: (),
    ) -> EpochLog:
        """Open the log, or begin it, as its only writer; every earlier writer is cut off.

        `admit` is asked what the history is opened with: it gets it (None: there is none), gives the schemas of what
        this writer will write, or raises. Raises `CheckpointError` when the log has another identity or cannot be
        written, `DamagedCheckpoint` when what is left of it leads nowhere, naming the file, and what `admit` raises;
        nothing has changed then.
        """
        files = directory_of(directory)
        try:
            files.make()
            for _ in range(OPENING_RACES):
                found = read_chain(files, identity)
                states = admit(found)
                chain = found or Chain(files, identity, (None,), ())
                opening = _claim(chain, states)
                if opening is not None:
                    if chain.damaged:
                        log.warning("%s is damaged and does not count from now on", chain.damaged)
                    chain.segments.append(opening)
                    opened = cls(chain, opening)
                    opened._remove_leftovers()
                    return opened
        except OSError as exc:
            why = storage_fault(exc, files.path, BY_CHECKPOINT_DIR)
            raise CheckpointError(f"cannot open the epoch log in {files.path}: {why}") from exc
        raise CheckpointError(f"cannot open the epoch log in {files.path}: other writers keep opening it")

    @property
    def generation(self) -> int:
        """This writer's generation: higher than that of every writer before."""
        return self._writer

    @property
    def path(self) -> object:
        """Where it is, for messages."""
        return self._files.path

    @property
    def sequence(self) -> int:
        """The number of this writer's last file."""
        return self._last.sequence

    def latest(self) -> int | None:
        """The newest sealed epoch, or None."""
        return self._latest

    def seal(
        self,
        epoch: int,
        changes: Iterable[Change],
        output: OutputSpool | Iterable[Frame] = (),
        *,
        operator_state: OperatorState = (),
        epoch_input: EpochInput | None = None,
    ) -> None:
        """Make an epoch durable: its changes, its output, the operator's lists and what identifies its rows.

        It is sealed when this returns.

        Raises `FencedError` when another writer has opened the log, `CheckpointError` when the disk fails, and
        whatever `changes` raises; the epoch is then not sealed.
        """
        end_forked_child(self._pid)
        self._check_writable(epoch)
        temporary = temporary_name(self._last.sequence + 1)
        spool: OutputSpool | None = None
        try:
            spool = output if isinstance(output, OutputSpool) else self._spooled(output)
            facts = {"output": spool.finish(), **state_fact(operator_state), **input_fact(epoch_input)}
            sealed = replace(self._write(temporary, epoch, changes, facts), input=epoch_input)
            self._publish(temporary, sealed)
            self._files.sync()
        except BaseException as exc:
            end_forked_child(self._pid)
            self._withdraw(temporary, spool)
            if isinstance(exc, OSError):
                why = storage_fault(exc, self._files.path, BY_CHECKPOINT_DIR)
                raise CheckpointError(f"cannot seal epoch {epoch} in {self._files.path}: {why}") from exc
            raise
        self._last = self._epochs[epoch] = sealed
        self._latest = epoch
        self._chain.segments.append(sealed)
        if sealed.output:
            self._outputs[epoch] = sealed.output_name
        with suppress(OSError):  # the epoch is sealed; the next opening removes what stays
            self._files.remove(temporary)

    @property
    def bases(self) -> tuple[Snapshot | None, ...]:
        """What `parts` can begin with, the best first."""
        return self._chain.bases

    def parts(self, base: Snapshot | None, upto: int | None = None) -> Iterator[Part]:
        """The state from a base on, as `Chain.parts` gives it."""
        return self._chain.parts(base, upto)

    def operator_state(self) -> OperatorState:
        """The operator's lists as of the newest epoch. Raises `CheckpointError`."""
        return self._chain.operator_state()

    def changes(self) -> Iterator[Change]:
        """All changes, from the best base on, in their order. Raises `DamagedCheckpoint` at the first damage."""
        for part in self.parts(self.bases[0]):
            yield from part.changes

    def write_base(self, changes: Iterable[Change]) -> None:
        """Put a snapshot of the state as it is now, in ascending order, under what this writer will seal.

        For a writer whose schemas differ from those before it: what came before is not read any more. Raises
        `CheckpointError`; the log is then as it was.
        """
        snapshot = Snapshot(
            self._last.sequence,
            0,
            self._last.seal,
            NO_EPOCH if self._latest is None else self._latest,
            self._writer,
            self._states,
        )
        self._chain.bases = (
            write_snapshot(
                self._files,
                self._identity,
                snapshot,
                changes,
                self.compression,
                operator_state=self._chain.operator_state(),
            ),
            *self._chain.bases,
        )

    def begin_output(self) -> OutputSpool:
        """A spool for the output of the next epoch. The last one begun counts: the one before loses its file."""
        name = output_name(self._last.sequence + 1, self._writer)
        try:
            return OutputSpool(self._files, name, self._header("output", NO_EPOCH))
        except OSError as exc:
            raise _not_written(self._files, name, exc) from exc

    def epoch_input(self, epoch: int) -> EpochInput | None:
        """What identifies the rows of a sealed epoch; None when that was not stored."""
        segment = self._epochs.get(epoch)
        return None if segment is None else segment.input

    def has_output(self, epoch: int) -> bool:
        """Whether a sealed epoch's output can be given again."""
        segment = self._epochs.get(epoch)
        return segment is not None and (segment.output is None or self._files.exists(segment.output_name))

    def output(self, epoch: int) -> Iterator[bytes]:
        """The output frames of a sealed epoch. Raises `CheckpointError` when they were dropped or are damaged."""
        segment = self._epochs.get(epoch)
        if segment is None:
            raise CheckpointError(f"epoch {epoch} is not sealed in {self._files.path}")
        if segment.output is not None:
            with reading(self._files, segment.output_name) as reader:
                yield from reader.frames(segment.output["seal"])

    def drop_output(self, before_epoch: int) -> None:
        """Forget the output of the epochs before `before_epoch`: Spark will not ask for them again."""
        for epoch in [epoch for epoch in self._outputs if epoch < before_epoch]:
            with suppress(OSError):  # the next opening removes what stays
                self._files.remove(self._outputs.pop(epoch))

    def _check_writable(self, epoch: int) -> None:
        if self._refusal is not None:
            raise self._refusal
        latest = self._latest
        if epoch < 0 or (latest is not None and epoch <= latest):
            raise CheckpointError(f"epoch {epoch} cannot be sealed after epoch {latest} in {self._files.path}")

    def _spooled(self, frames: Iterable[Frame]) -> OutputSpool:
        spool = self.begin_output()
        try:
            for frame in frames:
                spool.append(frame)
        except BaseException:
            spool.discard()
            raise
        return spool

    def _write(self, temporary: str, epoch: int, changes: Iterable[Change], facts: Mapping[str, Any]) -> Sealed:
        file = self._files.create(temporary)
        with file:
            header = self._header("epoch", epoch)
            if self.compression != "none":
                header["compression"] = self.compression
            writer = SegmentWriter(file, header)
            writer.write_changes(changes)
            seal = writer.write_footer(**facts)
            self._files.finish(file)
        output: Mapping[str, int] | None = facts["output"]
        if output is not None:
            self._files.sync()
        return Sealed(self._last.sequence + 1, seal, epoch, self._writer, output)

    def _publish(self, temporary: str, sealed: Sealed) -> None:
        end_forked_child(self._pid)  # the changes were serialized by the user's code
        try:
            self._files.publish(temporary, sealed.name)
        except (FileExistsError, FileNotFoundError) as exc:
            if not self._files.exists(sealed.name):
                raise  # not taken by another writer: the directory itself is gone
            self._refusal = FencedError(
                f"epoch {sealed.epoch} is not sealed: another writer has opened the epoch log in {self._files.path} "
                f"since generation {self._writer} did"
            )
            raise self._refusal from exc

    def _withdraw(self, temporary: str, spool: OutputSpool | None) -> None:
        """Tidy up after a failed seal, as far as it is certain that it failed."""
        with suppress(OSError):
            self._files.remove(temporary)
            if not self._files.exists(log_name(self._last.sequence + 1)):
                if spool is not None:
                    spool.discard()
                return
        # Our epoch, or another's file: only opening anew tells, and removes what is not referred to.
        self._refusal = self._refusal or CheckpointError(
            f"the epoch log in {self._files.path} failed while it sealed an epoch; open it anew"
        )

    def _header(self, kind: str, epoch: int) -> dict[str, Any]:
        return header_of(
            self._identity,
            kind,
            sequence=self._last.sequence + 1,
            previous=self._last.seal,
            epoch=epoch,
            writer=self._writer,
        )

    def _remove_leftovers(self) -> None:
        referred = {segment.output_name: epoch for epoch, segment in self._epochs.items() if segment.output}
        for name in self._files.names():
            number = leftover_number(name)
            if number is None or number > self._writer:
                continue
            if name in referred:
                self._outputs[referred[name]] = name
            else:
                self._files.remove(name)


def _not_written(files: Directory, name: str, exc: OSError) -> CheckpointError:
    return CheckpointError(f"cannot write {files.path / name}: {storage_fault(exc, files.path, BY_CHECKPOINT_DIR)}")


def _claim(chain: Chain, states: States) -> Sealed | None:
    """Take the number after the chain for an opening; None when another writer was faster."""
    files, sequence = chain.files, chain.top + 1
    header = header_of(
        chain.identity, "writer", sequence=sequence, previous=chain.seal, epoch=NO_EPOCH, writer=sequence
    )
    header.update(states=list(states), void=1 if chain.damaged else 0)
    temporary = temporary_name(sequence)
    with files.create(temporary) as file:
        seal = SegmentWriter(file, header).write_footer()
        files.finish(file)
    opening = Sealed(sequence, seal, NO_EPOCH, sequence, states=states)
    try:
        files.publish(temporary, opening.name)
    except (FileExistsError, FileNotFoundError):
        if not files.exists(opening.name):
            raise
        files.remove(temporary)
        return None
    files.sync()
    return opening
