"""Reads every byte of a checkpoint directory or a savepoint, and reports which files are damaged.

Rules of this module: it reads and reports, one file at a time, and continues after damage. A running job may replace
files meanwhile: a file that disappears is no damage, unless the history is incomplete without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from qstate.checkpoint.log.chain import LogIdentity, States, data_schema, reading
from qstate.checkpoint.log.file_facts import (
    LARGEST_MANIFEST,
    WHAT_TO_DO,
    FinalFacts,
    check_log_file,
    check_savepoint_file,
)
from qstate.checkpoint.log.file_names import FileKind, log_name, output_name, parse_name, snapshot_name
from qstate.checkpoint.log.log_identity import check_name, misplaced, owner_of
from qstate.checkpoint.log.operator_state import operator_state_of, operator_states_of
from qstate.checkpoint.log.segment import SegmentInfo, SegmentReader
from qstate.checkpoint.manifest import FINAL_FILE, MANIFEST_FILE, JobManifest, LogPlace, read_checked
from qstate.checkpoint.manifest import FORMAT as FINAL_FORMAT
from qstate.checkpoint.sources.content_check import ContentCheck, check_list_elements
from qstate.checkpoint.sources.history import JobHistory, existing_chain
from qstate.checkpoint.sources.origins import open_source
from qstate.checkpoint.sources.savepoint import SAVEPOINT_FILE, Savepoint
from qstate.checkpoint.storage.directory import Directory, doing
from qstate.checkpoint.storage.locations import NO_OPTIONS, open_directory
from qstate.errors import CheckpointError, DamagedCheckpoint
from qstate.keys import KeyGroupRange

__all__ = ["CheckedFile", "verify"]


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file (or a directory) that was checked, its size in bytes, and its damage, if any."""

    path: str
    size: int
    damage: str | None = None


def verify(location: str, options: Mapping[str, Any] = NO_OPTIONS) -> Iterator[CheckedFile]:
    """Check every file that counts, and yield each as it is checked. `options` are those of the storage.

    Raises `CheckpointError` when there is neither a checkpoint nor a savepoint, when a file cannot be read for another
    reason than damage, and for files of another version.
    """
    root = open_directory(location, options)
    with doing(f"read {root.path}", root):
        name = SAVEPOINT_FILE if root.exists(SAVEPOINT_FILE) else MANIFEST_FILE
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
    files, every = savepoint.directory, KeyGroupRange(0, savepoint.max_parallelism)
    for uid, stored in savepoint.operators().items():
        name, seal = savepoint.file(uid)
        path = files.path / name
        try:
            with reading(files, name) as reader:
                info = reader.sealed(seal)
                check_savepoint_file(info.header, path)
                facts = {"job": savepoint.job, "operator": uid, "epoch": stored.epoch, "states": list(stored.states)}
                facts["max_parallelism"] = savepoint.max_parallelism
                if any(info.header[fact] != value for fact, value in facts.items()):
                    raise DamagedCheckpoint(f"{path} is not the file that {SAVEPOINT_FILE} describes; {WHAT_TO_DO}")
                check = ContentCheck(path, stored.states, every, savepoint.max_parallelism, ascending=True, whole=True)
                _check_entries(reader, info, check)
                if savepoint.entries(uid) != check.entries:
                    raise DamagedCheckpoint(f"{path} has not as many entries as {SAVEPOINT_FILE} says; {WHAT_TO_DO}")
                check_list_elements(operator_states_of(info.footer, path), path)
                yield CheckedFile(str(path), reader.size)
        except DamagedCheckpoint as exc:
            yield CheckedFile(str(path), 0, str(exc))


def _check_entries(reader: SegmentReader, info: SegmentInfo, check: ContentCheck) -> None:
    """Read every byte of a file of changes, and check each entry. Raises `CheckpointError`."""
    for block in reader.indexed_changes(info):
        check.check(block)
    if check.entries != info.footer["entries"]:
        raise reader.damaged("has not as many entries as its footer says")


def _history(root: Directory, source: JobHistory, options: Mapping[str, Any]) -> Iterator[CheckedFile]:
    if root.exists(FINAL_FILE):
        yield _checked_manifest(root, FINAL_FILE)
    sound = True
    for uid in sorted(source.manifest.operators):
        for place in source.places(uid):
            for found in _log(place):
                sound = sound and found.damage is None
                yield found
    if sound:  # each file is sound by itself: check that none is missing
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


def _log(place: LogPlace) -> Iterator[CheckedFile]:
    """Check the files of one epoch log, each by itself and then as a history.

    Files declared void do not count, nor does output that no epoch names: it is being written, or left over.
    """
    checked: list[CheckedFile] = []
    log = _LogCheck(place.directory, place.identity)
    for found in chain(log.check(), _without_base(place.directory, log.snapshots)):
        checked.append(found)
        yield found
    try:
        existing_chain(place)
    except CheckpointError as exc:  # such as for a sound file in the wrong place
        if not any(found.damage is not None and found.path in str(exc) for found in checked):
            yield CheckedFile(str(place.directory.path), 0, str(exc))


class _LogCheck:
    """Checks the files of one epoch log, each by itself: first all headers and footers, then all contents."""

    def __init__(self, files: Directory, identity: LogIdentity) -> None:
        self._files = files
        self._identity = identity
        self._infos: dict[str, SegmentInfo] = {}
        #: The snapshots whose header and footer are sound, by their numbers.
        self.snapshots: dict[int, SegmentInfo] = {}

    def check(self) -> Iterator[CheckedFile]:
        names = sorted(filter(parse_name, self._files.names()), reverse=True)
        damaged = [found for found in map(self._checked_metadata, names) if found is not None]
        void = {
            log_name(number)
            for info in self._infos.values()
            for number in range(info.header["sequence"] - info.header.get("void", 0), info.header["sequence"])
        }
        outputs = {name: facts for info in self._infos.values() for name, facts in _output_of(info)}
        yield from (found for name, found in damaged if _counts(name, void, outputs))
        for name, info in self._infos.items():
            if _counts(name, void, outputs):
                yield from self._read(name, info, outputs.get(name))

    def _checked_metadata(self, name: str) -> tuple[str, CheckedFile] | None:
        """Check header and footer; returns the damage, None for a sound file and for one that was removed meanwhile."""
        path = self._files.path / name
        try:
            with reading(self._files, name) as reader:
                info = reader.info()
            check_log_file(info.header, path)
            if owner_of(info.header) != self._identity:
                raise misplaced(info.header, path, self._identity)
            check_name(info.header, name, path)
        except DamagedCheckpoint as exc:
            return (name, CheckedFile(str(path), 0, str(exc))) if self._files.exists(name) else None
        self._infos[name] = info
        if info.header["kind"] == "snapshot":
            self.snapshots[info.header["sequence"]] = info
        return None

    def _read(self, name: str, info: SegmentInfo, output: Mapping[str, int] | None) -> Iterator[CheckedFile]:
        path = self._files.path / name
        try:
            with reading(self._files, name) as reader:
                if info.header["kind"] == "output":
                    frames = sum(1 for _ in reader.frames(info.seal))
                    if output is None or (info.seal, frames) != (output["seal"], output["frames"]):
                        raise DamagedCheckpoint(f"{path} is not the output that its epoch names; {WHAT_TO_DO}")
                else:
                    _check_entries(reader, info, self._content(path, info))
                check_list_elements([operator_state_of(info.footer, path)], path)
                yield CheckedFile(str(path), reader.size)
        except DamagedCheckpoint as exc:
            if self._files.exists(name):
                yield CheckedFile(str(path), 0, str(exc))

    def _content(self, path: object, info: SegmentInfo) -> ContentCheck:
        header, identity = info.header, self._identity
        is_snapshot = header["kind"] == "snapshot"
        return ContentCheck(
            path,
            header["states"] if "states" in header else self._states_of(header["writer"], header["sequence"]),
            identity.key_groups,
            identity.max_parallelism,
            ascending=is_snapshot,
            whole=is_snapshot and "since" not in header,
        )

    def _states_of(self, writer: int, sequence: int) -> States:
        """The schemas of an epoch's data: those of its writer's opening or, if that is gone, of a later snapshot."""
        opening = self._infos.get(log_name(writer))
        if opening is not None:
            return tuple(opening.header.get("states", ()))
        since = [number for number in self.snapshots if writer <= number < sequence]
        return tuple(self.snapshots[max(since)].header["states"]) if since else ()


def _output_of(info: SegmentInfo) -> Iterator[tuple[str, Mapping[str, int]]]:
    header, facts = info.header, info.footer.get("output")
    if facts is not None:
        yield output_name(header["sequence"], header["writer"]), facts


def _counts(name: str, void: Collection[str], outputs: Collection[str]) -> bool:
    found = parse_name(name)
    is_output = found is not None and found.kind is FileKind.OUTPUT
    return name not in void and (not is_output or name in outputs)


def _without_base(files: Directory, snapshots: Mapping[int, SegmentInfo]) -> Iterator[CheckedFile]:
    """The sound snapshots whose snapshot below is missing or wrong, even if readers do not need them.

    A damaged snapshot below has been reported already. A job removes a snapshot before those that it builds on, so a
    snapshot that still exists must have all of them.
    """
    for number, info in snapshots.items():
        below, seal = info.header.get("since") or (number, info.seal)
        own, name = snapshot_name(number), snapshot_name(below)
        path = files.path / own
        damaged = below not in snapshots and files.exists(name)
        if not damaged and (below not in snapshots or snapshots[below].seal != seal) and files.exists(own):
            yield CheckedFile(str(path), 0, f"{path} builds on {name}, which is missing or another one; {WHAT_TO_DO}")
        elif not damaged and below in snapshots and _forms(snapshots[below]) != _forms(info):
            yield CheckedFile(str(path), 0, f"{path} builds on {name}, which has other schemas; {WHAT_TO_DO}")


def _forms(info: SegmentInfo) -> dict[str, Mapping[str, Any]]:
    return {plain["name"]: data_schema(plain) for plain in info.header["states"]}


def _read_manifest(files: Directory, name: str) -> None:
    if name == FINAL_FILE:
        read_checked(files, name, FINAL_FORMAT, FinalFacts)
    elif name == MANIFEST_FILE:
        JobManifest.read(files)
    else:
        Savepoint.read(files)


def _checked_manifest(files: Directory, name: str) -> CheckedFile:
    path = str(files.path / name)
    try:
        _read_manifest(files, name)
        return CheckedFile(path, len(files.read(name, LARGEST_MANIFEST)))
    except DamagedCheckpoint as exc:
        return CheckedFile(path, 0, str(exc))
    except FileNotFoundError:
        return CheckedFile(path, 0)
