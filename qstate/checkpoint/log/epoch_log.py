"""The epoch log: makes an epoch durable before its task returns. One per operator subtask.

Rules of this module: it orders files and decides which writer may add one. `chain` reads the directory as a history,
`segment` writes the bytes of a file, a `Directory` is the storage. This module must not know how a backend stores its
entries or who runs which attempt. The storage must be able to create a name exclusively: on a disk by a hard link, in
an object store by a conditional put. `file_names` has the names of the files.

**Fencing.** An opening and a sealed epoch both take the next number of one sequence, by a step that fails if the name
exists. A writer knows the numbers up to its own last one and never skips any. So once another writer has taken a
number, the step of the first writer fails. It does not matter what the first writer checked before, or how long it
slept: the step itself is the check. The loser of a race gets a `FencedError` and has changed nothing. The winner has
read everything sealed before its own opening, because its opening has the number after. The sequence number of a
writer's opening is its generation.

**Leftovers.** The name of an output or a temporary file begins with the number it was made for. Once a file has taken
that number, only this file can refer to the output. So an opening removes all other such files up to its own number,
of any writer.

**Durability.** The writer makes durable, in this order: the output's bytes and its name, the segment's bytes, its
name, the directory. So a crash at any point leaves the epoch sealed whole or not sealed.
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
from qstate.checkpoint.log.segment import Frame, SegmentWriter, Written, write_segment
from qstate.checkpoint.log.snapshots import write_snapshot
from qstate.checkpoint.storage.directory import Directory, doing
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import CheckpointError, FencedError
from qstate.host.forks import end_forked_child

__all__ = ["EpochLog", "OutputSpool"]

log = logging.getLogger(__name__)

#: How many other openings may win the race before this one fails; each of them is a process that started.
OPENING_RACES = 100


class OutputSpool:
    """Writes the output of the running epoch to its file at once, so that memory need not hold it until the seal."""

    def __init__(self, files: Directory, name: str, header: Mapping[str, Any]) -> None:
        self.name = name
        self._files = files
        files.remove(name)  # left by an epoch that this writer discarded
        self._file = files.create(name)
        self._writer = SegmentWriter(self._file, header)

    @property
    def size(self) -> int:
        """How many bytes were written."""
        return self._writer.size

    def append(self, frame: Frame) -> None:
        """Add a frame. Raises `CheckpointError` when the disk fails; the spool is then unusable."""
        with doing(f"write {self._files.path / self.name}", self._files):
            self._writer.write_frame(frame)

    def finish(self) -> Mapping[str, int] | None:
        """Make the frames durable; returns the epoch footer's fact about them, None when there are no frames."""
        frames = self._writer.entries
        if not frames:
            self.discard()
            return None
        seal = self._writer.write_footer()
        self._files.finish(self._file)
        return {"seal": seal, "frames": frames}

    def discard(self) -> None:
        """Remove the file, for an epoch that will not be sealed. Idempotent."""
        with suppress(OSError):  # the buffered bytes need not reach the disk any more
            self._file.close()
        self._files.remove(self.name)


class EpochLog:
    """The sealed epochs of one operator subtask. `open` makes one; a newer `open` fences it.

    One thread uses it. A failed `seal` leaves the log as it was, on disk and in memory, unless the epoch may already
    have its name. Then the log refuses further epochs; only opening it again shows what is sealed.
    """

    def __init__(self, chain: Chain, opening: Sealed) -> None:
        self._chain = chain
        self._files = chain.files
        self._identity = chain.identity
        self._last = opening
        self._writer = opening.sequence
        self._states = opening.states
        self._epochs = {segment.epoch: segment for segment in chain.segments if segment.epoch != NO_EPOCH}
        self._outputs: dict[int, str] = {}
        self._refusal: CheckpointError | FencedError | None = None
        self._pid = os.getpid()
        #: The compression of the changes that this writer seals.
        self.compression = "none"
        #: How many bytes of epochs, changes and results, this writer has sealed.
        self.sealed_bytes = 0
        #: Whether the stored data has other schemas than this writer's; it must be converted before the next seal.
        self.unconverted = False

    @classmethod
    def open(
        cls,
        directory: Path | Directory,
        identity: LogIdentity,
        admit: Callable[[Chain | None], States] = lambda _: (),
    ) -> EpochLog:
        """Open the log, or begin it, as its only writer; every earlier writer is fenced.

        `admit` gets the history (None: there is none) and returns the schemas of what this writer will write, or
        raises. Raises `CheckpointError` when the log has another identity or cannot be written, `DamagedCheckpoint`,
        which names the file, when no usable history is left, and what `admit` raises. Nothing has changed then.
        """
        files = directory_of(directory)
        with doing(f"open the epoch log in {files.path}", files):
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
        raise CheckpointError(f"cannot open the epoch log in {files.path}: other writers keep opening it")

    @property
    def generation(self) -> int:
        """This writer's generation: higher than that of every writer before."""
        return self._writer

    @property
    def path(self) -> object:
        """The log's location, for messages."""
        return self._files.path

    @property
    def sequence(self) -> int:
        """The number of this writer's last file."""
        return self._last.sequence

    def latest(self) -> int | None:
        """The newest sealed epoch, or None."""
        return self._chain.latest()

    def seal(
        self,
        epoch: int,
        changes: Iterable[Change],
        output: OutputSpool | Iterable[Frame] = (),
        *,
        operator_state: OperatorState = (),
        epoch_input: EpochInput | None = None,
    ) -> None:
        """Make an epoch durable: its changes, its output, the operator's lists and the identity of its input rows.

        The epoch is sealed when this returns.

        Raises `FencedError` when another writer has opened the log, `CheckpointError` when the disk fails, and
        what `changes` raises; the epoch is then not sealed. See the class for a failure after the epoch got its name.
        """
        end_forked_child(self._pid)
        self._check_writable(epoch)
        temporary = temporary_name(self._last.sequence + 1)
        spool: OutputSpool | None = None
        try:
            with doing(f"seal epoch {epoch} in {self._files.path}", self._files):
                spool = output if isinstance(output, OutputSpool) else self._spooled(output)
                facts = {"output": spool.finish(), **state_fact(operator_state), **input_fact(epoch_input)}
                written = self._write(temporary, epoch, changes, facts)
                sealed = Sealed(
                    self._last.sequence + 1, written.seal, epoch, self._writer, facts["output"], input=epoch_input
                )
                self._publish(temporary, sealed)
                self._files.sync()
        except BaseException:
            end_forked_child(self._pid)
            self._withdraw(temporary, spool)
            raise
        self._last = self._epochs[epoch] = sealed
        self._chain.segments.append(sealed)
        self.sealed_bytes += written.size
        if sealed.output:
            self._outputs[epoch] = sealed.output_name
            self.sealed_bytes += spool.size
        with suppress(OSError):  # the epoch is sealed; the next opening removes a file that is left
            self._files.remove(temporary)

    @property
    def bases(self) -> tuple[Snapshot | None, ...]:
        """The bases that `parts` can begin with, the newest first."""
        return self._chain.bases

    def parts(self, base: Snapshot | None, upto: int | None = None) -> Iterator[Part]:
        """The history from a base, as `Chain.parts` yields it."""
        return self._chain.parts(base, upto)

    def operator_state(self) -> OperatorState:
        """The operator's lists as of the newest epoch. Raises `CheckpointError`."""
        return self._chain.operator_state()

    def changes(self) -> Iterator[Change]:
        """All changes from the newest base, in their order. Raises `DamagedCheckpoint` at the first damage."""
        for part in self.parts(self.bases[0]):
            yield from part.changes

    def write_base(self, changes: Iterable[Change]) -> None:
        """Write a snapshot of the whole state, with `changes` in ascending order, as the base of this writer's epochs.

        A writer needs it whose schemas differ from the stored ones: readers then begin with the snapshot. Raises
        `CheckpointError`; the log is then as it was.
        """
        latest = self.latest()
        epoch = NO_EPOCH if latest is None else latest
        planned = Snapshot(self._last.sequence, 0, self._last.seal, epoch, self._writer, self._states)
        lists = self.operator_state()
        base = write_snapshot(self._files, self._identity, planned, changes, self.compression, operator_state=lists)
        self._chain.bases = (base, *self._chain.bases)

    def begin_output(self) -> OutputSpool:
        """A spool for the output of the next epoch. It removes the file of a spool begun earlier for this epoch."""
        name = output_name(self._last.sequence + 1, self._writer)
        with doing(f"write {self._files.path / name}", self._files):
            return OutputSpool(self._files, name, self._header("output", NO_EPOCH))

    def epoch_input(self, epoch: int) -> EpochInput | None:
        """The identity of a sealed epoch's input rows; None when it was not stored."""
        segment = self._epochs.get(epoch)
        return None if segment is None else segment.input

    def has_output(self, epoch: int) -> bool:
        """Whether an epoch is sealed and its output can still be read. An empty output can."""
        segment = self._epochs.get(epoch)
        return segment is not None and (segment.output is None or self._files.exists(segment.output_name))

    def output(self, epoch: int) -> Iterator[bytes]:
        """The output frames of a sealed epoch. Raises `CheckpointError` when they are dropped or damaged."""
        segment = self._epochs.get(epoch)
        if segment is None:
            raise CheckpointError(f"epoch {epoch} is not sealed in {self._files.path}")
        if segment.output is not None:
            with reading(self._files, segment.output_name) as reader:
                yield from reader.frames(segment.output["seal"])

    def drop_output(self, before_epoch: int) -> None:
        """Remove the output of the epochs before `before_epoch`, which Spark cannot repeat any more."""
        for epoch in [epoch for epoch in self._outputs if epoch < before_epoch]:
            with suppress(OSError):  # the next opening removes a file that is left
                self._files.remove(self._outputs.pop(epoch))

    def _check_writable(self, epoch: int) -> None:
        if self._refusal is not None:
            raise self._refusal
        latest = self.latest()
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

    def _write(self, temporary: str, epoch: int, changes: Iterable[Change], facts: Mapping[str, Any]) -> Written:
        header = self._header("epoch", epoch)
        if self.compression != "none":
            header["compression"] = self.compression
        written = write_segment(self._files, temporary, header, changes, **facts)
        if facts["output"] is not None:
            self._files.sync()
        return written

    def _publish(self, temporary: str, sealed: Sealed) -> None:
        end_forked_child(self._pid)  # the user's code, which may fork, has serialized the changes
        try:
            self._files.publish(temporary, sealed.name)
        except (FileExistsError, FileNotFoundError) as exc:
            if not self._files.exists(sealed.name):
                raise  # no other writer has the name: the directory itself is gone
            self._refusal = FencedError(
                f"epoch {sealed.epoch} is not sealed: another writer has opened the epoch log in {self._files.path} "
                f"since generation {self._writer} did"
            )
            raise self._refusal from exc

    def _withdraw(self, temporary: str, spool: OutputSpool | None) -> None:
        """Remove the files of a failed seal, if it is certain that the epoch did not get its name."""
        with suppress(OSError):
            self._files.remove(temporary)
            if not self._files.exists(log_name(self._last.sequence + 1)):
                if spool is not None:
                    spool.discard()
                return
        # The name may be ours or another writer's. Opening the log again finds out, and removes leftovers.
        self._refusal = self._refusal or CheckpointError(
            f"the epoch log in {self._files.path} failed while it sealed an epoch; open it again"
        )

    def _header(self, kind: str, epoch: int) -> dict[str, Any]:
        return header_of(self._identity, kind, Sealed(self._last.sequence + 1, 0, epoch, self._writer), self._last.seal)

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


def _claim(chain: Chain, states: States) -> Sealed | None:
    """Write an opening with the number after the chain; None when another writer took the number first."""
    files, sequence = chain.files, chain.top + 1
    opening = Sealed(sequence, 0, NO_EPOCH, sequence, states=states)
    header = header_of(chain.identity, "writer", opening, chain.seal)
    header.update(states=list(states), void=1 if chain.damaged else 0)
    temporary = temporary_name(sequence)
    seal = write_segment(files, temporary, header).seal
    try:
        files.publish(temporary, opening.name)
    except (FileExistsError, FileNotFoundError):
        if not files.exists(opening.name):
            raise
        files.remove(temporary)
        return None
    files.sync()
    return replace(opening, seal=seal)
