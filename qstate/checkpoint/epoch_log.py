"""The epoch log: makes an epoch durable before its task returns. One per operator subtask, on local disk.

Rules of this module: it orders files and decides who may add one. The bytes inside are `segment`'s, the system
calls are `DurableDirectory`'s. It must not know how a backend stores its entries or who runs which attempt. It is
the seam for other storages: what it needs of one is "create a name that nobody has", here a hard link,
elsewhere a conditional put.

    000000000001.log                     a writer opened the log
    000000000002.log                     an epoch: its changes
    000000000002-000000000001.output     the output of the epoch in 2, by the writer of 1; removed when not needed
    000000000003-5f2a....tmp             being written for that number, or left by a dead writer

**The sequence.** `.log` files are numbered from 1 without a gap. Each is an opening or an epoch and names the
seal (see `segment`) of the one before. So a missing file, one from another log or one put back from an old copy is
found on opening; a damaged byte in a body when it is read. Gaps in *epoch* numbers are legal: an epoch may not
reach this operator. The header is a map:

    format 1, kind "writer" | "epoch" | "output", job, operator, subtask, parallelism, max_parallelism,
    sequence, previous (seal of the file before, 0 for the first), writer (sequence number of its opening),
    epoch (-1: none)

The footer of an epoch adds `output`: nil, or {seal, frames}.

**Fencing.** An opening and a sealed epoch take the same thing: the next number of one sequence, by a link that
fails if the name exists. A writer knows the numbers up to its own last one and never skips any. So once another
writer has taken a number, the first one's next number is taken: its link fails, whatever it checked
before and however long it slept in between; there is no moment between a check and an act. The loser of a race is
told (`FencedError`) and has changed nothing; the winner has read everything sealed before its own opening,
because its opening is the number after. The sequence number of its opening is a writer's generation.

**Leftovers.** A file that is not `.log` names first the number it was made for. Once that number is taken it can only
be referred to by the file that took it, so an opening removes all others up to its own number, whoever's they are.

**Durability.** Output first (bytes, then name), then the segment's bytes, then its name, then the directory: a
crash at any point leaves the epoch sealed whole or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from xxhash import xxh64_hexdigest

from qstate.backends.contract import Change
from qstate.checkpoint.durable_directory import DurableDirectory
from qstate.checkpoint.segment import (
    WHAT_TO_DO,
    Frame,
    SegmentInfo,
    SegmentReader,
    SegmentWriter,
)
from qstate.errors import CheckpointError, FencedError

__all__ = ["EpochLog", "LogIdentity", "OutputSpool"]

FORMAT = 1
NO_EPOCH = -1
#: Openings that may get in between before this one gives up; each of them is a process that started.
OPENING_RACES = 100

_SEGMENT_NAME = re.compile(r"(\d{12})\.log")
_LEFTOVER_NAME = re.compile(r"(\d{12})-.*\.(tmp|output)")


@dataclass(frozen=True, slots=True)
class LogIdentity:
    """Whose log it is. A log is opened under the identity it was made with, or not at all."""

    job: str
    operator: str
    subtask: int
    parallelism: int
    max_parallelism: int

    def directory_under(self, root: Path) -> Path:
        """The subtask's directory: readable, and distinct for any operator uid, however long or odd."""
        readable = quote(self.operator, safe=" ")[:60]
        return root / f"{readable}-{xxh64_hexdigest(self.operator.encode())}" / f"{self.subtask:05d}"

    def __str__(self) -> str:
        return (
            f"job {self.job!r}, operator {self.operator!r}, subtask {self.subtask} of {self.parallelism} "
            f"(max_parallelism {self.max_parallelism})"
        )


@dataclass(frozen=True, slots=True)
class _Sealed:
    """One `.log` file, as far as it is kept in memory."""

    sequence: int
    seal: int
    epoch: int
    writer: int
    output: Mapping[str, int] | None

    @property
    def name(self) -> str:
        return _segment_name(self.sequence)

    @property
    def output_name(self) -> str:
        return _output_name(self.sequence, self.writer)


class OutputSpool:
    """Takes the output of the running epoch as it is made, so that it need not be held until the epoch is sealed."""

    def __init__(self, files: DurableDirectory, name: str, header: Mapping[str, Any]) -> None:
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
            raise CheckpointError(f"cannot write {self._files.path / self.name}: {exc}") from exc

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

    def __init__(self, files: DurableDirectory, identity: LogIdentity, chain: list[_Sealed]) -> None:
        self._files = files
        self._identity = identity
        self._last = chain[-1]
        self._writer = chain[-1].sequence
        self._epochs = {segment.epoch: segment for segment in chain if segment.epoch != NO_EPOCH}
        self._outputs: dict[int, str] = {}
        self._refusal: CheckpointError | FencedError | None = None

    @classmethod
    def open(cls, directory: Path | DurableDirectory, identity: LogIdentity) -> EpochLog:
        """Open the log, or begin it, as its only writer; every earlier writer is cut off.

        Raises `CheckpointError` when it is damaged, has another identity or cannot be written, naming the file.
        """
        try:
            files = directory if isinstance(directory, DurableDirectory) else DurableDirectory(directory)
            for _ in range(OPENING_RACES):
                chain = _read_chain(files, identity)
                opening = _claim(files, identity, chain)
                if opening is not None:
                    log = cls(files, identity, [*chain, opening])
                    log._remove_leftovers()
                    return log
        except OSError as exc:
            raise CheckpointError(f"cannot open the epoch log: {exc}") from exc
        raise CheckpointError(f"cannot open the epoch log in {files.path}: other writers keep opening it")

    @property
    def generation(self) -> int:
        """This writer's generation: higher than that of every writer before."""
        return self._writer

    def latest(self) -> int | None:
        """The newest sealed epoch, or None."""
        return next(reversed(self._epochs), None)

    def seal(self, epoch: int, changes: Iterable[Change], output: OutputSpool | Iterable[Frame] = ()) -> None:
        """Make an epoch durable: its changes and its output. It is sealed when this returns.

        Raises `FencedError` when another writer has opened the log, `CheckpointError` when the disk fails, and
        whatever `changes` raises; the epoch is then not sealed.
        """
        self._check_writable(epoch)
        temporary = f"{self._last.sequence + 1:012d}-{uuid4().hex}.tmp"
        spool: OutputSpool | None = None
        try:
            spool = output if isinstance(output, OutputSpool) else self._spooled(output)
            sealed = self._write(temporary, epoch, changes, spool.finish())
            self._publish(temporary, sealed)
            self._files.sync()
        except BaseException as exc:
            self._withdraw(temporary, spool)
            if isinstance(exc, OSError):
                raise CheckpointError(f"cannot seal epoch {epoch} in {self._files.path}: {exc}") from exc
            raise
        self._last = self._epochs[epoch] = sealed
        if sealed.output:
            self._outputs[epoch] = sealed.output_name
        with suppress(OSError):  # the epoch is sealed; the next opening removes what stays
            self._files.remove(temporary)

    def changes(self) -> Iterator[Change]:
        """All changes of all sealed epochs, in their order. Raises `CheckpointError` at the first damage."""
        for segment in self._epochs.values():
            with self._reading(segment.name) as reader:
                yield from reader.changes(segment.seal)

    def begin_output(self) -> OutputSpool:
        """A spool for the output of the next epoch. The last one begun counts: the one before loses its file."""
        name = _output_name(self._last.sequence + 1, self._writer)
        try:
            return OutputSpool(self._files, name, self._header("output", NO_EPOCH))
        except OSError as exc:
            raise CheckpointError(f"cannot write {self._files.path / name}: {exc}") from exc

    def output(self, epoch: int) -> Iterator[bytes]:
        """The output frames of a sealed epoch. Raises `CheckpointError` when they were dropped or are damaged."""
        segment = self._epochs.get(epoch)
        if segment is None:
            raise CheckpointError(f"epoch {epoch} is not sealed in {self._files.path}")
        if segment.output is not None:
            with self._reading(segment.output_name) as reader:
                yield from reader.frames(segment.output["seal"])

    def drop_output(self, before_epoch: int) -> None:
        """Forget the output of the epochs before `before_epoch`: Spark will not ask for them again."""
        for epoch in [epoch for epoch in self._outputs if epoch < before_epoch]:
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

    def _write(
        self, temporary: str, epoch: int, changes: Iterable[Change], output: Mapping[str, int] | None
    ) -> _Sealed:
        file = self._files.create(temporary)
        with file:
            writer = SegmentWriter(file, self._header("epoch", epoch))
            writer.write_changes(changes)
            seal = writer.write_footer(output=output)
            self._files.finish(file)
        if output is not None:
            self._files.sync()
        return _Sealed(self._last.sequence + 1, seal, epoch, self._writer, output)

    def _publish(self, temporary: str, sealed: _Sealed) -> None:
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
            if not self._files.exists(_segment_name(self._last.sequence + 1)):
                if spool is not None:
                    spool.discard()
                return
        # Our epoch, or another's file: only opening anew tells, and removes what is not referred to.
        self._refusal = self._refusal or CheckpointError(
            f"the epoch log in {self._files.path} failed while it sealed an epoch; open it anew"
        )

    def _header(self, kind: str, epoch: int) -> dict[str, Any]:
        return _header(self._identity, kind, self._last, epoch=epoch, writer=self._writer)

    @contextmanager
    def _reading(self, name: str) -> Iterator[SegmentReader]:
        path = self._files.path / name
        try:
            with self._files.open(name) as file:
                yield SegmentReader(file, str(path))
        except FileNotFoundError as exc:
            raise CheckpointError(f"{path} is missing, or was dropped; {WHAT_TO_DO}") from exc
        except OSError as exc:
            raise CheckpointError(f"cannot read {path}: {exc}") from exc

    def _remove_leftovers(self) -> None:
        referred = {segment.output_name: epoch for epoch, segment in self._epochs.items() if segment.output}
        for name in self._files.names():
            match = _LEFTOVER_NAME.fullmatch(name)
            if match is None or int(match[1]) > self._writer:
                continue
            if name in referred:
                self._outputs[referred[name]] = name
            else:
                self._files.remove(name)


def _segment_name(sequence: int) -> str:
    return f"{sequence:012d}.log"


def _output_name(sequence: int, writer: int) -> str:
    return f"{sequence:012d}-{writer:012d}.output"


def _header(identity: LogIdentity, kind: str, last: _Sealed | None, *, epoch: int, writer: int) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "kind": kind,
        **asdict(identity),
        "sequence": last.sequence + 1 if last else 1,
        "previous": last.seal if last else 0,
        "writer": writer,
        "epoch": epoch,
    }


def _claim(files: DurableDirectory, identity: LogIdentity, chain: list[_Sealed]) -> _Sealed | None:
    """Take the number after the chain for an opening; None when another writer was faster."""
    last = chain[-1] if chain else None
    sequence = len(chain) + 1
    temporary = f"{sequence:012d}-{uuid4().hex}.tmp"
    with files.create(temporary) as file:
        seal = SegmentWriter(file, _header(identity, "writer", last, epoch=NO_EPOCH, writer=sequence)).write_footer()
        files.finish(file)
    try:
        files.publish(temporary, _segment_name(sequence))
    except (FileExistsError, FileNotFoundError):
        if not files.exists(_segment_name(sequence)):
            raise
        files.remove(temporary)
        return None
    files.sync()
    return _Sealed(sequence, seal, NO_EPOCH, sequence, None)


def _read_chain(files: DurableDirectory, identity: LogIdentity) -> list[_Sealed]:
    """All `.log` files in their order, each checked to follow the one before."""
    numbers = [int(match[1]) for match in map(_SEGMENT_NAME.fullmatch, files.names()) if match]
    chain: list[_Sealed] = []
    for sequence in range(1, max(numbers, default=0) + 1):
        path = files.path / _segment_name(sequence)
        try:
            with files.open(path.name) as file:
                info = SegmentReader(file, str(path)).info()
        except FileNotFoundError as exc:
            raise CheckpointError(f"{path} is missing, though later files are there; {WHAT_TO_DO}") from exc
        chain.append(_checked(info, str(path), identity, chain[-1] if chain else None))
    return chain


def _checked(info: SegmentInfo, path: str, identity: LogIdentity, last: _Sealed | None) -> _Sealed:
    header = info.header
    if header.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {header.get('format')}, expected {FORMAT}: a newer qstate wrote it; use that version"
        )
    owner = LogIdentity(**{field.name: header[field.name] for field in fields(LogIdentity)})
    if owner != identity:
        raise CheckpointError(
            f"{path} belongs to {owner}, but was opened for {identity}; give every job its own checkpoint directory, "
            "keep operator uids and the parallelism, or start with an empty one"
        )
    expected = _header(identity, header["kind"], last, epoch=header["epoch"], writer=header["writer"])
    if header != expected:
        raise CheckpointError(f"{path} does not follow the file before it; {WHAT_TO_DO}")
    return _Sealed(header["sequence"], info.seal, header["epoch"], header["writer"], info.footer.get("output"))
