"""The manifest of a checkpoint directory: whose it is, and how the state of its operators is spread over directories.

Rules of this module: one JSON file each, read and written whole, under a checksum. It must not know what the
files beside them hold.

    job.json     {"manifest": {...}, "checksum": xxh64 of the manifest as compact JSON with sorted keys, 16 hex digits}
                 format, job, max_parallelism
                 layouts        parallelism of each layout; the last one is in use, an earlier one is read where a
                                later one has nothing yet
                 operators      uid -> id of the streaming query whose epochs its state is made of
                 restored_from  null, or the location of the savepoint or checkpoint that the job was started from
    final.json   in the same form: format, and `epochs`: query id -> the newest epoch that Spark said it has committed.
                 It may be behind: an epoch is final, too, when a later one of its query was begun.

    <operator>/<layout>/<subtask>/    the epoch log of a subtask, see `qstate.checkpoint.log.chain`
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from xxhash import xxh64_hexdigest

from qstate.checkpoint.log.file_facts import LARGEST_MANIFEST, FinalFacts, JobFacts, check_facts
from qstate.checkpoint.storage.directory import AnyDirectory, Directory
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.keys import KeyGroupRange, subtask_of
from qstate.private_files import NotRegular
from qstate.storage_faults import BY_CHECKPOINT_DIR, storage_fault

__all__ = [
    "FINAL_FILE",
    "MANIFEST_FILE",
    "JobManifest",
    "newest_holding",
    "operator_directory",
    "read_checked",
    "read_final",
    "subtask_directory",
    "write_checked",
    "write_final",
]

Held = TypeVar("Held")

MANIFEST_FILE = "job.json"
FINAL_FILE = "final.json"
FORMAT = 1

_BRING_BACK = "bring it back from a copy of the checkpoint directory"


@dataclass(frozen=True, slots=True)
class JobManifest:
    """What `job.json` says. Frozen; `with_...` make new ones."""

    job: str
    max_parallelism: int
    layouts: tuple[int, ...]
    operators: Mapping[str, str] = field(default_factory=dict)
    restored_from: str | None = None

    @property
    def layout(self) -> int:
        """The number of the layout that is in use."""
        return len(self.layouts) - 1

    @property
    def parallelism(self) -> int:
        return self.layouts[-1]

    def with_operator(self, uid: str, query: str) -> JobManifest:
        return replace(self, operators={**self.operators, uid: query})

    def with_parallelism(self, parallelism: int) -> JobManifest:
        """The manifest for a start with a parallelism: with another one, a layout more."""
        return self if parallelism == self.parallelism else replace(self, layouts=(*self.layouts, parallelism))

    @classmethod
    def read(cls, root: Path | Directory) -> JobManifest | None:
        """The manifest of a checkpoint directory, None when there is none.

        Raises `DamagedCheckpoint` when it is not as it was written, `CheckpointError` for another format.
        """
        files = directory_of(root)
        plain = read_checked(files, MANIFEST_FILE, FORMAT, JobFacts)
        if plain is None:
            return None
        if max(plain["layouts"]) > plain["max_parallelism"]:
            raise DamagedCheckpoint(f"{files.path / MANIFEST_FILE} has a layout that cannot be; {_BRING_BACK}")
        return cls(
            plain["job"],
            plain["max_parallelism"],
            tuple(plain["layouts"]),
            dict(plain["operators"]),
            plain["restored_from"],
        )

    def write(self, root: Path | Directory) -> None:
        """Put the manifest in place of the one that is there, durably and at once. Raises `CheckpointError`."""
        write_checked(directory_of(root), MANIFEST_FILE, {"format": FORMAT, **asdict(self)})


def operator_directory(root: AnyDirectory, operator: str) -> AnyDirectory:
    """Readable, and distinct for any operator uid, however long or odd."""
    readable = quote(operator, safe=" ")[:60]
    return root.joinpath(f"{readable}-{xxh64_hexdigest(operator.encode())}")


def subtask_directory(root: AnyDirectory, operator: str, layout: int, subtask: int) -> AnyDirectory:
    """Where the epoch log of a subtask is."""
    return operator_directory(root, operator).joinpath(f"{layout:03d}", f"{subtask:05d}")


def newest_holding(
    manifest: JobManifest, groups: KeyGroupRange, held: Callable[[int, int], Held | None]
) -> list[tuple[KeyGroupRange, int, int, Held]]:
    """Where key groups are read, ascending: the newest layout and the subtask of it for which `held` gives something.

    Key groups for which nothing does are left out.
    """
    found: list[tuple[KeyGroupRange, int, int, Held]] = []
    wanted = [groups]
    for layout in range(manifest.layout, -1, -1):
        parallelism, missing = manifest.layouts[layout], []
        for part in wanted:
            first = subtask_of(part.start, parallelism, manifest.max_parallelism)
            last = subtask_of(part.stop - 1, parallelism, manifest.max_parallelism)
            for subtask in range(first, last + 1):
                own = KeyGroupRange.of_subtask(subtask, parallelism, manifest.max_parallelism)
                shared = KeyGroupRange(max(own.start, part.start), min(own.stop, part.stop))
                there = held(layout, subtask)
                if there is None:
                    missing.append(shared)
                else:
                    found.append((shared, layout, subtask, there))
        wanted = missing
    return sorted(found, key=lambda one: one[0].start)


def read_final(root: Path | Directory) -> dict[str, int]:
    """The newest committed epoch of each query, as far as the driver wrote it down; a damaged file says nothing."""
    try:
        plain = read_checked(directory_of(root), FINAL_FILE, FORMAT, FinalFacts)
    except DamagedCheckpoint:
        return {}
    return dict(plain["epochs"]) if plain else {}


def write_final(root: Path | Directory, epochs: Mapping[str, int]) -> None:
    """At once, but not durably: what a crash takes of it is found in the epoch logs. Raises `CheckpointError`."""
    write_checked(directory_of(root), FINAL_FILE, {"format": FORMAT, "epochs": dict(epochs)}, durable=False)


def read_checked(files: Directory, name: str, format_number: int, kind: Any) -> dict[str, Any] | None:
    """The map in a file of that form, of a kind (see `file_facts`); None when there is no file.

    Raises `DamagedCheckpoint` when it is not as it was written, `CheckpointError` when it cannot be read or has another
    format.
    """
    plain = _read(files, name)
    if plain is None:
        return None
    where = files.path / name
    if plain.get("format") != format_number:
        raise CheckpointError(
            f"{where} has format {plain.get('format')!r:.40}, expected {format_number}: another version of qstate "
            "wrote it; use that version"
        )
    check_facts(plain, kind, str(where), _BRING_BACK)
    return plain


def _read(files: Directory, name: str) -> dict[str, Any] | None:
    try:
        data = files.read(name, LARGEST_MANIFEST)
    except FileNotFoundError:
        return None
    except NotRegular as exc:
        raise DamagedCheckpoint(f"{files.path / name} is no regular file; {_BRING_BACK}") from exc
    except OSError as exc:
        raise CheckpointError(f"cannot read {files.path / name}: {exc}") from exc
    try:
        if len(data) <= LARGEST_MANIFEST:
            found = json.loads(data)
            manifest = found["manifest"]
            if isinstance(manifest, dict) and found["checksum"] == _checksum(manifest):
                return manifest
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DamagedCheckpoint(f"{files.path / name} is not as it was written; {_BRING_BACK}")


def write_checked(files: Directory, name: str, manifest: Mapping[str, Any], *, durable: bool = True) -> None:
    """Put a file of that form in place of the one that is there. Raises `CheckpointError`; then that one stays."""
    data = json.dumps({"manifest": manifest, "checksum": _checksum(manifest)}, indent=1, sort_keys=True).encode()
    if len(data) > LARGEST_MANIFEST:
        raise CheckpointError(f"{files.path / name} would have {len(data):,} bytes; it may have {LARGEST_MANIFEST:,}")
    try:
        files.replace(name, data, durable=durable)
    except OSError as exc:
        why = storage_fault(exc, files.path, BY_CHECKPOINT_DIR)
        raise CheckpointError(f"cannot write {files.path / name}: {why}") from exc


def _checksum(manifest: Mapping[str, Any]) -> str:
    return xxh64_hexdigest(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
