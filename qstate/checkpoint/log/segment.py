"""The files of the epoch log, byte by byte.

Rules of this module: bytes of one file in and out; a checksum covers each byte. It must not know which files exist,
nor what an epoch is. All numbers are little-endian.

    file    = magic "QSTATEL1" | header block | body block ... | footer block | u64 offset of the footer block

    block   = u8 kind | u32 length | u64 checksum | length bytes of payload
              checksum = xxh64(payload, seed = 256 * index + kind); index counts body blocks from 0 and is 0 for
              header and footer, so that a moved or repeated block, or one of another kind, fails the check

    kind 1  header   a MessagePack map, the identity of the file (see `qstate.checkpoint.log.chain`)
    kind 2  changes  a MessagePack array of up to 65,536 runs of 1 to 65,536 changes of one operation, state and
                     namespace each:
                     [op, state, namespace, [group ...], [key ...], [map key ...] | nil, [data ...] | nil]
                     nil: empty bytes for every change; op is a number of `ChangeOp`
    kind 3  frame    one output frame, unchanged
    kind 4  footer   a MessagePack map: blocks (of the body), entries (changes or frames), digest (xxh64 of the
                     checksums of header and body, as 8 bytes each), `index` where changes ascend by key group
                     ([first key group, offset] of each body block), and the facts that the writer adds

The checksum of the footer covers the digest, and so the whole file: it is the file's *seal*. The next file names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from struct import Struct
from typing import Annotated, Any, BinaryIO, NamedTuple

import msgpack
import msgspec
from xxhash import xxh64, xxh64_intdigest

from qstate.backends.change_blocks import FIRST_COUNT, ChangeBlock, ChangeBlocks, blocks_of, next_count
from qstate.backends.contract import Change, ChangeOp
from qstate.checkpoint.log.compression import compressor, decompressor
from qstate.checkpoint.log.file_facts import WHAT_TO_DO, FooterFacts, check_facts
from qstate.checkpoint.storage.directory import Directory
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.host.forks import end_forked_child
from qstate.keys import MAX_PARALLELISM_LIMIT, KeyGroupRange

__all__ = [
    "LARGEST_BLOCK",
    "WHAT_TO_DO",
    "Frame",
    "SegmentInfo",
    "SegmentReader",
    "SegmentWriter",
    "Written",
    "write_segment",
]

#: An output frame: any object with the buffer protocol, such as an Arrow buffer.
Frame = bytes | bytearray | memoryview

MAGIC = b"QSTATEL1"
BLOCK = Struct("<BIQ")
TRAILER = Struct("<Q")
CHECKSUM = Struct("<Q")
LARGEST_BLOCK = (1 << 32) - 1
LARGEST_RUN = 1 << 16

_Groups = Annotated[
    list[Annotated[int, msgspec.Meta(ge=0, lt=MAX_PARALLELISM_LIMIT)]],
    msgspec.Meta(min_length=1, max_length=LARGEST_RUN),
]
_Column = Annotated[list[bytes], msgspec.Meta(min_length=1, max_length=LARGEST_RUN)]
_read_map = msgspec.msgpack.Decoder(dict[str, Any]).decode
#: Runs are decoded one by one: all runs of a well compressed block might take too much memory.
_read_runs = msgspec.msgpack.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=LARGEST_RUN)]).decode
_read_run: Callable[[msgspec.Raw], Any] = msgspec.msgpack.Decoder(
    tuple[int, str, bytes, _Groups, _Column, _Column | None, _Column | None]
).decode
#: What the decoders raise for bytes that are no MessagePack, have other types, or are nested too deep.
_NOT_READABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class Kind(IntEnum):
    """What a block holds."""

    HEADER = 1
    CHANGES = 2
    FRAME = 3
    FOOTER = 4


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The metadata of a file: its header, its footer and its seal."""

    header: Mapping[str, Any]
    footer: Mapping[str, Any]
    seal: int


class Written(NamedTuple):
    """A file that was written: its seal, the number of its entries, and its size in bytes."""

    seal: int
    entries: int
    size: int


class SegmentWriter:
    """Writes one file: the header at once, then changes or frames, then the footer."""

    def __init__(self, file: BinaryIO, header: Mapping[str, Any], *, ascending: bool = False) -> None:
        """`ascending`: the changes will ascend by key group, so the footer gets an index.

        The header's `compression` (see `qstate.checkpoint.log.compression`) applies to the changes; default: none.
        """
        self._file = file
        self._compress = compressor(header.get("compression", "none"))
        self._index: list[tuple[int, int]] | None = [] if ascending else None
        self._digest = xxh64()
        self._blocks = 0
        #: How many changes or frames were written.
        self.entries = 0
        self._pid = os.getpid()
        #: How many bytes were written.
        self.size = file.write(MAGIC)
        self._write(Kind.HEADER, 0, msgpack.packb(header))

    def write_changes(self, changes: Iterable[Change]) -> None:
        count = FIRST_COUNT
        runs: list[ChangeBlock] = []
        entries = 0
        for run in blocks_of(changes):
            runs.append(run)
            entries += len(run.keys)
            if entries >= count:
                count = self._write_runs(runs, entries)
                runs, entries = [], 0
        if runs:
            self._write_runs(runs, entries)

    def _write_runs(self, runs: list[ChangeBlock], entries: int) -> int:
        """Write one block; returns how many changes the next one should have."""
        payload = msgpack.packb([(run.op.value, *run[1:]) for run in runs])
        if self._index is not None:
            self._index.append((runs[0].groups[0], self.size))
        self._body(Kind.CHANGES, self._compress(payload) if self._compress else payload, entries)
        return next_count(entries, len(payload))

    def write_frame(self, frame: Frame) -> None:
        self._body(Kind.FRAME, memoryview(frame).cast("B"), 1)

    def write_footer(self, **facts: Any) -> int:
        """End the file; returns its seal. The caller calls the directory's `finish`."""
        footer = {"blocks": self._blocks, "entries": self.entries, "digest": self._digest.intdigest(), **facts}
        if self._index is not None:
            footer["index"] = self._index
        offset = self.size
        seal = self._write(Kind.FOOTER, 0, msgpack.packb(footer))
        self.size += self._file.write(TRAILER.pack(offset))
        return seal

    def _body(self, kind: Kind, payload: bytes | memoryview, entries: int) -> None:
        self._write(kind, self._blocks, payload)
        self._blocks += 1
        self.entries += entries

    def _write(self, kind: Kind, index: int, payload: bytes | memoryview) -> int:
        end_forked_child(self._pid)  # a child shares the open file
        if len(payload) > LARGEST_BLOCK:
            raise CheckpointError(f"an entry of {len(payload)} bytes is larger than the epoch log can hold (4 GiB)")
        checksum = _checksum(kind, index, payload)
        self._digest.update(CHECKSUM.pack(checksum))
        self._file.write(BLOCK.pack(kind, len(payload), checksum))
        self._file.write(payload)
        self.size += BLOCK.size + len(payload)
        return checksum


def write_segment(
    files: Directory,
    name: str,
    header: Mapping[str, Any],
    changes: Iterable[Change] = (),
    *,
    ascending: bool = False,
    **facts: Any,
) -> Written:
    """Write a file of changes, whole and durable."""
    with files.create(name) as file:
        writer = SegmentWriter(file, header, ascending=ascending)
        writer.write_changes(changes)
        seal = writer.write_footer(**facts)
        files.finish(file)
    return Written(seal, writer.entries, writer.size)


class SegmentReader:
    """Reads one file. Every method raises a `CheckpointError` that names the file when a byte of it has changed."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        #: The size of the file in bytes.
        self.size = file.seek(0, 2)

    def info(self) -> SegmentInfo:
        """Read header and footer, not the body."""
        file = self._file
        if self.size < len(MAGIC) + TRAILER.size:
            raise self.damaged("is cut short")
        file.seek(self.size - TRAILER.size)
        (offset,) = TRAILER.unpack(file.read(TRAILER.size))
        file.seek(0)
        if file.read(len(MAGIC)) != MAGIC:
            raise self.damaged("does not begin as a file of the epoch log")
        header, _ = self._block(Kind.HEADER, 0)
        if not len(MAGIC) <= offset < self.size:
            raise self.damaged("is cut short, or its last bytes are damaged")
        file.seek(offset)
        footer, seal = self._block(Kind.FOOTER, 0)
        if file.tell() != self.size - TRAILER.size:
            raise self.damaged("does not end with its footer")
        found = SegmentInfo(self._map(header, "header"), self._map(footer, "footer"), seal)
        check_facts(found.footer, FooterFacts, f"the footer of {self._name}")
        return found

    def verify(self) -> None:
        """Check every byte of a file of changes."""
        for _ in self._body(self.info(), Kind.CHANGES):
            pass

    def changes(self, seal: int, groups: KeyGroupRange | None = None) -> ChangeBlocks:
        """The changes of the file with this seal. It checks a block before it yields the changes in it.

        `groups`: if the file has an index, blocks without these key groups are skipped. The other blocks are yielded
        whole, so changes of further key groups may be among them.
        """
        return ChangeBlocks(self._runs(seal, groups))

    def _runs(self, seal: int, groups: KeyGroupRange | None) -> Iterator[ChangeBlock]:
        info = self.sealed(seal)
        index = info.footer.get("index")
        restored = decompressor(info.header.get("compression", "none"))
        found = self._body(info, Kind.CHANGES) if groups is None or index is None else self._blocks_of(index, groups)
        for payload in found:
            yield from self._block_runs(payload, restored)

    def _block_runs(self, payload: bytes, restored: Callable[[bytes], bytes] | None) -> Iterator[ChangeBlock]:
        try:
            for raw in _read_runs(restored(payload) if restored else payload):
                number, *columns = _read_run(raw)
                run = ChangeBlock(self._operation(number), *columns)
                if any(column is not None and len(column) != len(run.keys) for column in run[3:]):
                    raise self.damaged("has a run whose columns are not of one length")
                yield run
        except _NOT_READABLE as exc:
            raise self.damaged(f"has a block that cannot be read ({exc})") from exc

    def _blocks_of(self, index: list[list[int]], groups: KeyGroupRange) -> Iterator[bytes]:
        """The body blocks that may hold some of the key groups. Each block has a checksum, so it can be read alone."""
        for number, (first, offset) in enumerate(index):
            following = index[number + 1][0] if number + 1 < len(index) else None
            if first < groups.stop and (following is None or following >= groups.start):
                self._file.seek(offset)
                yield self._block(Kind.CHANGES, number)[0]

    def indexed_changes(self, info: SegmentInfo) -> Iterator[ChangeBlock]:
        """All changes of the file with this metadata; checks the index, too, if there is one."""
        index = info.footer.get("index")
        if index is not None and len(index) != info.footer["blocks"]:
            raise self.damaged("has an index of other blocks than it has")
        restored = decompressor(info.header.get("compression", "none"))
        for number, payload in enumerate(self._body(info, Kind.CHANGES)):
            start = self._file.tell() - BLOCK.size - len(payload)
            runs = self._block_runs(payload, restored)
            first = next(runs, None)
            if index is not None and (first is None or list(index[number]) != [first.groups[0], start]):
                raise self.damaged(f"has a block at byte {start} that its index does not name so")
            yield from chain(() if first is None else (first,), runs)

    def frames(self, seal: int) -> Iterator[bytes]:
        """The frames of the file with this seal; each is checked before it is yielded."""
        return self._body(self.sealed(seal), Kind.FRAME)

    def sealed(self, seal: int) -> SegmentInfo:
        """Header and footer of the file, which must have this seal."""
        info = self.info()
        if info.seal != seal:
            known = ("kind", "job", "operator", "subtask", "sequence", "epoch")
            says = ", ".join(f"{fact} {info.header[fact]!r:.80}" for fact in known if fact in info.header)
            raise self.damaged(f"is not the file that was sealed here: it says that it is {says or 'nothing'}")
        return info

    def _body(self, info: SegmentInfo, kind: Kind) -> Iterator[bytes]:
        digest = xxh64()
        self._file.seek(len(MAGIC))
        digest.update(CHECKSUM.pack(self._block(Kind.HEADER, 0)[1]))
        for index in range(info.footer["blocks"]):
            payload, checksum = self._block(kind, index)
            digest.update(CHECKSUM.pack(checksum))
            yield payload
        if digest.intdigest() != info.footer["digest"]:
            raise self.damaged("does not add up to its digest")

    def _block(self, kind: Kind, index: int) -> tuple[bytes, int]:
        start = self._file.tell()
        head = self._file.read(BLOCK.size)
        if len(head) != BLOCK.size:
            raise self.damaged(f"is cut short at byte {start}")
        found, length, checksum = BLOCK.unpack(head)
        if length > self.size - start:  # before reading: a damaged length must not ask for 4 GiB
            raise self.damaged(f"has a damaged block at byte {start}, or is cut short")
        payload = self._file.read(length)
        if found != kind or checksum != _checksum(kind, index, payload):
            raise self.damaged(f"has a damaged block at byte {start}")
        return payload, checksum

    def _map(self, payload: bytes, what: str) -> Mapping[str, Any]:
        try:
            return _read_map(payload)
        except _NOT_READABLE as exc:
            raise self.damaged(f"has a {what} that cannot be read ({exc})") from exc

    def _operation(self, number: int) -> ChangeOp:
        try:
            return ChangeOp(number)
        except ValueError:
            raise CheckpointError(
                f"{self._name} has changes of kind {number}: a newer qstate wrote it; use that version or a newer one"
            ) from None

    def damaged(self, how: str) -> DamagedCheckpoint:
        """The error for this file; `how` says what is wrong with it."""
        return DamagedCheckpoint(f"{self._name} {how}; {WHAT_TO_DO}")


def _checksum(kind: Kind, index: int, payload: bytes | memoryview) -> int:
    return xxh64_intdigest(payload, 256 * index + kind)
