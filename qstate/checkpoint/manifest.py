"""The manifests of a checkpoint directory: its job, the layout of its subdirectories, and the committed epochs.

Rules of this module: each manifest is one JSON file with a checksum, read and written whole. It finds the epoch log of
each key group by the names of the files; it must not know what these files hold.

    job.json     {"manifest": {...}, "checksum": xxh64 of the manifest as compact JSON with sorted keys, 16 hex digits}
                 format, job, max_parallelism
                 layouts        parallelism of each layout; the last one is in use, readers use an earlier one for key
                                groups of which a later one has no log yet. A start drops the last ones if no subtask
                                has begun a log in them
                 operators      uid -> id of the streaming query that writes the operator's epochs
                 restored_from  null, or the location of the savepoint or checkpoint that the job was started from
                 history        a random name for the epochs of the job, see `JobManifest.history_of`; not in every file
    final.json   in the same form: format, and `epochs`: query id -> the newest epoch that Spark reported as committed.
                 It may be behind: an epoch is also final when a later epoch of its query was begun.

    <operator>/<layout>/<subtask>/    the epoch log of a subtask, see `qstate.checkpoint.log.chain`
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from secrets import token_hex
from typing import Any
from urllib.parse import quote

import msgspec
from xxhash import xxh64_hexdigest

from qstate.checkpoint.log.file_facts import LARGEST_MANIFEST, FinalFacts, JobFacts, check_facts, check_format
from qstate.checkpoint.log.file_names import FileName, history_files
from qstate.checkpoint.log.log_identity import LogIdentity
from qstate.checkpoint.storage.directory import AnyDirectory, Directory, doing
from qstate.checkpoint.storage.locations import directory_of
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.host.private_files import NotRegular
from qstate.keys import KeyGroupRange, subtask_of

__all__ = [
    "FINAL_FILE",
    "MANIFEST_FILE",
    "JobManifest",
    "LogPlace",
    "layout_directory",
    "layout_places",
    "newest_places",
    "operator_directory",
    "read_checked",
    "read_final",
    "subtask_directory",
    "write_checked",
    "write_final",
]

MANIFEST_FILE = "job.json"
FINAL_FILE = "final.json"
FORMAT = 1

_BRING_BACK = "bring it back from a copy of the checkpoint directory"


@dataclass(frozen=True, slots=True)
class JobManifest:
    """The contents of `job.json`. Frozen; the `with_...` methods return new ones."""

    job: str
    max_parallelism: int
    layouts: tuple[int, ...]
    operators: Mapping[str, str] = field(default_factory=dict)
    restored_from: str | None = None
    history: str | None = None

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
        """The manifest for a start with this parallelism; a new parallelism adds a layout."""
        return self if parallelism == self.parallelism else replace(self, layouts=(*self.layouts, parallelism))

    def with_new_history(self) -> JobManifest:
        """The manifest of a job whose epochs from now on do not continue those that others know of it."""
        return replace(self, history=token_hex(8))

    def history_of(self, operator: str) -> str | None:
        """What tells an operator's epochs from others of the same numbers, None before a query drives it.

        A query counts its epochs from 0. They come again when the job goes back to a savepoint or to a copy of the
        directory, so the query alone does not tell.
        """
        query = self.operators.get(operator)
        return query if query is None or self.history is None else f"{self.history} {query}"

    def is_current(self, root: Path | Directory) -> bool:
        """Whether the directory still has the history of this manifest, which may have more operators now.

        Call it after reading files: what was read is of this history if the answer is yes, because a job writes its
        manifest before its first file. Raises as `read`.
        """
        now = JobManifest.read(root)
        return now is not None and now.history == self.history and self.operators.items() <= now.operators.items()

    @classmethod
    def read(cls, root: Path | Directory) -> JobManifest | None:
        """The manifest of a checkpoint directory, None when there is none.

        Raises `DamagedCheckpoint` when the file has changed since it was written, `CheckpointError` for another format.
        """
        files = directory_of(root)
        plain = read_checked(files, MANIFEST_FILE, FORMAT, JobFacts)
        if plain is None:
            return None
        if max(plain["layouts"]) > plain["max_parallelism"]:
            raise DamagedCheckpoint(f"{files.path / MANIFEST_FILE} has a layout that cannot be; {_BRING_BACK}")
        return msgspec.convert(plain, cls)

    def write(self, root: Path | Directory) -> None:
        """Replace the manifest, durably and atomically. Raises `CheckpointError`; the old one stays then."""
        plain = {name: value for name, value in asdict(self).items() if name != "history" or value is not None}
        write_checked(directory_of(root), MANIFEST_FILE, {"format": FORMAT, **plain})


def operator_directory(root: AnyDirectory, operator: str) -> AnyDirectory:
    """The directory of an operator: a readable name, different for every uid of any length and with any characters."""
    readable = quote(operator, safe=" ")[:60]
    return root.joinpath(f"{readable}-{xxh64_hexdigest(operator.encode())}")


def layout_directory(operator: AnyDirectory, layout: int) -> AnyDirectory:
    """The directory of a layout in the directory of an operator."""
    return operator.joinpath(f"{layout:03d}")


def subtask_directory(root: AnyDirectory, operator: str, layout: int, subtask: int) -> AnyDirectory:
    """The directory of a subtask's epoch log."""
    return layout_directory(operator_directory(root, operator), layout).joinpath(f"{subtask:05d}")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """The epoch log of a subtask, as it was listed, and the key groups to read from it. It is empty before it is begun.

    Two places are equal if they are the same log for the same key groups, whatever it holds.
    """

    groups: KeyGroupRange
    identity: LogIdentity
    directory: Directory
    #: The numbers and kinds of the `.log` and `.snapshot` files.
    files: Sequence[FileName] = field(compare=False)


def layout_places(root: Directory, manifest: JobManifest, operator: str, layout: int) -> Iterator[LogPlace]:
    """The logs of all subtasks of a layout, each listed when it is asked for. Raises `CheckpointError`."""
    for subtask in range(manifest.layouts[layout]):
        yield _place(root, manifest, operator, layout, subtask)


def newest_places(root: Directory, manifest: JobManifest, operator: str, groups: KeyGroupRange) -> list[LogPlace]:
    """For each of these key groups its log in the newest layout in which that log was begun, ascending.

    Key groups without a log are left out. Raises `CheckpointError` when a directory cannot be read.
    """
    found: list[LogPlace] = []
    wanted = [groups]
    for layout in range(manifest.layout, -1, -1):
        parallelism, missing = manifest.layouts[layout], []
        for part in wanted:
            first = subtask_of(part.start, parallelism, manifest.max_parallelism)
            last = subtask_of(part.stop - 1, parallelism, manifest.max_parallelism)
            for subtask in range(first, last + 1):
                place = _place(root, manifest, operator, layout, subtask)
                shared = KeyGroupRange(max(place.groups.start, part.start), min(place.groups.stop, part.stop))
                if place.files:
                    found.append(replace(place, groups=shared))
                else:
                    missing.append(shared)
        wanted = missing
    return sorted(found, key=lambda place: place.groups.start)


def _place(root: Directory, manifest: JobManifest, operator: str, layout: int, subtask: int) -> LogPlace:
    identity = LogIdentity(manifest.job, operator, subtask, manifest.layouts[layout], manifest.max_parallelism)
    directory = subtask_directory(root, operator, layout, subtask)
    with doing(f"read {directory.path}", directory):
        return LogPlace(identity.key_groups, identity, directory, history_files(directory.names()))


def read_final(root: Path | Directory) -> dict[str, int]:
    """The newest epoch of each query that the driver recorded as committed; empty when the file is damaged."""
    try:
        plain = read_checked(directory_of(root), FINAL_FILE, FORMAT, FinalFacts)
    except DamagedCheckpoint:
        return {}
    return dict(plain["epochs"]) if plain else {}


def write_final(root: Path | Directory, epochs: Mapping[str, int]) -> None:
    """Replace `final.json` atomically, but not durably: the epoch logs still prove what a crash loses of it.

    Raises `CheckpointError`; the old file stays then.
    """
    write_checked(directory_of(root), FINAL_FILE, {"format": FORMAT, "epochs": dict(epochs)}, durable=False)


def read_checked(files: Directory, name: str, format_number: int, kind: Any) -> dict[str, Any] | None:
    """The map in a JSON file with a checksum, of the type `kind` (see `file_facts`); None when there is no file.

    Raises `DamagedCheckpoint` when the file has changed since it was written, `CheckpointError` when it cannot be read
    or has another format.
    """
    plain = _read(files, name)
    if plain is None:
        return None
    where = str(files.path / name)
    check_format(plain, format_number, where)
    check_facts(plain, kind, where, _BRING_BACK)
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
    """Replace a JSON file with a checksum. Raises `CheckpointError`; the old file stays then."""
    data = json.dumps({"manifest": manifest, "checksum": _checksum(manifest)}, indent=1, sort_keys=True).encode()
    if len(data) > LARGEST_MANIFEST:
        raise CheckpointError(f"{files.path / name} would have {len(data):,} bytes; it may have {LARGEST_MANIFEST:,}")
    with doing(f"write {files.path / name}", files):
        files.replace(name, data, durable=durable)


def _checksum(manifest: Mapping[str, Any]) -> str:
    return xxh64_hexdigest(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
