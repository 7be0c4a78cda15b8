"""The golden files of the checkpoint format: small directories, written from fixed inputs and kept as hexadecimal text.

Made anew by `PYTHONPATH=. python tests/checkpoint/golden_files.py`. Do that when the format has changed, with a new
format version, or when only the cut of blocks has, which every reader takes as it comes; else a difference is a fault.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from qstate.checkpoint.durable_directory import DurableDirectory
from qstate.checkpoint.origins import open_source
from qstate.checkpoint.savepoint import write_savepoint
from qstate.checkpoint.snapshots import take_snapshot
from tests.checkpoint.checkpoints import StoredJob

__all__ = ["COMPRESSED", "GOLDEN", "LAST", "plain_files", "unpack", "write_compressed", "write_plain"]

GOLDEN = Path(__file__).parent / "golden"
#: Its bytes depend on the codec's version, so it is read and not written again.
COMPRESSED = "compressed"
LAST = 5
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


def unpack(target: Path) -> None:
    """The golden files as they were written."""
    for path in GOLDEN.rglob("*"):
        name = path.relative_to(GOLDEN)
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
        write_compressed(Path(scratch))
        for path in (path for path in Path(scratch).rglob("*") if path.is_file()):
            name = path.relative_to(scratch)
            (GOLDEN / name).parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".json":
                shutil.copy(path, GOLDEN / name)
            else:
                (GOLDEN / f"{name}.hex").write_text(plain_files(path.parent)[path.name])


if __name__ == "__main__":
    main()
