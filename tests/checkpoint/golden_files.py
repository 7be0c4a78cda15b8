"""The golden files of the checkpoint format: small directories, written from fixed inputs and kept as hexadecimal text.

To make them again, run `PYTHONPATH=. python tests/checkpoint/golden_files.py`. Do that when the format has changed,
with a new format version, or when only the cut of blocks has, which every reader takes as it comes; else a difference
is a fault.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgpack

from qstate.checkpoint.log.epoch_input import EpochInput
from qstate.checkpoint.log.operator_state import Distribution, OperatorList, OperatorState
from qstate.checkpoint.log.snapshots import take_snapshot
from qstate.checkpoint.manifest import write_final
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import write_savepoint
from qstate.checkpoint.storage.local_directory import DurableDirectory
from qstate.descriptors import ListStateDescriptor
from qstate.evolution import StateSchema
from tests.checkpoint.checkpoints import QUERY, StoredJob

__all__ = [
    "COMPRESSED",
    "GOLDEN",
    "IDENTIFIED",
    "LAST",
    "STACKED",
    "input_after",
    "noted",
    "pack",
    "plain_files",
    "unpack",
    "write_compressed",
    "write_identified",
    "write_lists",
    "write_plain",
]

GOLDEN = Path(__file__).parent / "golden"
#: Its bytes depend on the codec's version, so it is read and not written again.
COMPRESSED = "compressed"
#: It has partial snapshots, whose format number is their own; the other directories are as before there were any.
STACKED = "stacked"
#: Its epochs say what rows they were made of; those of the other directories do not, as before any did.
IDENTIFIED = "identified"
LAST = 5
#: The name and type of each operator state.
LISTS: tuple[tuple[str, Any], ...] = (("positions", int), ("labels", str))
#: Bytes per line of hexadecimal text.
WIDTH = 32


def write_plain(root: Path) -> None:
    """A checkpoint directory with two writers, snapshots and an epoch that is not final, and a savepoint of it."""
    job = StoredJob(root / "checkpoint")
    job.run(range(3))
    job.snapshot()
    job.restart()
    job.run(range(3, LAST + 1))
    job.run([LAST + 1], commit=False)
    write_savepoint(open_source(str(job.root)), root / "savepoint")
    stacked = StoredJob(root / STACKED)
    stacked.run([0], filled=True)
    stacked.snapshot(whole_bytes=0)
    stacked.run(range(1, 5))
    stacked.snapshot(whole_bytes=0)
    stacked.run([LAST])
    stacked.snapshot(whole_bytes=0)
    stacked.run([LAST + 1], commit=False)


def noted(epoch: int, subtask: int) -> OperatorState:
    """The operator state of a subtask as of an epoch."""
    split, union = (StateSchema.of(ListStateDescriptor(name, kind)).to_plain() for name, kind in LISTS)
    positions = tuple(msgpack.packb(10 * epoch + one) for one in range(subtask, 3))
    return (
        OperatorList(split, Distribution.SPLIT, positions),
        OperatorList(union, Distribution.UNION, (msgpack.packb(f"{epoch} of {subtask}"),)),
    )


def write_lists(root: Path) -> None:
    """A checkpoint directory with operator state, in epochs and in a snapshot, and a savepoint of it."""
    job = StoredJob(root / "lists" / "checkpoint")
    for epoch in range(LAST + 1):
        for subtask, log in enumerate(job.logs):
            log.seal(epoch, [], operator_state=noted(epoch, subtask))
        if epoch == LAST - 2:
            job.snapshot(retained=1)
    write_final(job.root, {QUERY: LAST})
    write_savepoint(open_source(str(job.root)), root / "lists" / "savepoint")


def input_after(epoch: int, subtask: int) -> EpochInput:
    """The rows that an epoch was made of; without any, the digest is 0."""
    rows = epoch * (subtask + 1)
    return EpochInput(rows, (0xFEDCBA9876543210 * rows) % (1 << 64), 0x0123456789ABCDEF)


def write_identified(root: Path) -> None:
    """A checkpoint directory whose epochs say what rows they were made of."""
    job = StoredJob(root / IDENTIFIED)
    for epoch in range(LAST + 1):
        for subtask, log in enumerate(job.logs):
            log.seal(epoch, [], epoch_input=input_after(epoch, subtask))
    write_final(job.root, {QUERY: LAST})


def write_compressed(root: Path) -> None:
    """Snapshots in both codecs."""
    job = StoredJob(root / COMPRESSED)
    job.run(range(LAST + 1))
    for subtask, codec in enumerate(("lz4", "zstd")):
        take_snapshot(DurableDirectory(job.directory(subtask)), retained=1, compression=codec)


def plain_files(root: Path) -> dict[str, str]:
    """Every file below a directory as text, JSON as it is, but for what tells the time."""
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name, data = str(path.relative_to(root)), path.read_bytes()
        if path.suffix == ".json":
            manifest = json.loads(data)["manifest"]
            if "created" in manifest:
                manifest["created"] = "2026-01-01T00:00:00+00:00"
            found[name] = json.dumps(manifest, indent=1, sort_keys=True) + "\n"
        else:
            found[name] = "".join(f"{data[at : at + WIDTH].hex()}\n" for at in range(0, len(data), WIDTH))
    return found


def pack(source: Path, target: Path) -> None:
    """Keep the files below a directory as text: JSON as it is, others as hexadecimal."""
    for name, text in plain_files(source).items():
        kept = target / (name if name.endswith(".json") else f"{name}.hex")
        kept.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".json"):
            shutil.copy(source / name, kept)
        else:
            kept.write_text(text)


def unpack(source: Path, target: Path) -> None:
    """The files that were packed, as they were written."""
    for path in source.rglob("*"):
        name = path.relative_to(source)
        if path.suffix == ".hex":
            found = target / name.with_suffix("")
            found.parent.mkdir(parents=True, exist_ok=True)
            found.write_bytes(bytes.fromhex(path.read_text()))
        elif path.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / name)


def main() -> None:
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        write_plain(Path(scratch))
        write_lists(Path(scratch))
        write_identified(Path(scratch))
        write_compressed(Path(scratch))
        pack(Path(scratch), GOLDEN)


if __name__ == "__main__":
    main()
