"""Reads every byte of a checkpoint directory or a savepoint, and says which files are not as they were written.

Rules of this module: it reads and reports, one file at a time, and goes on after damage. A running job may replace
files meanwhile: one that is gone when its turn comes is not missed, unless the history does not hold without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from qstate.checkpoint.chain import LogIdentity, reading
from qstate.checkpoint.directory import Directory
from qstate.checkpoint.history import JobHistory, existing_chain
from qstate.checkpoint.locations import NO_OPTIONS, open_directory
from qstate.checkpoint.manifest import FINAL_FILE, MANIFEST_FILE, read_checked
from qstate.checkpoint.origins import open_source
from qstate.checkpoint.savepoint import SAVEPOINT_FILE, Savepoint
from qstate.checkpoint.segment import WHAT_TO_DO, SegmentInfo
from qstate.errors import CheckpointError, DamagedCheckpoint

__all__ = ["CheckedFile", "verify"]

_KINDS = {"log": ("writer", "epoch"), "snapshot": ("snapshot",), "output": ("output",)}
_LOG_FILE = re.compile(r"(\d{12})(?:\.log|\.snapshot|-\d{12}\.output)")


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file (or a directory) that was looked at, how long it is in bytes, and what is wrong with it, if anything."""

    path: str
    size: int
    damage: str | None = None


def verify(location: str, options: Mapping[str, Any] = NO_OPTIONS) -> Iterator[CheckedFile]:
    """Every file that counts, as it is checked. `options` are those of the storage.

    Raises `CheckpointError` when there is neither a checkpoint nor a savepoint, when a file cannot be read for other
    reasons than damage, and for files of another version.
    """
    root = open_directory(location, options)
    try:
        name = SAVEPOINT_FILE if root.exists(SAVEPOINT_FILE) else MANIFEST_FILE
    except OSError as exc:
        raise CheckpointError(f"cannot read {root.path}: {exc}") from exc
    found = _checked_manifest(root, name)
    if found.damage is not None:
        yield found
        return
    source = open_source(location, options)
    yield found
    if isinstance(source, Savepoint):
        yield from _files_of(source)
    elif isinstance(source, JobHistory):
        yield from _history(root, source, options)


def _files_of(savepoint: Savepoint) -> Iterator[CheckedFile]:
    files = savepoint.directory
    for name, seal in savepoint.files():
        path = files.path / name
        try:
            with reading(files, name) as reader:
                reader.verify()
                if reader.info().seal != seal:
                    raise DamagedCheckpoint(f"{path} is not the file that {SAVEPOINT_FILE} names")
                yield CheckedFile(str(path), reader.size)
        except DamagedCheckpoint as exc:
            yield CheckedFile(str(path), 0, str(exc))


def _history(root: Directory, source: JobHistory, options: Mapping[str, Any]) -> Iterator[CheckedFile]:
    if root.exists(FINAL_FILE):
        yield _checked_manifest(root, FINAL_FILE)
    sound = True
    for uid in sorted(source.manifest.operators):
        for _, directory, identity in source.directories(uid):
            for found in _log(directory, identity):
                sound = sound and found.damage is None
                yield found
    if sound:  # each file by itself: is any missing?
        yield from _whole(source)
    if source.needs_origin() and source.manifest.restored_from is not None:
        yield from verify(source.manifest.restored_from, options)


def _whole(source: JobHistory) -> Iterator[CheckedFile]:
    try:
        for stored in source.operators().values():
            if stored.committed > stored.epoch:
                yield CheckedFile(
                    source.location,
                    0,
                    f"{source.location} has operator {stored.uid!r} up to epoch {stored.epoch}, but epoch "
                    f"{stored.committed} was committed: files of the newer epochs are missing",
                )
    except DamagedCheckpoint as exc:
        yield CheckedFile(source.location, 0, str(exc))


def _log(files: Directory, identity: LogIdentity) -> Iterator[CheckedFile]:
    """The files of one epoch log, each by itself and then as a history.

    Those declared void do not count, nor stored results that no epoch names: they are being written, or left over.
    """
    checked: list[CheckedFile] = []
    void: set[str] = set()
    outputs: set[str] = set()
    snapshots: dict[int, SegmentInfo] = {}
    for name in sorted(filter(_LOG_FILE.fullmatch, files.names()), reverse=True):  # an epoch before its results
        if name in void or (name.endswith(".output") and name not in outputs):
            continue
        found, info = _checked(files, name, identity)
        if found is not None:
            checked.append(found)
            yield found
        if info is not None:
            number = int(name[:12])
            void.update(f"{one:012d}.log" for one in range(number - info.header.get("void", 0), number))
            if info.header["kind"] == "snapshot":
                snapshots[number] = info
            if info.footer.get("output") is not None:
                outputs.add(f"{number:012d}-{info.header['writer']:012d}.output")
    for found in _without_base(files, snapshots):
        checked.append(found)
        yield found
    try:
        existing_chain(files, identity)
    except CheckpointError as exc:  # a sound file in the wrong place is damage, too
        if not any(found.damage is not None and found.path in str(exc) for found in checked):
            yield CheckedFile(str(files.path), 0, str(exc))


def _without_base(files: Directory, snapshots: Mapping[int, SegmentInfo]) -> Iterator[CheckedFile]:
    """The sound snapshots that do not stand on what they should, though the state may be there without them.

    One that is damaged has been told of. Those that a job replaces meanwhile are removed before what they stand on.
    """
    for number, info in snapshots.items():
        below, seal = info.header.get("since") or (number, info.seal)
        own, name = f"{number:012d}.snapshot", f"{below:012d}.snapshot"
        path = files.path / own
        damaged = below not in snapshots and files.exists(name)
        if not damaged and (below not in snapshots or snapshots[below].seal != seal) and files.exists(own):
            yield CheckedFile(str(path), 0, f"{path} stands on {name}, which is missing or another one; {WHAT_TO_DO}")


def _checked(files: Directory, name: str, identity: LogIdentity) -> tuple[CheckedFile | None, SegmentInfo | None]:
    """A file of a log and what it says of itself; None for one that was dropped meanwhile."""
    path = files.path / name
    try:
        with reading(files, name) as reader:
            info = reader.info()
            if not _belongs(info.header, name, identity):
                raise DamagedCheckpoint(f"{path} is sound, but it is another file than its name says")
            if info.header["kind"] == "output":
                for _ in reader.frames(info.seal):
                    pass
            else:
                reader.verify()
            return CheckedFile(str(path), reader.size), info
    except DamagedCheckpoint as exc:
        return CheckedFile(str(path), 0, str(exc)) if files.exists(name) else None, None


def _belongs(header: Mapping[str, Any], name: str, identity: LogIdentity) -> bool:
    kinds = _KINDS[name.rpartition(".")[2]]
    facts = {**asdict(identity), "sequence": int(name[:12])}
    return header.get("kind") in kinds and all(header.get(fact) == value for fact, value in facts.items())


def _checked_manifest(files: Directory, name: str) -> CheckedFile:
    path = str(files.path / name)
    try:
        read_checked(files, name)
        return CheckedFile(path, len(files.read(name)))
    except DamagedCheckpoint as exc:
        return CheckedFile(path, 0, str(exc))
    except FileNotFoundError:
        return CheckedFile(path, 0)
